"""Graph networks: nodes and edges of one graph that all samples share, or an
adjacency for each sample."""
import torch
import torch.nn.functional as F
from torch import nn

from .common import Loss, classes, family, labelled, numbers

NODES, FEATURES, WIDTH = 10, 6, 12
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 2, 4, 6, 8, 1, 3, 5],
                      [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 5, 7, 9, 1, 3, 4, 8, 0]])


def adjacency(n):
    found = (torch.rand(n, NODES, NODES) < 0.3).float()
    return torch.maximum(found, found.transpose(1, 2))


DENSE = {"features": numbers(NODES, FEATURES), "adjacency": adjacency,
         "labels": classes(3)}
SPARSE = {"features": numbers(NODES, FEATURES), "labels": classes(3, NODES)}


@family
def graph_convolution():
    """GCN with normalized dense adjacency, one label a graph."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, 3)

        def forward(self, x, a):
            a = a + torch.eye(NODES)
            scale = a.sum(-1).rsqrt()
            a = scale[:, :, None] * a * scale[:, None]
            x = torch.tanh(a @ self.one(x))
            return (a @ self.two(x)).mean(1)
    return Loss(Model(), labelled), dict(DENSE)


@family
def graph_attention():
    """GAT: scores of pairs, the missing ones masked."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inputs = nn.Linear(FEATURES, WIDTH, bias=False)
            self.target = nn.Parameter(torch.randn(WIDTH, 1) * 0.3)
            self.source = nn.Parameter(torch.randn(WIDTH, 1) * 0.3)
            self.head = nn.Linear(WIDTH, 3)

        def forward(self, x, a):
            x = self.inputs(x)
            scores = F.elu(x @ self.target + (x @ self.source).transpose(1, 2))
            there = a + torch.eye(NODES, dtype=a.dtype) > 0
            scores = scores.masked_fill(~there, float("-inf"))
            return self.head(F.elu(scores.softmax(-1) @ x).sum(1) / NODES)
    return Loss(Model(), labelled), dict(DENSE)


class Messages(nn.Module):
    """Messages along fixed edges, added up where they arrive."""

    def __init__(self):
        super().__init__()
        self.register_buffer("edges", EDGES)
        self.message = nn.Linear(2 * WIDTH, WIDTH)
        self.update = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x):
        source, target = self.edges
        y = torch.tanh(self.message(torch.cat([x[:, source], x[:, target]],
                                              -1)))
        total = torch.zeros_like(x).index_add(1, target, y)
        n = x.shape[0] * NODES
        return self.update(total.view(n, -1), x.reshape(n, -1)).view_as(x)


@family
def message_passing():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inputs, self.head = nn.Linear(FEATURES, WIDTH), nn.Linear(
                WIDTH, 3)
            self.messages = Messages()

        def forward(self, x):
            x = self.inputs(x)
            for _ in range(2):
                x = self.messages(x)
            return self.head(x)
    return Loss(Model(), labelled), dict(SPARSE)


@family
def graph_isomorphism():
    """GIN: scatter_add with indices expanded, a learned epsilon."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("source", EDGES[0])
            self.register_buffer("target", EDGES[1])
            self.epsilon = nn.Parameter(torch.zeros(1))
            self.one = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.SiLU(),
                                     nn.Linear(WIDTH, WIDTH))
            self.head = nn.Linear(WIDTH, 3)

        def forward(self, x):
            y = x.index_select(1, self.source)
            at = self.target[None, :, None].expand_as(y)
            total = torch.zeros_like(x).scatter_add(1, at, y)
            return self.head(self.one((1 + self.epsilon) * x + total))
    return Loss(Model(), labelled), dict(SPARSE)


@family
def graph_sage_max():
    """The largest message of each node, by padded lists of neighbours."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            lists = torch.full((NODES, 4), -1)
            for node in range(NODES):
                near = EDGES[0][EDGES[1] == node][:4]
                lists[node, :len(near)] = near
            self.register_buffer("near", lists.clamp(min=0))
            self.register_buffer("there", lists >= 0)
            self.pool = nn.Linear(FEATURES, WIDTH)
            self.own = nn.Linear(FEATURES + WIDTH, WIDTH)
            self.head = nn.Linear(WIDTH, 3)

        def forward(self, x):
            y = torch.tanh(self.pool(x))[:, self.near]
            y = y.masked_fill(~self.there[None, :, :, None], -2.0).amax(2)
            y = torch.sigmoid(self.own(torch.cat([x, y], -1)))
            return self.head(y / y.norm(dim=-1, keepdim=True))
    return Loss(Model(), labelled), dict(SPARSE)


@family
def chebyshev_filters():
    """Polynomials of a fixed Laplacian, learned coefficients."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            a = torch.zeros(NODES, NODES)
            a[EDGES[0], EDGES[1]] = 1
            a = torch.maximum(a, a.t())
            self.register_buffer("laplacian", torch.diag(a.sum(1)) - a)
            self.weights = nn.ParameterList(
                torch.randn(FEATURES, WIDTH) * 0.2 for _ in range(3))
            self.head = nn.Linear(WIDTH, 3)

        def forward(self, x):
            terms = [x, self.laplacian @ x]
            terms.append(2 * self.laplacian @ terms[1] - terms[0])
            y = sum(t @ w for t, w in zip(terms, self.weights))
            return self.head(torch.tanh(y / 4))
    return Loss(Model(), labelled), dict(SPARSE)


@family
def equivariant_coordinates():
    """EGNN: features and places move by distances."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.edge = nn.Sequential(nn.Linear(2 * FEATURES + 1, WIDTH),
                                      nn.SiLU(), nn.Linear(WIDTH, WIDTH))
            self.move = nn.Linear(WIDTH, 1, bias=False)
            self.node = nn.Linear(FEATURES + WIDTH, FEATURES)
            self.energy = nn.Linear(FEATURES, 1)

        def forward(self, x, place, energy):
            for _ in range(2):
                gap = place[:, :, None] - place[:, None]
                size = (gap ** 2).sum(-1, keepdim=True)
                a = x[:, :, None].expand(-1, -1, NODES, -1)
                b = x[:, None].expand(-1, NODES, -1, -1)
                m = self.edge(torch.cat([a, b, size], -1))
                place = place + (gap * torch.tanh(self.move(m))).mean(2) / 4
                x = x + self.node(torch.cat([x, m.mean(2)], -1))
            found = self.energy(x).mean((1, 2))
            return (F.mse_loss(found, energy)
                    + 0.1 * (place ** 2).sum(-1).sqrt().mean())
    return Model(), {"x": numbers(NODES, FEATURES), "place": numbers(NODES, 3),
                     "energy": numbers()}
