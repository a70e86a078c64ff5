#!/usr/bin/env python3
"""What the simulator expects of the benchmark, without a GPU: nothing of it is
measured.

    predict.py --bin-dir DIR [--models gpt2-124m,gpt2-1.5b] [--keep DIR]
               [--cluster FILE]

Compiles the benchmark's models and simulates a step on the machine of
h200-assumed.json, whose rates are assumptions; h200-measured.json has what the first
GPU reached. Prints for each kind of work its
milliseconds a step, its share, its launches and the gigabytes that it moves, and
the MFU. Needs what test/gpu/pack.py --bench needs.
"""
import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile

import models

CLUSTER = os.path.join(models.HERE, "h200-assumed.json")
# By the name of an instruction: which line it is counted in.
KINDS = [(r"einsum", "matrix products"), (r"attention", "attention"),
         (r"(adamw|sgd|adagrad)_update|clip_factor|square_sum", "optimizer"),
         (r"merak_k", "generated kernels"), (r"", "library kernels")]


def kind_of(name):
    return next(kind for text, kind in KINDS if re.search(text, name))


def table(name, info, trace):
    milliseconds = collections.Counter()
    launches = collections.Counter()
    moved = collections.Counter()
    single = collections.Counter()
    begin, end = float("inf"), 0
    for event in trace["traceEvents"]:
        if event["ph"] != "X":
            continue
        begin = min(begin, event["ts"])
        end = max(end, event["ts"] + event["dur"])
        kind = kind_of(event["name"])
        milliseconds[kind] += event["dur"] / 1e3
        launches[kind] += 1
        moved[kind] += event.get("args", {}).get("bytes", 0) / 1e9
        if kind not in ("matrix products", "attention"):
            what = re.sub(r"^\S+ ", "", event["name"])
            single[what] += event["dur"] / 1e3
    step = (end - begin) / 1e3
    tokens = info["samples"] * info["microbatches"] * models.CONTEXT
    flops = models.flops_per_token(info["parameters"], info["layers"],
                                   info["width"])
    print(f"\n{name}: {step:.1f} ms a step, {tokens / step * 1e3:.0f} tok/s, "
          f"MFU {100 * flops * tokens / (step / 1e3) / models.PEAK:.1f} % "
          "(predicted)")
    print(f"{'':20} {'ms':>8} {'share':>7} {'launches':>9} {'GB':>8}")
    for kind, value in milliseconds.most_common():
        print(f"{kind:20} {value:8.2f} {100 * value / step:6.1f} % "
              f"{launches[kind]:9} {moved[kind]:8.1f}")
    print("the largest of what is neither product nor attention:")
    for what, value in single.most_common(8):
        print(f"  {value:8.2f} ms  {what[:90]}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bin-dir", required=True)
    parser.add_argument("--models", default=",".join(models.MODELS))
    parser.add_argument("--keep", help="folder for the plans")
    parser.add_argument("--cluster", default=CLUSTER)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or temporary
        chosen = args.models.split(",")
        models.pack(os.path.join(args.bin_dir, "merakc"), folder,
                    args.cluster, chosen)
        for name in chosen:
            target = os.path.join(folder, "bench", name)
            with open(os.path.join(target, "model.json"),
                      encoding="utf-8") as file:
                info = json.load(file)
            trace = os.path.join(temporary, "trace.json")
            subprocess.run([os.path.join(args.bin_dir, "merak-plan"),
                            "simulate", os.path.join(target, "plan"),
                            "--detailed", "--trace", trace],
                           check=True, stdout=subprocess.DEVNULL)
            with open(trace, encoding="utf-8") as file:
                table(name, info, json.load(file))
    return 0


if __name__ == "__main__":
    sys.exit(main())
