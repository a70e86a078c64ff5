#!/usr/bin/env bash
# Everything that needs a GPU, on a machine that has one and no LLVM. Unpack
# what test/gpu/pack.py wrote into this checkout first.
#
#   test/gpu/run.sh            checks with the packed runtime, or builds one
#                              where that does not start; prints a table
#   test/gpu/run.sh --list     says what it would check
#   test/gpu/run.sh --bin-dir DIR [--pack DIR]   with a runtime built elsewhere
#   test/gpu/run.sh --only CHECK[,CHECK...]      some of: plans models
#                              collectives nccl conformance sanitizer
#                              benchmark calibration
#   test/gpu/run.sh --results DIR  for what was measured; in the pack
#   test/gpu/run.sh --minutes N    for all of it; 28, and every check is bounded
#
# What says most about a fresh machine comes first, and what is out of time is a
# failure that says so. Where a command may take ten minutes at most:
# --only plans,models,collectives,nccl, then --only conformance,sanitizer, then
# --only benchmark, then, in the same --results, --only calibration. PyTorch is needed for the second column of the benchmark
# alone. Exit code 0: all passed; 1: something failed; 3: no GPU, only what needs
# none was checked, and passed.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin= pack=$root/build/gpu-pack list=0 minutes=28 measured=
all="plans models collectives nccl conformance sanitizer benchmark calibration"
only=
while [ $# -gt 0 ]; do
  case $1 in
    --list) list=1; shift ;;
    --bin-dir) bin=$2; shift 2 ;;
    --pack) pack=$2; shift 2 ;;
    --only) only=${2//,/ }; shift 2 ;;
    --minutes) minutes=$2; shift 2 ;;
    --results) measured=$2; shift 2 ;;
    *) sed -n '2,20s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
measured=${measured:-$pack/results}

for name in $only; do
  case " $all " in
    *" $name "*) ;;
    *) echo "--only: expected some of: $all; found \"$name\"" >&2; exit 2 ;;
  esac
done
chosen() { case " ${only:-$all} " in *" $1 "*) ;; *) return 1 ;; esac; }

if [ $list = 1 ]; then
  echo "test/gpu/run.sh checks"
  echo "  plans: merak-plan accepts every packed plan, its kernels and model are there"
  echo "  conformance: every library kernel against its reference, in every"
  echo "    memory layout, and every type, on the device"
  echo "  collectives: every collective and transfer of ranks that share a"
  echo "    device, and of NCCL with a process for each GPU"
  python3 "$root/test/gpu/check.py" --list
  echo "  memory: compute-sanitizer over the smallest model"
  echo "  benchmark: bench/gpu/run.py, GPT-2 124M and 1.5B beside PyTorch, and a"
  echo "    profile of where the time goes"
  echo "  calibration: bench/gpu/calibrated.py, the simulator's step beside the"
  echo "    measured one, with rates measured on the device"
  exit 0
fi
gpu=1
if nvidia-smi -L >/dev/null 2>&1; then
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
else
  gpu=0
fi

names=() results=() details=()
record() { names+=("$1"); results+=("$2"); details+=("$3"); }
# suite NAME SECONDS COMMAND...: the last line of the output is the detail. 124
# is the exit code of `timeout`.
suite() {
  local name=$1 seconds=$2 left=$((60 * minutes - SECONDS)) log rc=0 detail
  shift 2
  chosen "$name" || return 0
  if [ $left -lt 10 ]; then
    record "$name" FAILED "no time is left of $minutes minutes"
    return 0
  fi
  [ $left -ge "$seconds" ] || seconds=$left
  log=$(mktemp)
  echo "== $name"
  export MERAK_CHECK_SECONDS=$seconds
  timeout --kill-after=5 "$seconds" "$@" 2>&1 | tee "$log" || rc=$?
  detail=$(tail -1 "$log")
  case $rc in
    124 | 137) detail="did not end in $seconds s; $detail" ;;
  esac
  if [ $rc = 0 ]; then record "$name" passed "$detail"
  else record "$name" FAILED "$detail"; fi
  rm -f "$log"
}
skipped() { if chosen "$1"; then record "$1" skipped "$2"; fi; }

# The key by which the packed plans are signed.
[ ! -f "$pack/key" ] || export MERAK_KEY=$pack/key
# Libraries of CUDA that came with Python packages, where there is no toolkit.
wheels=$(python3 -c 'import glob, sysconfig
print(":".join(glob.glob(sysconfig.get_path("purelib") + "/nvidia/*/lib")))')
[ -z "$wheels" ] ||
  export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$wheels
if [ -z "$bin" ] && "$pack/runtime/bin/merak-plan" --help >/dev/null 2>&1; then
  bin=$pack/runtime/bin
fi
if [ -z "$bin" ]; then
  build=$root/build/gpu
  echo "== building the runtime"
  if ! cmake --preset runtime-only -S "$root" -B "$build" \
      -DMERAK_CUDA=ON >/dev/null || ! ninja -C "$build"; then
    echo "the runtime does not build here"; exit 1
  fi
  bin=$build/bin
fi
# One process for each GPU, under torchrun's variables; the first one speaks.
nccl='count=$(nvidia-smi -L | wc -l)
export WORLD_SIZE=$count MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000))
for ((rank = 1; rank < count; rank++)); do
  RANK=$rank LOCAL_RANK=$rank "$0/merak-conformance" nccl >/dev/null &
  others+=($!)
done
RANK=0 LOCAL_RANK=0 "$0/merak-conformance" nccl || failed=1
for rank in "${others[@]}"; do wait "$rank" || failed=1; done
exit ${failed:-0}'
table() {
  local failed=0 made=0 where=$1 i
  echo
  for i in "${!names[@]}"; do
    printf '%-12s %-8s %s\n' "${names[$i]}" "${results[$i]}" "${details[$i]}"
    [ "${results[$i]}" = FAILED ] && failed=1
    [ "${results[$i]}" = skipped ] || made=$((made + 1))
  done
  echo "$made of ${#names[@]} checks were made on $where"
  return $failed
}

if [ -d "$pack" ]; then
  suite plans 60 python3 "$root/test/gpu/check.py" --bin-dir "$bin" \
    --pack "$pack" --plans
elif chosen plans; then
  record plans FAILED "none: unpack what test/gpu/pack.py wrote"
fi
if [ $gpu = 0 ]; then
  for name in ${all#plans }; do
    skipped $name "needs a GPU"
  done
  table "a machine without a GPU" || exit 1
  echo "no GPU: nvidia-smi finds none"
  exit 3
fi
# From what says most about a fresh machine to what takes longest. The limits
# add up to less than 28 minutes.
[ ! -d "$pack" ] || suite models 270 python3 "$root/test/gpu/check.py" \
  --bin-dir "$bin" --pack "$pack"
suite collectives 90 "$bin/merak-conformance" cuda "inproc on cuda"
suite nccl 60 bash -c "$nccl" "$bin"
suite conformance 240 env MERAK_CUDA_TEST_DEVICE=0 \
  "$bin/MerakCudaTests" --gtest_brief=1 --gtest_filter='*Conformance*'
sanitizer=$(command -v compute-sanitizer ||
  ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ ! -d "$pack" ]; then :
elif [ -n "$sanitizer" ]; then
  suite sanitizer 150 python3 "$root/test/gpu/check.py" --bin-dir "$bin" \
    --pack "$pack" --sanitizer "$sanitizer"
else
  skipped sanitizer "compute-sanitizer is not installed"
fi
if [ -d "$pack/bench" ]; then
  suite benchmark 520 python3 "$root/bench/gpu/run.py" --bin-dir "$bin" \
    --pack "$pack/bench" --results "$measured"
  suite calibration 240 python3 "$root/bench/gpu/calibrated.py" \
    --bin-dir "$bin" --pack "$pack/bench" --results "$measured"
else
  skipped benchmark "packed without --bench"
  skipped calibration "packed without --bench"
fi
table "$(nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c |
  sed 's/^ *//')"
