#!/usr/bin/env python3
"""The driver runs nothing that is not a registered pipeline.

merakc --save-ir writes the IR after each phase. From the IR after one phase,
`merak-opt --phase-NAME` under the same options must give the IR after the next,
byte for byte: import, graph, stage, shard, schedule, memory, plan; and merakc
--to=PHASE must print what it saves. All recorded models with what a user might
pin, and recorded families at random layouts.

    phases.py --all      also all exact models
"""
import functools
import os
import random
import sys

import exact_models
import harness
from harness import Case, Failed

PHASES = ["import", "graph", "stage", "shard", "schedule", "memory", "plan"]
FAMILIES = os.path.join(harness.ROOT, "test/data/families")
GPT = os.path.join(harness.ROOT, "samples/01-train-gpt/model.onnx")
RTX = "--cluster=" + os.path.join(harness.ROOT,
                                  "samples/clusters/rtx3090-16x4.json")
RANDOM_LAYOUTS = 20
# What a user might pin, of GPT and of every recorded model.
LAYOUTS = [
    ["--devices=1", "--global-batch=8"],
    ["--devices=4", "--mesh=pp=2,dp=1,tp=2", "--global-batch=8",
     "--microbatch=2", "--optimizer=sgd:lr=0.1,momentum=0.9"],
    ["--devices=8", "--mesh=pp=2,dp=2,tp=2", "--global-batch=8",
     "--microbatch=2", "--schedule=zb", "--recompute=full", "--grad-clip=1"],
    ["--devices=2", "--global-batch=8", "--mode=infer", "--precision=bf16"],
]
GPT_LAYOUTS = [
    ["--devices=8", RTX, "--global-batch=16"],
    ["--devices=4", "--mesh=pp=1,dp=2,tp=2", "--global-batch=16",
     "--tp-overlap=3", "--grad-bucket=100000", "--microbatch=2"],
    ["--devices=4", "--mesh=pp=4,dp=1,tp=1", "--global-batch=16",
     "--schedule=interleaved", "--microbatch=1"],
    ["--devices=2", "--global-batch=8", "--memory-limit=16000000"],
]


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def first_difference(found, wanted):
    pairs = zip(found.splitlines(), wanted.splitlines())
    for line, (a, b) in enumerate(pairs, 1):
        if a != b:
            return f"line {line}: {a[:120]!r}, expected {b[:120]!r}"
    return "one is longer than the other"


def body(model, options, tools):
    folder = tools.path("ir")
    tools.run("merakc", model, "-o", tools.path("plan.mlir"), "--to=plan",
              f"--save-ir={folder}", "-q", *options, expect=None)
    if tools.returncode == 1:
        return "refused"  # this layout or schedule is not for this model
    if tools.returncode != 0:
        raise Failed(f"merakc ended with {tools.returncode}")
    before = tools.path("empty.mlir")
    with open(before, "w", encoding="utf-8") as file:
        file.write("module {}\n")
    arguments = " ".join([model, *options])
    for number, phase in enumerate(PHASES):
        after = os.path.join(folder, f"{number}-{phase}.mlir")
        text, _ = tools.run(
            "merak-opt", before, f"--phase-{phase}=options={{{arguments}}}",
            "--mlir-print-debuginfo")
        if text.rstrip() != read(after).rstrip():
            raise Failed(f"{phase}: merak-opt gives other IR: "
                         + first_difference(text, read(after)))
        before = after
    return f"{len(PHASES)} phases"


def stops(model, options, tools):
    """--to=PHASE prints what --save-ir saves, but for locations."""
    folder = tools.path("ir")
    tools.run("merakc", model, "-o", tools.path("plan.mlir"), "--to=plan",
              f"--save-ir={folder}", "-q", *options)
    for number, phase in enumerate(PHASES):
        saved = os.path.join(folder, f"{number}-{phase}.mlir")
        plain, _ = tools.run("merak-opt", saved)
        text, _ = tools.run("merakc", model, "-o", "-", f"--to={phase}", "-q",
                            *options)
        if text.rstrip() != plain.rstrip():
            raise Failed(f"--to={phase}: " + first_difference(text, plain))
    return f"{len(PHASES)} phases"


def random_layouts():
    pick = random.Random(15)
    names = sorted(name for name in os.listdir(FAMILIES)
                   if os.path.exists(os.path.join(FAMILIES, name,
                                                  "model.onnx")))
    cases = []
    while len(cases) < RANDOM_LAYOUTS:
        name = pick.choice(names)
        pp, dp, tp = (pick.choice([1, 2]) for _ in range(3))
        mesh = f"pp={pp},dp={dp},tp={tp}"
        options = [f"--devices={pp * dp * tp}", f"--mesh={mesh}",
                   "--global-batch=8", f"--microbatch={8 // dp}",
                   f"--schedule={pick.choice(['auto', 'gpipe', '1f1b', 'zb'])}",
                   f"--recompute={pick.choice(['none', 'full', 'auto'])}",
                   "--optimizer=sgd:lr=0.05"]
        cases.append((name, options))
    return cases


def main():
    args = harness.parser(__doc__).parse_args()
    models = [(name, os.path.join(harness.MODELS, name, "model.onnx"))
              for name in sorted(os.listdir(harness.MODELS))
              if os.path.exists(os.path.join(harness.MODELS, name,
                                             "model.onnx"))]
    if args.all:
        models += [(m.__name__, exact_models.path(m.__name__))
                   for m in exact_models.MODELS]
    cases = [Case(f"{name} {' '.join(options)}",
                  functools.partial(body, path, options))
             for name, path in models for options in LAYOUTS]
    cases += [Case("gpt " + " ".join(o).replace(harness.ROOT, ""),
                   functools.partial(body, GPT, o))
              for o in LAYOUTS + GPT_LAYOUTS]
    cases.append(Case("gpt --to", functools.partial(stops, GPT, LAYOUTS[1])))
    cases += [Case(f"random {name} {' '.join(options)}",
                   functools.partial(body, os.path.join(
                       FAMILIES, name, "model.onnx"), options))
              for name, options in random_layouts()]
    return harness.run_cases("phases", cases, args)


if __name__ == "__main__":
    sys.exit(main())
