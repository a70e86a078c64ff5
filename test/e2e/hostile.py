#!/usr/bin/env python3
"""Graphs of unusual size and form: chains, sums of very many inputs, one value
read everywhere. They compile, with no more than linear time in mind (the time
limit of a case is far above what they take), or are refused with a sentence.
"""
import functools
import sys

import harness
import training_info as build
from harness import Case, Failed


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
    sizes = [(chain, 12000), (same, 12000), (fan, 500), (listed, 500)]
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
    # What follows from a refusal is not told again.
    cases.append(Case("refused once", functools.partial(
        refused, lambda n: [build.node("Mul", ["v0", "nowhere"], ["v1"])]
        + chain(n)[1:], 1000, "input 'nowhere' is made by no earlier node")))
    return harness.run_cases("hostile", cases, args)


if __name__ == "__main__":
    sys.exit(main())
