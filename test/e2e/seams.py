#!/usr/bin/env python3
"""Layouts that change at seams must not change a single bit.

zero    exact models with parameters, gradients and optimizer state in parts
        over the replicas, clipped, against one rank; with AdamW for one step
        (after it sums are exact no longer)
same    recorded models: level 1 only moves the sums that plain replicas form
saved   a checkpoint of each level goes on under each other, and alone
"""
import functools
import itertools
import os
import sys

import exact_models
import harness
import identity
import matrix
import oracle
from harness import Case, Failed, WithOption

MESHES = ["dp=2", "dp=4", "dp=2,tp=2", "pp=2,dp=2", "pp=2,dp=2,tp=2"]
LEVELS = ["1", "2", "3"]
OPTIMIZERS = ["sgd", "adamw"]
CLIP = "--grad-clip=0.5"
SAVED = ["gpt2-tiny", "mlp-ce"]
# Layouts and levels between which checkpoints move.
MOVES = [(("dp=2", "1"), ("none", "0")), (("none", "0"), ("dp=2", "3")),
         (("dp=2,tp=2", "3"), ("dp=2", "2")), (("dp=4", "2"), ("pp=2,dp=2", "1")),
         (("pp=2,dp=2,tp=2", "3"), ("tp=2", "0"))]


def exact_options(name, optimizer):
    """Options and steps: with SGD as many as sums stay exact for, unclipped."""
    info = (identity.dropout_reference.MODELS.get(name))
    lr = info.lr if info else identity.recorded()[name]["lr"]
    steps = info.steps if info else identity.recorded()[name]["steps"]
    if optimizer == "adamw":
        return ["--optimizer=adamw:lr=0.125", CLIP], 1
    return [f"--optimizer=sgd:lr={lr}"], steps


def exact_run(tools, name, layout, optimizer, extra=(), tag=""):
    graph = next(m for m in exact_models.MODELS if m.__name__ == name)()
    data = tools.path("data")
    os.makedirs(data, exist_ok=True)
    for key, (descr, shape, values) in graph.data.items():
        harness.write_npy(os.path.join(data, key + ".npy"), descr, shape, values)
    options, steps = exact_options(name, optimizer)
    return identity.train(tools, exact_models.path(name), data,
                          matrix.compile_options(*layout) + options + list(extra),
                          steps, tag)


def zero_body(name, mesh, microbatch, schedule, recompute, level, optimizer,
              tools):
    base = identity.BASES.get(
        ("zero", name, optimizer),
        lambda: exact_run(tools, name, ("none", "whole", "gpipe", "none"),
                          optimizer, tag="-base"))
    found = exact_run(tools, name, (mesh, microbatch, schedule, recompute),
                      optimizer, [f"--zero={level}"])
    identity.compare(found, base)
    return "identical"


def zero_cases(every):
    found = []
    for model in exact_models.MODELS:
        name = model.__name__
        for case in itertools.product(MESHES, matrix.MICROBATCHES,
                                      matrix.ALL_SCHEDULES, matrix.RECOMPUTE,
                                      LEVELS, OPTIMIZERS):
            mesh, microbatch, schedule = case[:3]
            if (exact_models.runs(name, microbatch, schedule) and
                    matrix.defined(mesh, microbatch, schedule)):
                found.append((name, *case))
    return found if every else matrix.pairwise(found)


def same_body(model, mesh, microbatch, tools):
    layout = (mesh, microbatch, "1f1b", "none")
    clipped = WithOption(tools, CLIP)
    identity.compare(
        identity.order_run(WithOption(clipped, "--zero=1"), model, *layout),
        identity.order_run(clipped, model, *layout, "-base"))
    return "identical"


def saved_body(model, source, target, tools):
    """What two runs of two steps leave equals what four steps leave: the first
    two under one layout and level, the others under another. With steps in
    between that sum in another order the losses agree to rounding."""
    folder = os.path.join(harness.MODELS, model)
    data = "--data=" + os.path.join(folder, "data")

    def compiled(mesh, level, tag):
        plan = tools.path(tag + ".plan")
        tools.run("merakc", os.path.join(folder, "model.onnx"), "-o", plan,
                  *identity.order_options(model, mesh, "half", "1f1b", "none"),
                  CLIP, f"--zero={level}")
        return plan

    def stored(plan, steps, tag, *options):
        saved = tools.path(tag)
        tools.run("merak-run", plan, data, f"--steps={steps}",
                  f"--save={saved}", *options)
        return harness.read_checkpoint(saved)

    before, after = compiled(*source, "before"), compiled(*target, "after")
    first = stored(before, 2, "first")
    again = stored(after, 0, "again", f"--load={tools.path('first')}")
    for found, expected in zip(again, first):
        compare_tensors(found, expected)
    # Without a step in another layout every bit goes on.
    stored(before, 2, "resumed", f"--load={tools.path('again')}")
    stored(before, 4, "whole")
    for found, expected in zip(harness.read_checkpoint(tools.path("resumed")),
                               harness.read_checkpoint(tools.path("whole"))):
        compare_tensors(found, expected)
    return "identical"


def compare_tensors(found, expected):
    if not isinstance(expected, dict):
        return
    if set(found) != set(expected):
        raise Failed(f"other tensors: {sorted(set(found) ^ set(expected))[:4]}")
    for name, tensor in expected.items():
        if found[name].data != tensor.data:
            raise Failed(f"{name} differs")


def main():
    args = harness.parser(__doc__).parse_args()
    cases = [Case("zero " + " ".join(c), functools.partial(zero_body, *c))
             for c in zero_cases(args.all)]
    models = sorted(m for m in os.listdir(harness.MODELS)
                    if os.path.isdir(os.path.join(harness.MODELS, m)))
    same = list(itertools.product(
        models, ("dp=2", "dp=2,tp=2", "pp=2,dp=2"), ("whole", "half")))
    if not args.all:
        same = matrix.pairwise(same)
    cases += [Case("same " + " ".join(c), functools.partial(same_body, *c))
              for c in same]
    cases += [Case(f"saved {model} {a[0]} zero {a[1]} to {b[0]} zero {b[1]}",
                   functools.partial(saved_body, model, a, b))
              for model in SAVED for a, b in MOVES]
    return harness.run_cases("seams", cases, args)


if __name__ == "__main__":
    sys.exit(main())
