#!/usr/bin/env python3
"""Exports models that are not in f32 and records what PyTorch makes of them.

    precision_record.py         writes test/data/precision

<model>-<type>-<exporter>: a module in bf16, f16 or f64 (`module.to(...)`), or
one in f32 under `torch.autocast` ("autocast"). The losses are those of float64
from the same rounded weights and data, with SGD and AdamW. Needs torch and
onnxscript; the tests of every build do not.
"""
import copy
import json
import os
import shutil
import warnings

import numpy
import torch
from torch import nn
from torch.nn import functional

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                   "../data/precision")
BATCH, STEPS = 8, 5
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64,
         "autocast": torch.float32}
EXPORTERS = {
    "torchscript": dict(dynamo=False, opset_version=17,
                        do_constant_folding=False,
                        training=torch.onnx.TrainingMode.PRESERVE),
    "dynamo": dict(dynamo=True, optimize=False)}
CASES = [("attention", "bf16", "dynamo"), ("attention", "f16", "torchscript"),
         ("attention", "f64", "dynamo"), ("attention", "autocast", "dynamo"),
         ("image", "bf16", "torchscript"), ("image", "f64", "torchscript"),
         ("islands", "bf16", "torchscript"), ("islands", "f16", "dynamo")]


class Attention(nn.Module):
    """Embeddings, layer norm, attention, a tied head."""

    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(72, 16), nn.Embedding(8, 16)
        self.before, self.after = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.head = nn.Linear(16, 72, bias=False)
        self.head.weight = self.token.weight
        nn.init.normal_(self.token.weight, 0, 0.3)

    def forward(self, ids, labels):
        x = self.token(ids) + self.place(torch.arange(ids.shape[1]))
        q, k, v = (part.reshape(*ids.shape, 2, 8).transpose(1, 2)
                   for part in self.qkv(self.before(x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        logits = self.head(functional.gelu(self.after(x)))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    inputs = {"ids": (72, 8), "labels": (72, 8)}


class Image(nn.Module):
    """Convolutions, group norm, pooling."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.second = nn.Conv2d(8, 12, 3, stride=2)
        self.head = nn.Linear(12, 10)

    def forward(self, x, labels):
        x = functional.max_pool2d(torch.relu(self.norm(self.first(x))), 2)
        x = torch.relu(self.second(x)).mean((2, 3))
        return functional.cross_entropy(self.head(x), labels)

    inputs = {"x": (0, 3, 8, 8), "labels": (10,)}


class Islands(nn.Module):
    """Parts in f32 inside: an RMS norm, a softmax, the loss."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 16), nn.Linear(16, 10)
        self.scale = nn.Parameter(torch.ones(16))
        self.gate = nn.Linear(16, 16, bias=False)

    def forward(self, x, labels):
        y = self.first(x)
        kind = y.dtype
        wide = kind if kind == torch.float64 else torch.float32
        z = y.to(wide)
        z = z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-6)
        y = self.scale * z.to(kind)
        gate = functional.softmax(self.gate(y), -1, dtype=wide).to(kind)
        y = self.second(functional.silu(y) * gate)
        return functional.cross_entropy(y.to(wide), labels)

    inputs = {"x": (0, 12), "labels": (10,)}


class Autocast(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.module(*batch)


def make(kinds, count, dtype):
    limit, *shape = kinds
    if limit:
        return torch.randint(0, limit, (count, *shape))
    return torch.randn(count, *shape).to(dtype)


def losses(module, batches, kind):
    module = copy.deepcopy(module).double()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05) \
        if kind == "sgd" else torch.optim.AdamW(module.parameters(), lr=1e-3)
    found = []
    for batch in batches:
        batch = [x.double() if x.is_floating_point() else x for x in batch]
        optimizer.zero_grad()
        loss = module(*batch)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def record(model, dtype, exporter):
    torch.manual_seed(3)
    kind = TYPES[dtype]
    module = {"attention": Attention, "image": Image,
              "islands": Islands}[model]()
    inputs = module.inputs
    module = module.train().to(kind)
    data = {name: make(spec, BATCH * STEPS, kind)
            for name, spec in inputs.items()}
    batches = [[x[at:at + BATCH] for x in data.values()]
               for at in range(0, BATCH * STEPS, BATCH)]
    folder = os.path.join(OUT, f"{model}-{dtype}-{exporter}")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(os.path.join(folder, "data"))
    torch.onnx.export(Autocast(module) if dtype == "autocast" else module,
                      tuple(batches[0]), os.path.join(folder, "model.onnx"),
                      input_names=list(inputs), output_names=["loss"],
                      external_data=False, **EXPORTERS[exporter])
    for name, x in data.items():
        x = x.float() if x.dtype == torch.bfloat16 else x
        numpy.save(os.path.join(folder, "data", name + ".npy"), x.numpy())
    with open(os.path.join(folder, "expected.json"), "w") as file:
        json.dump({"losses": {optimizer: losses(module, batches, optimizer)
                              for optimizer in ("sgd", "adamw")}}, file,
                  indent=1)
        file.write("\n")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    for case in CASES:
        record(*case)
