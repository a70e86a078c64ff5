# What scripts/check --sanitize does; sourced behind build.sh, with its `compile`.

# By kind of build, its suites. lit and the large suites of plans say the same of
# the compiler as those here and take a day. Without --all those here are short.
declare -A sanitized=(
  [asan]="unit fuzz bad-input checkpoint infer identity dropout export hostile arena mpi"
  [tsan]="unit checkpoint infer identity dropout mpi migration sparse rates elastic")
# The kernels that merakc generates, by whose runtime they are to be looked at.
declare -A kernels=([asan]=address [tsan]=thread)
# What test/unit/support/PlantFinding.cpp has for it.
declare -A planted=([asan]="overrun overflow abort" [tsan]=race)
# Seconds of a test program or a command; release builds have 300 or 600.
limit=3000

# A finding ends the program that has it, with an exit code that no tool gives, and
# is a file: neither a test that expects a failure nor one that looks at no exit code
# hides it. GCC's UBSan beside AddressSanitizer ends a program with 1, as tools do that
# refuse, and leaves no file: it aborts instead, which AddressSanitizer reports,
# whoever else would handle that signal; it must have the path too, or it takes the
# other's reports off it. SIGBUS belongs to the tests of files that shrink; LLVM gives
# threads a stack for signals that AddressSanitizer would take for its own. What LLVM
# keeps until the end of a process is no leak of ours; tests ask for sizes that no
# machine has. Longer stacks of allocations cost the compiler 7 % of its time.
report_options() {
  local common=exitcode=99:handle_sigbus=0:use_sigaltstack=0:log_path=$reports/report:log_exe_name=1
  mkdir -p "$reports"
  find "$reports" -type f -delete
  export ASAN_OPTIONS=$common:detect_leaks=0:allocator_may_return_null=1
  ASAN_OPTIONS+=:detect_stack_use_after_return=0:handle_abort=2:malloc_context_size=6
  export UBSAN_OPTIONS=$common:print_stacktrace=1:abort_on_error=1
  export TSAN_OPTIONS=$common:halt_on_error=1:second_deadlock_stack=1
  TSAN_OPTIONS+=:suppressions=$root/scripts/lib/tsan-suppressions.txt
  export MERAK_SANITIZE_KERNELS=${kernels[$1]}
}

# Those suites of a kind that --only=A,B names.
chosen_suites() {
  local wanted=$2 suite found=
  for suite in ${sanitized[$1]}; do
    case ",${wanted:-$suite}," in *",$suite,"*) found+=,$suite ;; esac
  done
  echo "${found#,}"
}

# The runtime alone is built for ThreadSanitizer: its plans are those of the
# compiler in build/release.
release_compiler() {
  local preset=release build=$root/build/release logs=$root/build/release/logs
  if [ "$compile" = 1 ]; then
    configure_and_build -DMERAK_BUILD_TESTS=ON -- merakc || return 1
  fi
  ln -sf ../../release/bin/merakc "$root/build/tsan/bin/merakc"
}

# One planted finding of each sort must be seen before others are looked for.
show_planted() {
  local plant seen code passed=0 failed=0
  for plant in ${planted[$1]}; do
    code=0
    "$build/bin/merak-plant-finding" "$plant" >"$logs/planted.log" 2>&1 || code=$?
    seen=$(find "$reports" -type f | wc -l)
    if [ $code = 99 ] && [ "$seen" = 1 ]; then
      passed=$((passed + 1))
    else
      echo "FAILED: the planted $plant ends with $code, expected 99, and is $seen" \
        "reports, expected 1"
      failed=$((failed + 1))
    fi
    find "$reports" -type f -delete
  done
  echo "$passed passed, $failed failed"
}

# AddressSanitizer says once of a program with stacks of its own, as the emulated
# device has for the threads of a block, that it may not follow them. Alone that is
# no report.
drop_remarks() {
  local file
  for file in "$reports"/*; do
    [ -f "$file" ] || continue
    grep -qv "WARNING: ASan doesn't fully support makecontext/swapcontext" "$file" ||
      rm "$file"
  done
}

# The first lines of each report; one is one failure.
show_reports() {
  local report count=0
  for report in "$reports"/*; do
    [ -f "$report" ] || continue
    count=$((count + 1))
    [ $count -gt 5 ] || head -30 "$report" | sed 's/^/  | /'
  done
  [ $count = 0 ] && return
  echo "  reports of sanitizers: $reports"
  echo "0 passed, $count failed"
}

sanitize_one() {
  local only options=(--short)
  preset=$1 build=$root/build/$1 logs=$root/build/$1/logs
  local reports=$logs/reports
  only=$(chosen_suites "$1" "$2")
  [ "$3" = short ] || options=()
  [ -n "$only" ] || return 0
  if [ "$compile" = 1 ] && ! configure_and_build -DMERAK_BUILD_TESTS=ON; then
    echo "0 passed, 1 failed"
    return 1
  fi
  if [ "$1" = tsan ] && ! release_compiler; then
    echo "0 passed, 1 failed"
    return 1
  fi
  local code=0
  report_options "$1"
  show_planted "$1"
  python3 "$root/scripts/lib/suites.py" --build "$build" --jobs "$jobs" \
    --only "$only" --timeout $limit "${options[@]}" || code=$?
  drop_remarks
  show_reports
  return $code
}

# sanitize KINDS [--only=A,B] [--all]. Ends with `N passed, M failed` of all; the exit
# code says whether M is 0. A kind that did not come to its end has failed, whatever was
# counted until then.
sanitize() {
  local argument wanted= size=short kind code=0 kinds=$1
  shift
  mkdir -p "$root/build"
  for argument in "$@"; do
    case $argument in
      --only=*) wanted=${argument#--only=} ;;
      --all) size=all ;;
    esac
  done
  local counted=()
  for kind in $kinds; do
    say "$kind"
    counted+=("$root/build/$kind.log")
    sanitize_one $kind "$wanted" $size | tee "${counted[-1]}" || code=1
  done
  cat "${counted[@]}" | awk -v code=$code '
    /^[0-9]+ passed, [0-9]+ failed$/ {passed += $1; failed += $3}
    END {if (code && !failed) failed = 1
         printf "%d passed, %d failed\n", passed, failed
         exit failed > 0 || !passed}'
}
