#!/usr/bin/env python3
"""A plan comes back from its strategy file.

Each model is compiled with --emit-strategy, then again with that file as
--strategy and nothing else that decides. The second plan has the programs, the
kernels and the constants of the first, byte for byte, the same manifest but for
what was considered, and the same strategy file. Decisions are those of the
search and of a user: meshes, schedules (searched lists too, and lists in a file),
cuts, recomputation, tensor-parallel overlap.
"""
import functools
import json
import os
import sys

import exact_models
import harness
from harness import Case, Failed

GPT = os.path.join(harness.ROOT, "samples/01-train-gpt/model.onnx")
RTX = "--cluster=" + os.path.join(harness.ROOT,
                                  "samples/clusters/rtx3090-16x4.json")
H100 = "--cluster=" + os.path.join(harness.ROOT,
                                   "samples/clusters/h100-8x8.json")
# What decides, and what says for which machine and data it is decided.
LAYOUTS = [
    (["--mesh=pp=2,dp=1,tp=1", "--microbatch=1"], ["--devices=2"]),
    (["--mesh=pp=4,dp=1,tp=1", "--microbatch=1"], ["--devices=4"]),
    (["--mesh=pp=4,dp=1,tp=1", "--microbatch=2"], ["--devices=4", RTX]),
    (["--mesh=pp=2,dp=2,tp=2", "--microbatch=1"], ["--devices=8"]),
    (["--mesh=pp=2,dp=1,tp=2", "--tp-overlap=3"], ["--devices=4", RTX]),
    (["--mesh=pp=2,dp=2,tp=1", "--schedule=zb"], ["--devices=4"]),
    (["--mesh=pp=2,dp=1,tp=1", "--schedule=interleaved", "--microbatch=2"],
     ["--devices=2"]),
    (["--recompute=full"], ["--devices=4"]),
    (["--mesh=pp=4,dp=1,tp=1", "--recompute=0.5", "--microbatch=1"],
     ["--devices=4"]),
    ([], ["--devices=8"]),
    (["--mesh=pp=4", "--precision=bf16"], ["--devices=8", H100]),
]
MODELS = [("gpt", GPT)] + [
    (name, os.path.join(harness.MODELS, name, "model.onnx"))
    for name in ("gpt2-tiny", "mlp-ce", "resnet-plain-tiny")] + [
    (name, exact_models.path(name)) for name in ("residual", "recurrent")]
# Not part of a strategy: how numbers are represented.
KEPT = ("--precision",)


def files(plan):
    """What the ranks run, by file."""
    contents = {}
    for leaf in sorted(os.listdir(plan)):
        if leaf.startswith(("program-", "kernels.", "constants")):
            with open(os.path.join(plan, leaf), "rb") as file:
                contents[leaf] = file.read()
    if not any(leaf.startswith("program-") for leaf in contents):
        raise Failed(f"{plan} holds no program")
    return contents


def compare(tools, first, second):
    a, b = files(first), files(second)
    if set(a) != set(b):
        raise Failed(f"other files: {sorted(set(a) ^ set(b))}")
    for leaf in a:
        if a[leaf] != b[leaf]:
            raise Failed(f"{leaf} differs")
    texts = [tools.run("merak-plan", "print", plan)[0].replace(plan, "")
             for plan in (first, second)]
    if texts[0] != texts[1]:
        raise Failed("the manifests differ")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def both(tools, model, decisions, machine):
    """Compiles twice; returns the strategy."""
    common = ["--global-batch=8", "-q", *machine]
    common += [o for o in decisions if o.startswith(KEPT)]
    plans = [tools.path("first.plan"), tools.path("second.plan")]
    strategies = [tools.path("first.json"), tools.path("second.json")]
    tools.run("merakc", model, "-o", plans[0], *common,
              *(o for o in decisions if not o.startswith(KEPT)),
              f"--emit-strategy={strategies[0]}")
    tools.run("merakc", model, "-o", plans[1], *common,
              f"--strategy={strategies[0]}",
              f"--emit-strategy={strategies[1]}")
    if read(strategies[0]) != read(strategies[1]):
        raise Failed("another strategy came back")
    compare(tools, *plans)
    return json.loads(read(strategies[0]))


def round_trip(model, decisions, machine, tools):
    schedule = both(tools, model, decisions, machine).get("schedule")
    return schedule if isinstance(schedule, str) else "searched lists"


def searched(tools):
    """There is a layout whose schedule no name makes, else nothing is shown."""
    strategy = both(tools, GPT, ["--mesh=pp=4,dp=1,tp=1", "--microbatch=1"],
                    ["--devices=4", RTX])
    schedule = strategy["schedule"]
    if not isinstance(schedule, dict) or schedule["name"] != "auto":
        raise Failed(f"the schedule is {schedule}, a list was expected")


def own_lists(tools):
    """A schedule in a file: the strategy holds it, the file may go."""
    path = tools.path("mine.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"name": "mine", "microbatches": 4,
                   "stages": ["F0 F1 B0 F2 B1 F3 B2 B3 U",
                              "F0 B0 F1 B1 F2 B2 F3 B3 U"]}, file)
    options = ["--mesh=pp=2,dp=1,tp=1", "--microbatch=2"]
    plans = [tools.path("first.plan"), tools.path("second.plan")]
    strategy = tools.path("s.json")
    common = [GPT, "-q", "--global-batch=8", "--devices=2"]
    tools.run("merakc", *common, "-o", plans[0], *options,
              f"--schedule={path}", f"--emit-strategy={strategy}")
    os.remove(path)
    tools.run("merakc", *common, "-o", plans[1], f"--strategy={strategy}")
    compare(tools, *plans)


def other_shape(tools):
    """Lists for another number of microbatches are refused."""
    strategy = tools.path("s.json")
    common = [GPT, "-q", f"-o{tools.path('o.plan')}", "--devices=4", RTX,
              "--mesh=pp=4,dp=1,tp=1"]
    tools.run("merakc", *common, "--global-batch=8", "--microbatch=1",
              f"--emit-strategy={strategy}")
    _, errors = tools.run("merakc", *common, "--global-batch=16",
                          "--microbatch=1", f"--strategy={strategy}", expect=1)
    if "for 4 stages and 8 microbatches, found 4 and 16" not in errors:
        raise Failed(harness.last_lines(errors))


def main():
    args = harness.parser(__doc__).parse_args()
    cases = [Case("searched lists", searched), Case("lists in a file", own_lists),
             Case("lists for another shape", other_shape)]
    for number, (name, model) in enumerate(MODELS):
        for at, (decisions, machine) in enumerate(LAYOUTS):
            if "bf16" in str(decisions) and name not in ("gpt", "gpt2-tiny"):
                continue
            # The first model in all layouts, the others in every third.
            if not args.all and number and (number + at) % 3:
                continue
            text = " ".join(os.path.basename(o) for o in decisions + machine)
            cases.append(Case(f"{name} {text}", functools.partial(
                round_trip, model, decisions, machine)))
    return harness.run_cases("strategy", cases, args)


if __name__ == "__main__":
    sys.exit(main())
