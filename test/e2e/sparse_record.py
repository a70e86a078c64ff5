#!/usr/bin/env python3
"""Records what PyTorch makes of tables.

    sparse_record.py tables     of sparse.py: writes test/data/sparse/pytorch.json
    sparse_record.py exported   of sparse_torch.py: exported.json and folders there

Tables are torch.nn.Embedding(sparse=True), stepped by the optimizers that take
their gradients: SGD, Adagrad and SparseAdam, which touch the rows looked up and no
other; or, of those in EXACT, torch.nn.Embedding with dense gradients, stepped as
all parameters. All else has dense gradients and the dense optimizer of the same
name. All in float64. Needs torch, the second also onnxscript and safetensors; the
tests of every build do not.
"""
import json
import os
import sys

import sparse
import sparse_models
import sparse_torch
import torch
from torch import nn

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                   "../data/sparse")

# Of the tables, of the other parameters.
OPTIMIZERS = {
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.01),) * 2,
    "adagrad": (lambda p: torch.optim.Adagrad(p, lr=0.05, eps=1e-10),) * 2,
    "adam": (lambda p: torch.optim.SparseAdam(p, lr=0.01, eps=1e-12),
             lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-12)),
}
# Of all parameters, with dense gradients.
EXACT = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-8,
                                         weight_decay=0.1),
    "adam-l2": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-8,
                                          weight_decay=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9,
                                          weight_decay=0.01),
}
OPTIMIZERS.update((name, (make,) * 2) for name, make in EXACT.items())


def digits(value):
    return float(f"{value:.9g}")


def train(name, optimizer):
    graph = sparse_models.MODELS[name](sparse_models.Rough)
    data = {key: torch.tensor(values, dtype=torch.int64 if descr == "<i8" else
                              torch.float64).reshape(shape)
            for key, (descr, shape, values) in graph.data.items()}
    weights = {key: torch.tensor(values, dtype=torch.float64)
               .reshape(graph.shapes[key])
               for key, values in graph.weights.items()}
    tables = {key: nn.Embedding.from_pretrained(
        weights.pop(key), freeze=False, sparse=optimizer not in EXACT,
        padding_idx=sparse_models.PADDING.get(name)) for key in sparse_models.TABLES[name]}
    for value in weights.values():
        value.requires_grad_()
    steppers = [OPTIMIZERS[optimizer][0]([t.weight for t in tables.values()]),
                OPTIMIZERS[optimizer][1](list(weights.values()))]
    losses = []
    for step in range(sparse.RECORDED_STEPS):
        first = step * sparse_models.BATCH % sparse_models.SAMPLES
        batch = {key: value[first:first + sparse_models.BATCH]
                 for key, value in data.items()}
        for stepper in steppers:
            stepper.zero_grad()
        loss = (sparse.FORWARD[name](tables, weights, batch, torch) *
                batch["target"]).sum()
        loss.backward()
        for stepper in steppers:
            stepper.step()
        losses.append(digits(loss.item()))
    weights.update((key, table.weight) for key, table in tables.items())
    return {"losses": losses, "weights": {
        key: list(map(digits, value.detach().flatten().tolist()))
        for key, value in sorted(weights.items())}}


def write(name, what):
    os.makedirs(OUT, exist_ok=True)
    with open(os.path.join(OUT, name), "w", encoding="utf-8") as file:
        json.dump({"torch": torch.__version__, **what}, file)
        file.write("\n")


def main():
    if "tables" in sys.argv[1:]:
        write("pytorch.json", {"runs": {
            f"{name} {optimizer}": train(name, optimizer)
            for name in sparse.FORWARD for optimizer in OPTIMIZERS}})
    if "exported" in sys.argv[1:]:
        write("exported.json", {"losses": dict(sparse_torch.record(OUT))})


if __name__ == "__main__":
    main()
