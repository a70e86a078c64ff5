#!/usr/bin/env python3
"""Exports the model families and records five training steps of each.

    export.py OUT [--only NAME,...] [--exporter torchscript|dynamo|...]
    export.py OUT --record llama-torchscript,... --results FILE
                    copies cases made before to test/data/families, with the
                    warnings of `merakc --check` that families.py found

Writes OUT/<family>-<exporter>/: model.onnx, data/<input>.npy and expected.json,
as the oracle's cases have them; a family that the exporter itself refuses gets
a file refused.txt. Needs torch, onnxscript, transformers and torchvision; the
tests of every build need none of them (recorded cases lie in test/data).
"""
import argparse
import contextlib
import copy
import json
import os
import re
import shutil
import sys
import traceback
import warnings

import numpy
import torch

from expectations import refused
from models import FAMILIES
from models.common import Loss

BATCH, STEPS = 8, 5
RATE = 0.05
# name -> (exporter, options)
EXPORTERS = {
    "torchscript": dict(dynamo=False, opset_version=17,
                        do_constant_folding=False,
                        training=torch.onnx.TrainingMode.PRESERVE),
    "dynamo": dict(dynamo=True, opset_version=18, optimize=False),
    "dynamo-optimized": dict(dynamo=True, opset_version=23, optimize=True),
    # What a newcomer types: a fixed batch, everything else as it comes.
    "dynamo-default": dict(dynamo=True),
    # As "dynamo-optimized", from weights fresh from initialization, whose equal vectors the
    # exporter merges.
    "dynamo-merged": dict(dynamo=True, opset_version=23, optimize=True),
}
# Folding removes zero biases for good and puts batch norm into convolutions;
# these have neither.
MERGED = ["gpt-neox", "llama", "qwen2", "bert"]
# With seed 1 and two replicas an activation comes so close to the kink of ReLU
# that PyTorch in float32 differs from float64 by 1e-4.
SEEDS = {(name, exporter): 2 for name in ("resnet18", "resnet50")
         for exporter in ("torchscript", "dynamo")}
NOTES = {(name, "dynamo-optimized"): "the position bias is folded"
         for name in ("t5", "swin")}
NOTES["gpt-neox", "dynamo-merged"] = "two norms became one"
# Numbers that the exporter folds away, so that nothing can train them: PyTorch
# keeps them too.
FOLDED = {("clip", "dynamo-optimized"): ["model.logit_scale"]}
# What ONNX cannot say and an exporter leaves no trace of.
LOST = {"detach": ("torchscript",)}


def norms(module):
    return [part for part in module.modules()
            if isinstance(part, torch.nn.modules.batchnorm._BatchNorm)]


def settle_statistics(module, batch):
    """Running statistics that fit the weights."""
    for part in norms(module):
        part.momentum = None
    with torch.no_grad():
        module(*batch)
    for part in norms(module):
        part.momentum = 0.1


def fuse_norms(module):
    """Batch norms with fixed statistics into the convolutions before them, as
    the exporter does."""
    for parent in module.modules():
        names = list(parent._modules)
        for first, second in zip(names, names[1:]):
            convolution, norm = parent._modules[first], parent._modules[second]
            if isinstance(convolution, torch.nn.Conv2d) and \
                    isinstance(norm, torch.nn.BatchNorm2d):
                fused = torch.nn.utils.fuse_conv_bn_eval(
                    convolution.eval(), norm)
                fused.requires_grad_(True)
                parent._modules[first] = fused
                parent._modules[second] = torch.nn.Identity()


@contextlib.contextmanager
def in_double(lost=()):
    """Floats that `forward` makes are doubles. What the exporter loses is lost
    here as well, so that PyTorch trains what the file says."""
    torch.set_default_dtype(torch.float64)
    saved = torch.Tensor.float, torch.Tensor.detach
    torch.Tensor.float = torch.Tensor.double
    if "detach" in lost:
        torch.Tensor.detach = lambda self: self
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.Tensor.float, torch.Tensor.detach = saved


def train(module, batches, replicas=1, lost=()):
    """Losses of plain SGD in float64, from the module's weights, and those of
    the same batches with the weights that it ends with. `replicas`: each step
    is the mean over so many parts of the batch, as with
    DistributedDataParallel."""
    module = module.double()
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=RATE)
    losses = []
    for batch in batches:
        batch = [x.double() if x.is_floating_point() else x for x in batch]
        optimizer.zero_grad()
        losses.append(0.0)
        for part in zip(*(x.chunk(replicas) for x in batch)):
            with in_double(lost):
                loss = module(*part) / replicas
            loss.backward()
            losses[-1] += float(loss.detach())
        optimizer.step()
    with torch.no_grad(), in_double(lost):
        after = [float(module(*(x.double() if x.is_floating_point() else x
                                for x in batch))) for batch in batches]
    return losses, after


def register_symbolics():
    """TorchScript has no symbolic for aten::diff, and one for aten::cumsum that
    leaves bool as it is, which ONNX does not allow; current transformers use
    both to look for packed sequences."""
    from torch.onnx import symbolic_helper

    def cumsum(g, x, dim, dtype=None):
        if x.type().scalarType() == "Bool":
            x = g.op("Cast", x, to_i=7)
        axis = symbolic_helper._maybe_get_const(dim, "i")
        return g.op("CumSum", x, g.op("Constant",
                                      value_t=torch.tensor(axis)))

    def diff(g, x, n=None, dim=None, prepend=None, append=None):
        axis = symbolic_helper._maybe_get_const(dim, "i")
        if prepend is not None and not symbolic_helper._is_none(prepend):
            x = g.op("Concat", prepend, x, axis_i=axis)

        def part(start, end):
            return symbolic_helper._slice_helper(
                g, x, axes=[axis], starts=[start], ends=[end])
        return g.op("Sub", part(1, 2**31 - 1), part(0, -1))
    torch.onnx.register_custom_op_symbolic("aten::diff", diff, 17)
    torch.onnx.register_custom_op_symbolic("aten::cumsum", cumsum, 17)


def twin(module, build):
    try:
        return copy.deepcopy(module)
    except RuntimeError:  # a weight that a hook computes
        found = build()[0]
        found.load_state_dict(module.state_dict())
        return found


def not_trained(module):
    """Names of the parameters that get no gradient in PyTorch, which ONNX
    cannot say."""
    return [name for name, p in module.named_parameters() if p.grad is None]


def export(name, exporter, folder):
    build = FAMILIES[name]
    of_family = getattr(build, "options", {})
    torch.manual_seed(SEEDS.get((name, exporter), 1))
    module, inputs = build()
    module.train()
    options = dict(EXPORTERS[exporter])
    if exporter == "dynamo-optimized":
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
    samples = {key: make(BATCH * STEPS) for key, make in inputs.items()}
    batches = [[x[k * BATCH:(k + 1) * BATCH] for x in samples.values()]
               for k in range(STEPS)]
    if norms(module):
        settle_statistics(module, batches[0])
    # The optimizer fuses batch norm into convolutions, which is refused; with its
    # running statistics it is at least the same number.
    for part in norms(module) if options.get("optimize",
                                             options["dynamo"]) else []:
        part.eval()
    whole = (of_family.get("whole")
             or any(part.training for part in norms(module)))
    reference = twin(module, build)
    note = NOTES.get((name, exporter), "")
    if options.get("optimize", options["dynamo"]) and norms(module):
        note = "batch norm is fused into convolutions, in PyTorch too"
        fuse_norms(reference)
    for path in FOLDED.get((name, exporter), []):
        note = path.rsplit(".", 1)[-1] + " is folded away, kept in PyTorch too"
        reference.get_parameter(path).requires_grad_(False)
    lost = [what for what, exporters in LOST.items()
            if of_family.get(what) and exporter in exporters]
    for what in lost:
        note = what.replace("_", " ") + " is dropped, in PyTorch too"
    # Batch norm in training mode: each replica has statistics of its own.
    replicas = {}
    if any(part.training for part in norms(module)):
        replicas = {"replica_losses": {
            "2": train(copy.deepcopy(reference), batches, 2, lost)[0]}}
    losses, after = train(reference, batches, lost=lost)
    frozen = not_trained(reference)
    if of_family.get("buffers") and not options["dynamo"]:
        frozen += [name for name, x in module.named_buffers()
                   if x.is_floating_point()]
    os.makedirs(os.path.join(folder, "data"), exist_ok=True)
    path = os.path.join(folder, "model.onnx")
    extra = {"verbose": False} if options["dynamo"] else {}
    if exporter != "dynamo-default":
        extra.update(input_names=list(samples), output_names=["loss"])
        if options["dynamo"]:
            extra["external_data"] = False
    if exporter in ("dynamo-optimized", "dynamo-merged"):
        # With a fixed batch the exporter folds tables expanded to it.
        batch = torch.export.Dim.DYNAMIC
        shapes = tuple({0: batch} for _ in samples)
        extra["dynamic_shapes"] = ({"inputs": shapes}
                                   if isinstance(module, Loss) else shapes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, tuple(batches[0]), path, **options, **extra)
    inputs, loss, opset, known = interface(path)
    for key, value in zip(inputs, samples.values(), strict=True):
        numpy.save(os.path.join(folder, "data", key + ".npy"), value.numpy())
    expected = {"family": name, "exporter": exporter, "opset": opset,
                "global_batch": BATCH, "steps": STEPS, "lr": RATE,
                "losses": losses, "after": after, **replicas}
    facts = {"loss": loss if loss != "loss" else None,
             "microbatch": "whole" if whole else None,
             "kinks": of_family.get("kinks"),
             "freeze": [x for x in frozen if x in known], "note": note}
    expected.update((key, value) for key, value in facts.items() if value)
    with open(os.path.join(folder, "expected.json"), "w") as file:
        json.dump(expected, file, indent=1)
        file.write("\n")


def interface(path):
    """Names of the inputs and of the output, the opset, and all that the file
    names a parameter or a source of one."""
    import onnx
    model = onnx.load(path, load_external_data=False)
    opset = next(x.version for x in model.opset_import if not x.domain)
    graph = model.graph
    known = {x.name for x in graph.initializer}
    # The program's parameters too: import knows those that were merged away.
    for note in graph.metadata_props:
        if note.key.endswith("graph_signature"):
            known.update(re.findall(r": PARAMETER target='([^']*)'",
                                    note.value))
    return [x.name for x in graph.input], graph.output[0].name, opset, known


# Notes that import reads; the others (call stacks ...) are most of the file.
KEPT_NOTES = ["pkg.torch.onnx.name_scopes", "pkg.torch.onnx.fx_node",
              "pkg.torch.export.ExportedProgram.graph_signature",
              "pkg.torch.export.graph_signature.InputSpec.kind",
              "pkg.onnxscript.optimizer.folded_from",
              "pkg.onnxscript.rewriter.rule_name"]


def record(source, target, results):
    """Copies a case without the notes that nothing reads."""
    import onnx
    os.makedirs(target, exist_ok=True)
    model = onnx.load(os.path.join(source, "model.onnx"),
                      load_external_data=False)
    for message in [model.graph, *model.graph.node, *model.graph.initializer,
                    *model.graph.value_info]:
        kept = [p for p in message.metadata_props if p.key in KEPT_NOTES]
        del message.metadata_props[:]
        message.metadata_props.extend(kept)
    for node in model.graph.node:
        node.doc_string = ""
    noted = [value for value in model.graph.value_info if value.metadata_props]
    del model.graph.value_info[:]
    model.graph.value_info.extend(noted)
    onnx.save(model, os.path.join(target, "model.onnx"))
    beside = os.path.join(source, "model.onnx.data")
    if os.path.exists(beside):
        shutil.copy(beside, target)
    shutil.copytree(os.path.join(source, "data"), os.path.join(target, "data"),
                    dirs_exist_ok=True)
    with open(os.path.join(source, "expected.json")) as file:
        expected = json.load(file)
    refuses, _ = refused(expected["family"], expected["exporter"])
    if refuses:
        expected["refuses"] = refuses
    warns = results["cases"].get(
        f"{expected['family']} {expected['exporter']} check")
    if isinstance(warns, list):
        expected["warns"] = warns
    with open(os.path.join(target, "expected.json"), "w") as file:
        json.dump(expected, file, indent=1)
        file.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--only", default=",".join(FAMILIES))
    parser.add_argument("--exporter", default=",".join(EXPORTERS))
    parser.add_argument("--record")
    parser.add_argument("--results")
    args = parser.parse_args()
    if args.record:
        recorded = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../data/families")
        with open(args.results) as file:
            results = json.load(file)
        for name in args.record.split(","):
            record(os.path.join(args.out, name), os.path.join(recorded, name),
                   results)
        return
    torch.set_num_threads(1)
    register_symbolics()
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
