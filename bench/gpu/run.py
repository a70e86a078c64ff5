#!/usr/bin/env python3
"""GPT-2 on one GPU, beside PyTorch: tokens a second and MFU.

    run.py --bin-dir DIR --pack DIR [--models gpt2-124m,gpt2-1.5b] [--steps 20]
           [--no-torch]

T = 1024, bf16, AdamW, synthetic tokens. MFU = (6 N + 12 L d T) tok/s over
989 TFLOP/s. The median step counts, without the first five. PyTorch runs
torch_gpt.py with the same batch in the same way: torch.compile, flash attention
through SDPA, fused AdamW, bf16 autocast. Plans come from
test/gpu/pack.py --bench.
"""
import argparse
import json
import os
import random
import array
import statistics
import subprocess
import sys
import tempfile

import models

WARM_UP = 5


def write_weights(path, parameters):
    """Values as a fresh model has them, deviation 0.02: a block of random
    numbers again and again. Zeros would be quicker to multiply."""
    generator = random.Random(1)
    block = array.array("f", (generator.gauss(0, 0.02)
                              for _ in range(1 << 20)))
    with open(path, "wb") as file:
        left = parameters
        while left > 0:
            part = block if left >= len(block) else block[:left]
            part.tofile(file)
            left -= len(part)


def report(name, tool, seconds, info):
    tokens = info["samples"] * info["microbatches"] * models.CONTEXT
    rate = tokens / statistics.median(seconds[WARM_UP:])
    flops = models.flops_per_token(info["parameters"], info["layers"],
                                   info["width"])
    mfu = flops * rate / models.PEAK
    print(f"{name:<10} {tool:<6} {tokens / rate * 1e3:9.2f} ms "
          f"{rate:10.0f} tok/s  MFU {100 * mfu:5.1f} %", flush=True)
    return rate


def ours(args, name, info):
    folder = os.path.join(args.pack, name)
    data = os.path.join(folder, "model.onnx.data")
    if not os.path.exists(data):
        write_weights(data, info["parameters"])
    with tempfile.TemporaryDirectory() as temporary:
        log = os.path.join(temporary, "log.jsonl")
        subprocess.run(
            [os.path.join(args.bin_dir, "merak-run"),
             os.path.join(folder, "plan"), "--backend=cuda",
             f"--model-dir={folder}", "--data=synthetic",
             f"--steps={args.steps + WARM_UP}", f"--log={log}"],
            check=True, stdout=subprocess.DEVNULL)
        with open(log, encoding="utf-8") as file:
            steps = [json.loads(line) for line in file]
    return report(name, "merak", [s["seconds"] for s in steps
                                  if "seconds" in s], info)


def torch(args, name, info):
    done = subprocess.run(
        [sys.executable, os.path.join(models.HERE, "torch_gpt.py"),
         json.dumps(info), str(args.steps + WARM_UP)],
        capture_output=True, text=True)
    if done.returncode:
        print(f"{name:<10} torch  {done.stderr.strip().splitlines()[-1:]}")
        return None
    return report(name, "torch", json.loads(done.stdout.splitlines()[-1]),
                  info)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bin-dir", required=True)
    parser.add_argument("--pack", required=True)
    parser.add_argument("--models", default=",".join(models.MODELS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--no-torch", action="store_true")
    args = parser.parse_args()
    ratios = []
    for name in args.models.split(","):
        with open(os.path.join(args.pack, name, "model.json"),
                  encoding="utf-8") as file:
            info = json.load(file)
        rate = ours(args, name, info)
        other = None if args.no_torch else torch(args, name, info)
        if other:
            ratios.append(f"{name} {rate / other:.2f}")
    print("ratio to PyTorch: " + (", ".join(ratios) or "not measured"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
