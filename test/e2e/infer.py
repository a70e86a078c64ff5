#!/usr/bin/env python3
"""Forward-only plans (--mode=infer).

loss     recorded models: the losses of ten batches with the weights as they are
output   a model with an output for every sample: the same file, bit for bit,
         for every mesh and microbatch (its arithmetic is exact)
halves   tensor-parallel overlap, recorded models: levels 1 to 3 give, bit for
         bit, the losses of half the microbatch without overlap; one sample a
         microbatch, halved along its tokens: those that were recorded
joined   tensor-parallel overlap: the outputs of both halves, of samples or
         tokens, are one file, that of one rank
default  a cluster is given and no level: halves where links are slow, none
         where they take no time
"""
import array
import functools
import itertools
import json
import math
import os
import re
import sys

import exact_models
import harness
import matrix
import oracle
import overlap
from harness import Case, Failed

MODELS = ["gpt2-tiny", "bert-tiny", "mlp-ce", "mlp-mse", "vit-tiny",
          "resnet-plain-tiny"]
# Exact models with what to look into: a product, a skip over all stages, and
# attention, whose tokens can be halved.
JOINED = ["linear", "residual", "attention_block"]
TOKENS = ["attention_block"]
# What the loss is made of are sums over the samples.
OF_SUMS = ["penalty", "joined"]


def infer(model, mesh, microbatch, schedule, tools):
    """The losses of the recorded data, and those recorded."""
    folder = os.path.join(harness.MODELS, model)
    plan, log = tools.path("out.plan"), tools.path("log.jsonl")
    if os.path.exists(log):
        os.remove(log)
    tools.run("merakc", os.path.join(folder, "model.onnx"), "-o", plan,
              "--mode=infer",
              *matrix.compile_options(mesh, microbatch, schedule))
    info = oracle.expected(model)
    tools.run("merak-run", plan, "--data=" + os.path.join(folder, "data"),
              f"--steps={info['steps']}", f"--log={log}")
    return ([entry["loss"] for entry in harness.read_log(log)],
            info["losses_without_update"])


def losses(model, mesh, microbatch, schedule, level, tools):
    found, recorded = infer(model, mesh, microbatch, schedule,
                            overlap.Overlapping(tools, level))
    return f"loss {oracle.compare_losses(found, recorded):.0e}"


def halves(model, mesh, microbatch, schedule, level, tools):
    strategy = tools.path("base.json")
    base, _ = infer(model, mesh, overlap.HALF[microbatch], "gpipe",
                    overlap.WithOption(overlap.Overlapping(tools, 0),
                                       f"--emit-strategy={strategy}"))
    with open(strategy, encoding="utf-8") as file:
        decided = json.load(file)
    layouts = {key: decided[key] for key in ("version", "mesh", "classes")}
    found, _ = infer(model, mesh, microbatch, schedule, overlap.SameLayouts(
        overlap.Overlapping(tools, level), layouts))
    if found != base:
        raise Failed(f"losses {found[:2]}, expected {base[:2]}")
    return "identical"


def default(model, mesh, links, tools):
    strategy = tools.path("strategy.json")
    infer(model, mesh, "half", "gpipe", overlap.WithOption(
        overlap.WithOption(
            tools, f"--cluster={overlap.cluster_file(tools, mesh, links)}"),
        f"--emit-strategy={strategy}"))
    with open(strategy, encoding="utf-8") as file:
        chosen = json.load(file)["tp_overlap"]
    if chosen != ("3" if links == "slow" else "0"):
        raise Failed(f"links that are {links}: level {chosen}")
    return f"level {chosen}"


def with_outputs(name, tools, more=()):
    """The model, its data and its outputs beside the loss, name: shape of a sample:
    what the loss is made of, where it has samples, and `more`."""
    graph = getattr(exact_models, name)()
    data = tools.path("data")
    os.makedirs(data)
    for key, (descr, shape, values) in graph.data.items():
        harness.write_npy(os.path.join(data, key + ".npy"), descr, shape,
                          values)
    model = tools.path("model.textproto")
    value = re.search(r'input: "(\S+)"', graph.nodes[-2])[1]
    shapes = dict(more)
    if name not in OF_SUMS:
        shapes[value] = graph.inputs[-1][2]
    text = graph.text()
    text = text[:text.rindex("}\n")]
    for key, shape in shapes.items():
        dims = "".join(f"dim {{ dim_value: {n} }} " for n in shape)
        text += (f'  output {{ name: "{key}" type {{ '
                 'tensor_type { elem_type: 1 shape { dim { dim_param: '
                 f'"batch" }} {dims}}} }} }} }}\n')
    with open(model, "w", encoding="utf-8") as file:
        file.write(text + "}\n")
    return model, data, shapes


def files_of(folder):
    """Their bytes by name."""
    files = {}
    for file_name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, file_name), "rb") as file:
            files[file_name] = file.read()
    return files


def run_forward(model, data, options, tag, tools):
    """The files of outputs of two steps."""
    plan, folder = tools.path(tag + ".plan"), tools.path(tag)
    tools.run("merakc", model, "-o", plan, "--mode=infer", *options)
    tools.run("merak-run", plan, f"--data={data}", "--steps=2", f"--out={folder}")
    return files_of(folder)


def compare_outputs(found, whole, shapes, samples):
    """Fails unless the files are those of one rank, a row for each sample."""
    if sorted(whole) != sorted([*(key + ".npy" for key in shapes), "loss.npy"]):
        raise Failed(f"outputs are {sorted(whole)}")
    for key, shape in shapes.items():
        if len(whole[key + ".npy"]) != 128 + samples * math.prod(shape) * 4:
            raise Failed(f"'{key}' has not one row for every sample")
    def values(data): # 0 and -0 count as equal
        return data[:128], array.array("f", data[128:])

    if sorted(found) != sorted(whole):
        raise Failed(f"outputs are {sorted(found)}, those of one rank {sorted(whole)}")
    for key, data in whole.items():
        if found[key] != data and values(found[key]) != values(data):
            raise Failed(f"'{key}' differs from that of one rank")


def outputs(name, mesh, microbatch, schedule, level, tools):
    """What the loss is made of is an output beside it."""
    model, data, shapes = with_outputs(name, tools)
    found = run_forward(model, data, [
        *matrix.compile_options(mesh, microbatch, schedule),
        f"--tp-overlap={level}"], "found", tools)
    whole = run_forward(model, data,
                        matrix.compile_options("none", "whole", "gpipe"), "whole",
                        tools)
    compare_outputs(found, whole, shapes, 2 * matrix.GLOBAL_BATCH)


def overlap_cases(everything):
    """(name, body, arguments) of tensor-parallel overlap."""
    def some(cases):
        cases = list(cases)
        return cases if everything else matrix.pairwise(cases)

    for case in some(itertools.product(MODELS, overlap.MESHES, overlap.HALF,
                                       matrix.SCHEDULES, overlap.LEVELS)):
        if overlap.fits(case[1], case[2]):
            yield "halves", halves, case
    for case in some(itertools.product(
            overlap.TOKENS_ORACLE, overlap.MESHES, ["one"], matrix.SCHEDULES,
            overlap.LEVELS)):
        yield "halves", losses, case
    for case in some(itertools.product(JOINED, overlap.MESHES,
                                       matrix.MICROBATCHES, matrix.SCHEDULES,
                                       overlap.LEVELS)):
        if overlap.fits(case[1], case[2]) or case[0] in TOKENS:
            yield "joined", outputs, case
    for case in itertools.product(["gpt2-tiny"], ["tp=2", "dp=2,tp=2"],
                                  overlap.LINKS):
        yield "default", default, case


def main():
    args = harness.parser(__doc__).parse_args()
    layouts = [(model, mesh, microbatch, schedule, "0") for model in MODELS
               for mesh in matrix.MESHES for microbatch in matrix.MICROBATCHES
               for schedule in matrix.SCHEDULES]
    if not args.all:
        layouts = matrix.pairwise(layouts)
    chosen = [("loss", losses, layout) for layout in layouts]
    chosen += [("output", outputs, ("linear", mesh, microbatch, "gpipe", "0"))
               for mesh in matrix.MESHES for microbatch in matrix.MICROBATCHES]
    chosen += overlap_cases(args.all)
    cases = [Case(" ".join((kind, *case)), functools.partial(body, *case))
             for kind, body, case in chosen]
    return harness.run_cases("infer", cases, args)


if __name__ == "__main__":
    sys.exit(main())
