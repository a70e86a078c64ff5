"""A U-Net and a DLRM in plain PyTorch."""
import torch
import torch.nn.functional as F
from torch import nn

from .common import Loss, bits, classes, family, numbers


class UNet(nn.Module):
    """Two levels down, two up, a skip at each; one class a pixel."""

    def __init__(self, width=8, count=4):
        super().__init__()
        def block(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1),
                                 nn.GroupNorm(2, o), nn.SiLU(),
                                 nn.Conv2d(o, o, 3, padding=1),
                                 nn.GroupNorm(2, o), nn.SiLU())
        self.down1, self.down2 = block(3, width), block(width, 2 * width)
        self.middle = block(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.join2 = block(4 * width, 2 * width)
        self.up1 = nn.Upsample(scale_factor=2, mode="nearest")
        self.join1 = block(3 * width, width)
        self.head = nn.Conv2d(width, count, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.middle(F.max_pool2d(b, 2))
        d = self.join2(torch.cat([self.up2(c), b], 1))
        return self.head(self.join1(torch.cat([self.up1(d), a], 1)))


def labelled_pixels(model, pixels, labels):
    return F.cross_entropy(model(pixels), labels)


@family
def unet():
    return Loss(UNet(), labelled_pixels), {
        "pixels": numbers(3, 16, 16), "labels": classes(4, 16, 16)}


class Dlrm(nn.Module):
    """Embeddings of categories, a bottom network for numbers, products of all
    pairs, a top network."""

    def __init__(self, tables=4, rows=64, width=16):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width)
                                    for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(8, 32), nn.Tanh(),
                                    nn.Linear(32, width), nn.Tanh())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 32), nn.Tanh(),
                                 nn.Linear(32, 1))
        index = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("row", index[0])
        self.register_buffer("column", index[1])

    def forward(self, dense, sparse):
        x = self.bottom(dense)
        all_ = torch.stack([x] + [table(sparse[:, i]) for i, table in
                                  enumerate(self.tables)], 1)
        products = torch.bmm(all_, all_.transpose(1, 2))
        pairs = products[:, self.row, self.column]
        return self.top(torch.cat([x, pairs], 1))[:, 0]


@family
def dlrm():
    def loss(model, dense, sparse, clicked):
        return F.binary_cross_entropy_with_logits(model(dense, sparse), clicked)
    return Loss(Dlrm(), loss), {
        "dense": numbers(8),
        "sparse": classes(64, 4),
        "clicked": bits()}
