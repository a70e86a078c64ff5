#!/usr/bin/env python3
"""How much tensor-parallel communication hides, measured.

    python3 bench/overlap.py [--links=20us/400MB/s] [--bin-dir=build/release/bin]

Two ranks, tp=2, links slowed by merak-run's emulation, which sleeps: so even a
busy machine can overlap. From the traces, per rank and step, over the calls that
communicate (F and B, which W and the reductions of gradients belong to where
nobody waits for B; U runs once a step and has no halves, and reduces the gradients
with --grad-overlap=off):
  compute   what the calls compute
  network   what their collectives last
  exposed   the part of it in which the rank computes nothing
  hidden    (network - exposed) / sum over calls of min(network, compute):
            no more can hide inside a call
A collective lasts as long as its rank is in it, so it includes waiting for the
other rank, as in every profiler. At level 0 collectives wait on the computing
stream. The ranks' threads need cores of their own: on a busy machine they wait for
those as well, and the step gains less than what is hidden.
"""
import argparse
import collections
import json
import os
import statistics
import subprocess
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
MODEL = os.path.join(ROOT, "test/data/models/gpt2-tiny")
COMPUTE = {"kernel", "library", "load_input"}


def union(spans):
    """Merged, sorted intervals."""
    merged = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return merged


def overlap(a, b):
    """Length of the intersection of two unions."""
    total, j = 0.0, 0
    for begin, end in a:
        while j < len(b) and b[j][1] <= begin:
            j += 1
        k = j
        while k < len(b) and b[k][0] < end:
            total += min(end, b[k][1]) - max(begin, b[k][0])
            k += 1
    return total


def length(spans):
    return sum(end - begin for begin, end in spans)


def measure(trace, warmup):
    """Medians over ranks and steps, in milliseconds."""
    with open(trace, encoding="utf-8") as file:
        events = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X"]
    compute = collections.defaultdict(list)  # by (rank, step, call)
    network = collections.defaultdict(list)
    steps = collections.defaultdict(list)
    for event in events:
        args = event["args"]
        rank, step = event["pid"], args["step"]
        key = (rank, step, (args["action"], args["microbatch"]))
        span = (event["ts"] / 1e3, (event["ts"] + event["dur"]) / 1e3)
        steps[rank, step].append(span)
        if args["microbatch"] < 0:
            continue
        kind = event["cat"].lower()
        if kind in COMPUTE:
            compute[key].append(span)
        elif kind == "collective":
            network[key].append(span)
    totals = collections.defaultdict(lambda: [0.0] * 4)
    for key, spans in network.items():
        if key[1] <= warmup:
            continue
        links, busy = union(spans), union(compute[key])
        hidden = overlap(links, busy)
        for i, value in enumerate([length(busy), length(links), hidden,
                                   min(length(links), length(busy))]):
            totals[key[:2]][i] += value
    rows = []
    for key, (busy, links, hidden, possible) in totals.items():
        whole = union(steps[key])
        rows.append((whole[-1][1] - whole[0][0], busy, links, links - hidden,
                     hidden / possible))
    return [statistics.median(column) for column in zip(*rows)]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin-dir", default=os.path.join(ROOT,
                                                          "build/release/bin"))
    parser.add_argument("--links", default="20us/400MB/s")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--levels", default="0,1,2,3")
    parser.add_argument("--model", default=os.path.join(MODEL, "model.onnx"))
    parser.add_argument("--data", default=os.path.join(MODEL, "data"))
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument("--grad-overlap", default="on")
    args = parser.parse_args()
    print(f"{'level':>5} {'step':>9} {'compute':>9} {'network':>9} "
          f"{'exposed':>9} {'hidden':>8}")
    with tempfile.TemporaryDirectory(prefix="merak-overlap-") as scratch:
        for level in args.levels.split(","):
            plan = os.path.join(scratch, f"{level}.plan")
            trace = os.path.join(scratch, f"{level}.json")
            subprocess.run(
                [os.path.join(args.bin_dir, "merakc"), args.model, "-o", plan,
                 "--devices=2", "--mesh=pp=1,dp=1,tp=2", "--recompute=none",
                 f"--global-batch={args.global_batch}",
                 f"--microbatch={args.global_batch}",
                 f"--tp-overlap={level}",
                 f"--grad-overlap={args.grad_overlap}", "-q"], check=True)
            subprocess.run(
                [os.path.join(args.bin_dir, "merak-run"), plan,
                 f"--data={args.data}", f"--steps={args.steps}",
                 f"--links={args.links}", f"--trace={trace}"],
                check=True, stdout=subprocess.DEVNULL)
            step, compute, network, exposed, hidden = measure(trace, args.warmup)
            print(f"{level:>5} {step:>6.2f} ms {compute:>6.2f} ms "
                  f"{network:>6.2f} ms {exposed:>6.2f} ms {hidden:>7.1%}",
                  flush=True)


if __name__ == "__main__":
    main()
