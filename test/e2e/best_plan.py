#!/usr/bin/env python3
"""The plan that is chosen beside plans that are pinned: problems with models, devices,
links and memory limits by seed, each with a list of meshes, microbatches, schedules,
recomputations and overlap; all are compiled and simulated. None of those that fit may
be faster than the chosen one by more than WITHIN. No time is measured.

    best_plan.py            a few problems, short lists
    best_plan.py --all      200 problems, lists of up to 500: many hours
    best_plan.py --problems=40 --plans=60
"""
import functools
import itertools
import json
import os
import random
import re
import sys

import exact_models
import harness
from harness import Case, Failed

WITHIN = 0.01
MODELS = [("gpt", os.path.join(harness.ROOT, "samples/01-train-gpt/model.onnx"), 16),
          *((name, os.path.join(harness.MODELS, name, "model.onnx"), 8)
            for name in ("gpt2-tiny", "mlp-ce", "resnet-plain-tiny", "vit-tiny")),
          *((name, exact_models.path(name), 16)
            for name in ("residual", "gemm", "tied"))]
OF_ONE_BATCH = {"gpt2-tiny"}
STEP = re.compile(r"step ([\d.e-]+) (\w+)")
ARENA = re.compile(r"^ *arena (\d+) bytes", re.M)
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}
SCHEDULES = ["1f1b", "scp", "zb", "eager", "gpipe", "interleaved", "auto"]


class Problem:
    """A model, a cluster and a limit, all by a seed."""

    def __init__(self, seed):
        pick = random.Random(seed)
        self.random = pick
        self.name, self.model, batch = pick.choice(MODELS)
        self.devices = pick.choice([4, 4, 8])
        times = pick.choice([1, 2])
        self.batch = batch * (1 if self.name in OF_ONE_BATCH else times)
        # Of what the fastest plan without a limit takes.
        self.tightness = pick.choice([None, None, 1.0, 0.85, 0.7, 0.55])
        flops = 10 ** pick.uniform(9, 12)
        inside = flops / 10 ** pick.uniform(1, 2.5)
        self.cluster = {
            "name": f"problem {seed}",
            "kinds": {"device": {
                "backend": "cpu", "flops": {"f32": flops},
                "memory_bandwidth": flops / pick.uniform(4, 40),
                "memory_bytes": 1 << 36, "launch_seconds": 2e4 / flops}},
            "nodes": [{"count": 2, "kind": "device",
                       "devices": self.devices // 2}],
            "links": {"intra": {"bandwidth": inside, "latency": 1e4 / flops},
                      "inter": {"bandwidth": inside / pick.uniform(1, 10),
                                "latency": 2e4 / flops}}}

    def degrees(self):
        for pp, tp in itertools.product((1, 2, 4, 8), repeat=2):
            if self.devices % (pp * tp) == 0:
                yield pp, self.devices // (pp * tp), tp

    def pinned(self, most):
        """Options of plans, the most unlike first."""
        plans = []
        for pp, dp, tp in self.degrees():
            for size in (1, 2, 4, 8):
                if self.batch % (dp * size):
                    continue
                for schedule, recompute, overlap in itertools.product(
                        SCHEDULES if pp > 1 else ["1f1b"],
                        ["auto", "none", "full"], ["0", "3"] if tp > 1 else ["0"]):
                    plans.append([f"--mesh=pp={pp},dp={dp},tp={tp}",
                                  f"--microbatch={size}", f"--schedule={schedule}",
                                  f"--recompute={recompute}",
                                  f"--tp-overlap={overlap}"])
        self.random.shuffle(plans)
        return plans[:most]


def seconds(tools, plan):
    number, unit = STEP.search(tools.run("merak-plan", "simulate", plan)[0]).groups()
    return float(number) * UNITS[unit]


def compiled(tools, problem, options):
    """Seconds of the plan; None where there is none."""
    plan = tools.path("x.plan")
    tools.run("merakc", problem.model, "-q", "-o", plan,
              "--cluster=" + tools.path("cluster.json"),
              f"--devices={problem.devices}", f"--global-batch={problem.batch}",
              *options, expect=None)
    if tools.returncode == 70:
        raise Failed("an internal error with " + " ".join(options))
    return seconds(tools, plan) if tools.returncode == 0 else None


def limited(tools, problem):
    """The option that limits memory, [] for none."""
    if problem.tightness is None:
        return []
    if compiled(tools, problem, ["--tp-overlap=auto"]) is None:
        raise Failed("nothing was found without a limit of memory")
    printed = tools.run("merak-plan", "print", tools.path("x.plan"))[0]
    fullest = max(map(int, ARENA.findall(printed)))
    return [f"--memory-limit={int(fullest * problem.tightness)}"]


# What was once faster than the chosen plan: of a price that another plan has, too,
# and between two limits of memory that were searched.
FOUND = {7: ["--mesh=pp=2,dp=2,tp=1", "--microbatch=4", "--schedule=auto",
             "--recompute=none", "--tp-overlap=0"],
         30: ["--mesh=pp=2,dp=2,tp=2", "--microbatch=1", "--schedule=auto",
              "--recompute=auto", "--tp-overlap=0"]}


def solved(seed, most, shares, tools, only=None):
    problem = Problem(seed)
    with open(tools.path("cluster.json"), "w", encoding="utf-8") as file:
        json.dump(problem.cluster, file)
    limit = limited(tools, problem)
    chosen = compiled(tools, problem, ["--tp-overlap=auto", *limit])
    best, how, fitting = None, None, 0
    for options in [only] if only else problem.pinned(most):
        found = compiled(tools, problem, [*options, *limit])
        if found is None:
            continue
        fitting += 1
        if best is None or found < best:
            best, how = found, options
    if chosen is None:
        if not limit:
            raise Failed("nothing was found without a limit of memory")
        if best is not None:
            raise Failed("nothing was found that fits, but " + " ".join(how))
        return f"{problem.name}: nothing fits"
    if best is None:
        return f"{problem.name}: nothing pinned fits"
    share = chosen / best - 1
    shares[seed] = share
    said = f"{problem.name}, {fitting} plans: {100 * share:+.1f}%"
    if share > WITHIN:
        raise Failed(f"{said}; faster: {' '.join([*how, *limit])}")
    return said


def main():
    parser = harness.parser(__doc__)
    parser.add_argument("--problems", type=int)
    parser.add_argument("--plans", type=int)
    args = parser.parse_args()
    problems = args.problems or (200 if args.all else 4)
    plans = args.plans or (500 if args.all else 20)
    shares = {}
    cases = [Case(f"problem {seed}", functools.partial(solved, seed, plans, shares))
             for seed in range(problems)]
    cases += [Case(f"found {seed}", functools.partial(solved, seed, plans, {},
                                                      only=only))
              for seed, only in FOUND.items()]
    code = harness.run_cases("best-plan", cases, args)
    if shares:
        ordered = sorted(shares.values())
        print(f"{len(ordered)} problems: {sum(s <= WITHIN for s in ordered)} within "
              f"{100 * WITHIN:g}% of the best of their plans or faster, median "
              f"{100 * ordered[len(ordered) // 2]:+.2f}%, worst "
              f"{100 * ordered[-1]:+.1f}%")
    return code


if __name__ == "__main__":
    sys.exit(main())
