#!/usr/bin/env python3
"""Forward-only plans (--mode=infer).

loss     recorded models: the losses of ten batches with the weights as they are
output   a model with an output for every sample: the same file, bit for bit,
         for every mesh and microbatch (its arithmetic is exact)
"""
import functools
import os
import sys

import exact_models
import harness
import matrix
import oracle
from harness import Case, Failed

MODELS = ["gpt2-tiny", "bert-tiny", "mlp-ce", "mlp-mse", "vit-tiny",
          "resnet-plain-tiny"]


def losses(model, mesh, microbatch, schedule, tools):
    folder = os.path.join(harness.MODELS, model)
    plan, log = tools.path("out.plan"), tools.path("log.jsonl")
    tools.run("merakc", os.path.join(folder, "model.onnx"), "-o", plan,
              "--mode=infer",
              *matrix.compile_options(mesh, microbatch, schedule))
    info = oracle.expected(model)
    tools.run("merak-run", plan, "--data=" + os.path.join(folder, "data"),
              f"--steps={info['steps']}", f"--log={log}")
    found = [entry["loss"] for entry in harness.read_log(log)]
    worst = oracle.compare_losses(found, info["losses_without_update"])
    return f"loss {worst:.0e}"


def outputs(mesh, microbatch, tools):
    """The second layer of a small net is an output beside the loss."""
    graph = exact_models.linear()
    data = tools.path("data")
    os.makedirs(data)
    for name, (descr, shape, values) in graph.data.items():
        harness.write_npy(os.path.join(data, name + ".npy"), descr, shape,
                          values)
    model = tools.path("model.textproto")
    text = graph.text()
    end = text.rindex("}\n")
    with open(model, "w", encoding="utf-8") as file:
        file.write(text[:end] + '  output { name: "MatMul_3_out" type { '
                   'tensor_type { elem_type: 1 shape { dim { dim_param: '
                   '"batch" } dim { dim_value: 8 } } } } }\n}\n')

    def run(options, tag):
        plan, folder = tools.path(tag + ".plan"), tools.path(tag)
        tools.run("merakc", model, "-o", plan, "--mode=infer", *options)
        tools.run("merak-run", plan, f"--data={data}", "--steps=2",
                  f"--out={folder}")
        files = {}
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), "rb") as file:
                files[name] = file.read()
        return files

    found = run(matrix.compile_options(mesh, microbatch, "gpipe"), "found")
    whole = run(matrix.compile_options("none", "whole", "gpipe"), "whole")
    if sorted(whole) != ["MatMul_3_out.npy", "loss.npy"]:
        raise Failed(f"outputs are {sorted(whole)}")
    if len(whole["MatMul_3_out.npy"]) != 128 + 2 * matrix.GLOBAL_BATCH * 8 * 4:
        raise Failed("the output has not one row for every sample")
    for name in whole:
        if found.get(name) != whole[name]:
            raise Failed(f"'{name}' differs from that of one rank")


def main():
    args = harness.parser(__doc__).parse_args()
    layouts = [(model, mesh, microbatch, schedule) for model in MODELS
               for mesh in matrix.MESHES for microbatch in matrix.MICROBATCHES
               for schedule in matrix.SCHEDULES]
    if not args.all:
        layouts = matrix.pairwise(layouts)
    cases = [Case("loss " + " ".join(layout), functools.partial(losses, *layout))
             for layout in layouts]
    cases += [Case(f"output {mesh} {microbatch}",
                   functools.partial(outputs, mesh, microbatch))
              for mesh in matrix.MESHES for microbatch in matrix.MICROBATCHES]
    return harness.run_cases("infer", cases, args)


if __name__ == "__main__":
    sys.exit(main())
