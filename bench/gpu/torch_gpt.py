#!/usr/bin/env python3
"""The same GPT-2 step in PyTorch, for bench/gpu/run.py.

    torch_gpt.py FOLDER STEPS [FORM]

FOLDER is what run.py measures: model.json, model.onnx.data, data. FORM says how:
whole   torch.compile of the model, as most people would
blocks  torch.compile of a block, once for all of them, and of the loss: the same
        speed and, for deep models, a tenth of the time to compile
best    blocks, and what is known to help: the vocabulary padded to a multiple of
        128 (its rows are trained, no label is among them), attention by cuDNN

Prints seconds and loss of every step as JSON.
"""
import contextlib
import json
import os
import sys
import time

import numpy
import torch
import torch.nn.functional as functional
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import models


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width,
                                                                    width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width,
                                                                    width)

    def forward(self, x):
        b, t, width = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).split(width, 2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, width))
        y = functional.gelu(self.up(self.norm2(x)), approximate="tanh")
        return x + self.down(y)


def loss_of(x, weight, labels):
    logits = x @ weight.t()
    return functional.cross_entropy(logits.view(-1, weight.shape[0]).float(),
                                    labels.view(-1))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, vocabulary):
        super().__init__()
        self.loss = loss_of
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(models.CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads)
                                    for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids, labels):
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.loss(self.norm(x), self.tokens.weight, labels)


def compiled(model, form):
    if form == "whole":
        return torch.compile(model)
    for block in model.blocks:
        block.compile()
    model.loss = torch.compile(loss_of)
    return model


def load(model, folder, tensors):
    """The weights that our plan reads; its matrices are [inputs, outputs]."""
    names = {"token.weight": "tokens.weight",
             "position.weight": "positions.weight"}
    by_name, offset = dict(model.named_parameters()), 0
    values = numpy.memmap(os.path.join(folder, "model.onnx.data"), "<f4", "r")
    with torch.no_grad():
        for name, shape, *_ in tensors:
            count = int(numpy.prod(shape))
            value = torch.from_numpy(
                numpy.array(values[offset:offset + count]).reshape(shape))
            offset += count
            to = by_name[names.get(name, name)].zero_()
            if name not in names and len(shape) == 2:
                value = value.t()
            to[:value.shape[0]].copy_(value)


def main():
    folder, steps = sys.argv[1], int(sys.argv[2])
    with open(os.path.join(folder, "model.json"), encoding="utf-8") as file:
        info = json.load(file)
    form = sys.argv[3] if len(sys.argv) > 3 else "whole"
    best = form == "best"
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    vocabulary = models.VOCABULARY
    if best:
        vocabulary += -vocabulary % 128
    model = Gpt(info["layers"], info["width"], info["heads"],
                vocabulary).cuda()
    load(model, folder, info["tensors"])
    tokens, labels = (
        torch.from_numpy(numpy.load(os.path.join(folder, "data", name))).cuda()
        .view(info["microbatches"], info["samples"], models.CONTEXT)
        for name in ("tokens.npy", "labels.npy"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4,
                                  weight_decay=0.1, fused=True)
    model = compiled(model, form)
    seconds, losses = [], []

    def attention():
        return (sdpa_kernel([SDPBackend.CUDNN_ATTENTION,
                             SDPBackend.FLASH_ATTENTION], set_priority=True)
                if best else contextlib.nullcontext())

    for _ in range(steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with attention():
            whole = 0
            for ids, after in zip(tokens, labels):
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = model(ids, after) / info["microbatches"]
                loss.backward()
                whole = whole + loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
        losses.append(whole.item())
    print(json.dumps({"seconds": seconds, "losses": losses}))


if __name__ == "__main__":
    main()
