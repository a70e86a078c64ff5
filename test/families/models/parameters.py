"""Parameters that are not simply a matrix of a layer, and tables that are none."""
import math

import torch
import torch.nn.functional as F
from torch import nn

from .adapters import sinusoids
from .common import Loss, classes, family, labelled, numbers, tokens

INPUTS, WIDTH = 8, 12
DATA = {"x": numbers(INPUTS), "labels": classes(4)}


def classifier(model):
    return Loss(model, labelled), dict(DATA)


@family
def weight_norm():
    norm = nn.utils.parametrizations.weight_norm
    return classifier(nn.Sequential(norm(nn.Linear(INPUTS, WIDTH)), nn.Tanh(),
                                    norm(nn.Linear(WIDTH, 4))))


@family
def weight_norm_old():
    """The older form, by hooks, as many speech models have it."""
    norm = nn.utils.weight_norm
    return classifier(nn.Sequential(norm(nn.Linear(INPUTS, WIDTH)), nn.Tanh(),
                                    norm(nn.Linear(WIDTH, 4), dim=None)))


@family(detach=True, buffers=True)
def spectral_norm():
    """Largest singular value by vectors that are buffers."""
    class Spectral(nn.Linear):
        def __init__(self, i, o):
            super().__init__(i, o)
            self.register_buffer("u", F.normalize(torch.randn(o), dim=0))

        def forward(self, x):
            v = F.normalize(self.weight.t() @ self.u, dim=0).detach()
            u = F.normalize(self.weight @ v, dim=0).detach()
            return F.linear(x, self.weight / torch.dot(u, self.weight @ v),
                            self.bias)
    return classifier(nn.Sequential(Spectral(INPUTS, WIDTH), nn.Tanh(),
                                    Spectral(WIDTH, 4)))


@family
def spectral_like_norm():
    """The weight over its Frobenius norm, times a learned gain."""
    class Scaled(nn.Linear):
        def __init__(self, i, o):
            super().__init__(i, o)
            self.gain = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return F.linear(x, self.weight * (self.gain / self.weight.norm()),
                            self.bias)
    return classifier(nn.Sequential(Scaled(INPUTS, WIDTH), nn.Tanh(),
                                    Scaled(WIDTH, 4)))


@family
def weight_standardization():
    class Standard(nn.Conv1d):
        def forward(self, x):
            w = self.weight
            mean = w.mean((1, 2), keepdim=True)
            w = (w - mean) / torch.sqrt(w.var((1, 2), keepdim=True) + 1e-5)
            return F.conv1d(x, w, self.bias, padding=1)
    return Loss(nn.Sequential(Standard(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(),
                              Standard(8, 8, 3), nn.AdaptiveAvgPool1d(1),
                              nn.Flatten(), nn.Linear(8, 4)), labelled), {
        "x": numbers(3, 10), "labels": classes(4)}


@family
def norms_without_weights():
    """Layer, instance and group norms that have none."""
    return Loss(nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.InstanceNorm2d(8), nn.SiLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8, affine=False),
        nn.SiLU(), nn.Flatten(), nn.LayerNorm(288, elementwise_affine=False),
        nn.Linear(288, 4)), labelled), {"x": numbers(2, 6, 6),
                                        "labels": classes(4)}


class Derived(nn.Module):
    """Weights used transposed, joined, scaled, cast, in parts."""

    def __init__(self):
        super().__init__()
        self.square = nn.Parameter(torch.randn(WIDTH, INPUTS) * 0.3)
        self.one = nn.Parameter(torch.randn(5, WIDTH) * 0.3)
        self.two = nn.Parameter(torch.randn(7, WIDTH) * 0.3)
        self.bias1, self.bias2 = (nn.Parameter(torch.randn(n) * 0.1)
                                  for n in (5, 7))
        self.last = nn.Parameter(torch.randn(4, WIDTH) * 0.3)

    def forward(self, x):
        x = torch.tanh(x @ self.square.t())
        x = torch.tanh(F.linear(x, torch.cat([self.one, self.two]),
                                torch.cat([self.bias1, self.bias2])))
        return x @ (self.last * 0.5).t()


@family
def derived_weights():
    return classifier(Derived())


@family
def symmetric_weight():
    """Triangles joined, skew-symmetric parts, an exponential as a scale."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.raw = nn.Parameter(torch.randn(INPUTS, INPUTS) * 0.3)
            self.log_scale = nn.Parameter(torch.zeros(INPUTS))
            self.head = nn.Linear(INPUTS, 4)

        def forward(self, x):
            upper = torch.triu(self.raw)
            skew = self.raw - self.raw.t()
            y = x @ (upper + upper.t()) * self.log_scale.exp()
            return self.head(torch.tanh(y) + x @ skew)
    return classifier(Model())


@family
def cast_weight():
    """Stored in one type, used in another."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, INPUTS) * 0.3)

        def forward(self, x):
            x = x.to(torch.float64) @ self.weight.to(torch.float64).t()
            return x.to(torch.float32)
    return classifier(Model())


@family
def scalar_parameters():
    """A temperature, gates of one number, a scale of each layer."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(INPUTS, INPUTS)
                                        for _ in range(3))
            self.scales = nn.ParameterList(torch.tensor(0.5)
                                           for _ in range(3))
            self.gate = nn.Parameter(torch.tensor([0.3]))
            self.temperature = nn.Parameter(torch.tensor(1.5))
            self.head = nn.Linear(INPUTS, 4)

        def forward(self, x):
            for layer, scale in zip(self.layers, self.scales):
                x = x + scale * torch.tanh(layer(x))
            gate = torch.sigmoid(self.gate)
            x = gate * x + (1 - gate) * torch.sin(x)
            return self.head(x) / self.temperature
    return classifier(Model())


@family
def zero_parameters():
    """ReZero, zero heads and zero biases: all begin as zeros."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inputs = nn.Linear(INPUTS, WIDTH)
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH)
                                        for _ in range(2))
            self.alphas = nn.Parameter(torch.zeros(2))
            self.head = nn.Linear(WIDTH, 4)
            for part in (self.head, *self.layers):
                nn.init.zeros_(part.bias)
            nn.init.zeros_(self.head.weight)

        def forward(self, x):
            x = self.inputs(x)
            for alpha, layer in zip(self.alphas, self.layers):
                x = x + alpha * torch.tanh(layer(x))
            return self.head(x)
    return classifier(Model())


@family
def sinusoidal_parameter():
    """Positions that begin as waves and are trained, beside ones that stay."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(40, WIDTH)
            self.learned = nn.Parameter(sinusoids(6, WIDTH))
            self.register_buffer("fixed", sinusoids(6, WIDTH) * 0.3)
            self.mix = nn.Linear(6, 6)
            self.head = nn.Linear(WIDTH, 4)

        def forward(self, ids):
            x = self.table(ids) + self.learned + self.fixed
            x = x + torch.tanh(self.mix(x.transpose(1, 2)).transpose(1, 2))
            return self.head(x.mean(1))
    return Loss(Model(), labelled), {"ids": tokens(6, 0, 40),
                                     "labels": classes(4)}


@family
def lifted_constants():
    """Tensors made in forward."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(INPUTS, 4)

        def forward(self, x):
            mean = torch.tensor([0.1, -0.2, 0.3, 0.0, 0.5, -0.5, 0.2, 0.1])
            width = torch.tensor([1.0, 2.0, 0.5, 1.0, 1.5, 1.0, 0.7, 1.2])
            x = self.body((x - mean) / width)
            return x * torch.tensor([1.0, 0.9, 1.1, 1.3]) + torch.linspace(
                -0.5, 0.5, 4)
    return classifier(Model())


@family
def expanded_parameter():
    """A parameter for all samples, written out with its batch."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.start = nn.Parameter(torch.randn(1, 3, WIDTH) * 0.3)
            self.inputs, self.head = nn.Linear(INPUTS, WIDTH), nn.Linear(
                WIDTH, 4)
            self.query = nn.Parameter(torch.randn(WIDTH) * 0.3)

        def forward(self, x):
            n = x.shape[0]
            x = torch.cat([self.start.repeat(n, 1, 1),
                           self.inputs(x)[:, None]], 1)
            query = self.query.expand(n, 1, WIDTH)
            weights = torch.bmm(query, x.transpose(1, 2)).softmax(-1)
            return self.head(torch.bmm(weights, x)[:, 0])
    return classifier(Model())


@family
def slice_assignment():
    """Parts of a tensor written in forward."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(INPUTS, 6), nn.Linear(INPUTS, 6)
            self.head = nn.Linear(WIDTH, 4)

        def forward(self, x):
            y = torch.zeros(x.shape[0], WIDTH, dtype=x.dtype)
            y[:, :6] = torch.tanh(self.one(x))
            y[:, 6:] = torch.sigmoid(self.two(x))
            y[:, 0] = y[:, 0] * 2.0
            y[:, 1::4] += 0.5
            return self.head(y)
    return classifier(Model())


@family
def parameter_list():
    """Stacked into one tensor, one product for all."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList(
                nn.Parameter(torch.randn(INPUTS, 4) * 0.3) for _ in range(3))
            self.mix = nn.Parameter(torch.zeros(3))

        def forward(self, x):
            y = torch.einsum("bi,kio->bko", x, torch.stack(list(self.weights)))
            return (torch.tanh(y) * self.mix.softmax(0)[:, None]).sum(1)
    return classifier(Model())


@family
def hyper_network():
    """A small network makes the weights of another, for each sample."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.code = nn.Linear(INPUTS, 4)
            self.make = nn.Linear(4, INPUTS * 4)

        def forward(self, x):
            w = self.make(torch.tanh(self.code(x))).view(-1, INPUTS, 4)
            return torch.bmm(x[:, None], w)[:, 0]
    return classifier(Model())


@family(buffers=True)
def spline_network():
    """KAN: radial functions around fixed places, learned coefficients."""
    class Layer(nn.Module):
        def __init__(self, i, o, count=5):
            super().__init__()
            self.register_buffer("places", torch.linspace(-2, 2, count))
            self.weight = nn.Parameter(torch.randn(i, count, o) * 0.2)
            self.base = nn.Linear(i, o)

        def forward(self, x):
            y = torch.exp(-(x[..., None] - self.places) ** 2)
            return torch.einsum("bik,iko->bo", y, self.weight) + self.base(
                F.silu(x))
    return classifier(nn.Sequential(Layer(INPUTS, 6), Layer(6, 4)))


@family
def shared_everywhere():
    """One norm and one matrix, used before, between and after."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(INPUTS)
            self.mix = nn.Linear(INPUTS, INPUTS)
            self.head = nn.Linear(INPUTS, 4)
            nn.init.zeros_(self.mix.bias)

        def forward(self, x):
            for _ in range(3):
                x = x + torch.tanh(self.mix(self.norm(x)))
            return self.head(self.norm(x) * math.sqrt(2))
    return classifier(Model())
