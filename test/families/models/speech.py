"""Speech: convolutions over time, conformer, statistics, alignment."""
import math

import torch
import torch.nn.functional as F
from torch import nn

from .common import Loss, classes, family, labelled, numbers

WIDTH, FRAMES = 16, 16


class Front(nn.Module):
    """Two strided convolutions, then transformer layers."""

    def __init__(self, count=6):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(8, WIDTH, 3, 1, 1), nn.GELU(),
            nn.Conv1d(WIDTH, WIDTH, 3, 2, 1), nn.GELU())
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.0, "gelu",
                                           batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, count)

    def forward(self, features):
        x = self.front(features).transpose(1, 2)
        return F.log_softmax(self.head(self.body(x)), -1)


def ctc(log_p, labels):
    """Connectionist temporal classification written out: the forward variables
    in log space, all lengths full; 0 is the blank."""
    n, length, _ = log_p.shape
    size = labels.shape[1]
    extended = torch.zeros(n, 2 * size + 1, dtype=torch.int64)
    extended[:, 1::2] = labels
    found = log_p.gather(2, extended[:, None].expand(-1, length, -1))
    again = torch.cat([torch.ones(n, 2, dtype=torch.bool),
                       extended[:, 2:] == extended[:, :-2]], 1)
    again = again | (extended == 0)
    start = torch.full((2 * size + 1,), -1e9)
    start[:2] = 0.0
    alpha = found[:, 0] + start
    for t in range(1, length):
        one = F.pad(alpha, (1, 0), value=-1e9)[:, :-1]
        two = F.pad(alpha, (2, 0), value=-1e9)[:, :-2]
        two = two.masked_fill(again, -1e9)
        alpha = torch.logsumexp(torch.stack([alpha, one, two]), 0) + found[:, t]
    return -torch.logsumexp(alpha[:, -2:], 1).mean()


SPOKEN = {"features": numbers(8, FRAMES),
          "labels": lambda n: torch.randint(1, 6, (n, 3))}


@family
def ctc_written():
    return (Loss(Front(), lambda model, x, y: ctc(model(x), y)), dict(SPOKEN))


@family
def ctc_loss():
    """PyTorch's own function, which ONNX has no operator for."""
    def loss(model, features, labels):
        log_p = model(features).transpose(0, 1)
        n = features.shape[0]
        return F.ctc_loss(log_p, labels, torch.full((n,), log_p.shape[0]),
                          torch.full((n,), labels.shape[1]))
    return Loss(Front(), loss), dict(SPOKEN)


class Conformer(nn.Module):
    """Half a feed-forward, attention, convolution, the other half."""

    def __init__(self):
        super().__init__()
        def feed():
            return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32),
                                 nn.SiLU(), nn.Linear(32, WIDTH))
        self.first, self.second = feed(), feed()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.up = nn.Conv1d(WIDTH, 2 * WIDTH, 1)
        self.depth = nn.Conv1d(WIDTH, WIDTH, 5, padding=2, groups=WIDTH)
        self.group = nn.GroupNorm(4, WIDTH)
        self.down = nn.Conv1d(WIDTH, WIDTH, 1)
        self.last = nn.LayerNorm(WIDTH)

    def forward(self, x):
        x = x + 0.5 * self.first(x)
        y = self.norm1(x)
        x = x + self.attention(y, y, y)[0]
        y = F.glu(self.up(self.norm2(x).transpose(1, 2)), 1)
        y = self.down(F.silu(self.group(self.depth(y))))
        x = x + y.transpose(1, 2)
        return self.last(x + 0.5 * self.second(x))


@family
def conformer():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inputs = nn.Linear(8, WIDTH)
            self.body = nn.Sequential(Conformer(), Conformer())
            self.head = nn.Linear(WIDTH, 6)

        def forward(self, x):
            x = self.body(self.inputs(x.transpose(1, 2)) * math.sqrt(WIDTH))
            return self.head(x).transpose(1, 2)
    return (Loss(Model(), lambda model, x, y: F.cross_entropy(model(x), y)),
            {"features": numbers(8, FRAMES), "labels": classes(6, FRAMES)})


@family
def speaker_statistics():
    """x-vectors: dilated convolutions, mean and deviation over time, an
    additive margin on the angle."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv1d(8, WIDTH, 5, padding=2), nn.SiLU(),
                nn.Conv1d(WIDTH, WIDTH, 3, dilation=2, padding=2), nn.SiLU(),
                nn.Conv1d(WIDTH, WIDTH, 3, dilation=3, padding=3))
            self.narrow = nn.Linear(2 * WIDTH, 8)
            self.centers = nn.Parameter(torch.randn(5, 8))

        def forward(self, x, labels):
            x = self.body(x)
            x = self.narrow(torch.cat([x.mean(2), x.std(2)], 1))
            cosine = F.normalize(x) @ F.normalize(self.centers).t()
            margin = 0.2 * F.one_hot(labels, 5)
            return F.cross_entropy(10.0 * (cosine - margin), labels)
    return Model(), {"features": numbers(8, FRAMES), "labels": classes(5)}


@family
def spectrogram():
    """A Fourier transform as a convolution with constant waves, logarithms,
    a mel-like matrix, a recurrent layer."""
    class Model(nn.Module):
        def __init__(self, size=16):
            super().__init__()
            place = torch.arange(size).float()
            angle = 2 * math.pi / size * torch.outer(place[:size // 2], place)
            window = torch.hann_window(size)
            self.register_buffer("waves", torch.cat(
                [angle.cos() * window, angle.sin() * window])[:, None])
            self.register_buffer("mel", torch.rand(6, size // 2))
            self.recurrent = nn.GRU(6, WIDTH, batch_first=True)
            self.head = nn.Linear(WIDTH, 4)

        def forward(self, wave):
            x = F.conv1d(wave[:, None], self.waves, stride=8)
            real, imaginary = x.chunk(2, 1)
            power = real ** 2 + imaginary ** 2
            x = torch.log(self.mel @ power + 1e-3).transpose(1, 2)
            return self.head(self.recurrent(x)[0][:, -1])
    return Loss(Model(), labelled), {"wave": numbers(80), "labels": classes(4)}


@family
def causal_dilated():
    """WaveNet: gates, skips, weight norm, a mixture of logistics' simple cousin
    (a Gaussian whose width is learned)."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            norm = nn.utils.parametrizations.weight_norm
            self.inputs = nn.Conv1d(1, WIDTH, 1)
            self.gates = nn.ModuleList(
                norm(nn.Conv1d(WIDTH, 2 * WIDTH, 2, dilation=2 ** i))
                for i in range(3))
            self.skips = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 1)
                                       for _ in range(3))
            self.head = nn.Conv1d(WIDTH, 2, 1)

        def forward(self, wave):
            x, total = self.inputs(wave[:, None, :-1]), 0
            for i, (gate, skip) in enumerate(zip(self.gates, self.skips)):
                a, b = gate(F.pad(x, (2 ** i, 0))).chunk(2, 1)
                y = skip(torch.tanh(a) * torch.sigmoid(b))
                x, total = x + y, total + y
            mean, log_width = self.head(F.silu(total)).chunk(2, 1)
            error = (wave[:, None, 1:] - mean) * torch.exp(-log_width)
            return (0.5 * error ** 2 + log_width).mean()
    return Model(), {"wave": numbers(24)}
