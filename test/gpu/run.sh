#!/usr/bin/env bash
# Everything that needs a GPU, on a machine that has one and no LLVM. Unpack
# what test/gpu/pack.py wrote into this checkout first.
#
#   test/gpu/run.sh            builds the runtime, checks, prints a table
#   test/gpu/run.sh --list     says what it would check
#   test/gpu/run.sh --bin-dir DIR [--pack DIR]   with a runtime built elsewhere
#
# Exit code 0: all passed; 1: something failed; 3: no GPU, nothing was checked.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin= pack=$root/build/gpu-pack list=0
while [ $# -gt 0 ]; do
  case $1 in
    --list) list=1; shift ;;
    --bin-dir) bin=$2; shift 2 ;;
    --pack) pack=$2; shift 2 ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done

say_what() {
  echo "  conformance: every library kernel against its reference, in every"
  echo "    memory layout, and every type, on the device"
  echo "  collectives: every collective and transfer of ranks that share a"
  echo "    device, and of NCCL with a process for each GPU"
  python3 "$root/test/gpu/check.py" --list
  echo "  memory: compute-sanitizer over the smallest model"
  echo "  benchmark: bench/gpu/run.py, GPT-2 124M and 1.5B beside PyTorch"
}
if [ $list = 1 ]; then echo "test/gpu/run.sh checks"; say_what; exit 0; fi
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "no GPU: nvidia-smi finds none. On a machine with one this would check"
  say_what
  exit 3
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

names=() results=() details=()
record() { names+=("$1"); results+=("$2"); details+=("$3"); }
# suite NAME COMMAND...: the last line of the output is the detail.
suite() {
  local name=$1 log rc=0; shift
  log=$(mktemp)
  echo "== $name"
  "$@" 2>&1 | tee "$log" || rc=1
  if [ $rc = 0 ]; then record "$name" passed "$(tail -1 "$log")"
  else record "$name" FAILED "$(tail -1 "$log")"; fi
  rm -f "$log"
}

if [ -z "$bin" ]; then
  build=$root/build/gpu
  echo "== building the runtime"
  if ! cmake --preset runtime-only -S "$root" -B "$build" \
      -DMERAK_CUDA=ON >/dev/null || ! ninja -C "$build"; then
    echo "the runtime does not build here"; exit 1
  fi
  bin=$build/bin
fi
suite conformance env MERAK_CUDA_TEST_DEVICE=0 \
  "$bin/MerakCudaTests" --gtest_brief=1 --gtest_filter='*Conformance*'
# One process for each GPU, under torchrun's variables; the first one speaks.
nccl() {
  local count rank failed=0 others=()
  count=$(nvidia-smi -L | wc -l)
  export WORLD_SIZE=$count MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000))
  for ((rank = 1; rank < count; rank++)); do
    RANK=$rank LOCAL_RANK=$rank "$bin/merak-conformance" nccl >/dev/null &
    others+=($!)
  done
  RANK=0 LOCAL_RANK=0 "$bin/merak-conformance" nccl || failed=1
  for rank in "${others[@]}"; do wait "$rank" || failed=1; done
  return $failed
}
suite collectives "$bin/merak-conformance" cuda "inproc on cuda"
suite nccl nccl
if [ -d "$pack" ]; then
  suite models python3 "$root/test/gpu/check.py" --bin-dir "$bin" --pack "$pack"
  sanitizer=$(command -v compute-sanitizer ||
    ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
  if [ -n "$sanitizer" ]; then
    suite sanitizer python3 "$root/test/gpu/check.py" --bin-dir "$bin" \
      --pack "$pack" --sanitizer "$sanitizer"
  else
    record sanitizer skipped "compute-sanitizer is not installed"
  fi
else
  record models FAILED "no plans: unpack what test/gpu/pack.py wrote"
fi
if [ -d "$pack/bench" ]; then
  suite benchmark python3 "$root/bench/gpu/run.py" --bin-dir "$bin" \
    --pack "$pack/bench"
else
  record benchmark skipped "packed without --bench"
fi

echo
failed=0 made=0
for i in "${!names[@]}"; do
  printf '%-12s %-8s %s\n' "${names[$i]}" "${results[$i]}" "${details[$i]}"
  [ "${results[$i]}" = FAILED ] && failed=1
  [ "${results[$i]}" = skipped ] || made=$((made + 1))
done
echo "$made of ${#names[@]} checks were made on $(nvidia-smi \
  --query-gpu=name --format=csv,noheader | sort | uniq -c | sed 's/^ *//')"
exit $failed
