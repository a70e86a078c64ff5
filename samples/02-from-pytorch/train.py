#!/usr/bin/env python3
"""A character GPT as a torch module: compiled, trained on four ranks of this
machine, and back in the module, which then writes.

    pip install '.[torch]'          (in the repository: package and torch)
    python3 train.py [TEXT ...] [--steps=N] [--ranks=N]
"""
import argparse
import os
import sys

import torch

import merakc

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../01-train-gpt"))
from export_gpt import CONTEXT, Gpt  # noqa: E402  the model of sample 01


def characters(paths):
    """Newline and printable ASCII, as the sample's model counts them."""
    ids = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            ids += [1 + ord(c) - 32 if " " <= c <= "~" else 0
                    for c in file.read()]
    return torch.tensor(ids)


def write(model, text, count):
    """Continues a text by the model, without its loss."""
    ids = [1 + ord(c) - 32 for c in text]
    logits = {}
    hook = model.head.register_forward_hook(
        lambda part, given, out: logits.update(last=out[0]))
    for _ in range(count):
        window = torch.tensor([ids[-CONTEXT:]])
        with torch.no_grad():
            model(window, window)
        ids.append(int(torch.multinomial(
            (logits["last"][-1] / 0.7).softmax(0), 1)))
    hook.remove()
    return "".join(chr(31 + i) if i else "\n" for i in ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="*",
                        default=[os.path.join(HERE, "../../LICENSE")])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=4)
    args = parser.parse_args()
    torch.manual_seed(1)
    ids = characters(args.text)
    rows = (len(ids) - 1) // CONTEXT
    tokens = ids[:rows * CONTEXT].view(rows, CONTEXT)
    targets = ids[1:rows * CONTEXT + 1].view(rows, CONTEXT)

    model = Gpt().train()
    program = merakc.compile(
        model, {"tokens": tokens[:2], "targets": targets[:2]},
        global_batch=16, devices=args.ranks, grad_clip=1,
        optimizer="adamw:lr=3e-3,schedule=cosine,warmup=10,"
                  f"total={max(args.steps, 11)},min=0.1")
    print(program.draw(columns=72))
    result = program.run({"tokens": tokens, "targets": targets},
                         steps=args.steps)
    model.load_state_dict(result.state_dict())
    print(result)
    print(write(model.eval(), "The ", 100))


if __name__ == "__main__":
    main()
