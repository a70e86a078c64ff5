"""Siamese and self-supervised models: one network, several inputs."""
import torch
import torch.nn.functional as F
from torch import nn

from .common import bits, family, numbers

INPUTS = 10


def encoder(out=8):
    """As initialized: the biases of norms are zeros, their weights ones."""
    return nn.Sequential(nn.Linear(INPUTS, 16), nn.LayerNorm(16), nn.Tanh(),
                         nn.Linear(16, out))


@family
def siamese():
    """Distances of pairs, with a margin for those that differ."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = encoder()

        def forward(self, a, b, same):
            distance = F.pairwise_distance(self.encoder(a), self.encoder(b))
            far = F.relu(2.0 - distance)
            return (same * distance ** 2 + (1 - same) * far ** 2).mean()
    return Model(), {"a": numbers(INPUTS), "b": numbers(INPUTS),
                     "same": bits()}


@family
def triplet():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = encoder()
            self.criterion = nn.TripletMarginLoss(margin=1.5)

        def forward(self, anchor, near, far):
            return self.criterion(*map(self.encoder, (anchor, near, far)))
    return Model(), {name: numbers(INPUTS) for name in ("anchor", "near",
                                                        "far")}


@family
def cosine_pairs():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = encoder()

        def forward(self, a, b, sign):
            return F.cosine_embedding_loss(self.encoder(a), self.encoder(b),
                                           sign, margin=0.1)
    return Model(), {"a": numbers(INPUTS), "b": numbers(INPUTS),
                     "sign": lambda n: 2.0 * torch.randint(0, 2, (n,)) - 1}


@family(whole=True)
def simclr():
    """Two views of each sample; all others of the batch are wrong."""
    class Model(nn.Module):
        def __init__(self, temperature=0.5):
            super().__init__()
            self.encoder, self.temperature = encoder(), temperature

        def forward(self, a, b):
            z = F.normalize(torch.cat([self.encoder(a), self.encoder(b)]))
            n = a.shape[0]
            scores = z @ z.t() / self.temperature
            scores = scores.masked_fill(torch.eye(2 * n, dtype=torch.bool),
                                        -1e9)
            wanted = torch.cat([torch.arange(n) + n, torch.arange(n)])
            return F.cross_entropy(scores, wanted)
    return Model(), {"a": numbers(INPUTS), "b": numbers(INPUTS)}


@family
def bootstrap_latent():
    """BYOL: a predictor of what a slower copy says, which learns nothing."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.online, self.target = encoder(), encoder()
            self.predictor = nn.Sequential(nn.Linear(8, 16), nn.GELU(),
                                           nn.Linear(16, 8))
            self.target.requires_grad_(False)

        def forward(self, a, b):
            p, q = (F.normalize(self.predictor(self.online(x)), dim=-1)
                    for x in (a, b))
            with torch.no_grad():
                y, z = (F.normalize(self.target(x), dim=-1) for x in (b, a))
            return (4 - 2 * (p * y).sum(-1) - 2 * (q * z).sum(-1)).mean()
    return Model(), {"a": numbers(INPUTS), "b": numbers(INPUTS)}


@family(detach=True)
def stop_gradient():
    """SimSiam: both sides are one network, one of them detached."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = encoder()
            self.predictor = nn.Linear(8, 8)

        def forward(self, a, b):
            x, y = self.encoder(a), self.encoder(b)
            p, q = self.predictor(x), self.predictor(y)
            return -0.5 * (F.cosine_similarity(p, y.detach(), -1).mean()
                           + F.cosine_similarity(q, x.detach(), -1).mean())
    return Model(), {"a": numbers(INPUTS), "b": numbers(INPUTS)}


@family(whole=True)
def decorrelation():
    """Barlow twins: features standardized over the batch."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = encoder(4)

        def forward(self, a, b):
            x, y = self.encoder(a), self.encoder(b)
            x, y = ((z - z.mean(0)) / (z.std(0) + 1e-3) for z in (x, y))
            c = x.t() @ y / a.shape[0]
            goal = torch.eye(4)
            weight = goal + 0.05 * (1 - goal)
            return (weight * (c - goal) ** 2).sum()
    return Model(), {"a": numbers(INPUTS), "b": numbers(INPUTS)}


@family(whole=True)
def info_nce():
    """CLIP's loss with a learned scale that is clamped."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = encoder(), encoder()
            self.logit_scale = nn.Parameter(torch.tensor(1.5))

        def forward(self, a, b):
            x, y = F.normalize(self.one(a)), F.normalize(self.two(b))
            scores = self.logit_scale.exp().clamp(max=50.0) * x @ y.t()
            wanted = torch.arange(a.shape[0])
            return 0.5 * (F.cross_entropy(scores, wanted)
                          + F.cross_entropy(scores.t(), wanted))
    return Model(), {"a": numbers(INPUTS), "b": numbers(INPUTS)}


@family
def sigmoid_pairs():
    """SigLIP within groups of four that come together."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = encoder(), encoder()
            self.scale = nn.Parameter(torch.tensor([1.0]))
            self.bias = nn.Parameter(torch.tensor([-2.0]))

        def forward(self, a, b):
            x, y = (F.normalize(z, dim=-1) for z in (self.one(a), self.two(b)))
            scores = torch.einsum("gid,gjd->gij", x, y)
            scores = scores * self.scale.exp() + self.bias
            sign = 2 * torch.eye(4) - 1
            return -F.logsigmoid(scores * sign).sum(-1).mean()
    return Model(), {"a": numbers(4, INPUTS), "b": numbers(4, INPUTS)}
