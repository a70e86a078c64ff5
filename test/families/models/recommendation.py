"""Recommendation: tables of categories, products of features, two towers."""
import torch
import torch.nn.functional as F
from torch import nn

from .common import Loss, bits, classes, family, labelled, numbers, tokens

ROWS, WIDTH, FIELDS = 40, 8, 5
CLICKS = {"categories": tokens(FIELDS, 0, ROWS), "dense": numbers(4),
          "clicked": bits()}


def clicks(model, categories, dense, clicked):
    return F.binary_cross_entropy_with_logits(model(categories, dense), clicked)


def network(i, *widths):
    layers = []
    for o in widths:
        layers += [nn.Linear(i, o), nn.Tanh()]
        i = o
    return nn.Sequential(*layers, nn.Linear(i, 1))


@family
def wide_and_deep():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide = nn.Embedding(ROWS * FIELDS, 1)
            self.deep = nn.Embedding(ROWS * FIELDS, WIDTH)
            self.top = network(FIELDS * WIDTH + 4, 16, 8)
            self.register_buffer("offsets", torch.arange(FIELDS) * ROWS)
            self.bias = nn.Parameter(torch.zeros(1))

        def forward(self, categories, dense):
            ids = categories + self.offsets
            x = torch.cat([self.deep(ids).flatten(1), dense], 1)
            wide = self.wide(ids).sum((1, 2))
            return wide + self.top(x).squeeze(1) + self.bias
    return Loss(Model(), clicks), dict(CLICKS)


@family
def factorization_machine():
    """DeepFM: pairs by squares of sums."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(ROWS, WIDTH)
                                        for _ in range(FIELDS))
            self.dense = nn.Linear(4, WIDTH)
            for table in self.tables:
                nn.init.normal_(table.weight, std=0.3)
            self.top = network((FIELDS + 1) * WIDTH, 16)

        def forward(self, categories, dense):
            x = torch.stack([t(categories[:, i])
                             for i, t in enumerate(self.tables)]
                            + [self.dense(dense)], 1)
            pairs = 0.5 * (x.sum(1) ** 2 - (x ** 2).sum(1)).sum(1)
            return pairs + self.top(x.flatten(1))[:, 0]
    return Loss(Model(), clicks), dict(CLICKS)


@family
def deep_and_cross():
    """DCN v2: layers that multiply with the input."""
    class Model(nn.Module):
        def __init__(self, size=FIELDS * WIDTH + 4):
            super().__init__()
            self.table = nn.Embedding(ROWS, WIDTH)
            self.cross = nn.ModuleList(nn.Linear(size, size) for _ in range(2))
            self.top = network(size, 16)

        def forward(self, categories, dense):
            first = torch.cat([self.table(categories).flatten(1), dense], 1)
            x = first
            for layer in self.cross:
                x = first * layer(x) + x
            return self.top(x).squeeze(-1)
    return Loss(Model(), clicks), dict(CLICKS)


@family(buffers=True)
def matrix_factorization():
    """Squares, with biases and the mean rating; L2 of the rows of the batch."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.users, self.items = (nn.Embedding(ROWS, WIDTH)
                                      for _ in range(2))
            self.user_bias, self.item_bias = (nn.Embedding(ROWS, 1)
                                              for _ in range(2))
            nn.init.zeros_(self.user_bias.weight)
            nn.init.zeros_(self.item_bias.weight)
            self.register_buffer("mean", torch.tensor(3.5))

        def forward(self, user, item, rating):
            u, i = self.users(user), self.items(item)
            found = ((u * i).sum(1) + self.user_bias(user)[:, 0]
                     + self.item_bias(item)[:, 0] + self.mean)
            return (F.mse_loss(found, rating)
                    + 0.01 * (u.pow(2).sum(1) + i.pow(2).sum(1)).mean())
    return Model(), {"user": classes(ROWS), "item": classes(ROWS),
                     "rating": lambda n: torch.randint(1, 6, (n,)).float()}


@family(whole=True)
def two_towers():
    """The other items of the batch are the wrong answers."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.users, self.items = (
                nn.Sequential(nn.Embedding(ROWS, WIDTH), nn.Flatten(),
                              nn.Linear(3 * WIDTH, 16), nn.Tanh(),
                              nn.Linear(16, 8)) for _ in range(2))
            self.temperature = nn.Parameter(torch.tensor(0.2))

        def forward(self, user, item):
            u = F.normalize(self.users(user), dim=-1)
            i = F.normalize(self.items(item), dim=-1)
            scores = u @ i.t() / self.temperature
            return F.cross_entropy(scores, torch.arange(scores.shape[0]))
    return Model(), {"user": tokens(3, 0, ROWS), "item": tokens(3, 0, ROWS)}


def bag(mode):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(ROWS, 16, mode=mode)
            self.head = nn.Linear(16, 4)

        def forward(self, words):
            return self.head(self.bag(words))
    return Loss(Model(), labelled), {"words": tokens(6, 0, ROWS),
                                     "labels": classes(4)}


@family
def embedding_bag_sum():
    return bag("sum")


@family(whole=True)
def embedding_bag_mean():
    """A loop over the bags: whole batches only."""
    return bag("mean")


@family
def embedding_bag_written():
    """The same by hand: a padded mean."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(ROWS, 16, padding_idx=0)
            self.head = nn.Linear(16, 4)

        def forward(self, words):
            there = (words != 0).float().unsqueeze(-1)
            total = (self.table(words) * there).sum(1)
            return self.head(total / there.sum(1).clamp(min=1.0))
    return Loss(Model(), labelled), {"words": tokens(6, 0, 10),
                                     "labels": classes(4)}


@family
def interest_network():
    """DIN: what was clicked before, weighed by the candidate."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.items = nn.Embedding(ROWS, WIDTH)
            self.weigh, self.top = network(4 * WIDTH, 16), network(2 * WIDTH, 16)

        def forward(self, before, item):
            past = self.items(before)
            now = self.items(item).unsqueeze(1).expand_as(past)
            pair = torch.cat([past, now, past - now, past * now], -1)
            weights = self.weigh(pair).masked_fill(
                (before == 0).unsqueeze(-1), 0.0)
            wanted = (weights * past).sum(1)
            return self.top(torch.cat([wanted, now[:, 0]], 1)).squeeze(1)

    def loss(model, before, item, clicked):
        return nn.BCELoss()(torch.sigmoid(model(before, item)), clicked)
    return Loss(Model(), loss), {"before": tokens(6, 0, 12),
                                 "item": classes(ROWS), "clicked": bits()}


@family
def sequential_ranking():
    """SASRec with one wrong item for each right one (BPR)."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.items = nn.Embedding(ROWS, 16)
            self.position = nn.Parameter(torch.zeros(1, 6, 16))
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
            self.norm = nn.LayerNorm(16)

        def forward(self, before, right, wrong):
            x = self.items(before) * 4.0 + self.position
            mask = torch.triu(torch.ones(6, 6, dtype=torch.bool), 1)
            x = self.norm(x + self.attention(x, x, x, attn_mask=mask)[0])
            gap = (x * (self.items(right) - self.items(wrong))).sum(-1)
            return -F.logsigmoid(gap).mean()
    return Model(), {name: tokens(6, 0, ROWS)
                     for name in ("before", "right", "wrong")}


@family
def multitask_gates():
    """MMoE: two tasks choose among the same experts."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(8, 12) for _ in range(3))
            self.gates = nn.ModuleList(nn.Linear(8, 3) for _ in range(2))
            self.heads = nn.ModuleList(nn.Linear(12, 1) for _ in range(2))

        def forward(self, x, bought, price):
            y = torch.stack([F.silu(e(x)) for e in self.experts], 1)
            found = [head(torch.einsum("bef,be->bf", y, F.softmax(gate(x), 1)))
                     for gate, head in zip(self.gates, self.heads)]
            return (F.binary_cross_entropy_with_logits(found[0][:, 0], bought)
                    + 0.5 * F.mse_loss(found[1][:, 0], price))
    return Model(), {"x": numbers(8), "bought": bits(), "price": numbers()}
