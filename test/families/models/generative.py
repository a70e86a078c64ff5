"""Diffusion, flows, autoencoders, adversaries."""
import math

import torch
import torch.nn.functional as F
from torch import nn

from .common import Loss, classes, family, labelled, numbers
from .vision import Block

STEPS = 20


def wave(t, width):
    rate = torch.exp(-math.log(1e4) * torch.arange(width // 2) / (width // 2))
    angle = t[:, None].to(rate.dtype) * rate[None]
    return torch.cat([angle.sin(), angle.cos()], 1)


class Modulated(nn.Module):
    """Convolution, group norm, then scale and shift by the time."""

    def __init__(self, i, o, time=16):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(2, i), nn.GroupNorm(2, o)
        self.conv1 = nn.Conv2d(i, o, 3, padding=1)
        self.conv2 = nn.Conv2d(o, o, 3, padding=1)
        self.time = nn.Linear(time, 2 * o)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t):
        y = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.time(F.silu(t))[:, :, None, None].chunk(2, 1)
        y = self.norm2(y) * (1 + scale) + shift
        return self.skip(x) + self.conv2(F.silu(y))


class Denoiser(nn.Module):
    def __init__(self, classes=None):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 16), nn.SiLU(),
                                  nn.Linear(16, 16))
        self.kind = nn.Embedding(classes + 1, 16) if classes else None
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.down, self.middle = Modulated(8, 8), Modulated(8, 16)
        self.up = Modulated(24, 8)
        self.last = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x, t, kind=None):
        t = self.time(wave(t, 16))
        if kind is not None:
            t = t + self.kind(kind)
        a = self.down(self.first(x), t)
        b = self.middle(F.avg_pool2d(a, 2), t)
        b = F.interpolate(b, scale_factor=2.0, mode="nearest")
        return self.last(self.up(torch.cat([b, a], 1), t))


class Diffusion(nn.Module):
    """The noise added at a random step is what the network has to say."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        beta = torch.linspace(1e-3, 0.2, STEPS)
        kept = torch.cumprod(1 - beta, 0)
        self.register_buffer("signal", kept.sqrt())
        self.register_buffer("rest", (1 - kept).sqrt())

    def forward(self, x, noise, t, *kind):
        at = (-1,) + (1,) * (x.dim() - 1)
        mixed = self.signal[t].view(at) * x + self.rest[t].view(at) * noise
        return F.mse_loss(self.network(mixed, t, *kind), noise)


PICTURES = {"x": numbers(1, 8, 8), "noise": numbers(1, 8, 8),
            "t": classes(STEPS)}


@family(buffers=True)
def diffusion_unet():
    return Diffusion(Denoiser()), dict(PICTURES)


@family(buffers=True)
def diffusion_classes():
    return Diffusion(Denoiser(4)), {**PICTURES, "kind": classes(5)}


class AdaptiveBlock(nn.Module):
    """DiT: norms without weights, modulated; gates that begin as zeros."""

    def __init__(self, width=16):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False)
                                  for _ in range(2))
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(width, 32), nn.GELU("tanh"),
                                  nn.Linear(32, width))
        self.modulate = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        nn.init.zeros_(self.modulate[1].weight)
        nn.init.zeros_(self.modulate[1].bias)

    def forward(self, x, c):
        m = self.modulate(c)[:, None].chunk(6, -1)
        y = self.norm1(x) * (1 + m[1]) + m[0]
        x = x + m[2] * self.attention(y, y, y, need_weights=False)[0]
        return x + m[5] * self.feed(self.norm2(x) * (1 + m[4]) + m[3])


@family(buffers=True)
def diffusion_transformer():
    class Model(nn.Module):
        def __init__(self, width=16):
            super().__init__()
            self.patches = nn.Linear(4, width)
            self.register_buffer("position", wave(torch.arange(16), width)[None])
            self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(),
                                      nn.Linear(width, width))
            self.blocks = nn.ModuleList(AdaptiveBlock() for _ in range(2))
            self.last = nn.Linear(width, 4)

        def forward(self, x, t):
            x = F.pixel_unshuffle(x, 2).flatten(2).transpose(1, 2)
            c = self.time(wave(t, 16))
            x = self.patches(x) + self.position
            for block in self.blocks:
                x = block(x, c)
            x = self.last(x).transpose(1, 2).unflatten(2, (4, 4))
            return F.pixel_shuffle(x, 2)
    return Diffusion(Model()), dict(PICTURES)


@family(buffers=True)
def flow_matching():
    """A velocity between noise and data; random Fourier features."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("rates", torch.randn(8) * 2)
            self.body = nn.Sequential(nn.Linear(6 + 16, 32), nn.SiLU(),
                                      nn.Linear(32, 6))

        def forward(self, x, noise, t):
            angle = 2 * math.pi * t[:, None] * self.rates
            now = (1 - t[:, None]) * noise + t[:, None] * x
            found = self.body(torch.cat([now, angle.sin(), angle.cos()], 1))
            return ((found - (x - noise)) ** 2).mean()
    return Model(), {"x": numbers(6), "noise": numbers(6),
                     "t": lambda n: torch.rand(n)}


@family(buffers=True)
def latent_diffusion():
    """Cross attention to words, of which some samples have none: then a learned
    one stands there."""
    class Model(nn.Module):
        def __init__(self, width=16):
            super().__init__()
            self.inputs, self.last = nn.Linear(4, width), nn.Linear(width, 4)
            self.words = nn.Embedding(30, width)
            self.nothing = nn.Parameter(torch.randn(1, 5, width) * 0.1)
            self.time, self.block = nn.Linear(width, width), Block(width)
            self.look = nn.MultiheadAttention(width, 2, batch_first=True)
            self.norm = nn.GroupNorm(4, width, affine=False)

        def forward(self, x, t, words, dropped):
            context = torch.where(dropped[:, None, None] > 0, self.nothing,
                                  self.words(words))
            y = self.inputs(x.flatten(2).transpose(1, 2))
            y = self.norm(y.transpose(1, 2)).transpose(1, 2)
            y = y + self.time(wave(t, 16))[:, None]
            y = self.block(y)
            y = y + self.look(y, context, context)[0]
            return self.last(y).transpose(1, 2).unflatten(2, (4, 4))

    class Guided(Diffusion):
        def forward(self, x, noise, t, words, dropped):
            return super().forward(x, noise, t, words, dropped)
    return Guided(Model()), {
        "x": numbers(4, 4, 4), "noise": numbers(4, 4, 4), "t": classes(STEPS),
        "words": classes(30, 5), "dropped": lambda n: (torch.rand(n) < .3).float()}


@family
def variational_autoencoder():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Sequential(nn.Linear(20, 32), nn.Tanh())
            self.mean, self.log_var = nn.Linear(32, 4), nn.Linear(32, 4)
            self.decode = nn.Sequential(nn.Linear(4, 32), nn.Tanh(),
                                        nn.Linear(32, 20))

        def forward(self, x, noise):
            h = self.encode(x)
            mean, log_var = self.mean(h), self.log_var(h)
            z = mean + noise * torch.exp(0.5 * log_var)
            found = F.binary_cross_entropy_with_logits(
                self.decode(z), torch.sigmoid(x), reduction="sum") / x.shape[0]
            kl = -0.5 * (1 + log_var - mean ** 2 - log_var.exp()).sum(1).mean()
            return found + 0.5 * kl
    return Model(), {"x": numbers(20), "noise": numbers(4)}


@family(detach=True)
def vector_quantized():
    """The nearest code goes on, gradients pass by it (detach)."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = nn.Linear(12, 4), nn.Linear(4, 12)
            self.codes = nn.Parameter(torch.randn(10, 4))

        def forward(self, x):
            z = self.encode(x)
            distance = ((z[:, None] - self.codes[None]) ** 2).sum(-1)
            code = self.codes[distance.argmin(1)]
            both = (F.mse_loss(code, z.detach())
                    + 0.25 * F.mse_loss(z, code.detach()))
            return F.mse_loss(self.decode(z + (code - z).detach()), x) + both
    return Model(), {"x": numbers(12)}


@family
def convolutional_autoencoder():
    return (Loss(nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ELU(), nn.Conv2d(8, 4, 3, 2, 1), nn.ELU(),
        nn.ConvTranspose2d(4, 8, 4, 2, 1), nn.Softplus(),
        nn.ConvTranspose2d(8, 1, 3, 2, 1, output_padding=1)),
        lambda model, x: F.mse_loss(model(x), x)), {"x": numbers(1, 16, 16)})


@family
def tied_autoencoder():
    """The decoder is the encoder's matrix transposed."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.matrix = nn.Parameter(torch.randn(6, 14) * 0.3)
            self.hidden = nn.Parameter(torch.zeros(6))
            self.visible = nn.Parameter(torch.zeros(14))

        def forward(self, x, damaged):
            h = torch.tanh(F.linear(damaged, self.matrix, self.hidden))
            found = F.linear(h, self.matrix.t(), self.visible)
            return F.mse_loss(found, x) + 1e-2 * h.abs().mean()
    return Model(), {"x": numbers(14), "damaged": numbers(14)}


@family
def generator_loss():
    """A generator against a discriminator that stays as it is."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.generator = nn.Sequential(
                nn.Linear(6, 64), nn.Unflatten(1, (4, 4, 4)), nn.GELU(),
                nn.ConvTranspose2d(4, 1, 4, 2, 1), nn.Tanh())
            self.discriminator = nn.Sequential(
                nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(),
                nn.Linear(128, 1)).requires_grad_(False)

        def forward(self, z):
            return F.softplus(-self.discriminator(self.generator(z))).mean()
    return Model(), {"z": numbers(6)}


@family
def normalizing_flow():
    """Real NVP: alternating halves by masks that are buffers."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("masks", torch.tensor(
                [[1.0, 0.0] * 3, [0.0, 1.0] * 3]))
            self.networks = nn.ModuleList(
                nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 12))
                for _ in range(2))
            self.scale = nn.Parameter(torch.zeros(6))

        def forward(self, x):
            total = 0
            for mask, network in zip(self.masks, self.networks):
                s, t = network(x * mask).chunk(2, -1)
                s = torch.tanh(s) * torch.exp(self.scale) * (1 - mask)
                x = x * mask + (1 - mask) * (x * s.exp() + t)
                total = total + s.sum(-1)
            return (0.5 * (x ** 2).sum(-1) - total).mean() / 6
    return Model(), {"x": numbers(6)}


@family
def autoregressive_pixels():
    """Masked convolutions: the weight times a buffer."""
    class Masked(nn.Conv2d):
        def __init__(self, kind, *arguments, **options):
            super().__init__(*arguments, **options)
            mask = torch.ones_like(self.weight)
            mask[:, :, 1, 1 + kind:] = 0
            mask[:, :, 2:] = 0
            self.register_buffer("mask", mask)

        def forward(self, x):
            return F.conv2d(x, self.weight * self.mask, self.bias, padding=1)

    def pixels(n):
        return torch.randint(0, 3, (n, 6, 6))

    def loss(model, x):
        one = F.one_hot(x, 3).permute(0, 3, 1, 2).float()
        return F.cross_entropy(model(one), x)
    return (Loss(nn.Sequential(Masked(0, 3, 8, 3), nn.SiLU(),
                               Masked(1, 8, 3, 3)), loss), {"x": pixels})
