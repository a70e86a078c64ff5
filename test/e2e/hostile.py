#!/usr/bin/env python3
"""Graphs of unusual size and form: chains, sums of very many inputs, one value
read everywhere. They compile, with no more than linear time in mind (the time
limit of a case is far above what they take), or are refused with a sentence.
Of recurrences that are written out step by step, the work is compared: four times
the steps take about four times as much.
"""
import functools
import os
import subprocess
import sys

import exact_models
import harness
import training_info as build
from harness import Case, Failed

GROWTH = 6.5  # of the work; with quadratic parts it was 8 and more


def graph(nodes):
    text = build.tensor("initializer", "w", [4], [0.1, 0.2, 0.3, 0.4])
    text += build.node("Mul", ["x", "w"], ["v0"])
    text += "".join(nodes)
    text += build.info("input", "x", [8, 4]) + build.info("output", "loss", [])
    return (f"ir_version: 8 graph {{ name: 'big' {text} }}\n"
            "opset_import { version: 17 }\n")


def chain(count):
    """Each operation waits for the one before."""
    nodes = [build.node("Tanh" if i % 2 else "Neg", [f"v{i}"], [f"v{i + 1}"])
             for i in range(count)]
    return nodes + [build.node("ReduceMean", [f"v{count}"], ["loss"],
                               keepdims=0)]


def same(count):
    """One value `count` times."""
    return [build.node("Sum", ["v0"] * count, ["s"]),
            build.node("ReduceMean", ["s"], ["loss"], keepdims=0)]


def fan(count):
    """`count` values of one, joined."""
    nodes = [build.node("Tanh", ["v0"], [f"v{i + 1}"]) for i in range(count)]
    return nodes + [
        build.node("Concat", [f"v{i + 1}" for i in range(count)], ["s"],
                   axis=1),
        build.node("ReduceMean", ["s"], ["loss"], keepdims=0)]


def listed(count):
    """A sequence that grows to `count` parts, one node each."""
    nodes = [build.node("SequenceEmpty", [], ["list0"])]
    nodes += [build.node("SequenceInsert", [f"list{i}", "v0"],
                         [f"list{i + 1}"]) for i in range(count)]
    return nodes + [
        build.node("ConcatFromSequence", [f"list{count}"], ["s"], axis=1),
        build.node("ReduceMean", ["s"], ["loss"], keepdims=0)]


def recurrence(steps):
    """Two layers over so many steps."""
    g = exact_models.Graph("recurrence")
    h = g.op("Transpose", g.input("x", [steps, 4]), perm=[1, 0, 2])
    for layer in range(2):
        h = g.op("LSTM", h, g.weight(f"w{layer}", [1, 16, 4]),
                 g.weight(f"r{layer}", [1, 16, 4]), hidden_size=4)
        h = g.op("Reshape", h, g.shape([steps, -1, 4]))
    g.target_loss(g.op("Transpose", h, perm=[1, 0, 2]), [steps, 4])
    return g.text()


def work(tools, path, *options):
    """Seconds of a processor, which other work beside changes little."""
    command = tools.start("merakc", path, "-o", tools.path("out.plan"), "-q",
                          "--global-batch=8", *options)
    with open(tools.path("errors"), "wb") as errors:
        process = subprocess.Popen(command, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise Failed(f"merakc ended with {process.returncode}")
    return usage.ru_utime


def linear(stages, microbatch, few, tools):
    paths, many = {}, 4 * few
    for steps in (few, many):
        paths[steps] = tools.path(f"{steps}.textproto")
        with open(paths[steps], "w", encoding="utf-8") as file:
            file.write(recurrence(steps))
    options = [f"--devices={stages}", f"--mesh=pp={stages},dp=1,tp=1",
               f"--microbatch={microbatch}"]
    for _ in range(3):
        ratio = (work(tools, paths[many], *options) /
                 work(tools, paths[few], *options))
        if ratio < GROWTH:
            return f"{ratio:.1f} times the work for 4 times the steps"
    raise Failed(f"{ratio:.1f} times the work for 4 times the steps")


def compiles(form, count, mode, tools):
    path = build.write(tools, graph(form(count)))
    tools.run("merakc", path, "-o", tools.path("out.plan"), "-q",
              f"--mode={mode}", "--devices=1")


def refused(form, count, sentence, tools):
    path = build.write(tools, graph(form(count)))
    _, errors = tools.run("merakc", path, "-o", tools.path("out.plan"),
                          expect=1)
    if sentence not in errors or len(errors.splitlines()) > 1:
        raise Failed(harness.last_lines(errors)[:300])


def main():
    args = harness.parser(__doc__).parse_args()
    sizes = [(chain, 12000), (same, 30000), (fan, 500), (listed, 500)]
    few = 128
    if args.short:
        sizes, few = [(chain, 2000), (same, 6000), (fan, 200), (listed, 200)], 32
    if args.all:
        sizes += [(chain, 50000), (same, 100000), (fan, 5000), (listed, 1400)]
    cases = [Case(f"{form.__name__} {count} {mode}",
                  functools.partial(compiles, form, count, mode))
             for form, count in sizes for mode in ("infer", "train")]
    cases += [Case(f"refused {form.__name__} {count}", functools.partial(
        refused, form, count, "expected at most 131072 operands of nodes"))
              for form, count in ((chain, 200000), (same, 131072))]
    cases.append(Case("refused listed 4097", functools.partial(
        refused, listed, 4097,
        "SequenceInsert: expected at most 4096 parts of a sequence")))
    cases += [Case(f"recurrence pp={stages}",
                   functools.partial(linear, stages, 2, few))
              for stages in (1, 2)]
    # What follows from a refusal is not told again.
    cases.append(Case("refused once", functools.partial(
        refused, lambda n: [build.node("Mul", ["v0", "nowhere"], ["v1"])]
        + chain(n)[1:], 1000, "input 'nowhere' is made by no earlier node")))
    return harness.run_cases("hostile", cases, args)


if __name__ == "__main__":
    sys.exit(main())
