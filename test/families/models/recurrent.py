"""Recurrent networks: PyTorch's layers and cells."""
import torch
import torch.nn.functional as F
from torch import nn

from .common import Loss, classes, family, labelled, numbers, tokens

INPUTS, WIDTH, LENGTH = 6, 10, 7
TAGS = {"x": numbers(LENGTH, INPUTS), "labels": classes(4, LENGTH)}


class Tagger(nn.Module):
    """A recurrent layer and a label for each step."""

    def __init__(self, kind, **options):
        super().__init__()
        self.layer = kind(INPUTS, WIDTH, batch_first=True, **options)
        both = 2 if options.get("bidirectional") else 1
        self.head = nn.Linear(both * WIDTH, 4)

    def forward(self, x):
        return self.head(self.layer(x)[0])


def tagger(kind, **options):
    return Loss(Tagger(kind, **options), labelled), dict(TAGS)


@family
def lstm():
    return tagger(nn.LSTM)


@family
def lstm_layers():
    return tagger(nn.LSTM, num_layers=2)


@family
def lstm_bidirectional():
    return tagger(nn.LSTM, bidirectional=True)


@family
def gru_bidirectional_layers():
    return tagger(nn.GRU, bidirectional=True, num_layers=2)


@family
def rnn_tanh():
    return tagger(nn.RNN, num_layers=2, bias=False)


@family(kinks=True)
def rnn_bidirectional_relu():
    return tagger(nn.RNN, bidirectional=True, nonlinearity="relu")


@family
def lstm_given_state():
    """The state comes with the data and the last one goes into the loss."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(INPUTS, WIDTH, batch_first=True)
            self.head = nn.Linear(2 * WIDTH, 4)

        def forward(self, x, h, c):
            _, (h, c) = self.layer(x, (h[None], c[None]))
            return self.head(torch.cat([h[0], c[0]], 1))
    return Loss(Model(), labelled), {
        "x": numbers(LENGTH, INPUTS), "h": numbers(WIDTH), "c": numbers(WIDTH),
        "labels": classes(4)}


@family
def gru_learned_state():
    """The first state is a parameter, expanded to the batch."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Parameter(torch.zeros(1, 1, WIDTH))
            self.layer = nn.GRU(INPUTS, WIDTH, batch_first=True)
            self.head = nn.Linear(WIDTH, 4)

        def forward(self, x):
            first = self.first.expand(-1, x.shape[0], -1).contiguous()
            return self.head(self.layer(x, first)[1][0])
    return Loss(Model(), labelled), {"x": numbers(LENGTH, INPUTS),
                                     "labels": classes(4)}


@family
def language_lstm():
    """Words in, words out, one table for both; time is the first axis."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(300, 32)
            self.layer = nn.LSTM(32, 32)
            self.head = nn.Linear(32, 300)
            self.head.weight = self.table.weight

        def forward(self, ids):
            x = self.layer(self.table(ids).transpose(0, 1))[0]
            return self.head(x.transpose(0, 1))
    return Loss(Model(), labelled), {"ids": tokens(LENGTH, 0, 300),
                                     "labels": tokens(LENGTH, 0, 300)}


@family
def lstm_cells():
    """Two cells in a loop, states of zeros made in forward."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.LSTMCell(INPUTS, WIDTH)
            self.two = nn.LSTMCell(WIDTH, WIDTH)
            self.head = nn.Linear(WIDTH, 4)

        def forward(self, x):
            h1, c1, h2, c2 = (torch.zeros(x.shape[0], WIDTH, dtype=x.dtype)
                              for _ in range(4))
            found = []
            for t in range(x.shape[1]):
                h1, c1 = self.one(x[:, t], (h1, c1))
                h2, c2 = self.two(h1, (h2, c2))
                found.append(self.head(h2))
            return torch.stack(found, 1)
    return Loss(Model(), labelled), dict(TAGS)


@family
def attention_decoder():
    """Additive attention over an encoder, teacher forcing."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(20, WIDTH)
            self.encoder = nn.GRU(WIDTH, WIDTH, batch_first=True,
                                  bidirectional=True)
            self.bridge = nn.Linear(2 * WIDTH, WIDTH)
            self.cell = nn.GRUCell(3 * WIDTH, WIDTH)
            self.keys = nn.Linear(2 * WIDTH, WIDTH, bias=False)
            self.query = nn.Linear(WIDTH, WIDTH)
            self.score = nn.Linear(WIDTH, 1, bias=False)
            self.head = nn.Linear(WIDTH, 20)

        def forward(self, source, target):
            memory, last = self.encoder(self.table(source))
            h = torch.tanh(self.bridge(torch.cat([last[0], last[1]], 1)))
            keys, found = self.keys(memory), []
            for t in range(target.shape[1]):
                scores = self.score(torch.tanh(keys + self.query(h)[:, None]))
                context = (scores.softmax(1) * memory).sum(1)
                word = self.table(target[:, t])
                h = self.cell(torch.cat([word, context], 1), h)
                found.append(self.head(h))
            return torch.stack(found, 1)
    return Loss(Model(), labelled), {
        "source": tokens(6, 0, 20), "target": tokens(4, 0, 20),
        "labels": tokens(4, 0, 20)}


@family
def convolutional_lstm():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.gates = nn.Conv2d(1 + 4, 16, 3, padding=1)
            self.last = nn.Conv2d(4, 1, 1)

        def forward(self, x, goal):
            n, length, _, height, width = x.shape
            h = x.new_zeros(n, 4, height, width)
            c = torch.zeros_like(h)
            for t in range(length):
                i, f, o, g = self.gates(torch.cat([x[:, t], h], 1)).chunk(4, 1)
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(c)
            return F.mse_loss(self.last(h), goal)
    return Model(), {"x": numbers(4, 1, 6, 6), "goal": numbers(1, 6, 6)}


@family(detach=True, buffers=True)
def forecast():
    """N-BEATS: blocks take away what they explain; the basis is constant."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            back, ahead = torch.linspace(-1, 0, 12), torch.linspace(0, 1, 4)
            powers = torch.arange(3)[:, None]
            self.register_buffer("back", back[None] ** powers)
            self.register_buffer("ahead", ahead[None] ** powers)
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(12, 16), nn.Softplus(),
                              nn.Linear(16, 6)) for _ in range(3))

        def forward(self, past, future):
            total = 0
            for block in self.blocks:
                a, b = block(past).chunk(2, -1)
                past = past - a @ self.back
                total = total + b @ self.ahead
            size = (total.abs() + future.abs()).detach()
            return 2 * ((total - future).abs() / (size + 1e-2)).mean()
    return Model(), {"past": numbers(12), "future": numbers(4)}
