#!/usr/bin/env python3
"""Where a step's time goes: sums a trace of `merak-run --trace` by kind.

    merak-run plan --data=synthetic --steps=6 --trace=trace.json
    python3 where_time_goes.py trace.json --peak=320

For each kind: milliseconds a step (the median over the steps after the first
two), its share, and for what counts its operations the GFLOP/s and the part of
--peak (the machine's matmul GFLOP/s on as many threads) that it reached.
"""
import argparse
import collections
import json
import statistics

SKIPPED = 2  # first steps: memory is touched, code is loaded
CONTRACTIONS = ("matmul", "attention", "conv")  # whose operations count


def kind(event):
    """Kernels carry a hash for a name; they are told apart by what they fuse."""
    if event["cat"] == "kernel":
        return "fused kernel"
    if event["name"].startswith(("einsum", "gemm", "matmul")):
        return "matmul"
    return event["name"]


def table(trace, peak=0, rank=0):
    """Lines for people, of what `merak-run --trace` wrote."""
    events = [e for e in trace["traceEvents"]
              if e["ph"] == "X" and e["pid"] == rank and
              "step" in e.get("args", {})]
    seconds = collections.defaultdict(lambda: collections.defaultdict(float))
    flops = collections.defaultdict(lambda: collections.defaultdict(float))
    span = {}
    for e in events:
        step, name = e["args"]["step"], kind(e)
        seconds[name][step] += e["dur"] / 1e6
        rate = e["args"].get("gflops_per_second", 0)
        flops[name][step] += rate * e["dur"] / 1e6  # in 1e9
        first, last = span.get(step, (e["ts"], 0))
        span[step] = min(first, e["ts"]), max(last, e["ts"] + e["dur"])
    steps = [s for s in sorted(span) if s > min(span) + SKIPPED - 1]
    if not steps:
        raise SystemExit("the trace has no step after the first "
                         f"{SKIPPED}: run more steps")

    def middle(values):
        return statistics.median(values.get(s, 0.0) for s in steps)

    whole = statistics.median((span[s][1] - span[s][0]) / 1e6 for s in steps)
    lines = [f"{'kind':16} {'ms':>9} {'share':>6} {'GFLOP/s':>8} "
             f"{'of peak':>8}"]
    busy = 0.0
    for name in sorted(seconds, key=lambda n: -middle(seconds[n])):
        time, work = middle(seconds[name]), middle(flops[name])
        busy += time
        rate = work / time if time and name.startswith(CONTRACTIONS) else 0
        lines.append(
            f"{name:16} {time * 1e3:9.2f} {time / whole:6.1%} "
            f"{format(rate, '8.1f') if rate else '':8} "
            f"{format(rate / peak, '8.1%') if rate and peak else '':8}"
            .rstrip())
    lines.append(f"{'(between)':16} {(whole - busy) * 1e3:9.2f} "
                 f"{(whole - busy) / whole:6.1%}")
    lines.append(f"{'step':16} {whole * 1e3:9.2f}")
    return lines


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--peak", type=float, default=0,
                        help="matmul GFLOP/s of the machine")
    parser.add_argument("--rank", type=int, default=0)
    args = parser.parse_args()
    with open(args.trace, encoding="utf-8") as file:
        print("\n".join(table(json.load(file), args.peak, args.rank)))


if __name__ == "__main__":
    main()
