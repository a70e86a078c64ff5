"""Language models whose state goes from token to token, and mixtures of
experts that choose softly."""
import torch
import torch.nn.functional as F
from torch import nn

from .common import (TOKENS, VOCABULARY, Loss, cross_entropy, family, numbers,
                     tokens)
from .decoders import WIDTH, Attention, Decoder, language


class SelectiveScan(nn.Module):
    """Mamba: a convolution along time, then a state whose steps depend on the
    input, one token after the other."""

    def __init__(self, inner=32, state=4, rank=2, taps=3):
        super().__init__()
        self.sizes = [rank, state, state]
        self.project = nn.Linear(WIDTH, 2 * inner, bias=False)
        self.convolve = nn.Conv1d(inner, inner, taps, groups=inner,
                                  padding=taps - 1)
        self.choose = nn.Linear(inner, sum(self.sizes), bias=False)
        self.step = nn.Linear(rank, inner)
        self.log_decay = nn.Parameter(torch.log(
            torch.arange(1, state + 1).float().repeat(inner, 1)))
        self.skip = nn.Parameter(torch.ones(inner))
        self.out = nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x):
        length = x.shape[1]
        x, gate = self.project(x).chunk(2, -1)
        x = F.silu(self.convolve(x.transpose(1, 2))[..., :length]
                   ).transpose(1, 2)
        step, b, c = self.choose(x).split(self.sizes, -1)
        step = F.softplus(self.step(step))
        decay = torch.exp(step[..., None] * -torch.exp(self.log_decay))
        inputs = step[..., None] * b[:, :, None] * x[..., None]
        state = x.new_zeros(x.shape[0], x.shape[2], b.shape[-1])
        found = []
        for t in range(length):
            state = decay[:, t] * state + inputs[:, t]
            found.append((state * c[:, t, None]).sum(-1))
        y = torch.stack(found, 1) + x * self.skip
        return self.out(y * F.silu(gate))


@family
def mamba_plain():
    return language(SelectiveScan, positions=False)


class TimeMix(nn.Module):
    """RWKV: weighted means of the past with a learned decay, in parallel form
    with the largest exponent taken out."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.linspace(0, 1, WIDTH))
        self.decay = nn.Parameter(torch.linspace(-2, 1, WIDTH))
        self.first = nn.Parameter(torch.full((WIDTH,), 0.3))
        self.r, self.k, self.v, self.out = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        before = F.pad(x, (0, 0, 1, -1))
        mixed = x * self.mix + before * (1 - self.mix)
        r, k, v = torch.sigmoid(self.r(mixed)), self.k(mixed), self.v(x)
        place = torch.arange(x.shape[1])
        distance = (place[:, None] - place[None, :] - 1)[..., None]
        weight = -torch.exp(self.decay) * distance
        weight = torch.where(distance == -1, self.first, weight)
        weight = weight.masked_fill(distance < -1, -1e9)
        scores = weight[None] + k[:, None]
        return self.out(r * (F.softmax(scores, 2) * v[:, None]).sum(2))


@family
def rwkv_plain():
    return language(TimeMix, positions=False)


class GatedRecurrence(nn.Module):
    """A real-gated linear recurrence as a scan in log2(length) steps."""

    def __init__(self):
        super().__init__()
        self.inputs, self.gates = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH,
                                                                     WIDTH)
        self.rate = nn.Parameter(torch.linspace(1, 4, WIDTH))

    def forward(self, x):
        a = torch.sigmoid(self.rate) ** (2 * torch.sigmoid(self.gates(x)))
        y = torch.sqrt(1 - a ** 2) * self.inputs(x)
        span = 1
        while span < x.shape[1]:
            y = y + a * F.pad(y, (0, 0, span, 0))[:, :-span]
            a = a * F.pad(a, (0, 0, span, 0), value=1.0)[:, :-span]
            span *= 2
        return y


@family
def parallel_scan():
    return language(GatedRecurrence, positions=False)


class SoftMixture(nn.Module):
    """Soft mixture of experts: slots are means of tokens."""

    def __init__(self, experts=3, slots=2):
        super().__init__()
        self.slots = nn.Parameter(torch.randn(WIDTH, experts, slots) * 0.3)
        self.up = nn.Parameter(torch.randn(experts, WIDTH, 32) * 0.2)
        self.down = nn.Parameter(torch.randn(experts, 32, WIDTH) * 0.2)

    def forward(self, x):
        logits = torch.einsum("btd,des->btes", x, self.slots)
        inputs = torch.einsum("btes,btd->besd", logits.softmax(1), x)
        hidden = F.gelu(torch.einsum("besd,edf->besf", inputs, self.up))
        outputs = torch.einsum("besf,efd->besd", hidden, self.down)
        combine = logits.flatten(2).softmax(-1)
        return combine @ outputs.flatten(1, 2)


@family
def soft_mixture():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Linear(10, WIDTH)
            self.experts = nn.Sequential(SoftMixture(), nn.LayerNorm(WIDTH))
            self.head = nn.Linear(WIDTH, 5)

        def forward(self, x):
            x = self.patches(x)
            return self.head((x + self.experts(x)).mean(1))
    return (Loss(Model(), lambda model, x, y: cross_entropy(model(x), y)),
            {"patches": numbers(9, 10), "labels": tokens(1, 0, 5)})


class DenseExperts(nn.Module):
    """All experts run, a gate weighs them; a loss keeps them balanced."""

    def __init__(self, count=4):
        super().__init__()
        self.gate = nn.Linear(WIDTH, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 32), nn.SiLU(),
                          nn.Linear(32, WIDTH)) for _ in range(count))

    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        self.balance = ((weights.mean((0, 1)) - 1 / len(self.experts)) ** 2
                        ).sum()
        found = torch.stack([expert(x) for expert in self.experts], -1)
        return (found * weights[..., None, :]).sum(-1)


@family(whole=True)
def dense_experts():
    """The balance is a square of a mean over the batch."""
    class Model(Decoder):
        def __init__(self):
            super().__init__(Attention)
            self.feeds = nn.ModuleList(DenseExperts() for _ in range(2))

    def loss(model, ids, labels):
        found = cross_entropy(model(ids), labels)
        return found + 0.1 * sum(feed.balance for feed in model.feeds)
    return Loss(Model(), loss), {"ids": tokens(), "labels": tokens()}


class TopTwo(nn.Module):
    """The two best experts a token, as a mask over all of them."""

    def __init__(self, count=4):
        super().__init__()
        self.gate = nn.Linear(WIDTH, count, bias=False)
        self.up = nn.Parameter(torch.randn(count, WIDTH, 32) * 0.2)
        self.down = nn.Parameter(torch.randn(count, 32, WIDTH) * 0.2)

    def forward(self, x):
        scores, chosen = self.gate(x).topk(2, -1)
        weights = F.one_hot(chosen, self.up.shape[0]).to(x.dtype)
        weights = (weights * scores.softmax(-1)[..., None]).sum(-2)
        hidden = F.silu(torch.einsum("btd,edf->btef", x, self.up))
        return torch.einsum("btef,efd,bte->btd", hidden, self.down, weights)


@family
def masked_experts():
    class Model(Decoder):
        def __init__(self):
            super().__init__(Attention)
            self.feeds = nn.ModuleList(TopTwo() for _ in range(2))
    return (Loss(Model(), lambda model, ids, labels: cross_entropy(
        model(ids), labels)), {"ids": tokens(), "labels": tokens()})


@family
def next_two_tokens():
    """Two heads, each for another distance; the sum is weighted."""
    class Model(Decoder):
        def __init__(self):
            super().__init__(Attention)
            self.second = nn.Linear(VOCABULARY, VOCABULARY, bias=False)

    def loss(model, ids, labels, later):
        logits = model(ids)
        return (cross_entropy(logits, labels)
                + 0.3 * cross_entropy(model.second(logits), later))
    return Loss(Model(), loss), {"ids": tokens(), "labels": tokens(TOKENS),
                                 "later": tokens(TOKENS)}
