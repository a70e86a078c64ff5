#!/usr/bin/env python3
"""The CUDA backend without a GPU, on whole models.

Plans for the CPU run on the CUDA backend over an emulated device: every library
kernel is the device's, compiled for the host; products are those that cuBLASLt
would be given; ranks share the device, with its streams and events. Losses,
gradients and weights are compared with recorded runs, as the oracle suite does.
"""
import functools
import os
import sys

import harness
import oracle
from harness import Case

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


def body(case, tools):
    run = tools.run
    tools.run = lambda tool, *rest, **named: run(
        "merak-run-emulated" if tool == "merak-run" else tool, *rest, **named)
    return oracle.body(*case, tools)


def main():
    args = harness.parser(__doc__).parse_args()
    tool = os.path.join(args.bin_dir, "merak-run-emulated")
    if not os.path.exists(tool):
        print("cuda-emulated: built without the CUDA toolkit, nothing to test")
        print("0 passed, 0 failed")
        return 0
    return harness.run_cases(
        "cuda-emulated",
        [Case(" ".join(c), functools.partial(body, c)) for c in CASES], args)


if __name__ == "__main__":
    sys.exit(main())
