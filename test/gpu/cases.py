"""The model cases of a machine with a GPU: what pack.py compiles and check.py
runs. Ranks are threads that share the GPU, up to eight of them."""

STEPS = 10
# (model of test/data/models, mesh, optimizer, microbatch, schedule, [precision])
CASES = [
    ("mlp-ce", "none", "adamw", "whole", "gpipe"),
    ("gpt2-tiny", "none", "adamw", "whole", "gpipe"),
    ("gpt2-tiny", "dp=2", "adamw", "half", "1f1b"),
    ("gpt2-tiny", "tp=2", "adamw", "half", "1f1b"),
    ("gpt2-tiny", "pp=2", "adamw", "half", "1f1b"),
    ("gpt2-tiny", "dp=2,tp=2", "adamw", "half", "1f1b"),
    ("gpt2-tiny", "pp=2,dp=2,tp=2", "adamw", "half", "1f1b"),
    ("gpt2-tiny-untied", "none", "sgd", "half", "1f1b"),
    ("bert-tiny", "none", "adamw", "whole", "gpipe"),
    ("bert-tiny", "tp=2", "adamw", "half", "1f1b"),
    ("resnet-tiny", "none", "sgd", "whole", "gpipe"),
    ("resnet-plain-tiny", "none", "adamw", "whole", "gpipe"),
    ("resnet-tiny", "dp=2", "sgd", "whole", "gpipe"),
    ("vit-tiny", "none", "adamw", "whole", "gpipe"),
    ("vit-tiny", "pp=2,dp=2,tp=2", "adamw", "half", "1f1b"),
    # Fused attention, products that end with biases and GELU.
    ("gpt2-tiny", "none", "adamw", "whole", "gpipe", "bf16"),
    ("gpt2-tiny", "dp=2,tp=2", "adamw", "half", "1f1b", "bf16"),
    ("bert-tiny", "none", "adamw", "whole", "gpipe", "bf16"),
    ("vit-tiny", "pp=2", "adamw", "half", "1f1b", "bf16"),
    ("resnet-tiny", "none", "sgd", "whole", "gpipe", "bf16"),
    ("gpt2-tiny", "none", "adamw", "whole", "gpipe", "fp16"),
    ("gpt2-tiny", "pp=2,dp=2,tp=2", "sgd", "half", "1f1b", "fp16"),
    # Products in 8 bits, and others beside them.
    ("gpt2-tiny", "none", "adamw", "whole", "gpipe", "fp8"),
    ("gpt2-tiny", "pp=2,dp=2,tp=2", "sgd", "half", "1f1b", "fp8"),
    ("bert-tiny", "none", "adamw", "whole", "gpipe", "fp8"),
]
# The case that compute-sanitizer repeats.
SANITIZED = ("mlp-ce", "none", "adamw", "whole", "gpipe")


def precision(case):
    return case[5] if len(case) > 5 else "fp32"


def run_options(case):
    """A scale of the loss that is small enough for the few samples."""
    return (["--loss-scale=auto:start=1024"] if precision(case) == "fp16" else [])


def name(case):
    return "-".join(case).replace(",", "+").replace("=", "")
