#!/usr/bin/env python3
"""Steps captured and launched as one graph, on the emulated device, whose
launches do what was captured in any order that its dependencies allow.

equal      losses and weights are bit for bit those without graphs, for
           optimizers, schedules of the learning rate, microbatches, recomputation
rate       a schedule of the learning rate takes effect in every step
dropout    every step draws masks of its own, those of the run without graphs
skip       a step whose gradients are not finite changes nothing (precision.py)
alone      several streams with collectives on one process a rank: a rank whose
           others mirror it
resumed    a saved and loaded run captures anew and goes on with the same bits
told       where steps are not captured the run says why
traced     a timeline by the device's own clock has what the CPU's has
"""
import functools
import json
import os
import re
import sys

import dropout
import harness
import matrix
import oracle
import precision
from harness import Case, Failed

STEPS = 6
TOOL = "merak-run-emulated"
CAPTURED = re.compile(r"^note: steps after the first are launched as one graph "
                      r"of (\d+) operations$", re.M)


def compile_model(tools, model, tag, mesh, microbatch, schedule, *options,
                  recompute="none"):
    plan = tools.path(tag + ".plan")
    tools.run("merakc", os.path.join(harness.MODELS, model, "model.onnx"), "-o",
              plan, "-q", *matrix.compile_options(mesh, microbatch, schedule,
                                                  recompute), *options)
    return plan


def train(tools, plan, data, graphs, steps=STEPS, *options, save=True):
    """Log entries without times, weights, and what was noted."""
    log = harness.fresh(tools.path(graphs + ".jsonl"))
    saved = tools.path(graphs)
    _, notes = tools.run(TOOL, plan, data, f"--steps={steps}",
                         f"--graphs={graphs}", f"--log={log}",
                         *([f"--save={saved}"] if save else []), *options)
    entries = harness.read_log(log)
    captured = [entry.pop("graph", False) for entry in entries]
    if captured != [graphs == "auto" and i > 0 for i in range(steps)]:
        raise Failed(f"captured steps: {captured}; {notes.strip()}")
    found = CAPTURED.search(notes)
    if bool(found) != (graphs == "auto"):
        raise Failed(f"notes: {notes.strip()}")
    for entry in entries:
        for key in ("seconds", "tokens_per_second", "memory_bytes"):
            entry.pop(key, None)
    weights = precision.state(saved) if save else None
    return entries, weights, int(found.group(1)) if found else 0


def same(tools, plan, data, *options, save=True):
    """Trains both ways; log entries and the number of operations."""
    plain, weights, _ = train(tools, plan, data, "off", STEPS, *options,
                              save=save)
    found, moved, operations = train(tools, plan, data, "auto", STEPS, *options,
                                     save=save)
    if found != plain:
        raise Failed(f"log entries {found}, expected {plain}")
    if moved != weights:
        changed = [name for name in weights if moved.get(name) != weights[name]]
        raise Failed(f"weights differ: {changed[:3]}")
    if operations < 10:
        raise Failed(f"a graph of {operations} operations")
    return found, operations


def data_of(model):
    return "--data=" + os.path.join(harness.MODELS, model, "data")


def equal(model, optimizer, microbatch, recompute, tools):
    plan = compile_model(tools, model, "plan", "none", microbatch, "1f1b",
                         oracle.optimizer_option(model, optimizer),
                         recompute=recompute)
    _, operations = same(tools, plan, data_of(model))
    return f"{operations} operations"


def rate(optimizer, tools):
    """Against runs whose rate stays: they differ from the step on in which the
    schedule first gives another one."""
    def plan(tag, schedule):
        return compile_model(tools, "mlp-ce", tag, "none", "half", "1f1b",
                             f"--optimizer={optimizer},{schedule}")
    found, _ = same(tools, plan("cosine", "schedule=cosine,warmup=2,total=6"),
                    data_of("mlp-ce"))
    rates = [entry["lr"] for entry in found]
    if len(set(rates)) != STEPS:
        raise Failed(f"learning rates {rates}")
    # The same captured step with the rate of its second step throughout.
    stale, _ = same(tools, plan("constant", "warmup=0"), data_of("mlp-ce"))
    losses = [entry["loss"] for entry in found]
    if losses[2:] == [entry["loss"] for entry in stale][2:]:
        raise Failed("the schedule has no effect")
    # The CPU, which has no graphs, agrees.
    log = tools.path("cpu.jsonl")
    tools.run("merak-run", tools.path("cosine.plan"), data_of("mlp-ce"),
              f"--steps={STEPS}", f"--log={log}")
    cpu = [entry["loss"] for entry in harness.read_log(log)]
    worst = max(abs(x - y) / abs(y) for x, y in zip(losses, cpu))
    if not worst < 1e-5:
        raise Failed(f"losses differ from those of the CPU by {worst:.1e}")
    return f"{worst:.0e}"


def masks(microbatch, tools):
    """A rate of zero: nothing but the masks can change the loss of one sample
    that is read again and again."""
    model, data = dropout.write(tools, "gpt", dropout.Gpt())
    plan = dropout.compile_plan(tools, model, "none", microbatch, "1f1b",
                                "--optimizer=sgd:lr=0")
    found, _ = same(tools, plan, data, "--seed=7")
    losses = [entry["loss"] for entry in found]
    if len(set(losses)) != STEPS:
        raise Failed(f"losses {losses}: steps share masks")
    other, _ = same(tools, plan, data, "--seed=8")
    if [entry["loss"] for entry in other] == losses:
        raise Failed("the seed has no effect")


def skip(low, optimizer, tools):
    run = tools.run
    tools.run = lambda tool, *rest, **named: run(
        TOOL if tool == "merak-run" else tool, *rest, **named)
    precision.skip(low, 3e38, "none", optimizer, tools)


def alone(model, mesh, microbatch, optimizer, tools):
    plan = compile_model(tools, model, "plan", mesh, microbatch, "1f1b",
                         f"--optimizer={optimizer}")
    sizes = matrix.degrees(mesh)
    tools.extra = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": "1",
                   "WORLD_SIZE": str(sizes["dp"] * sizes["tp"])}
    found, operations = same(tools, plan, data_of(model), "--ranks=env",
                             save=False)
    if len({entry["loss"] for entry in found}) != STEPS:
        raise Failed("losses do not change")
    return f"{operations} operations"


def resumed(tools):
    plan = compile_model(tools, "gpt2-tiny", "plan", "none", "half", "1f1b",
                         "--optimizer=adamw:lr=1e-2,schedule=linear,total=9")
    data = data_of("gpt2-tiny")
    whole, weights, _ = train(tools, plan, data, "auto")
    train(tools, plan, data, "auto", 3)
    half = tools.path("half")
    os.rename(tools.path("auto"), half)
    rest, moved, _ = train(tools, plan, data, "auto", 3, f"--load={half}")
    if rest != whole[3:] or moved != weights:
        raise Failed(f"continued with {rest}, expected {whole[3:]}")


def told(tools):
    data = data_of("mlp-ce")
    one = compile_model(tools, "mlp-ce", "one", "none", "half", "1f1b")
    two = compile_model(tools, "mlp-ce", "two", "dp=2", "half", "1f1b")
    for plan, options, why in (
            (one, ["--graphs=off"], "--graphs=off"),
            (one, ["--trace=" + tools.path("trace.json")],
             "--trace times each instruction"),
            (one, ["--check-numerics"], "--check-numerics looks at each value"),
            (two, [], "ranks that share a device meet on the host")):
        _, notes = tools.run(TOOL, plan, data, "--steps=3", *options)
        if f"note: steps are not launched as one graph: {why}\n" not in notes:
            raise Failed(f"{options}: {notes.strip()}")
    # A capture that fails in the middle costs nothing.
    losses = []
    for most in ("0", "50", "1000"):
        tools.extra = {"MERAK_EMULATED_CAPTURES": most}
        log = tools.path("log.jsonl")
        _, notes = tools.run(TOOL, one, data, "--steps=3", f"--log={log}")
        entries = harness.read_log(log)
        losses.append([entry["loss"] for entry in entries])
        failed = ("note: steps are not launched as one graph: " in notes and
                  "an operation that cannot be captured" in notes)
        if failed != (most != "1000") or entries[2].get("graph", False) == failed:
            raise Failed(f"captures of {most}: {notes.strip()}")
    if losses != [losses[2]] * 3:
        raise Failed(f"losses {losses}")
    tools.extra = {}
    # Neither has anything to say: a single step, and a CPU.
    for tool, steps in ((TOOL, 1), ("merak-run", 3)):
        _, notes = tools.run(tool, one, data, f"--steps={steps}")
        if "graph" in notes:
            raise Failed(f"{tool}: {notes.strip()}")


def traced(mesh, tools):
    """Each stream does one thing after the other, and all of them."""
    plan = compile_model(tools, "gpt2-tiny", "plan", mesh, "half", "1f1b")
    seen = []
    for tool in (TOOL, "merak-run"):
        trace = tools.path(tool + ".json")
        tools.run(tool, plan, data_of("gpt2-tiny"), "--steps=3",
                  f"--trace={trace}")
        with open(trace, encoding="utf-8") as file:
            events = [e for e in json.load(file)["traceEvents"]
                      if e["ph"] == "X"]
        last = {}
        for event in events:
            stream = event["pid"], event["tid"]
            # Written in nanoseconds; the clocks are read apart.
            if event["dur"] < 0 or event["ts"] < last.get(stream, 0) - 0.002:
                raise Failed(f"{tool}: {event} begins before {last[stream]}")
            last[stream] = event["ts"] + event["dur"]
        seen.append([[e["pid"], e["tid"], e["name"], e["cat"],
                      [(k, v) for k, v in e["args"].items()
                       if k != "gflops_per_second"]] for e in events])
    if seen[0] != seen[1]:
        raise Failed(f"{len(seen[0])} events, the CPU has {len(seen[1])}")
    return f"{len(seen[0])} events"


CASES = (
    [("equal",) + c for c in (
        ("gpt2-tiny", "adamw", "half", "none"),
        ("gpt2-tiny", "adamw", "one", "full"),
        ("bert-tiny", "adamw", "whole", "none"),
        ("vit-tiny", "adamw", "half", "none"),
        ("mlp-ce", "sgd", "half", "none"))] +
    [("rate", o) for o in ("adamw:lr=1e-2", "sgd:lr=0.1,momentum=0.9")] +
    [("masks", m) for m in ("whole", "one")] +
    [("skip", "bf16", o) for o in ("adamw", "sgd:lr=0.1,momentum=0.9")] +
    [("skip", "fp8", "adamw")] +
    [("alone",) + c for c in (
        ("gpt2-tiny", "dp=2,tp=2", "half", "adamw:lr=1e-3"),
        ("gpt2-tiny-untied", "dp=4", "one", "sgd:lr=0.1"),
        ("mlp-ce", "dp=2,tp=2", "half", "adamw:lr=1e-3"))] +
    [("resumed",), ("told",)] +
    [("traced", mesh) for mesh in ("none", "pp=2,tp=2")])


def main():
    args = harness.parser(__doc__).parse_args()
    if not os.path.exists(os.path.join(args.bin_dir, TOOL)):
        return harness.nothing_to_test(
            "cuda-graphs", "built without the CUDA toolkit, nothing to test")
    kinds = globals()
    return harness.run_cases(
        "cuda-graphs",
        [Case(" ".join(c), functools.partial(kinds[c[0]], *c[1:]))
         for c in CASES], args)


if __name__ == "__main__":
    sys.exit(main())
