#!/usr/bin/env python3
"""The planner's memory is the plan's: what merakc predicted for each stage when
it chose, against the table of the buffers it then laid out.

Bounds: a stage at most 8 % too low and, since a few buffers of several chunks
are counted twice, 13 % too high (or 64 KiB).
Shares of recomputation (RATIO) are chosen block by block after planning, which
groups ops a little differently; they are left out.
"""
import functools
import itertools
import os
import re
import sys

import harness
from harness import Case, Failed

MODEL = os.path.join(harness.ROOT, "samples/01-train-gpt/model.onnx")
MESHES = ["pp=2", "pp=4", "pp=2,tp=2"]
SCHEDULES = ["1f1b", "zb", "scp", "gpipe", "interleaved", "auto"]
RECOMPUTE = ["none", "full", "auto"]
LOW, HIGH, SMALL = -0.08, 0.13, 1 / 16  # shares, MiB


def figures(text):
    """Predicted and laid out MiB by stage."""
    predicted = [float(x) for x in re.findall(
        r"^stage \d+: .*?([\d.]+) MiB \(", text, re.M)]
    laid_out = [float(x) for x in re.findall(
        r"^stage\d+ .* ([\d.]+)$", text, re.M)]
    return predicted[:len(laid_out)], laid_out


def body(mesh, schedule, recompute, tools):
    text = "".join(tools.run(
        "merakc", MODEL, "-o", tools.path("x.plan"), "--global-batch=8",
        "--mesh=" + mesh, "--microbatch=1", "--schedule=" + schedule,
        "--recompute=" + recompute))
    predicted, laid_out = figures(text)
    if not laid_out or len(predicted) != len(laid_out):
        raise Failed(f"found {len(predicted)} predictions and "
                     f"{len(laid_out)} rows")
    off = [p / l - 1 if abs(p - l) > SMALL else 0
           for p, l in zip(predicted, laid_out)]
    shown = " ".join(f"{100 * x:+.1f}%" for x in off)
    if min(off) < LOW or max(off) > HIGH:
        raise Failed(f"predicted memory is off by {shown}")
    return shown


def main():
    args = harness.parser(__doc__).parse_args()
    cases = [Case(" ".join(choice), functools.partial(body, *choice))
             for choice in itertools.product(MESHES, SCHEDULES, RECOMPUTE)]
    return harness.run_cases("memory", cases, args)


if __name__ == "__main__":
    sys.exit(main())
