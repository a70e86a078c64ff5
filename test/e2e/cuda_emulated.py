#!/usr/bin/env python3
"""The CUDA backend without a GPU, on whole models.

Plans for the CPU run on the CUDA backend over an emulated device: every library
kernel is the device's, compiled for the host; products are those that cuBLASLt
would be given; ranks share the device, with its streams and events. Losses,
gradients and weights are compared with recorded runs, as the oracle suite does.

family: recorded exports of model families, losses of PyTorch.

memory: a device of the least size that the check before the first step lets
pass runs all steps; with one byte less the check says what is needed, with a
table of buffers and workspaces.
"""
import functools
import itertools
import os
import re
import sys

import harness
import matrix
import oracle
from harness import Case, Failed

sys.path.append(os.path.join(harness.ROOT, "test/families"))
import families  # noqa: E402

# Between them most library kernels: scatters and gathers, convolutions in
# groups, sorted and masked values, losses over pairs.
FAMILIES = ["clip-torchscript", "convnext-dynamo-optimized", "dlrm-torchscript",
            "gpt-neox-dynamo-merged", "llama-torchscript",
            "mobilenet-v3-torchscript", "t5-torchscript", "vit-dynamo"]
CASES = [
    ("gpt2-tiny", "none", "adamw", "whole", "gpipe"),
    ("gpt2-tiny", "pp=2,dp=2,tp=2", "adamw", "half", "1f1b"),
    ("gpt2-tiny-untied", "dp=2,tp=2", "sgd", "one", "1f1b"),
    ("bert-tiny", "tp=2", "adamw", "half", "1f1b"),
    ("resnet-tiny", "dp=2", "sgd", "whole", "gpipe"),
    ("resnet-plain-tiny", "pp=2", "adamw", "half", "1f1b"),
    ("vit-tiny", "dp=2,tp=2", "adamw", "half", "gpipe"),
    ("mlp-ce", "pp=2", "adamw", "half", "1f1b"),
]


def memory(model, mesh, tools):
    plan = tools.path("out.plan")
    tools.run("merakc", os.path.join(harness.MODELS, model, "model.onnx"), "-o",
              plan, *matrix.compile_options(mesh, "half", "1f1b"))
    data = "--data=" + os.path.join(harness.MODELS, model, "data")

    def fits(size, steps=1):
        tools.extra = {"MERAK_EMULATED_BYTES": str(size)}
        _, said = tools.run("merak-run-emulated", plan, data,
                            f"--steps={steps}", expect=None)
        if tools.returncode not in (0, 1):
            raise Failed(f"exit code {tools.returncode} with {size} bytes")
        return tools.returncode == 0, said

    low, high = 0, 1 << 32
    if not fits(high)[0]:
        raise Failed("does not run at all")
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle)[0] else (middle, high)
    enough, said = fits(high, 3)
    if not enough:
        raise Failed(f"a later step takes memory: {said.strip()}")
    _, said = fits(low)
    first, *table = said.splitlines()
    if not re.fullmatch(r"merak-run: error: ranks? [0-9,-]+ needs? \S+ \w+ on a "
                        r"device with \S+ \w+ free", first):
        raise Failed(f"with a byte less: {said.strip()}")
    for wanted in (r"rank 0: workspace of stream \"compute\" \S+ MiB",
                   "parameters"):
        if not any(re.search(wanted, line) for line in table):
            raise Failed(f"the table lacks {wanted}: {said.strip()}")
    # Far too little: refused before anything is allocated.
    _, said = fits(1000)
    if not re.match(r"merak-run: error: ranks? [0-9,-]+ needs? .* on a device "
                    r"with 1000 B free\n", said):
        raise Failed(f"with 1000 bytes: {said.strip()}")
    return f"{high} bytes"


def emulate(tools):
    run = tools.run
    tools.run = lambda tool, *rest, **named: run(
        "merak-run-emulated" if tool == "merak-run" else tool, *rest, **named)


def body(case, tools):
    emulate(tools)
    return oracle.body(*case, tools)


def family(name, mesh, tools):
    emulate(tools)
    folder = os.path.join(families.RECORDED, name)
    return families.train(folder, families.expected(folder), mesh, tools)


def main():
    args = harness.parser(__doc__).parse_args()
    tool = os.path.join(args.bin_dir, "merak-run-emulated")
    if not os.path.exists(tool):
        print("cuda-emulated: built without the CUDA toolkit, nothing to test")
        print("0 passed, 0 failed")
        return 0
    return harness.run_cases(
        "cuda-emulated",
        [Case(" ".join(c), functools.partial(body, c)) for c in CASES] +
        [Case(f"family {name} {mesh}", functools.partial(family, name, mesh))
         for name, mesh in zip(FAMILIES, itertools.cycle(
             ["none", "pp=2,dp=2,tp=2"]))] +
        [Case(f"memory {model} {mesh}", functools.partial(memory, model, mesh))
         for model, mesh in (("mlp-ce", "none"), ("mlp-ce", "dp=2"))], args)


if __name__ == "__main__":
    sys.exit(main())
