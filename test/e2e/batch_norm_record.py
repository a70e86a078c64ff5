#!/usr/bin/env python3
"""Exports the model of batch_norm.py and records what PyTorch makes of it.

    batch_norm_record.py        writes test/data/batch-norm

Gradient accumulation and data parallelism as PyTorch has them: each microbatch
of a replica normalizes by its own statistics and updates the replica's running
ones; here the replicas' running statistics are averaged after each step. All in
float64. Needs torch; the tests of every build do not.
"""
import copy
import json
import os
import warnings

import numpy
import onnx
import torch
from onnx import numpy_helper
from torch import nn

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                   "../data/batch-norm")
BATCH, STEPS, RATE = 8, 4, 0.1
LAYOUTS = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2)]  # replicas, microbatches


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 6, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 8, 3, stride=2)
        self.norm2 = nn.BatchNorm2d(8, eps=1e-3, momentum=0.3)
        self.wide = nn.Linear(8, 12)
        self.norm3 = nn.BatchNorm1d(12)
        self.head = nn.Linear(12, 5)

    def forward(self, image, label):
        x = torch.relu(self.norm1(self.conv1(image)))
        x = torch.relu(self.norm2(self.conv2(x)))
        x = torch.relu(self.norm3(self.wide(x.mean((2, 3)))))
        return nn.functional.cross_entropy(self.head(x), label)


def statistics(model):
    return {name: value for name, value in model.named_buffers()
            if "running" in name}


def train(module, image, label, replicas, microbatches):
    model = copy.deepcopy(module).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    size = BATCH // replicas // microbatches
    losses = []
    for step in range(STEPS):
        before = {k: v.clone() for k, v in statistics(model).items()}
        after = {k: torch.zeros_like(v) for k, v in before.items()}
        optimizer.zero_grad()
        total = 0.0
        for replica in range(replicas):
            for name, value in statistics(model).items():
                value.copy_(before[name])
            for m in range(microbatches):
                at = step * BATCH + (m * replicas + replica) * size
                loss = model(image[at:at + size], label[at:at + size])
                (loss / (replicas * microbatches)).backward()
                total += loss.item() / (replicas * microbatches)
            for name, value in statistics(model).items():
                after[name] += value / replicas
        for name, value in statistics(model).items():
            value.copy_(after[name])
        optimizer.step()
        losses.append(total)
    model.eval()
    with torch.no_grad():
        evaluated = [model(image[at:at + BATCH], label[at:at + BATCH]).item()
                     for at in range(0, STEPS * BATCH, BATCH)]
    return {"replicas": replicas, "microbatches": microbatches,
            "losses": losses, "evaluated": evaluated,
            "statistics": {name: value.tolist()
                           for name, value in statistics(model).items()}}


def main():
    torch.manual_seed(3)
    model = Net().train()
    for name, value in statistics(model).items():
        if name.endswith("mean"):
            value.normal_(0, 0.2)
        else:
            value.uniform_(0.5, 1.5)
    with torch.no_grad():
        for norm in (model.norm1, model.norm2, model.norm3):
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.normal_(0, 0.2)
    image = torch.randn(STEPS * BATCH, 2, 7, 7).double() * 2 + 1
    label = torch.randint(0, 5, (STEPS * BATCH,))
    os.makedirs(os.path.join(OUT, "data"), exist_ok=True)
    # Twice: the second half is what a plan with a trained model reads.
    for name, value in (("image", image.float()), ("label", label)):
        numpy.save(os.path.join(OUT, "data", name + ".npy"),
                   torch.cat([value, value]).numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (image[:BATCH].float(), label[:BATCH]),
            os.path.join(OUT, "model.onnx"), dynamo=False, opset_version=17,
            do_constant_folding=False, input_names=["image", "label"],
            output_names=["loss"], training=torch.onnx.TrainingMode.TRAINING,
            dynamic_axes={"image": {0: "batch"}, "label": {0: "batch"}})
    # Exporting has run the model: the file says where the statistics begin.
    written = {tensor.name: numpy_helper.to_array(tensor) for tensor in
               onnx.load(os.path.join(OUT, "model.onnx")).graph.initializer}
    for name, value in statistics(model).items():
        value.copy_(torch.from_numpy(written[name].copy()))
    image = image.float().double()
    runs = [train(model, image, label, *layout) for layout in LAYOUTS]
    with open(os.path.join(OUT, "expected.json"), "w",
              encoding="utf-8") as file:
        json.dump({"torch": torch.__version__, "global_batch": BATCH,
                   "steps": STEPS, "lr": RATE, "momentum": 0.9,
                   "runs": runs}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
