#!/usr/bin/env python3
"""A model saved under one mesh continues under another with the same losses:
five steps of the recorded run, a checkpoint, and the other five."""
import functools
import os
import sys

import harness
import matrix
import oracle
from harness import Case, Failed

# From, to: every axis appears and disappears.
MOVES = [("none", "pp=2,dp=2,tp=2"), ("pp=2,dp=2,tp=2", "none"),
         ("tp=2", "pp=2"), ("pp=2", "dp=2"), ("dp=2", "tp=2"),
         ("dp=2,tp=2", "pp=2,tp=2"), ("none", "none")]
MODELS = ["gpt2-tiny", "gpt2-tiny-untied", "bert-tiny", "resnet-tiny",
          "vit-tiny", "mlp-ce"]
HALF = 5


def plan(tools, model, mesh, optimizer, tag):
    path = tools.path(tag + ".plan")
    freeze = ([f"--freeze={oracle.FREEZE[model]}"]
              if model in oracle.FREEZE else [])
    tools.run("merakc", os.path.join(harness.MODELS, model, "model.onnx"), "-o",
              path, *matrix.compile_options(mesh, "half", "1f1b"), optimizer,
              *freeze)
    return path


def body(model, source, target, optimizer, tools):
    info = oracle.expected(model)
    option = oracle.optimizer_option(model, optimizer)
    if optimizer == "sgd":
        # Momentum is state that must move too; the recorded run has none.
        option += ",momentum=0.9"
    data = "--data=" + os.path.join(harness.MODELS, model, "data")
    before = plan(tools, model, source, option, "before")
    after = plan(tools, model, target, option, "after")
    saved = tools.path("saved")

    def losses(which, count, *options):
        log = tools.path("log.jsonl")
        tools.run("merak-run", which, data, f"--steps={count}", f"--log={log}",
                  *options)
        entries = harness.read_log(log)
        return [e["loss"] for e in entries], [e["step"] for e in entries]

    first, steps = losses(before, HALF, f"--save={saved}")
    second, later = losses(after, HALF, f"--load={saved}")
    if later != [s + HALF for s in steps]:
        raise Failed(f"steps continue as {later} after {steps}")
    if optimizer == "adamw":
        wanted = info["optimizers"]["adamw"]["losses"]
    else:
        wanted, _ = losses(before, 2 * HALF)
    return f"loss {oracle.compare_losses(first + second, wanted):.0e}"


def main():
    args = harness.parser(__doc__).parse_args()
    chosen = [(model, *move, optimizer) for model in MODELS for move in MOVES
              for optimizer in matrix.OPTIMIZERS]
    if not args.all:
        chosen = [c for k, c in enumerate(chosen) if k % 5 == 0 or
                  (c[0] == "gpt2-tiny" and c[3] == "adamw")]
    cases = [Case(f"{m} {a} to {b} {o}", functools.partial(body, m, a, b, o))
             for m, a, b, o in chosen]
    return harness.run_cases("checkpoint", cases, args)


if __name__ == "__main__":
    sys.exit(main())
