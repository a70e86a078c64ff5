#!/usr/bin/env python3
"""The CUDA backend over an emulated device whose streams do their work in random
orders, as far as streams, events and the host's waits leave any.

orders  for many seeds the losses, and the weights that are saved, are bit for bit
        those of work that is done as soon as it is asked for
loaded  parameters are there when the first step begins, whichever stream it begins
        on: a model of so few that nothing else waits for them
graphs  the same of steps that are launched as one graph with collectives
lost    from small plans one wait is taken away at a time: each that is needed is
        missed by some seed, the others are proved redundant by the verifier
"""
import functools
import os
import sys

import exact_models
import harness
import matrix
import oracle
import precision
import seams
from harness import Case, Failed

TOOL = "merak-run-emulated"
STEPS = 2
SEEDS = 4
LOADED_SEEDS = 16
LOST_SEEDS = 96

# Pipelines, collectives on several streams, parameters that are gathered ahead.
ORDERS = [
    ("gpt2-tiny", "pp=2,dp=2,tp=2", "half", "1f1b", []),
    ("gpt2-tiny", "pp=2,dp=2", "half", "zb", ["--zero=3"]),
    ("vit-tiny", "tp=2", "half", "gpipe", ["--tp-overlap=3"]),
    ("mlp-ce", "pp=2", "one", "gpipe", []),
    ("gpt2-tiny", "pp=2,dp=2", "half", "1f1b",
     ["--precision=bf16", "--cast-weights=step"]),
]
# Of a mean over tokens each microbatch reduces the same count again: its waits are
# needed, but one that is lost changes no value.
LOST = [
    ("mlp-mse", "pp=2,dp=2", "half", "1f1b", []),
    ("mlp-ce", "dp=2", "half", "gpipe", ["--zero=3"]),
]


def train(tools, plan, data, seed, *options, save=True):
    """Losses and norms, and the weights."""
    tools.extra = {**getattr(tools, "extra", {}), "MERAK_EMULATED_SEED": str(seed)}
    log = harness.fresh(tools.path("log.jsonl"))
    saved = tools.path(f"seed-{seed}")
    tools.run(TOOL, plan, data, f"--steps={STEPS}", f"--log={log}",
              *([f"--save={saved}"] if save else []), *options)
    entries = [{key: entry.get(key) for key in ("loss", "grad_norm")}
               for entry in harness.read_log(log)]
    return entries, precision.state(saved) if save else None


def same(tools, plan, data, *options, save=True, seeds=SEEDS):
    expected = train(tools, plan, data, 0, *options, save=save)
    for seed in range(1, seeds + 1):
        found = train(tools, plan, data, seed, *options, save=save)
        if found != expected:
            raise Failed(f"seed {seed}: {found[0]}, expected {expected[0]}"
                         if found[0] != expected[0] else
                         f"seed {seed}: the weights differ")


def orders(case, tools):
    same(tools, *oracle.compile_adamw(tools, *case))


def loaded(mesh, tools):
    plan, data = tools.path("out.plan"), seams.write_data(tools, "linear")
    tools.run("merakc", exact_models.path("linear"), "-o", plan, "-q",
              *seams.exact_options("linear", "sgd")[0],
              *matrix.compile_options(mesh, "half", "gpipe"))
    same(tools, plan, f"--data={data}", seeds=LOADED_SEEDS)


def graphs(mesh, tools):
    plan, data = oracle.compile_adamw(tools, "gpt2-tiny", mesh, "half", "1f1b", [])
    sizes = matrix.degrees(mesh)
    tools.extra = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": "1",
                   "WORLD_SIZE": str(sizes["dp"] * sizes["tp"])}
    same(tools, plan, data, "--ranks=env", save=False)


def lost(case, tools):
    plan, data = oracle.compile_adamw(tools, *case)
    out, _ = tools.run("merak-lost-waits", plan, data.removeprefix("--data="),
                       str(LOST_SEEDS), expect=None)
    if tools.returncode != 0:
        wrong = [line for line in out.splitlines() if line.startswith("wrong")]
        raise Failed("; ".join(wrong) or f"exit code {tools.returncode}")
    if "\n0 waits are needed" in "\n" + out:
        raise Failed("the plan needs no waits")
    return out.splitlines()[-1]


def main():
    parser = harness.parser(__doc__)
    args = parser.parse_args()
    if not os.path.exists(os.path.join(args.bin_dir, TOOL)):
        return harness.nothing_to_test(
            "cuda-async", "built without the CUDA toolkit, nothing to test")

    def name(kind, case):
        return " ".join([kind, *case[:-1], *case[-1]])

    return harness.run_cases(
        "cuda-async",
        [Case(name("orders", case), functools.partial(orders, case))
         for case in ORDERS] +
        [Case(f"loaded {mesh}", functools.partial(loaded, mesh))
         for mesh in ("none", "dp=2")] +
        [Case(f"graphs {mesh}", functools.partial(graphs, mesh))
         for mesh in ("dp=2",)] +
        [Case(name("lost", case), functools.partial(lost, case))
         for case in LOST], args)


if __name__ == "__main__":
    sys.exit(main())
