"""Encoders, sequence to sequence, and models of which a part is frozen."""
import math

import torch
import torch.nn.functional as F
from torch import nn

from .common import (TOKENS, VOCABULARY, Loss, classes, cross_entropy, family,
                     labelled, numbers, tokens)
from .decoders import WIDTH, Attention, Decoder


def sinusoids(length, width):
    place = torch.arange(length).float()[:, None]
    rate = torch.exp(torch.arange(0, width, 2) * (-math.log(1e4) / width))
    table = torch.zeros(length, width)
    table[:, 0::2] = torch.sin(place * rate)
    table[:, 1::2] = torch.cos(place * rate)
    return table


class Encoder(nn.Module):
    """PyTorch's own encoder layers, padding masked, mean of what is left."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.register_buffer("position", sinusoids(TOKENS, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 48, dropout=0.0,
                                           activation="gelu",
                                           batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2,
                                            enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, ids):
        padding = ids == 0
        x = self.layers(self.token(ids) + self.position,
                        src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1).to(x.dtype)
        return self.head((x * kept).sum(1) / kept.sum(1))


def padded(n):
    ids = torch.randint(3, VOCABULARY, (n, TOKENS))
    for i in range(n):
        ids[i, TOKENS - i % 4:] = 0
    return ids


@family
def encoder_plain():
    return Loss(Encoder(), labelled), {"ids": padded, "labels": classes(3)}


@family
def transformer_plain():
    """nn.Transformer, as the tutorial has it."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Embedding(VOCABULARY, WIDTH)
            self.position = nn.Parameter(sinusoids(TOKENS, WIDTH))
            self.body = nn.Transformer(WIDTH, 2, 1, 1, 48, dropout=0.0,
                                       batch_first=True)
            self.head = nn.Linear(WIDTH, VOCABULARY)

        def forward(self, source, target):
            mask = nn.Transformer.generate_square_subsequent_mask(
                target.shape[1])
            x = self.token(source) + self.position
            y = self.token(target) + self.position[:target.shape[1]]
            return self.head(self.body(x, y, tgt_mask=mask))
    return Loss(Model(), labelled), {"source": tokens(), "target": tokens(8),
                                     "labels": tokens(8)}


class LowRank(nn.Module):
    """LoRA around a frozen matrix."""

    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * 0.2)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scaling = 2.0 / rank

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.a),
                                       self.b) * self.scaling


@family
def lora():
    model = Decoder(Attention).requires_grad_(False)
    for mixer in model.mixers:
        mixer.qkv, mixer.out = LowRank(mixer.qkv), LowRank(mixer.out)
    return Loss(model, labelled), {"ids": tokens(), "labels": tokens()}


@family
def prefix_tuning():
    """Learned first tokens, expanded to the batch, before a frozen encoder."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.prompt = nn.Parameter(torch.randn(1, 4, WIDTH) * 0.5)
            self.body = Encoder().requires_grad_(False)
            self.head = nn.Linear(WIDTH, 3)

        def forward(self, ids):
            x = self.body.token(ids) + self.body.position
            prompt = self.prompt.expand(ids.shape[0], -1, -1)
            x = self.body.layers(torch.cat([prompt, x], 1))
            return self.head(x[:, :4].mean(1))
    return Loss(Model(), labelled), {"ids": tokens(), "labels": classes(3)}


@family
def linear_probe():
    """A frozen backbone under no_grad, a head that is trained."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(nn.Linear(12, 32), nn.GELU(),
                                          nn.Linear(32, 16), nn.LayerNorm(16))
            self.head = nn.Sequential(nn.Linear(16, 16), nn.Tanh(),
                                      nn.Linear(16, 4))

        def forward(self, x):
            with torch.no_grad():
                features = self.backbone(x)
            return self.head(features)
    return Loss(Model(), labelled), {"x": numbers(12), "labels": classes(4)}


@family
def distillation():
    """A student of a teacher that is not trained; both see the labels."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.teacher = Encoder().requires_grad_(False)
            self.student = nn.Sequential(nn.Embedding(VOCABULARY, 16),
                                         nn.Flatten(),
                                         nn.Linear(16 * TOKENS, 3))

        def forward(self, ids, labels):
            with torch.no_grad():
                soft = F.softmax(self.teacher(ids) / 2.0, -1)
            found = self.student(ids)
            distance = F.kl_div(F.log_softmax(found / 2.0, -1), soft,
                                reduction="batchmean")
            return 0.5 * F.cross_entropy(found, labels) + 2.0 * distance
    return Model(), {"ids": padded, "labels": classes(3)}


@family
def frozen_embedding():
    """Pretrained vectors stay as they are; the rest learns."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding.from_pretrained(
                torch.randn(VOCABULARY, WIDTH), freeze=True)
            self.query = nn.Parameter(torch.randn(WIDTH))
            self.head = nn.Linear(WIDTH, 4)

        def forward(self, ids):
            x = self.table(ids)
            weights = F.softmax(x @ self.query / math.sqrt(WIDTH), -1)
            return self.head((weights[..., None] * x).sum(1))
    return Loss(Model(), labelled), {"ids": tokens(), "labels": classes(4)}


@family
def token_and_sentence():
    """BERT's two tasks, one encoder."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Encoder()
            self.words = nn.Linear(WIDTH, VOCABULARY)

        def forward(self, ids, words, label):
            x = self.encoder.layers(self.encoder.token(ids)
                                    + self.encoder.position)
            token = cross_entropy(self.words(x), words)
            return token + F.cross_entropy(self.encoder.head(x[:, 0]), label)

    def masked(n):
        words = torch.randint(3, VOCABULARY, (n, TOKENS))
        return torch.where(torch.rand(n, TOKENS) < 0.4, words, -100)
    return Model(), {"ids": tokens(), "words": masked, "label": classes(3)}
