#!/usr/bin/env python3
"""Plans of real size, compiled and verified.

Thresholds, epilogues, alignment, fusions and the search behave otherwise at the
sizes of real models than in small ones. Weight-less models (real_models.py) are
compiled for the clusters of samples/clusters, in f32, bf16, f16 and fp8, on meshes of all
kinds, tensor degrees above the size of a node too; merakc verifies each plan,
merak-plan verify does it again from its files. The step that the search expected
differs from what the simulator says of the plan by at most STEP. A plan from which one reduction is
taken must not pass. Gradients are reduced over dp once a step in f32, whatever the
precision, the number of microbatches and the device. What a step of one GPU launches,
and moves besides products and attention, stays within bounds.
"""
import collections
import functools
import json
import os
import re
import sys

import harness
import prices
import real_models
from harness import Case, Failed

CLUSTERS = os.path.join(harness.ROOT, "samples/clusters")
# Model, cluster, mesh (pp, dp, tp; None: searched, on all devices), samples of a
# microbatch and of a step, more options.
QUICK = [
    ("gpt2-124m", "h100-8x8", (1, 1, 2), 4, 64),
    ("gpt2-124m", "h200-8x8", (1, 2, 4), 4, 64),
    ("gpt2-124m", "rtx3090-16x4", (2, 2, 2), 2, 32),
    ("gpt2-124m", "rtx3090-16x4", (1, 1, 12), 2, 8),
    ("gpt2-124m", "xeon-2", (1, 1, 2), 1, 4),
    ("gpt2-124m", "h100-8x8", (1, 4, 2), 2, 32, "--zero=1"),
    ("gpt2-124m", "h100-8x8", (2, 2, 2), 2, 32, "--zero=3",
     "--sequence-parallel=on"),
    ("gpt2-1.5b", "h100-8x8", (1, 8, 1), 4, 64),
    ("gpt2-1.5b", "h100-8x8", (2, 2, 2), 4, 64, "--schedule=1f1b"),
]
# Of these, in f16 and fp8 in a short run.
HALF = [QUICK[0], QUICK[6], *QUICK[-2:]]
FULL = [
    ("gpt2-124m", "h100-8x8", (1, 1, 2), 4, 64, "--tp-overlap=3"),
    ("gpt2-124m", "h100-8x8", (4, 2, 3), 1, 64),
    ("gpt2-124m", "h100-8x8", None, 4, 512),
    ("gpt2-1.5b", "h100-8x8", (1, 1, 5), 2, 16),
    ("gpt2-1.5b", "h200-8x8", (4, 8, 2), 2, 512, "--schedule=1f1b"),
    ("gpt-8.3b", "h100-8x8", (1, 8, 8), 4, 512),
    ("gpt-8.3b", "h200-8x8", (4, 4, 4), 2, 128, "--schedule=1f1b"),
    ("gpt3-175b", "h200-8x8", (8, 1, 8), 1, 32, "--schedule=1f1b"),
    ("gpt3-175b", "h100-8x8", (4, 2, 8), 1, 64, "--schedule=1f1b", "--zero=3",
     "--sequence-parallel=on"),
    ("gpt3-175b", "h200-8x8", (4, 1, 16), 1, 16, "--schedule=1f1b"),
    ("llama-7b", "h100-8x8", (2, 1, 8), 1, 16, "--schedule=1f1b"),
    ("llama-7b", "h200-8x8", (1, 8, 4), 1, 32),
    ("llama-70b", "h200-8x8", (8, 1, 8), 1, 16, "--schedule=1f1b"),
]
# Plans for GPUs, and for CPUs: replicas, samples of a microbatch.
REDUCED = [("gpt2-1.5b", "h100-8x8", 8, 4), ("gpt2-124m", "xeon-2", 2, 1)]
# One GPU, bf16, as bench/gpu has it: model, samples of a microbatch, microbatches;
# then what the plan had when this was written (2026-11-29) and a hundredth more:
# instructions, and gigabytes, of a step besides products and attention.
BOUNDS = [
    ("gpt2-124m", 16, 4, {"generated": (228, 41.1), "library": (134, 6.8),
                          "optimizer": (300, 2.8)}),
    ("gpt2-1.5b", 8, 4, {"generated": (809, 93.6), "library": (425, 23.6),
                         "optimizer": (1173, 34.7)}),
    ("gpt2-1.5b", 16, 2, {"generated": (406, 93.5), "library": (215, 22.3),
                          "optimizer": (1173, 34.7)}),
]
BROKEN = ("gpt2-124m", "h100-8x8", (1, 2, 2), 4, 16)
# Of what is simulated. In 16 bits the gradients of each microbatch are reduced over dp
# before they are added in f32, beside what tp waits for.
# Collectives of stored parameters queue behind those of tp.
STEP, STEP_BOTH, STEP_STORED = 0.05, 0.13, 0.35
TAKEN = 6  # reductions, one at a time


def compile_case(tools, case, precision, *more):
    """merakc's answer to a case."""
    model, cluster, mesh, microbatch, batch, *options = case
    path = tools.path(model + ".textproto")
    with open(path, "w", encoding="utf-8") as file:
        file.write(real_models.MODELS[model]())
    if mesh:
        pp, dp, tp = mesh
        options += [f"--mesh=pp={pp},dp={dp},tp={tp}",
                    f"--devices={pp * dp * tp}"]
    return "".join(tools.run(
        "merakc", path, "-v", "--optimizer=adamw",
        f"--cluster={CLUSTERS}/{cluster}.json",
        f"--precision={precision}", f"--global-batch={batch}",
        f"--microbatch={microbatch}", *options, *more))


def verified(case, precision, tools):
    plan = tools.path("out.plan")
    text = compile_case(tools, case, precision, "--grad-clip=1", "-o", plan)
    both = precision != "fp32" and case[2] and min(case[2][1:]) > 1
    stored = any(option.startswith("--zero") for option in case[5:])
    price = prices.check(text, tools, plan, STEP_STORED if stored else
                         STEP_BOTH if both else STEP)
    said, _ = tools.run("merak-plan", "verify", plan)
    text, _ = tools.run("merak-plan", "print", plan)
    # A plan that splits nothing would prove nothing.
    mesh = case[2]
    if mesh and mesh[1] * mesh[2] > 1 and not re.search(
            "all_reduce|reduce_scatter", text):
        raise Failed(f"no all-reduce on {mesh}")
    return f"{price}, " + re.sub(r".*sound: ", "", said.strip())


def broken(tools):
    """The plan as text, without one of its reductions."""
    whole, less = tools.path("plan.mlir"), tools.path("less.mlir")
    compile_case(tools, BROKEN, "bf16", "--to=plan", "-o", whole)
    with open(whole, encoding="utf-8") as file:
        lines = file.read().splitlines(keepends=True)
    at = [i for i, line in enumerate(lines) if "plan.collective" in line]
    if len(at) < 100:
        raise Failed(f"only {len(at)} collectives")
    tools.run("merakc", whole, "--from=plan", "-q", "-o", tools.path("o.plan"))
    for i in at[::len(at) // TAKEN]:
        with open(less, "w", encoding="utf-8") as file:
            file.writelines(lines[:i] + lines[i + 1:])
        _, errors = tools.run("merakc", less, "--from=plan", "-q", "-o",
                              tools.path("less.plan"), expect=70)
        if "the plan does not pass its verifier" not in errors:
            raise Failed(f"without {lines[i].strip()}: "
                         f"{harness.last_lines(errors)}")
    return f"{len(at)} collectives"


def reduced(model, cluster, replicas, microbatch, precision, tools):
    """All-reduces of gradients over dp with one and with eight microbatches."""
    found = []
    for count in (1, 8):
        plan = tools.path(f"{count}.plan")
        compile_case(tools, (model, cluster, (1, replicas, 1), microbatch,
                             replicas * microbatch * count), precision, "-o", plan)
        said, _ = tools.run("merak-plan", "account", plan)
        (parameters,) = re.findall(r"^ranks 0-\d+: (\d+) parameters$", said, re.M)
        sums = [(kind, int(times), int(size)) for kind, times, size in re.findall(
            r"^  \w+ (\w+) over dp: (\d+) times, (\d+) bytes", said, re.M)]
        # Beside those of losses and norms, of a few bytes.
        found.append([each for each in sums if each[2] > 1000])
        size = sum(size for _, _, size in found[-1])
        # Losses are in a bucket with gradients.
        if not 0 <= size - 4 * int(parameters) <= 64:
            raise Failed(f"{count} microbatches: {size} bytes are reduced, "
                         f"expected 4 for each of {parameters} parameters")
    if found[0] != found[1]:
        raise Failed(f"one microbatch: {found[0]}, eight: {found[1]}")
    return "; ".join(f"{times} {kind}" for kind, times, _ in found[0])


# By the name of an instruction.
KINDS = [(r"einsum|attention", None),
         (r"(adamw|sgd|adagrad)_update|clip_factor|square_sum", "optimizer"),
         (r"merak_k", "generated"), (r"", "library")]


def bounded(model, microbatch, count, bounds, tools):
    """Instructions and bytes of a step by kind, beside their bounds."""
    plan, trace = tools.path("out.plan"), tools.path("trace.json")
    compile_case(tools, (model, "h200-8x8", (1, 1, 1), microbatch,
                         microbatch * count, "--recompute=none"), "bf16",
                 "--grad-clip=1", "-o", plan)
    tools.run("merak-plan", "simulate", plan, "--detailed", "--trace", trace)
    launches, moved = collections.Counter(), collections.Counter()
    with open(trace, encoding="utf-8") as file:
        for event in json.load(file)["traceEvents"]:
            if event["ph"] == "X":
                kind = next(kind for name, kind in KINDS
                            if re.search(name, event["name"]))
                launches[kind] += 1
                moved[kind] += event.get("args", {}).get("bytes", 0) / 1e9
    for kind, (most, gigabytes) in bounds.items():
        if not launches[kind] or launches[kind] > most or moved[kind] > gigabytes:
            raise Failed(f"{kind}: {launches[kind]} instructions move "
                         f"{moved[kind]:.2f} GB, expected at most {most} and "
                         f"{gigabytes}")
    return ", ".join(f"{kind} {launches[kind]} with {moved[kind]:.1f} GB"
                     for kind in bounds)


def main():
    args = harness.parser(__doc__).parse_args()
    cases = [Case("without a reduction", broken)]
    for model, cluster, *sizes in REDUCED:
        for precision in ("bf16", "fp32", "fp16"):
            cases.append(Case(
                f"reduced {model} {cluster} {precision}",
                functools.partial(reduced, model, cluster, *sizes, precision)))
    for model, *sizes in BOUNDS:
        cases.append(Case(f"bounds {model} {sizes[0]} x {sizes[1]}",
                          functools.partial(bounded, model, *sizes)))
    for case in QUICK + (FULL if args.all else []):
        model, cluster, mesh, _, _, *options = case
        shape = "x".join(map(str, mesh)) if mesh else "searched"
        for precision in ("bf16", "fp32",
                          *(["fp16", "fp8"] if case in HALF or args.all else [])):
            cases.append(Case(
                " ".join([model, cluster, shape, precision, *options]),
                functools.partial(verified, case, precision)))
    return harness.run_cases("real-size", cases, args)


if __name__ == "__main__":
    sys.exit(main())
