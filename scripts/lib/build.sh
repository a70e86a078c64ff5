# Shared by scripts/demo and scripts/check: where things are, and building.
# Sourced; expects `set -euo pipefail`.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
preset=release
build=${MERAK_BUILD_DIR:-$root/build/$preset}
logs=$build/logs
jobs=${MERAK_JOBS:-$(nproc)}
# Progress of one line a second is enough when nobody watches.
export NINJA_STATUS='[%f/%t %es] '

say() { printf '== %s\n' "$*"; }

# Runs a command with its output in $logs/NAME.log; shows the end on failure.
logged() {
  local name=$1 rc=0; shift
  mkdir -p "$logs"
  "$@" >"$logs/$name.log" 2>&1 || rc=$?
  if [ $rc != 0 ]; then
    tail -40 "$logs/$name.log" >&2
    echo "failed (exit code $rc): $*" >&2
    echo "full log: $logs/$name.log" >&2
  fi
  return $rc
}

# A C++ compiler needs up to 2 GB for a file that includes much of MLIR.
compile_jobs() {
  local kib by_memory
  kib=$(awk '/MemAvailable/ {print $2}' /proc/meminfo)
  by_memory=$((kib / 1800000))
  [ "$by_memory" -ge 1 ] || by_memory=1
  echo $((jobs < by_memory ? jobs : by_memory))
}

# configure_and_build [-DNAME=VALUE ...] [-- TARGET ...]
configure_and_build() {
  local options=()
  while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
  [ $# -eq 0 ] || shift
  say "configuring ${build#"$root"/}"
  logged configure cmake --preset "$preset" -S "$root" -B "$build" \
    "${options[@]}" || return 1
  say "building with $(compile_jobs) jobs"
  local rc=0
  mkdir -p "$logs"
  # One line a percent: the last lines of a log tell how far it came.
  ninja -C "$build" -j "$(compile_jobs)" "$@" 2>&1 |
    tee "$logs/build.log" |
    awk '/^\[[0-9]+\/[0-9]+ / {
           split(substr($1, 2), f, "/"); n = int(20 * f[1] / f[2])
           if (n != last) { last = n; print "  " $1 " " $2; fflush() }
           next }
         { print; fflush() }' || rc=$?
  if [ $rc != 0 ]; then
    echo "the build failed; full log: $logs/build.log" >&2
  fi
  return $rc
}
