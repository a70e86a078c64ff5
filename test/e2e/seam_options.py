#!/usr/bin/env python3
"""Seams together with what else a plan may have.

option    rows of docs/Seams.md and ZeRO of each level with bf16, tensor-parallel
          overlap, gradients in one bucket, many or none, reduced beside the
          computation or not: the bits of one rank
dropout   rows whose regions draw masks: the bits of one rank
norms     a convolution with batch norm by samples, wide layers by width: the
          losses of plain replicas, whose statistics they have
clipped   recorded models under ZeRO, with an active bound of the gradients' norm,
          in one microbatch and in several: the losses and weights of one rank
resumed   one step, a checkpoint, one step leave the bits of two steps: AdamW,
          clipped, each level, stored layout and lifetime
refused   strategies that cannot be: one sentence each, nothing written
"""
import functools
import itertools
import json
import math
import os
import sys

import exact_models
import harness
import identity
import matrix
import oracle
import seam_models
import seam_strategies
import seams
from bad_input import refuse
from harness import Case, Failed

# What a case of `option` says besides its layout, and of which layouts.
OPTIONS = {"bf16": ["--precision=bf16"],
           "one bucket": ["--grad-bucket=1000000"],
           "no buckets": ["--grad-bucket=0"],
           "no overlap": ["--grad-overlap=off"],
           "overlap 1": ["--tp-overlap=1"], "overlap 3": ["--tp-overlap=3"]}
ZERO = {f"zero={level} {mesh}": (mesh, level)
        for level in "123" for mesh in ("dp=2", "dp=2,tp=2", "pp=2,dp=2")}
ZERO_MODELS = ["gemm", "tied", "attention_block"]
CLIP = "--grad-clip=0.1"
LIFETIMES = list(itertools.product(("step", "use"), ("step", "microbatch")))


def adam(name):
    return [*seams.exact_options(name, "adamw")[0]]


# ------------------------------------------------------------ options


def option_row(row, option, microbatch, tools):
    path = tools.path("row.json")
    seam_strategies.write(path, row, 1)
    return option_run(seam_strategies.ROWS[row][0],
                      seam_strategies.mesh_of(row, 1), microbatch, option,
                      [f"--strategy={path}"], tools)


def option_zero(which, name, option, microbatch, tools):
    mesh, level = ZERO[which]
    return option_run(name, mesh, microbatch, option, [f"--zero={level}"], tools)


def option_run(name, mesh, microbatch, option, extra, tools):
    """Beside one rank of the same precision; overlap changes only where sums are
    formed."""
    low = [o for o in OPTIONS[option] if "precision" in o]
    base = identity.BASES.get(
        ("options", name, *low), lambda: seams.exact_run(
            tools, name, ("none", "whole", "gpipe", "none"), "adamw", low,
            "-base"))
    found = seams.exact_run(tools, name, (mesh, microbatch, "1f1b", "none"),
                            "adamw", [*extra, *OPTIONS[option]])
    identity.compare(found, base)
    return "identical"


def applies(mesh, option):
    """Overlap is of tensor parallelism."""
    return "overlap " not in option or "tp" in mesh


def option_cases(every):
    rows = [(row, option, microbatch) for row, option, microbatch in
            itertools.product(seam_strategies.ROWS, OPTIONS, ("whole", "half"))
            if applies(seam_strategies.mesh_of(row, 1), option)]
    levels = [(which, name, option, microbatch)
              for which, name, option, microbatch in itertools.product(
                  ZERO, ZERO_MODELS, OPTIONS, ("whole", "half"))
              if applies(which, option)]
    if not every:
        rows, levels = matrix.pairwise(rows), matrix.pairwise(levels)
    yield from (Case("option " + " ".join(c), functools.partial(option_row, *c))
                for c in rows)
    yield from (Case("option " + " ".join(c), functools.partial(option_zero, *c))
                for c in levels)


# ------------------------------------------------------------ dropout, norms


def train(tools, graph, layout, options, tag=""):
    model, data = seam_models.write(tools, graph)
    return identity.train(tools, model, data,
                          matrix.compile_options(*layout) + options, 1, tag)


def strategy_of(tools, row, pipeline):
    path = tools.path("row.json")
    seam_strategies.write(path, row, pipeline, seam_models.ROWS)
    return (seam_strategies.mesh_of(row, pipeline, seam_models.ROWS),
            f"--strategy={path}")


def dropout_body(row, pipeline, microbatch, schedule, recompute, tools):
    mesh, strategy = strategy_of(tools, row, int(pipeline))
    graph = seam_models.ROWS[row][0]()
    options = ["--optimizer=adamw:lr=0.125", "--grad-clip=0.5"]
    base = identity.BASES.get(("dropout", row), lambda: train(
        tools, graph, ("none", "whole", "gpipe", "none"), options, "-base"))
    found = train(tools, graph, (mesh, microbatch, schedule, recompute),
                  [*options, strategy])
    identity.compare(found, base)
    if not any(any(g.data) for g in found.gradients.values()):
        raise Failed("no gradient at all: nothing is shown")
    return "identical"


def dropout_cases(every):
    found = [c for c in itertools.product(
        seam_models.ROWS, "12", matrix.MICROBATCHES, ("1f1b", "zb", "gpipe"),
        matrix.RECOMPUTE)]
    return found if every else matrix.pairwise(found)


def norms_body(microbatch, recompute, tools):
    """Replicas in both plans have the same samples."""
    path, options = tools.path("norms.json"), ["--optimizer=sgd:lr=0.125"]
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"version": 2, "mesh": {"pp": 1, "dp": 2, "tp": 1},
                   "seams": [{"op": "MatMul_5", "operand": 0},
                             {"op": "MatMul_7", "operand": 0}],
                   "classes": [
                       seam_strategies.entry("wide0", 1, 32, ["dp"]),
                       seam_strategies.entry("", 0, 8, ["mb"], "MatMul_5")]},
                  file)
    layout = ("dp=2", microbatch, "gpipe", recompute)
    found, base = (train(tools, seam_models.norms(), layout, extra, tag)
                   for extra, tag in (([*options, f"--strategy={path}"], ""),
                                      (options, "-base")))
    worst = oracle.compare_losses(found.losses, base.losses)
    for name, tensor in base.gradients.items():
        error, _ = harness.relative_l2(found.gradients[name].data, tensor.data)
        if not error <= oracle.GRADIENT:
            raise Failed(f"gradient of {name} is off by {error:.1e}")
    return f"loss {worst:.0e}"


# ------------------------------------------------------------ clipping


def run(tools, folder, tag, layout, steps, *options):
    """Losses and weights of a recorded model."""
    plan, log, saved = (tools.path(tag + end) for end in (".plan", ".jsonl", ""))
    tools.run("merakc", os.path.join(folder, "model.onnx"), "-o", plan,
              *matrix.compile_options(*layout), *options)
    tools.run("merak-run", plan, "--data=" + os.path.join(folder, "data"),
              f"--steps={steps}", f"--log={log}", f"--save={saved}")
    return (harness.read_log(log), harness.read_checkpoint(saved)[0])


def clipped_body(model, mesh, microbatch, level, tools):
    folder = os.path.join(harness.MODELS, model)
    options = [oracle.optimizer_option(model, "sgd"), CLIP]
    base, expected = run(tools, folder, "base", ("none", "whole", "gpipe"), 5,
                         *options)
    log, weights = run(tools, folder, "out", (mesh, microbatch, "1f1b"), 5,
                       *options, f"--zero={level}")
    norms = [entry["grad_norm"] for entry in base]
    if min(norms) <= 0.1:
        raise Failed(f"norms of {min(norms)}: nothing is clipped")
    worst = oracle.compare_losses([e["loss"] for e in log],
                                  [e["loss"] for e in base])
    for entry, norm in zip(log, norms):
        if abs(entry["grad_norm"] / norm - 1) > oracle.LOSS:
            raise Failed(f"a norm of {entry['grad_norm']}, expected {norm}")
    for name, tensor in expected.items():
        if hasattr(tensor, "data"):
            error, _ = harness.relative_l2(weights[name].data, tensor.data)
            if not error <= oracle.WEIGHTS:
                raise Failed(f"{name} is off by {error:.1e}")
    return f"loss {worst:.0e}, norms from {min(norms):.2g}"


# ------------------------------------------------------------ checkpoints


def stored_strategy(tools, model, life, gradient):
    """All parameters of an exact model in parts over dp, as a file says it."""
    graph = next(m for m in exact_models.MODELS if m.__name__ == model)()
    path = tools.path("stored.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"version": 2, "mesh": {"pp": 1, "dp": 2, "tp": 1},
                   "stored": {name: {"dims": [["dp"]], "gathered": life,
                                     "gradient": gradient}
                              for name in graph.weights}}, file)
    return f"--strategy={path}"


def resumed_body(model, mesh, microbatch, how, tools):
    extra = (stored_strategy(tools, model, *how) if isinstance(how, tuple)
             else f"--zero={how}")
    plan = tools.path("out.plan")
    tools.run("merakc", exact_models.path(model), "-o", plan,
              *matrix.compile_options(mesh, microbatch, "1f1b"), *adam(model),
              extra)
    data = "--data=" + seams.write_data(tools, model)

    def go_on(steps, tag, *options):
        tools.run("merak-run", plan, data, f"--steps={steps}",
                  f"--save={tools.path(tag)}", *options)
        return harness.read_checkpoint(tools.path(tag))

    go_on(1, "first")
    found = go_on(1, "second", f"--load={tools.path('first')}")
    for part, tensors in zip(found, go_on(2, "whole")):
        if isinstance(tensors, dict):
            seams.compare_tensors(part, tensors)
    return "identical"


def resumed_cases(every):
    found = [c for c in itertools.product(
        ("gemm", "tied", "attention_block"),
        ("dp=2", "dp=4", "dp=2,tp=2", "pp=2,dp=2"), ("whole", "half"), "123")]
    found = found if every else matrix.pairwise(found)
    return found + list(itertools.product(
        ("gemm", "tied"), ("dp=2",), ("whole", "half"), LIFETIMES))


# ------------------------------------------------------------ refusals

LAYER = {"op": "Gemm_3", "operand": 0}
MESH = {"pp": 1, "dp": 2, "tp": 2}
# What a strategy for the exact model "gemm" says, and what is said of it.
REFUSED = {
    "an op that the model lacks": (
        {"seams": [{"op": "nowhere", "operand": 0}]},
        r"seam in front of op 'nowhere', which the model lacks"),
    "an operand that the op lacks": (
        {"seams": [{"op": "Gemm_3", "operand": 7}]}, r"operand 7"),
    "a class that the model lacks": (
        {"seams": [LAYER],
         "classes": [{"tensor": "fc9.weight", "dim": 0, "axes": ["tp"]}]},
        r"'fc9\.weight', which the model lacks"),
    "a dimension that a tensor lacks": (
        {"classes": [{"tensor": "fc1.weight", "dim": 5, "axes": ["tp"]}]},
        r"dimension 5 of 'fc1\.weight', which the model lacks"),
    "an axis twice": (
        {"seams": [LAYER], "classes": [
            {"tensor": "fc1.weight", "dim": 0, "axes": ["tp", "tp"]}]},
        r"split over 'tp' twice"),
    "an axis and its part": (
        {"mesh": {"pp": 1, "dp": 1, "tp": 4}, "parts": {"tp": [2, 2]},
         "classes": [{"tensor": "fc1.weight", "dim": 0,
                      "axes": ["tp", "tp.1"]}]},
        r"split over 'tp\.1' twice"),
    "an axis in two dimensions": (
        {"stored": {"fc1.weight": {"dims": [["dp"], ["dp"]]}}},
        r"'dp' twice"),
    "an axis that the mesh lacks": (
        {"stored": {"fc1.weight": {"dims": [["ep"]]}}}, r"'ep'"),
    "parts that make another size": (
        {"parts": {"dp": [2, 2]}}, r"'parts\.dp' makes 4, 'mesh' has dp=2"),
    "parts that do not divide": (
        {"mesh": {"pp": 1, "dp": 1, "tp": 8},
         "classes": [{"tensor": "fc3.weight", "dim": 0, "axes": ["tp"]}]},
        r"8 parts, which do not divide"),
    "a parameter that the model lacks": (
        {"stored": {"fc9.weight": {"dims": [["dp"]]}}},
        r"'fc9\.weight', which the model lacks"),
    "a lifetime that there is not": (
        {"stored": {"fc1.weight": {"dims": [["dp"]], "gathered": "day"}}},
        r"\"day\", expected \"step\" or \"use\""),
    "a level that there is not": ({"zero": 4}, r"from 0 to 3"),
}


def refused_body(name, tools):
    strategy, says = REFUSED[name]
    path = tools.path("strategy.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"version": 2, "mesh": MESH, **strategy}, file)
    ranks = math.prod(strategy.get("mesh", MESH).values())
    command = ["merakc", exact_models.path("gemm"), "-o", tools.path("o.plan"),
               "--global-batch=8", f"--devices={ranks}", f"--strategy={path}"]
    refuse(tools, *command, says=[says])
    _, errors = tools.run(*command, expect=1)
    if errors.count("error:") != 1:
        raise Failed(f"not one sentence: {harness.last_lines(errors, 6)}")
    return harness.last_lines(errors, 1)


def limited(tools):
    """Parts of everything are not enough: one sentence."""
    for options in (["--zero=3"], ["--zero=auto"], ["--allow=zero,sequence"]):
        said = refuse(tools, "merakc", exact_models.path("gemm"), "-o",
                      tools.path("o.plan"), "--global-batch=8", "--devices=4",
                      "--memory-limit=2000", *options, says=["no plan fits"])
        if said.count("error:") > 1:
            raise Failed(f"more than one sentence: {said}")


def main():
    args = harness.parser(__doc__).parse_args()
    cases = list(option_cases(args.all))
    cases += [Case("dropout " + " ".join(c), functools.partial(dropout_body, *c))
              for c in dropout_cases(args.all)]
    cases += [Case("norms " + " ".join(c), functools.partial(norms_body, *c))
              for c in itertools.product(("whole", "half"), ("none", "full"))]
    clipped = [(m, *rest) for m, *rest in itertools.product(
        ("gpt2-tiny", "bert-tiny", "resnet-tiny"),
        ("dp=2", "dp=2,tp=2", "pp=2,dp=2,tp=2"), ("whole", "half"), "123")]
    cases += [Case("clipped " + " ".join(c), functools.partial(clipped_body, *c))
              for c in (clipped if args.all else matrix.pairwise(clipped))]
    cases += [Case("resumed " + " ".join(" ".join(x) if isinstance(x, tuple)
                                         else x for x in c),
                   functools.partial(resumed_body, *c))
              for c in resumed_cases(args.all)]
    cases += [Case("refused " + name, functools.partial(refused_body, name))
              for name in REFUSED]
    cases.append(Case("refused limits", limited))
    return harness.run_cases("seam-options", cases, args)


if __name__ == "__main__":
    sys.exit(main())
