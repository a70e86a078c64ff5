"""Language models in plain PyTorch, each with another way to mix tokens."""
import math

import torch
import torch.nn.functional as F
from torch import nn

from .common import TOKENS, VOCABULARY, Loss, family, labelled, tokens

WIDTH, HEADS, DEPTH = 24, 2, 2


class Decoder(nn.Module):
    """Embedding, blocks of a mixer and a feed-forward part, head."""

    def __init__(self, mixer, positions=True, tied=False, shared=False):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(TOKENS, WIDTH) if positions else None
        count = 1 if shared else DEPTH
        self.mixers = nn.ModuleList(mixer() for _ in range(count))
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(),
                          nn.Linear(2 * WIDTH, WIDTH)) for _ in range(count))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH)
                                   for _ in range(2 * count))
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.token.weight
        nn.init.normal_(self.token.weight, std=0.1)

    def forward(self, ids):
        x = self.token(ids)
        if self.position is not None:
            x = x + self.position(torch.arange(ids.shape[1]))
        for i in range(DEPTH):
            k = i % len(self.mixers)
            x = x + self.mixers[k](self.norms[2 * k](x))
            x = x + self.feeds[k](self.norms[2 * k + 1](x))
        return self.head(self.last(x))


def language(mixer, **options):
    return (Loss(Decoder(mixer, **options), labelled),
            {"ids": tokens(), "labels": tokens()})


def heads(x, count=HEADS):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def joined(x):
    return x.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.tril(
            torch.ones(TOKENS, TOKENS, dtype=torch.bool)))

    def bias(self, scores):
        return scores.masked_fill(~self.mask, float("-inf"))

    def forward(self, x):
        q, k, v = (heads(part) for part in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return self.out(joined(F.softmax(self.bias(scores), -1) @ v))


@family
def gpt_plain():
    return language(Attention, tied=True)


class Fused(Attention):
    """PyTorch's own attention function."""

    def forward(self, x):
        q, k, v = (heads(part) for part in self.qkv(x).chunk(3, -1))
        return self.out(joined(F.scaled_dot_product_attention(
            q, k, v, is_causal=True)))


@family
def gpt_sdpa():
    return language(Fused)


class Alibi(Attention):
    def __init__(self):
        super().__init__()
        self.register_buffer("slopes", torch.tensor(
            [2.0 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)]))

    def bias(self, scores):
        place = torch.arange(scores.shape[-1], device=scores.device)
        distance = (place[None, :] - place[:, None]).to(scores.dtype)
        scores = scores + self.slopes[:, None, None] * distance
        return super().bias(scores)


@family
def alibi():
    return language(Alibi, positions=False)


class SlidingWindow(Attention):
    def bias(self, scores):
        place = torch.arange(scores.shape[-1])
        far = place[:, None] - place[None, :] >= 4
        return super().bias(scores).masked_fill(far, -1e9)


@family
def sliding_window():
    return language(SlidingWindow)


@family
def shared_layers():
    return language(Attention, shared=True)


class Rotary(nn.Module):
    """Grouped queries, rotary caches as buffers, RMS norm of queries and keys."""

    def __init__(self):
        super().__init__()
        self.size = WIDTH // HEADS
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.kv = nn.Linear(WIDTH, 2 * self.size, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.scale = nn.Parameter(torch.ones(self.size))
        rate = 10000 ** (-torch.arange(0, self.size, 2) / self.size)
        angle = torch.outer(torch.arange(TOKENS).float(), rate).repeat(1, 2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin(), persistent=False)

    def rotate(self, x):
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin

    def forward(self, x):
        q = self.rotate(heads(self.q(x)))
        k, v = self.kv(x)[:, None].chunk(2, -1)
        k, v = self.rotate(k).expand_as(q), v.expand_as(q)
        return self.out(joined(F.scaled_dot_product_attention(
            q, k, v, is_causal=True)))


@family
def rotary_grouped():
    return language(Rotary, positions=False)


class Latent(nn.Module):
    """Multi-head latent attention: keys and values from a narrow latent, one
    rotary key for all heads."""

    def __init__(self, latent=8, turned=4):
        super().__init__()
        self.turned, self.size = turned, WIDTH // HEADS
        self.q_down = nn.Linear(WIDTH, latent, bias=False)
        self.q_norm = nn.RMSNorm(latent)
        self.q_up = nn.Linear(latent, HEADS * (self.size + turned), bias=False)
        self.kv_down = nn.Linear(WIDTH, latent + turned, bias=False)
        self.kv_norm = nn.RMSNorm(latent)
        self.kv_up = nn.Linear(latent, HEADS * 2 * self.size, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def rotate(self, x):
        rate = 100 ** (-torch.arange(0, self.turned, 2) / self.turned)
        angle = torch.arange(x.shape[-2])[:, None] * rate
        a, b = x[..., ::2], x[..., 1::2]
        return torch.cat([a * angle.cos() - b * angle.sin(),
                          a * angle.sin() + b * angle.cos()], -1)

    def forward(self, x):
        q = heads(self.q_up(self.q_norm(self.q_down(x))))
        q, q_turned = q.split([self.size, self.turned], -1)
        latent, k_turned = self.kv_down(x).split(
            [self.kv_norm.normalized_shape[0], self.turned], -1)
        k, v = heads(self.kv_up(self.kv_norm(latent))).chunk(2, -1)
        k_turned = self.rotate(k_turned[:, None]).expand(-1, HEADS, -1, -1)
        q = torch.cat([q, self.rotate(q_turned)], -1)
        k = torch.cat([k, k_turned], -1)
        return self.out(joined(F.scaled_dot_product_attention(
            q, k, v, is_causal=True)))


@family
def latent_attention():
    return language(Latent, positions=False)


class Linear(Attention):
    """Causal linear attention, all prefixes at once."""

    def forward(self, x):
        q, k, v = (heads(part) for part in self.qkv(x).chunk(3, -1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        states = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2)
        sums = k.cumsum(2)
        top = torch.einsum("bhtd,bhtde->bhte", q, states)
        return self.out(joined(top / ((q * sums).sum(-1, keepdim=True) + 1e-6)))


@family
def linear_attention():
    return language(Linear)


class Retention(Attention):
    """Decay by distance instead of softmax, a norm without weights."""

    def __init__(self):
        super().__init__()
        place = torch.arange(TOKENS).float()
        distance = place[:, None] - place[None, :]
        gamma = 1 - 2.0 ** (-5 - torch.arange(HEADS).float())
        decay = gamma[:, None, None] ** distance.clamp(min=0)
        self.register_buffer("decay", decay * (distance >= 0))
        self.gate = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (heads(part) for part in self.qkv(x).chunk(3, -1))
        y = (q @ k.transpose(-1, -2) * self.decay) @ v
        y = F.layer_norm(y, y.shape[-1:])
        return self.out(F.silu(self.gate(x)) * joined(y))


@family(buffers=True)
def retention():
    return language(Retention, positions=False)
