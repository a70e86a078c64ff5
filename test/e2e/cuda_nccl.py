#!/usr/bin/env python3
"""Ranks as processes that communicate through NCCL, without a GPU: the CUDA
backend over the emulated device, the communicators of runtime/comm/nccl, and a
stand-in for libnccl (test/unit/cuda/nccl/StandIn.h) that is stricter than NCCL.

equal   plans of every kind of mesh give the bits of ranks in one process on the
        emulated device, and the losses of the CPU backend: in steps of single
        instructions and in captured ones, with a device in each rank that works
        in an order of its own; no communicator is opened that is not used, none
        twice
exact   models whose sums are exact give the bits of the CPU
late    a rank that comes late holds nobody up for good
lost    a rank that fails, hangs or is killed, and a communicator that fails: the
        others end with its name
wrong   ranks that do not issue in one order, or ask for different things, are
        told apart by the stand-in
memory  what opening communicators took is counted before the first step
"""
import functools
import json
import os
import re
import sys

import exact_models
import harness
import matrix
import oracle
import precision
import processes
import seam_strategies
from harness import Case, Failed

TOOL = "merak-run-emulated"
STEPS = 4  # the last two are launched as graphs, if any
EQUAL = [  # model, mesh, microbatch, schedule, options
    ("gpt2-tiny", "dp=2", "half", "1f1b", []),
    ("gpt2-tiny", "tp=2", "half", "1f1b", []),
    ("gpt2-tiny", "pp=2", "one", "1f1b", []),
    ("gpt2-tiny", "dp=2,tp=2", "half", "1f1b", ["--grad-bucket=0"]),
    ("gpt2-tiny", "pp=2,dp=2,tp=2", "half", "1f1b", []),
    ("gpt2-tiny", "pp=2,dp=2", "half", "zb", ["--zero=1"]),
    ("gpt2-tiny", "dp=2,tp=2", "half", "1f1b", ["--zero=2"]),
    ("gpt2-tiny", "pp=2,dp=2", "half", "interleaved", ["--zero=3"]),
    ("gpt2-tiny", "tp=2", "half", "1f1b", ["--sequence-parallel=on"]),
    ("gpt2-tiny", "pp=2,tp=2", "half", "1f1b", ["--tp-overlap=3"]),
    ("gpt2-tiny", "pp=4", "one", "gpipe", ["--recompute=full"]),
    ("vit-tiny", "tp=2", "half", "gpipe", ["--tp-overlap=3"]),
    ("resnet-plain-tiny", "pp=2", "half", "early", []),
    ("mlp-ce", "dp=2", "half", "1f1b", ["--precision=bf16"]),
]


def library(tools):
    return os.path.join(tools.bin_dir, "libmerak-nccl-stand-in.so")


def count(mesh):
    sizes = matrix.degrees(mesh)
    return sizes["pp"] * sizes["dp"] * sizes["tp"]


def compile_case(tools, model, mesh, microbatch, schedule, options):
    plan = tools.path("out.plan")
    tools.run("merakc", os.path.join(harness.MODELS, model, "model.onnx"), "-o",
              plan, "-q", *matrix.compile_options(mesh, microbatch, schedule),
              oracle.optimizer_option(model, "adamw"), *options)
    return plan, "--data=" + os.path.join(harness.MODELS, model, "data")


def entries_of(log):
    return [{key: entry.get(key) for key in ("loss", "grad_norm")}
            for entry in harness.read_log(log)]


def together(tools, plan, data, tool=TOOL):
    """Losses and weights of ranks in one process."""
    log, saved = harness.fresh(tools.path("one.jsonl")), tools.path(tool + "-saved")
    tools.run(tool, plan, data, f"--steps={STEPS}", f"--log={log}",
              f"--save={saved}")
    return entries_of(log), precision.state(saved)


def apart(tools, ranks, plan, data, *options, seed=1, extra=lambda rank: {}):
    """How ranks in processes of their own end."""
    return processes.launch(
        tools, ranks, TOOL, plan, data, "--ranks=env", "--threads=1", *options,
        extra=lambda rank: {
            "MERAK_NCCL_LIBRARY": library(tools), "MERAK_CONNECT_SECONDS": "120",
            "MERAK_EMULATED_SEED": str(seed * 16 + rank + 1),
            "MERAK_NCCL_REPORT": tools.path(f"report-{rank}"), **extra(rank)})


def trained(tools, ranks, plan, data, graphs, **how):
    """Losses and weights of ranks in processes of their own, and what rank 0
    said of its communicators."""
    log = harness.fresh(tools.path("apart.jsonl"))
    saved = tools.path(f"apart-{graphs}-{how.get('seed', 1)}")
    ended = apart(tools, ranks, plan, data, f"--steps={STEPS}", f"--log={log}",
                  f"--save={saved}", f"--graphs={graphs}", **how)
    for rank, end in enumerate(ended):
        if end.code != 0 or "libnccl" in end.errors:
            raise Failed(f"rank {rank} ended with {end.code}: "
                         f"{harness.last_lines(end.errors)}")
    if graphs == "auto" and "as one graph of" not in ended[0].errors:
        raise Failed(f"nothing is captured: {harness.last_lines(ended[0].errors)}")
    return entries_of(log), precision.state(saved)


def opened(tools, ranks):
    """Communicators of each rank; each was used, and came to its end."""
    found = []
    for rank in range(ranks):
        with open(tools.path(f"report-{rank}"), encoding="utf-8") as file:
            report = json.load(file)
        if not (report["opened"] == report["used"] == report["ended"] > 0 and
                report["aborted"] == 0):
            raise Failed(f"rank {rank}: {report}")
        found.append(report["opened"])
    return found


def compare(found, expected):
    if found[0] != expected[0]:
        raise Failed(f"{found[0]}, expected {expected[0]}")
    if found[1] != expected[1]:
        raise Failed("the weights differ")


def equal(case, tools):
    plan, data = compile_case(tools, *case)
    ranks = count(case[1])
    expected = together(tools, plan, data)
    compare(trained(tools, ranks, plan, data, "off"), expected)
    compare(trained(tools, ranks, plan, data, "auto", seed=2), expected)
    cpu, _ = together(tools, plan, data, "merak-run")
    worst = max(abs(x["loss"] - y["loss"]) / abs(y["loss"])
                for x, y in zip(cpu, expected[0]))
    if not worst < (1e-2 if "--precision=bf16" in case[-1] else 1e-5):
        raise Failed(f"losses differ from those of the CPU by {worst:.1e}")
    return f"{worst:.0e}, communicators {opened(tools, ranks)}"


def main():
    args = harness.parser(__doc__).parse_args()
    if not os.path.exists(os.path.join(args.bin_dir, TOOL)):
        print("cuda-nccl: built without NCCL's headers, nothing to test")
        print("0 passed, 0 failed")
        return 0

    def name(kind, case):
        return " ".join([kind, *case[:-1], *case[-1]])

    return harness.run_cases(
        "cuda-nccl",
        [Case(name("equal", case), functools.partial(equal, case))
         for case in EQUAL], args)


if __name__ == "__main__":
    sys.exit(main())
