# What scripts/check --sanitize does; sourced behind build.sh, with its `compile`.

# By kind of build, its suites. lit and the large suites of plans say the same of
# the compiler as those here and take a day.
declare -A sanitized=(
  [asan]="unit fuzz bad-input checkpoint infer identity dropout export hostile mpi"
  [tsan]="unit checkpoint infer identity dropout")

# A finding ends the program that has it, so that its test fails. What LLVM keeps
# until the end of a process is no leak of ours; tests ask for sizes that no
# machine has.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=0
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1

# Those suites of a kind that --only=A,B names.
chosen_suites() {
  local wanted=$2 suite found=
  for suite in ${sanitized[$1]}; do
    case ",${wanted:-$suite}," in *",$suite,"*) found+=,$suite ;; esac
  done
  echo "${found#,}"
}

sanitize_one() {
  local only
  preset=$1 build=$root/build/$1 logs=$root/build/$1/logs
  only=$(chosen_suites "$1" "$2")
  [ -n "$only" ] || return 0
  if [ "$compile" = 1 ] && ! configure_and_build -DMERAK_BUILD_TESTS=ON; then
    echo "0 passed, 1 failed"
    return 0
  fi
  # Without a compiler of its own the runtime runs what the other one made.
  [ "$1" = asan ] || ln -sf ../../asan/bin/merakc "$build/bin/merakc"
  python3 "$root/scripts/lib/suites.py" --build "$build" --jobs "$jobs" \
    --only "$only" || true
}

# Ends with `N passed, M failed` of all; the exit code says whether M is 0.
sanitize() {
  local argument wanted= kind
  mkdir -p "$root/build"
  for argument in "$@"; do
    case $argument in --only=*) wanted=${argument#--only=} ;; esac
  done
  for kind in asan tsan; do
    say "$kind"
    sanitize_one $kind "$wanted" | tee "$root/build/$kind.log"
  done
  cat "$root"/build/{asan,tsan}.log | awk '
    /^[0-9]+ passed, [0-9]+ failed$/ {passed += $1; failed += $3}
    END {printf "%d passed, %d failed\n", passed, failed; exit failed > 0 || !passed}'
}
