#!/usr/bin/env python3
"""Exports the model families and records five training steps of each.

    export.py OUT [--only NAME,...] [--exporter torchscript|dynamo|...]
    export.py OUT --record llama-torchscript,...    copies cases made before to
                                                    test/data/families

Writes OUT/<family>-<exporter>/: model.onnx, data/<input>.npy and expected.json,
as the oracle's cases have them; a family that the exporter itself refuses gets
a file refused.txt. Needs torch, onnxscript, transformers and torchvision; the
tests of every build need none of them (recorded cases lie in test/data).
"""
import argparse
import copy
import json
import os
import shutil
import sys
import traceback
import warnings

import numpy
import torch

from definitions import FAMILIES

BATCH, STEPS = 8, 5
RATE = 0.05
# name -> (exporter, options)
EXPORTERS = {
    "torchscript": dict(dynamo=False, opset_version=17,
                        do_constant_folding=False,
                        training=torch.onnx.TrainingMode.PRESERVE),
    "dynamo": dict(dynamo=True, opset_version=18, optimize=False),
    "dynamo-optimized": dict(dynamo=True, opset_version=23, optimize=True),
    # The same from weights fresh from initialization, whose equal vectors the
    # exporter merges.
    "dynamo-merged": dict(dynamo=True, opset_version=23, optimize=True),
}
# Folding removes zero biases for good and puts batch norm into convolutions;
# these have neither.
MERGED = ["gpt-neox", "llama", "qwen2", "bert"]
STATIC = ["swin"]  # whose windows are counted while tracing
# Contrastive losses compare all samples of the batch: one microbatch.
WHOLE = {"clip": {"none": "whole", "pp=2,dp=2,tp=2": "whole"}}
BATCH_NORM = ["resnet", "densenet"]
NOTES = {(family, "dynamo-optimized"): "batch norm is fused into convolutions"
         for family in BATCH_NORM}
NOTES["t5", "dynamo-optimized"] = "the position bias is folded away"


def train(module, batches):
    """Losses of plain SGD in float64, from the module's weights."""
    module = copy.deepcopy(module).double()
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=RATE)
    losses = []
    for batch in batches:
        batch = [x.double() if x.is_floating_point() else x for x in batch]
        optimizer.zero_grad()
        loss = module(*batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def register_diff():
    """TorchScript has no symbolic for aten::diff, which current transformers
    use to look for packed sequences."""
    from torch.onnx import symbolic_helper

    def diff(g, x, n=None, dim=None, prepend=None, append=None):
        axis = symbolic_helper._maybe_get_const(dim, "i")
        if prepend is not None and not symbolic_helper._is_none(prepend):
            x = g.op("Concat", prepend, x, axis_i=axis)

        def part(start, end):
            return symbolic_helper._slice_helper(
                g, x, axes=[axis], starts=[start], ends=[end])
        return g.op("Sub", part(1, 2**31 - 1), part(0, -1))
    torch.onnx.register_custom_op_symbolic("aten::diff", diff, 17)


def freeze_statistics(module):
    """Batch norm as the dynamo exporter writes it in any case: with its running
    statistics."""
    for part in module.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            part.eval()


def export(name, exporter, folder):
    torch.manual_seed(1)
    module, inputs = FAMILIES[name]()
    module.train()
    options = dict(EXPORTERS[exporter])
    if exporter == "dynamo-optimized":
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
    samples = {key: make(BATCH * STEPS) for key, make in inputs.items()}
    for part in module.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 1.5)
    freeze_statistics(module)
    batches = [[x[k * BATCH:(k + 1) * BATCH] for x in samples.values()]
               for k in range(STEPS)]
    losses = train(module, batches)
    os.makedirs(os.path.join(folder, "data"), exist_ok=True)
    path = os.path.join(folder, "model.onnx")
    extra = {"external_data": False, "verbose": False} \
        if options["dynamo"] else {}
    if exporter == "dynamo-optimized" and name not in STATIC:
        # With a fixed batch the exporter folds tables expanded to it.
        batch = torch.export.Dim.DYNAMIC
        extra["dynamic_shapes"] = {"inputs": tuple({0: batch}
                                                   for _ in samples)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, tuple(batches[0]), path,
                          input_names=list(samples), output_names=["loss"],
                          **options, **extra)
    for key, value in samples.items():
        numpy.save(os.path.join(folder, "data", key + ".npy"), value.numpy())
    with open(os.path.join(folder, "expected.json"), "w") as file:
        json.dump({"family": name, "exporter": exporter,
                   "opset": options["opset_version"], "global_batch": BATCH,
                   "steps": STEPS, "lr": RATE, "losses": losses,
                   **({"microbatch": WHOLE[name]} if name in WHOLE else {}),
                   **({"note": NOTES[name, exporter]}
                      if (name, exporter) in NOTES else {})}, file, indent=1)
        file.write("\n")


# Notes that import reads; the others (call stacks ...) are most of the file.
KEPT_NOTES = ["pkg.torch.onnx.name_scopes",
              "pkg.torch.export.ExportedProgram.graph_signature"]


def record(source, target):
    """Copies a case without the notes that nothing reads."""
    import onnx
    os.makedirs(target, exist_ok=True)
    model = onnx.load(os.path.join(source, "model.onnx"))
    for message in [model.graph, *model.graph.node]:
        kept = [p for p in message.metadata_props if p.key in KEPT_NOTES]
        del message.metadata_props[:]
        message.metadata_props.extend(kept)
    for node in model.graph.node:
        node.doc_string = ""
    del model.graph.value_info[:]
    onnx.save(model, os.path.join(target, "model.onnx"))
    shutil.copytree(os.path.join(source, "data"), os.path.join(target, "data"),
                    dirs_exist_ok=True)
    shutil.copy(os.path.join(source, "expected.json"), target)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--only", default=",".join(FAMILIES))
    parser.add_argument("--exporter", default=",".join(EXPORTERS))
    parser.add_argument("--record")
    args = parser.parse_args()
    if args.record:
        recorded = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../data/families")
        for name in args.record.split(","):
            record(os.path.join(args.out, name), os.path.join(recorded, name))
        return
    torch.set_num_threads(1)
    register_diff()
    for name in args.only.split(","):
        for exporter in args.exporter.split(","):
            if exporter == "dynamo-merged" and name not in MERGED:
                continue
            folder = os.path.join(args.out, f"{name}-{exporter}")
            try:
                export(name, exporter, folder)
                size = os.path.getsize(os.path.join(folder, "model.onnx"))
                print(f"{name} {exporter}: {size // 1024} kB", flush=True)
            except Exception as error:
                os.makedirs(folder, exist_ok=True)
                with open(os.path.join(folder, "refused.txt"), "w") as file:
                    traceback.print_exc(file=file)
                text = (str(error).strip() or type(error).__name__)
                print(f"{name} {exporter}: refused by the exporter: "
                      f"{text.splitlines()[0][:150]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
