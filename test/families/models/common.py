"""What the families have in common: sizes, inputs, the wrapper that makes a loss,
and the registry."""
import torch
import torch.nn.functional as F
from torch import nn

# The embedding has more than 8192 elements: the dynamo exporter folds smaller
# transposed heads, which unties them.
VOCABULARY, WIDTH, HEADS, KV_HEADS, LAYERS, TOKENS = 272, 32, 4, 2, 2, 12

# Name -> function that returns (module, inputs).
FAMILIES = {}


def family(build=None, **options):
    """Registers a family under its function's name. Options: `whole`: the loss
    compares all samples of the batch, so one microbatch; `detach`: has
    what the file may not say; `kinks`: rectified, so sums in another order may
    decide which side of a kink a value is on; `buffers`: tables that look like weights, which a file without the exporter's
    notes cannot tell from them: whoever exports names them to --freeze."""
    def register(build):
        build.options = options
        FAMILIES[build.__name__.replace("_", "-")] = build
        return build
    return register(build) if build else register


def tokens(length=TOKENS, low=3, high=VOCABULARY):
    return lambda n: torch.randint(low, high, (n, length))


def numbers(*shape):
    return lambda n: torch.randn(n, *shape)


def classes(count, *shape):
    return lambda n: torch.randint(0, count, (n, *shape))


def bits(*shape):
    return lambda n: torch.randint(0, 2, (n, *shape)).float()


class Loss(nn.Module):
    """A model and the function that makes a loss of it and the inputs."""

    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *inputs):
        return self.loss(self.model, *inputs)


def cross_entropy(logits, labels):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]),
                           labels.reshape(-1))


def labelled(model, *inputs):
    """Cross entropy with the last input."""
    return cross_entropy(model(*inputs[:-1]), inputs[-1])
