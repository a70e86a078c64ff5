"""Convolutional networks: classification, detection, segmentation, pictures."""
import torch
import torch.nn.functional as F
from torch import nn

from .common import Loss, bits, classes, family, labelled, numbers
from .vision import IMAGES, classifier


def convolution(i, o, stride=1, act=nn.SiLU):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1), nn.GroupNorm(2, o),
                         act())


@family(kinks=True)
def cnn_batch_norm():
    def block(i, o):
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False),
                             nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2))
    return classifier(nn.Sequential(block(3, 8), block(8, 16), nn.Flatten(),
                                    nn.Linear(256, 5)))


class SqueezeExcite(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down, self.up = nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1)

    def forward(self, x):
        y = F.silu(self.down(F.adaptive_avg_pool2d(x, 1)))
        return x * torch.sigmoid(self.up(y))


@family
def squeeze_excite():
    return classifier(nn.Sequential(
        convolution(3, 8, 2), SqueezeExcite(8), convolution(8, 16, 2),
        SqueezeExcite(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 5)))


class ConvNextBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depth = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.gamma = nn.Parameter(1e-1 * torch.ones(width))
        self.gain = nn.Parameter(torch.zeros(1, 1, 1, 2 * width))
        self.offset = nn.Parameter(torch.zeros(1, 1, 1, 2 * width))

    def forward(self, x):
        y = F.gelu(self.up(self.norm(self.depth(x).permute(0, 2, 3, 1))))
        size = torch.norm(y, p=2, dim=(1, 2), keepdim=True)
        size = size / (size.mean(-1, keepdim=True) + 1e-6)
        y = self.gain * (y * size) + self.offset + y
        return x + (self.gamma * self.down(y)).permute(0, 3, 1, 2)


@family
def convnext_v2():
    """With the global response norm, whose parameters begin as zeros."""
    return classifier(nn.Sequential(
        nn.Conv2d(3, 16, 4, 4), ConvNextBlock(16), ConvNextBlock(16),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)))


@family(kinks=True)
def shuffle_net():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, 2, 1)
            self.one = nn.Conv2d(8, 8, 1, groups=2)
            self.depth = nn.Conv2d(8, 8, 3, padding=1, groups=8)
            self.two = nn.Conv2d(8, 8, 1, groups=2)
            self.head = nn.Linear(8, 5)

        def forward(self, x):
            x = F.relu6(self.stem(x))
            n, c, h, w = x.shape
            y = self.one(x).view(n, 2, c // 2, h, w).transpose(1, 2)
            y = self.two(self.depth(y.reshape(n, c, h, w)))
            return self.head(F.leaky_relu(x + y, 0.1).mean((2, 3)))
    return classifier(Model())


def focal(logits, wanted, gamma=2.0, alpha=0.25):
    error = F.binary_cross_entropy_with_logits(logits, wanted,
                                               reduction="none")
    p = torch.sigmoid(logits)
    right = p * wanted + (1 - p) * (1 - wanted)
    weight = alpha * wanted + (1 - alpha) * (1 - wanted)
    return (weight * (1 - right) ** gamma * error).sum() / wanted.sum()


@family
def feature_pyramid():
    """Three levels, heads shared by them, focal and box losses."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.ModuleList([convolution(3, 8, 2),
                                       convolution(8, 12, 2),
                                       convolution(12, 16, 2)])
            self.side = nn.ModuleList(nn.Conv2d(i, 8, 1) for i in (8, 12, 16))
            self.kinds, self.boxes = (nn.Conv2d(8, o, 3, padding=1)
                                      for o in (3, 4))

        def forward(self, x):
            levels = []
            for part in self.down:
                x = part(x)
                levels.append(x)
            top, kinds, boxes = None, [], []
            for side, level in reversed(list(zip(self.side, levels))):
                y = side(level)
                if top is not None:
                    y = y + F.interpolate(top, scale_factor=2, mode="nearest")
                top = y
                kinds.append(self.kinds(y).flatten(2))
                boxes.append(self.boxes(y).flatten(2))
            return (torch.cat(kinds, 2).transpose(1, 2),
                    torch.cat(boxes, 2).transpose(1, 2))

    def loss(model, pixels, kinds, boxes):
        found_kinds, found_boxes = model(pixels)
        near = kinds.amax(-1, keepdim=True)
        box = F.smooth_l1_loss(found_boxes, boxes, reduction="none", beta=0.5)
        return focal(found_kinds, kinds) + (box * near).sum() / near.sum()
    return Loss(Model(), loss), {"pixels": numbers(3, 16, 16),
                                 "kinds": bits(84, 3),
                                 "boxes": numbers(84, 4)}


@family
def single_shot_detector():
    """Anchors as a buffer; background counts less."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = convolution(3, 8, 2), convolution(8, 8, 2)
            self.heads = nn.ModuleList(nn.Conv2d(8, 2 * 7, 3, padding=1)
                                       for _ in range(2))
            self.register_buffer("anchors", torch.rand(160, 4) + 0.5)
            self.register_buffer("priors", torch.tensor([0.2, 1.0, 1.0]))

        def forward(self, pixels, kinds, boxes):
            x = self.first(pixels)
            y = self.second(x)
            found = [head(z).permute(0, 2, 3, 1).reshape(pixels.shape[0], -1, 7)
                     for head, z in zip(self.heads, (x, y))]
            found = torch.cat(found, 1)
            kind = F.cross_entropy(found[..., :3].reshape(-1, 3),
                                   kinds.reshape(-1), weight=self.priors)
            goal = (boxes - self.anchors[:, :2].repeat(1, 2)) / self.anchors
            wanted = (kinds > 0).unsqueeze(-1).to(goal.dtype)
            error = F.huber_loss(found[..., 3:], goal, reduction="none")
            return kind + (error * wanted).sum() / wanted.sum()
    return Model(), {"pixels": numbers(3, 16, 16), "kinds": classes(3, 160),
                     "boxes": numbers(160, 4)}


class Segmenter(nn.Module):
    def __init__(self, count=1):
        super().__init__()
        self.down = convolution(3, 8)
        self.deep = convolution(8, 16, 2)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.head = nn.Conv2d(16, count, 1)

    def forward(self, x):
        a = self.down(x)
        return self.head(torch.cat([self.up(self.deep(a)), a], 1))


def dice(found, wanted, dims):
    p = torch.sigmoid(found)
    both = (p * wanted).sum(dims)
    return 1 - (2 * both + 1) / (p.sum(dims) + wanted.sum(dims) + 1)


MASKS = {"pixels": numbers(3, 16, 16), "masks": bits(1, 16, 16)}


@family
def segmentation_dice():
    """Dice of each sample, then the mean, beside cross entropy."""
    def loss(model, pixels, masks):
        found = model(pixels)
        return (dice(found, masks, (1, 2, 3)).mean()
                + F.binary_cross_entropy_with_logits(found, masks))
    return Loss(Segmenter(), loss), dict(MASKS)


@family(whole=True)
def segmentation_dice_of_batch():
    """One Dice over all samples."""
    return (Loss(Segmenter(), lambda model, pixels, masks: dice(
        model(pixels), masks, (0, 1, 2, 3))), dict(MASKS))


@family
def segmentation_ignore():
    """A class a pixel, some of them unknown, with weights of classes."""
    class Model(Segmenter):
        def __init__(self):
            super().__init__(3)
            self.criterion = nn.CrossEntropyLoss(
                weight=torch.tensor([0.5, 1.0, 2.0]), ignore_index=255)

    def unknown(n):
        wanted = torch.randint(0, 3, (n, 16, 16))
        return torch.where(torch.rand(n, 16, 16) < 0.3, 255, wanted)
    return (Loss(Model(), lambda model, x, y: model.criterion(model(x), y)),
            {"pixels": numbers(3, 16, 16), "labels": unknown})


@family
def super_resolution():
    """Pixels shuffled into a larger picture; mean of differences."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.PReLU(),
                                      nn.Conv2d(8, 12, 3, padding=1),
                                      nn.PixelShuffle(2))
            self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.45]
                                                      ).view(1, 3, 1, 1))

        def forward(self, x):
            return self.body(x - self.mean) + self.mean
    return (Loss(Model(), lambda model, x, y: F.l1_loss(model(x), y)),
            {"small": numbers(3, 8, 8), "large": numbers(3, 16, 16)})


@family
def style_transfer():
    """Instance norms without weights, reflected borders, nearest upsampling,
    Gram matrices as the goal."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.ReflectionPad2d(2), nn.Conv2d(3, 8, 5),
                nn.InstanceNorm2d(8), nn.SiLU(),
                nn.Conv2d(8, 8, 3, 2, 1), nn.InstanceNorm2d(8, affine=True),
                nn.SiLU(), nn.Upsample(scale_factor=2),
                nn.Conv2d(8, 3, 3, padding=1), nn.Tanh())
            self.look = nn.Conv2d(3, 6, 3).requires_grad_(False)

        def gram(self, x):
            y = self.look(x).flatten(2)
            return y @ y.transpose(1, 2) / y.shape[-1]

        def forward(self, content, style):
            found = self.body(content)
            return (F.mse_loss(self.look(found), self.look(content))
                    + F.mse_loss(self.gram(found), self.gram(style)))
    return Model(), {"content": numbers(3, 16, 16), "style": numbers(3, 16, 16)}


@family
def spatial_transformer():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.where = nn.Sequential(nn.Flatten(), nn.Linear(768, 8),
                                       nn.Tanh(), nn.Linear(8, 6))
            nn.init.normal_(self.where[-1].weight, std=0.05)
            self.where[-1].bias.data.copy_(
                torch.tensor([0.9, 0.03, 0.05, 0.02, 0.8, 0.01]))
            self.look = nn.Sequential(convolution(3, 8, 2), nn.Flatten(),
                                      nn.Linear(512, 5))

        def forward(self, x):
            theta = self.where(x).view(-1, 2, 3)
            grid = F.affine_grid(theta, x.size(), align_corners=False)
            return self.look(F.grid_sample(x, grid, align_corners=False))
    return classifier(Model())


@family(buffers=True)
def coordinate_convolution():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            line = torch.linspace(-1, 1, 16)
            self.register_buffer("place", torch.stack(
                torch.meshgrid(line, line, indexing="ij"))[None])
            self.body = nn.Sequential(convolution(5, 8, 2), convolution(8, 8, 2),
                                      nn.Flatten(), nn.Linear(128, 5))

        def forward(self, x):
            place = self.place.expand(x.shape[0], -1, -1, -1)
            return self.body(torch.cat([x, place], 1))
    return Loss(Model(), labelled), dict(IMAGES)
