"""The model families: small models with random weights, their inputs and their
loss. Needs torch, transformers and torchvision.

Each entry of FAMILIES is a function that returns (module, inputs): the module
maps the inputs to a scalar loss, `inputs` maps names to functions of the number
of samples.
"""
from . import (adapters, classic, contrastive, convolutions, decoders,  # noqa
               generative, graphs, images, losses, parameters,  # noqa: F401
               recommendation, recurrences, recurrent, speech,  # noqa: F401
               transformers_text, vision)  # noqa: F401
from .common import FAMILIES  # noqa: F401
