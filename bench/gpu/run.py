#!/usr/bin/env python3
"""GPT-2 on one GPU, beside PyTorch: tokens a second and MFU.

    run.py --bin-dir DIR --pack DIR [--models gpt2-124m,gpt2-1.5b,gpt2-1.5b-16]
           [--steps 20]
           [--torch blocks,best] [--no-torch] [--seconds 520] [--results DIR]

gpt2-1.5b-16: the same with microbatches of twice the samples.

T = 1024, bf16, AdamW, random tokens, the same batch in every step. MFU = (6 N +
12 L d T) tok/s over 989 TFLOP/s. The median step counts, without the first five.
PyTorch runs torch_gpt.py with the same weights and tokens, in the forms that
--torch names (see there): flash attention through SDPA, fused AdamW, bf16
autocast; where it is missing, its rows are. The first losses must be PyTorch's,
and no step of ours may be skipped or without a finite loss.
Plans come from test/gpu/pack.py --bench. Our models come first, and no run takes
more than what is left of --seconds (or of MERAK_CHECK_SECONDS).

After ours a few steps are traced by the device's clock, without graphs: a table
of where the time goes. --results (by default the pack) gets MODEL-trace.json for
chrome://tracing, and measured.json, with which calibrated.py compares what the
simulator says.
"""
import argparse
import array
import json
import math
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import models

sys.path.insert(0, os.path.join(models.HERE, ".."))
import where_time_goes  # noqa: E402

WARM_UP = 5
TRACED = 5     # steps
AT_MOST = 240  # seconds of one run
COMPARED, LOSS = 3, 1e-2  # losses, relative
GOAL_RATIO = 1.1
GOAL_MFU = {"gpt2-1.5b": 0.58, "gpt2-1.5b-16": 0.58}


def write_weights(path, tensors):
    """Values as a fresh model has them: a block of random numbers again and
    again. Zeros would be quicker to multiply."""
    generator = random.Random(1)
    drawn = [generator.gauss(0, 1) for _ in range(1 << 20)]
    blocks = {}
    with open(path + ".part", "wb") as file:
        for _, shape, deviation, mean in tensors:
            if (deviation, mean) not in blocks:
                blocks[deviation, mean] = array.array(
                    "f", (mean + deviation * x for x in drawn))
            block = blocks[deviation, mean]
            left = math.prod(shape)
            while left > 0:
                part = block if left >= len(block) else block[:left]
                part.tofile(file)
                left -= len(part)
    os.rename(path + ".part", path)


def write_tokens(folder, samples):
    """tokens.npy and labels.npy of so many samples; a token's label is the
    next."""
    os.makedirs(folder, exist_ok=True)
    generator = random.Random(2)
    rows = [[generator.randrange(models.VOCABULARY)
             for _ in range(models.CONTEXT + 1)] for _ in range(samples)]
    for name, begin in (("tokens", 0), ("labels", 1)):
        header = (f"{{'descr': '<i8', 'fortran_order': False, 'shape': "
                  f"({samples}, {models.CONTEXT}), }}")
        header += " " * (-(10 + len(header) + 1) % 64) + "\n"
        with open(os.path.join(folder, name + ".npy"), "wb") as file:
            file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) +
                       header.encode())
            for row in rows:
                array.array("q", row[begin:begin + models.CONTEXT]).tofile(file)


def report(name, tool, seconds, info):
    """What is known of a model by a tool, for measured.json."""
    tokens = info["samples"] * info["microbatches"] * models.CONTEXT
    rate = tokens / statistics.median(seconds[WARM_UP:])
    flops = models.flops_per_token(info["parameters"], info["layers"],
                                   info["width"])
    mfu = flops * rate / models.PEAK
    print(f"{name:<10} {tool:<6} {tokens / rate * 1e3:9.2f} ms "
          f"{rate:10.0f} tok/s  MFU {100 * mfu:5.1f} %", flush=True)
    return {"seconds": tokens / rate, "tokens_per_second": rate, "mfu": mfu}


def run(args, name, tool, command):
    """What it printed; None, and a line that says why, if it failed."""
    left = min(AT_MOST, args.until - time.monotonic())
    if left < 5:
        print(f"{name:<10} {tool:<6} no time is left", flush=True)
        return None
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True,
                              errors="replace", timeout=left)
    except subprocess.TimeoutExpired:
        print(f"{name:<10} {tool:<6} did not end in {left:.0f} s", flush=True)
        return None
    for line in done.stderr.splitlines():
        if line.startswith(("attention and", "note: ")) or done.returncode:
            print(f"{name:<10} {tool:<6} {line}", flush=True)
    return None if done.returncode else done.stdout


def ours(args, name, info):
    folder = os.path.join(args.pack, name)
    data = "synthetic"
    if "tensors" in info:
        weights = os.path.join(folder, "model.onnx.data")
        if not os.path.exists(weights):
            write_weights(weights, info["tensors"])
        data = os.path.join(folder, "data")
        if not os.path.exists(data):
            write_tokens(data, info["samples"] * info["microbatches"])
    with tempfile.TemporaryDirectory() as temporary:
        log = os.path.join(temporary, "log.jsonl")
        if run(args, name, "merak",
               [os.path.join(args.bin_dir, "merak-run"),
                os.path.join(folder, "plan"), f"--backend={args.backend}",
                f"--model-dir={folder}", f"--data={data}", "--verify=off",
                f"--steps={args.steps + WARM_UP}", f"--log={log}"]) is None:
            return None
        with open(log, encoding="utf-8") as file:
            steps = [json.loads(line) for line in file]
    steps = [s for s in steps if "seconds" in s]
    result = report(name, "merak", [s["seconds"] for s in steps], info)
    result["losses"] = [s.get("loss") for s in steps]
    result["skipped"] = sum(s.get("skipped", False) for s in steps)
    return result


def profile(args, name):
    folder = os.path.join(args.pack, name)
    path = os.path.join(args.results, name + "-trace.json")
    if run(args, name, "merak",
           [os.path.join(args.bin_dir, "merak-run"),
            os.path.join(folder, "plan"), f"--backend={args.backend}",
            f"--model-dir={folder}", "--data=synthetic", "--verify=off", f"--steps={TRACED}",
            f"--trace={path}"]) is None:
        return
    with open(path, encoding="utf-8") as file:
        lines = where_time_goes.table(json.load(file), models.PEAK / 1e9)
    print("\n".join(f"{name:<10} {line}" for line in lines), flush=True)


def cudnn_problem(args):
    """Why attention would not run by cuDNN; empty if it does."""
    said = subprocess.run([os.path.join(args.bin_dir, "merak-run"), "--version"],
                          capture_output=True, text=True, check=True).stdout
    line = next((line for line in said.splitlines()
                 if line.startswith("cuDNN: ")), "cuDNN: unknown")
    return "" if ", found " in line else line


def gpu_gib():
    """Memory of the GPU; None where that cannot be known."""
    try:
        said = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.total",
             "--format=csv,noheader,nounits"],
            capture_output=True, text=True, check=True).stdout
        return float(said.splitlines()[0]) / 1024
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return None


def torch(args, name, info, form):
    printed = run(args, name, form,
                  [sys.executable, os.path.join(models.HERE, "torch_gpt.py"),
                   os.path.join(args.pack, name), str(args.steps + WARM_UP),
                   form])
    if printed is None:
        return None
    said = json.loads(printed.splitlines()[-1])
    return {**report(name, form, said["seconds"], info),
            "losses": said["losses"]}


def problem_of(mine, others):
    """What is wrong with our losses, and beside PyTorch's; None: nothing."""
    if mine["skipped"]:
        return f"{mine['skipped']} steps were skipped"
    for step, loss in enumerate(mine["losses"], 1):
        if loss is None or not math.isfinite(loss):
            return f"the loss of step {step} is {loss}"
    for form, other in others.items():
        for step, (x, y) in enumerate(zip(mine["losses"][:COMPARED],
                                          other["losses"]), 1):
            if not abs(x - y) <= LOSS * abs(y):
                return (f"the loss of step {step} is {x:.5f}, PyTorch's "
                        f"({form}) {y:.5f}")
    return None


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bin-dir", required=True)
    parser.add_argument("--pack", required=True)
    parser.add_argument("--models", default=",".join(models.MODELS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--torch", default="blocks,best")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--backend", default="cuda", choices=["cuda", "cpu"],
                        help="cpu: to try this script")
    parser.add_argument("--seconds", type=float, default=float(
        os.environ.get("MERAK_CHECK_SECONDS", 520)))
    parser.add_argument("--results", help="folder; by default the pack")
    args = parser.parse_args()
    if args.backend == "cuda":
        problem = cudnn_problem(args)
        if problem:
            sys.exit(f"{args.bin_dir}/merak-run: {problem}; without it attention "
                     "is slow and nothing here would be worth knowing")
    args.results = args.results or args.pack
    os.makedirs(args.results, exist_ok=True)
    args.until = time.monotonic() + args.seconds - 10
    infos = {}
    memory = gpu_gib() if args.backend == "cuda" else None
    for name in args.models.split(","):
        with open(os.path.join(args.pack, name, "model.json"),
                  encoding="utf-8") as file:
            info = json.load(file)
        if memory is not None and memory < info.get("memory_gib", 0):
            print(f"{name:<10} left out: it takes {info['memory_gib']} GiB, the "
                  f"GPU has {memory:.0f}", flush=True)
        else:
            infos[name] = info
    measured = {name: {"merak": ours(args, name, info)}
                for name, info in infos.items()}
    for name in measured:
        if measured[name]["merak"]:
            profile(args, name)
    for name, info in infos.items():
        for form in () if args.no_torch else args.torch.split(","):
            measured[name][form] = torch(args, name, info, form)
    with open(os.path.join(args.results, "measured.json"), "w",
              encoding="utf-8") as file:
        json.dump(measured, file, indent=1)
    return conclude(measured)


def conclude(measured):
    """The last line, and the exit code: a missed goal is told, not a failure."""
    ratios, missed, failed = [], [], []
    for name, by_tool in measured.items():
        mine = by_tool["merak"]
        others = {form: other for form, other in by_tool.items()
                  if other and form != "merak"}
        if not mine:
            failed.append(name)
            continue
        problem = problem_of(mine, others)
        if problem:
            failed.append(f"{name}: {problem}")
        if others:
            ratio = mine["tokens_per_second"] / max(
                other["tokens_per_second"] for other in others.values())
            ratios.append(f"{name} {ratio:.2f}")
            if ratio < GOAL_RATIO:
                missed.append(f"{name} {ratio:.2f} of PyTorch")
        if mine["mfu"] < GOAL_MFU.get(name, 0):
            missed.append(f"{name} MFU {100 * mine['mfu']:.1f} % of "
                          f"{100 * GOAL_MFU[name]:.0f}")
    print("ratio to the faster PyTorch: " +
          (", ".join(ratios) or "not measured") +
          (f"; goals missed: {', '.join(missed)}" if missed else "") +
          (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
