"""One small network, losses of all kinds."""
import torch
import torch.nn.functional as F
from torch import nn

from .common import Loss, bits, classes, family, numbers

INPUTS, COUNT = 8, 5


def network(out=COUNT):
    return nn.Sequential(nn.Linear(INPUTS, 16), nn.Tanh(), nn.Linear(16, out))


def classified(loss):
    return Loss(network(), lambda model, x, y: loss(model(x), y)), {
        "x": numbers(INPUTS), "labels": classes(COUNT)}


def regressed(loss, target=numbers(COUNT)):
    return Loss(network(), lambda model, x, y: loss(model(x), y)), {
        "x": numbers(INPUTS), "target": target}


@family
def loss_mse():
    return regressed(nn.MSELoss())


@family
def loss_l1():
    return regressed(nn.L1Loss())


@family
def loss_smooth_l1():
    return regressed(nn.SmoothL1Loss(beta=0.5))


@family
def loss_huber():
    return regressed(nn.HuberLoss(delta=0.7))


@family
def loss_log_cosh():
    return regressed(lambda x, y: (x - y + F.softplus(-2 * (x - y))
                                   - 0.6931472).mean())


@family
def loss_quantiles():
    """Pinball; the quantiles are a tensor made in forward."""
    def loss(x, y):
        q = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])
        return torch.maximum(q * (y - x), (q - 1) * (y - x)).mean()
    return regressed(loss)


@family(whole=True)
def loss_root():
    """The root of a mean."""
    return regressed(lambda x, y: torch.sqrt(F.mse_loss(x, y) + 1e-8))


@family
def loss_bce():
    return regressed(nn.BCEWithLogitsLoss(
        pos_weight=torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0])), bits(COUNT))


@family
def loss_multilabel():
    return regressed(nn.MultiLabelSoftMarginLoss(), bits(COUNT))


@family
def loss_kl():
    return regressed(lambda x, y: F.kl_div(F.log_softmax(x, -1), y,
                                           reduction="batchmean"),
                     lambda n: torch.rand(n, COUNT).softmax(-1))


@family
def loss_soft_targets():
    return regressed(nn.CrossEntropyLoss(),
                     lambda n: torch.randn(n, COUNT).softmax(-1))


@family
def loss_nll_weighted():
    return classified(lambda x, y: F.nll_loss(
        F.log_softmax(x, -1), y, weight=torch.tensor([1., 2., .5, 1., 3.])))


@family
def loss_label_smoothing():
    return classified(nn.CrossEntropyLoss(label_smoothing=0.1))


@family
def loss_label_smoothing_written():
    def loss(x, y):
        log_p = F.log_softmax(x, -1)
        right = -log_p.gather(1, y[:, None])[:, 0]
        return (0.9 * right - 0.1 * log_p.mean(-1)).mean()
    return classified(loss)


@family
def loss_hinge():
    """Several classes: every wrong score below the right one."""
    def loss(x, y):
        right = x.gather(1, y.unsqueeze(1))
        margin = (1.0 - right + x).clamp(min=0)
        wrong = 1 - F.one_hot(y, COUNT).to(x.dtype)
        return (margin * wrong).sum(1).mean() / COUNT
    return classified(loss)


@family
def loss_multi_margin():
    return classified(nn.MultiMarginLoss())


@family
def loss_focal():
    def loss(x, y):
        error = F.cross_entropy(x, y, reduction="none")
        return ((1 - torch.exp(-error)) ** 2 * error).mean()
    return classified(loss)


@family
def loss_poisson():
    return regressed(nn.PoissonNLLLoss(),
                     lambda n: torch.randint(0, 4, (n, COUNT)).float())


@family
def loss_gaussian():
    """Means and variances; the variance has a floor."""
    def loss(model, x, y):
        mean, width = model(x).chunk(2, -1)
        return F.gaussian_nll_loss(mean, y, F.softplus(width))
    return Loss(network(6), loss), {"x": numbers(INPUTS), "y": numbers(3)}


@family
def loss_ranking():
    def loss(model, a, b, sign):
        return F.margin_ranking_loss(model(a).squeeze(1), model(b).squeeze(1),
                                     sign, margin=0.3)
    return Loss(network(1), loss), {
        "a": numbers(INPUTS), "b": numbers(INPUTS),
        "sign": lambda n: 2.0 * torch.randint(0, 2, (n,)) - 1}


@family
def loss_mixture_density():
    def loss(model, x, y):
        weight, mean, width = model(x).chunk(3, -1)
        log_p = (F.log_softmax(weight, -1) - width
                 - 0.5 * ((y - mean) * torch.exp(-width)) ** 2)
        return -torch.logsumexp(log_p, -1).mean()
    return Loss(network(9), loss), {"x": numbers(INPUTS), "y": numbers(1)}


@family
def loss_with_penalty():
    """A mean plus squares of the weights, not of the biases."""
    def loss(model, x, y):
        penalty = sum((p ** 2).sum() for name, p in model.named_parameters()
                      if name.endswith("weight"))
        return F.mse_loss(model(x), y) + 1e-2 * penalty
    return Loss(network(), loss), {"x": numbers(INPUTS), "y": numbers(COUNT)}


@family
def loss_elastic():
    """Absolute values of the first matrix as well."""
    def loss(model, x, labels):
        return (F.cross_entropy(model(x), labels)
                + 1e-3 * model[0].weight.abs().sum()
                + 1e-2 * model[2].weight.norm())
    return Loss(network(), loss), {"x": numbers(INPUTS),
                                   "labels": classes(COUNT)}


@family
def loss_uncertainty():
    """Two tasks, weighed by learned variances."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = network(COUNT + 2)
            self.log_vars = nn.Parameter(torch.zeros(2))

        def forward(self, x, labels, target):
            y = self.body(x)
            losses = torch.stack([F.cross_entropy(y[:, :COUNT], labels),
                                  F.mse_loss(y[:, COUNT:], target)])
            return (torch.exp(-self.log_vars) * losses + self.log_vars).sum()
    return Model(), {"x": numbers(INPUTS), "labels": classes(COUNT),
                     "target": numbers(2)}


@family
def loss_sum_over_samples():
    """A sum, divided by the number of samples by hand."""
    return classified(lambda x, y: F.cross_entropy(x, y, reduction="sum")
                      / x.size(0))


@family
def loss_masked_mean():
    """Samples have weights; the mean is over those."""
    def loss(model, x, y, weight):
        error = ((model(x) - y) ** 2).mean(-1)
        return (error * weight).sum() / weight.sum()
    return Loss(network(), loss), {
        "x": numbers(INPUTS), "y": numbers(COUNT),
        "weight": lambda n: (torch.rand(n) < 0.7).float() + 0.1}


@family(whole=True)
def loss_log_of_mean():
    return regressed(lambda x, y: torch.log(F.mse_loss(x, y)))


@family(whole=True)
def loss_variance():
    """The variance of errors over the batch beside their mean."""
    def loss(x, y):
        error = ((x - y) ** 2).mean(1)
        return error.mean() + 0.1 * error.var()
    return regressed(loss)


@family
def loss_policy_gradient():
    """PPO: ratios clipped, a value, an entropy."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.value = network(), network(1)

        def forward(self, x, action, before, advantage, returns):
            log_p = F.log_softmax(self.body(x), -1)
            chosen = log_p.gather(1, action[:, None])[:, 0]
            ratio = torch.exp(chosen - before)
            gain = torch.minimum(ratio * advantage,
                                 ratio.clamp(0.8, 1.2) * advantage).mean()
            entropy = -(log_p.exp() * log_p).sum(-1).mean()
            value = F.mse_loss(self.value(x)[:, 0], returns)
            return -gain + 0.5 * value - 0.01 * entropy
    return Model(), {"x": numbers(INPUTS), "action": classes(COUNT),
                     "before": lambda n: -1.2 - torch.rand(n) * 0.8,
                     "advantage": numbers(), "returns": numbers()}


@family
def loss_preference():
    """DPO: a policy beside a frozen reference of the same shape."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.policy = network()
            self.reference = network()
            self.reference.load_state_dict(self.policy.state_dict())
            self.reference.requires_grad_(False)

        def forward(self, x, chosen, rejected):
            p = F.log_softmax(self.policy(x), -1)
            r = F.log_softmax(self.reference(x), -1)
            gap = ((p - r).gather(1, chosen[:, None])
                   - (p - r).gather(1, rejected[:, None]))
            return -F.logsigmoid(0.5 * gap).mean()
    return Model(), {"x": numbers(INPUTS), "chosen": classes(COUNT),
                     "rejected": classes(COUNT)}
