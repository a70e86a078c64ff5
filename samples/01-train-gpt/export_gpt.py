#!/usr/bin/env python3
"""Exports the sample's GPT from PyTorch to model.onnx (opset 17).

Only needed to make another model: model.onnx is stored beside this file. Runs
with PyTorch 1.13 or later (Debian: python3-torch).

    python3 export_gpt.py [model.onnx]

A character-level GPT with a tied head: inputs `tokens` and `targets` of shape
[batch, 64], output `loss`, the mean cross entropy over all characters.
"""
import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY = 96  # newline and printable ASCII, see make_tokens.py
CONTEXT = 64
WIDTH = 96
HEADS = 4
LAYERS = 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        mask = torch.ones(CONTEXT, CONTEXT).tril().bool()
        self.register_buffer("mask", mask.view(1, 1, CONTEXT, CONTEXT))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).split(WIDTH, dim=2)
        q, k, v = (y.view(b, t, HEADS, d // HEADS).transpose(1, 2)
                   for y in (q, k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(d // HEADS)
        scores = scores.masked_fill(~self.mask[:, :, :t, :t], float("-inf"))
        y = F.softmax(scores, dim=-1) @ v
        return self.out(y.transpose(1, 2).contiguous().view(b, t, d))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.token.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        # Residual branches start small: 2 per block add up.
        for block in self.blocks:
            for linear in (block.attention.out, block.down):
                nn.init.normal_(linear.weight, std=0.02 / math.sqrt(2 * LAYERS))

    def forward(self, tokens, targets):
        positions = torch.arange(tokens.shape[1])
        x = self.token(tokens) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def main():
    torch.manual_seed(7)
    model = Gpt().train()
    tokens = torch.randint(VOCABULARY, (2, CONTEXT))
    torch.onnx.export(
        model, (tokens, tokens), sys.argv[1] if len(sys.argv) > 1 else "model.onnx",
        input_names=["tokens", "targets"], output_names=["loss"],
        dynamic_axes={"tokens": {0: "batch"}, "targets": {0: "batch"}},
        opset_version=17, do_constant_folding=False,
        training=torch.onnx.TrainingMode.TRAINING)
    print(sum(p.numel() for p in model.parameters()), "parameters")


if __name__ == "__main__":
    main()
