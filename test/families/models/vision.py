"""Vision in plain PyTorch: transformers and mixers."""
import math

import torch
import torch.nn.functional as F
from torch import nn

from .common import Loss, classes, family, labelled, numbers

WIDTH = 24
IMAGES = {"pixels": numbers(3, 16, 16), "labels": classes(5)}


def classifier(model, **options):
    return Loss(model, labelled), dict(IMAGES)


class Block(nn.Module):
    def __init__(self, width=WIDTH, scale=None):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(),
                                  nn.Linear(2 * width, width))
        self.scale = (nn.Parameter(torch.full((width,), scale))
                      if scale else None)

    def forward(self, x):
        y = self.norm1(x)
        y = self.attention(y, y, y, need_weights=False)[0]
        x = x + (y if self.scale is None else self.scale * y)
        return x + self.feed(self.norm2(x))


class Vit(nn.Module):
    """A class token expanded to the batch, learned positions."""

    def __init__(self, size=16, patch=8, scale=None, distilled=False):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        count = (size // patch) ** 2 + 1
        self.second = (nn.Parameter(torch.randn(1, 1, WIDTH) * 0.02)
                       if distilled else None)
        self.position = nn.Parameter(
            torch.randn(1, count + distilled, WIDTH) * 0.02)
        self.blocks = nn.Sequential(Block(scale=scale), Block(scale=scale))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)

    def features(self, pixels):
        x = self.patches(pixels).flatten(2).transpose(1, 2)
        parts = [self.token.expand(x.shape[0], -1, -1), x]
        if self.second is not None:
            parts.insert(1, self.second.expand(x.shape[0], -1, -1))
        return self.norm(self.blocks(torch.cat(parts, 1) + self.position))

    def forward(self, pixels):
        return self.head(self.features(pixels)[:, 0])


@family
def vit_class_token():
    return classifier(Vit())


@family
def cait_layer_scale():
    return classifier(Vit(scale=0.1))


@family
def deit_distilled():
    """A second token learns what a frozen convolution says."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.teacher = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.GELU(),
                                         nn.Flatten(), nn.Linear(128, 5))
            self.student = Vit(distilled=True)
            self.second = nn.Linear(WIDTH, 5)
            self.teacher.requires_grad_(False)

        def forward(self, pixels, labels):
            with torch.no_grad():
                wanted = self.teacher(pixels).argmax(-1)
            x = self.student.features(pixels)
            return 0.5 * (F.cross_entropy(self.student.head(x[:, 0]), labels)
                          + F.cross_entropy(self.second(x[:, 1]), wanted))
    return Model(), dict(IMAGES)


@family
def vit_registers():
    """Positions resized to the image, mean of patches, extra tokens."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, WIDTH, 4, 4)
            self.position = nn.Parameter(torch.randn(1, WIDTH, 2, 2) * 0.1)
            self.registers = nn.Parameter(torch.randn(1, 2, WIDTH) * 0.1)
            self.block, self.head = Block(), nn.Linear(WIDTH, 5)

        def forward(self, pixels):
            x = self.patches(pixels)
            x = x + F.interpolate(self.position, size=x.shape[-2:],
                                  mode="bilinear", align_corners=False)
            x = x.flatten(2).transpose(1, 2)
            x = torch.cat([x, self.registers.repeat(x.shape[0], 1, 1)], 1)
            return self.head(self.block(x)[:, :-2].mean(1))
    return classifier(Model())


@family
def mlp_mixer():
    class Mix(nn.Module):
        def __init__(self, places=16):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.places = nn.Sequential(nn.Linear(places, 32), nn.GELU(),
                                        nn.Linear(32, places))
            self.channels = nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(),
                                          nn.Linear(48, WIDTH))

        def forward(self, x):
            x = x + self.places(self.norm1(x).transpose(1, 2)).transpose(1, 2)
            return x + self.channels(self.norm2(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, WIDTH, 4, 4)
            self.body = nn.Sequential(Mix(), Mix(), nn.LayerNorm(WIDTH))
            self.head = nn.Linear(WIDTH, 5)

        def forward(self, pixels):
            x = self.patches(pixels).flatten(2).transpose(1, 2)
            return self.head(self.body(x).mean(1))
    return classifier(Model())


@family(buffers=True)
def masked_autoencoder():
    """Masked patches become one learned token; their pixels are the goal."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Linear(48, WIDTH)
            self.mask_token = nn.Parameter(torch.zeros(WIDTH))
            self.register_buffer("position", torch.randn(16, WIDTH) * 0.2)
            self.body = nn.Sequential(Block(), nn.LayerNorm(WIDTH))
            self.pixels = nn.Linear(WIDTH, 48)

        def forward(self, pixels, hidden):
            goal = pixels.unfold(2, 4, 4).unfold(3, 4, 4)
            goal = goal.permute(0, 2, 3, 1, 4, 5).reshape(-1, 16, 48)
            x = torch.where(hidden[..., None] > 0, self.mask_token,
                            self.patches(goal))
            found = self.pixels(self.body(x + self.position))
            error = ((found - goal) ** 2).mean(-1)
            return (error * hidden).sum() / hidden.sum()
    return Model(), {"pixels": numbers(3, 16, 16),
                     "hidden": lambda n: (torch.rand(n, 16) < 0.6).float()}


@family
def detection_queries():
    """DETR: learned queries expanded to the batch; which query answers for
    which object is given."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, WIDTH, 4, 4)
            self.queries = nn.Embedding(4, WIDTH)
            self.rows = nn.Parameter(torch.rand(4, WIDTH // 2))
            self.columns = nn.Parameter(torch.rand(4, WIDTH // 2))
            layer = nn.TransformerDecoderLayer(WIDTH, 2, 48, dropout=0.0,
                                               activation="gelu",
                                               batch_first=True)
            self.decoder = nn.TransformerDecoder(layer, 1)
            self.kind, self.box = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4)

        def forward(self, pixels, kinds, boxes):
            position = torch.cat([
                self.columns.unsqueeze(0).repeat(4, 1, 1),
                self.rows.unsqueeze(1).repeat(1, 4, 1)], -1).flatten(0, 1)
            x = self.patches(pixels).flatten(2).transpose(1, 2) + position
            queries = self.queries.weight.unsqueeze(0).repeat(
                pixels.shape[0], 1, 1)
            y = self.decoder(queries, x)
            kind = F.cross_entropy(self.kind(y).transpose(1, 2), kinds,
                                   weight=torch.tensor([1.0, 1.0, 1.0, 0.1]))
            return kind + 5 * F.l1_loss(self.box(y).sigmoid(), boxes)
    return Model(), {"pixels": numbers(3, 16, 16), "kinds": classes(4, 4),
                     "boxes": lambda n: torch.rand(n, 4, 4)}


@family
def perceiver():
    """Latents that read a long input."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.latents = nn.Parameter(torch.randn(6, WIDTH) * 0.2)
            self.inputs = nn.Linear(3, WIDTH)
            bands = torch.linspace(1, 8, WIDTH // 4) * math.pi
            self.register_buffer("bands", bands)
            self.read = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
            self.body, self.head = Block(), nn.Linear(WIDTH, 5)

        def forward(self, pixels):
            n, _, h, w = pixels.shape
            y = torch.linspace(-1, 1, h)[:, None, None] * self.bands
            x = torch.linspace(-1, 1, w)[None, :, None] * self.bands
            y, x = y.expand(h, w, -1), x.expand(h, w, -1)
            place = torch.cat([y.sin(), y.cos(), x.sin(), x.cos()], -1)
            data = self.inputs(pixels.permute(0, 2, 3, 1)) + place
            latents = self.latents.unsqueeze(0).expand(n, -1, -1)
            data = data.flatten(1, 2)
            found = self.read(latents, data, data, need_weights=False)[0]
            return self.head(self.body(latents + found).mean(1))
    return classifier(Model())
