#!/usr/bin/env python3
"""Products whose operands are rounded to 8 bits (--precision=fp8). Losses beside the
recorded ones and on meshes: precision.py.

numbers  loss and gradients of mlp-ce are those of the same arithmetic written down
         here, in Python's floats, with a search for the nearest number of 8 bits
told     which products are rounded, and why others are not, is told; a model with no
         product but its last one has bf16's losses to the bit
same     what changes no bit in bf16 changes none: when weights are converted, ZeRO,
         buckets of gradients
overlap  exchanges that overlap products cut these into parts, which have scales of
         their own: the losses stay within OVERLAP
infer    without training the losses are near the recorded ones
bad      fp9, and a plan whose product rounds to something else
"""
import array
import bisect
import functools
import math
import os
import re
import struct
import sys

import harness
import matrix
import oracle
from harness import Case, Failed

NUMBERS, OVERLAP, LOSS = 1e-6, 5e-3, 3e-2


# ------------------------------------------------------------------ arithmetic


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def bf16(x):
    bits = struct.unpack("I", struct.pack("f", x))[0]
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000
    return struct.unpack("f", struct.pack("I", bits))[0]


def numbers(digits, least, most):
    """All from 0 on of a type with so many digits after the first."""
    found = [math.ldexp(i, least - digits) for i in range(1 << digits)]
    exponent = least
    while found[-1] < most:
        found += [math.ldexp(1 + math.ldexp(i, -digits), exponent)
                  for i in range(1 << digits)]
        exponent += 1
    return found[:found.index(most) + 1]


E4M3, E5M2 = numbers(3, -6, 448.0), numbers(2, -14, 57344.0)


def rounded(rows, known):
    """With the largest power of two that leaves all within the type's range."""
    largest, scale = max(abs(x) for row in rows for x in row), 1.0
    while largest * scale > known[-1]:
        scale /= 2
    while largest and largest * scale * 2 <= known[-1]:
        scale *= 2

    def one(x):
        size = abs(x) * scale
        above = bisect.bisect_left(known, size)
        if known[above] != size:
            up, down = known[above] - size, size - known[above - 1]
            above -= down < up or (down == up and above % 2 == 1)
        return math.copysign(known[above], x) / scale
    return [[one(x) for x in row] for row in rows]


def product(a, b):
    """Rows of a by rows of b."""
    return [[math.fsum(x * y for x, y in zip(row, other)) for other in b]
            for row in a]


def turned(rows):
    return [list(column) for column in zip(*rows)]


def each(function, *tensors):
    return [[function(*values) for values in zip(*rows)]
            for rows in zip(*tensors)]


def mlp(x, labels, weights):
    """Loss and gradients; operations are rounded to bf16 as docs/Precision.md
    says."""
    x = each(bf16, x)
    w = [each(bf16, weights[f"layers.{i}.weight"]) for i in (0, 2, 4)]
    b = [[bf16(v) for v in weights[f"layers.{i}.bias"]] for i in (0, 2, 4)]

    def layer(a, i, types):
        factors = (rounded(a, types[0]), rounded(w[i], types[1])) if types \
            else (a, w[i])
        return [[bf16(bf16(v) + bias) for v, bias in zip(row, b[i])]
                for row in product(*factors)]
    first = each(lambda v: max(v, 0.0), layer(x, 0, (E4M3, E4M3)))
    second = each(lambda v: max(v, 0.0), layer(first, 1, (E4M3, E4M3)))
    logits = layer(second, 2, None)

    loss, slope = 0.0, []
    for row, label in zip(logits, labels):
        top = max(row)
        total = math.fsum(math.exp(v - top) for v in row)
        loss += (math.log(total) + top - row[label]) / len(labels)
        slope.append([bf16((math.exp(v - top) / total - (i == label)) / len(labels))
                      for i, v in enumerate(row)])

    gradients = {}

    def backward(slope, a, i, eight):
        left, right = (rounded(slope, E5M2), rounded(a, E4M3)) if eight \
            else (slope, a)
        gradients[f"layers.{2 * i}.weight"] = product(turned(left), turned(right))
        gradients[f"layers.{2 * i}.bias"] = [math.fsum(c) for c in turned(slope)]
        before = rounded(w[i], E4M3) if eight else w[i]
        return each(lambda v, y: bf16(v) if y > 0 else 0.0,
                    product(left, turned(before)), a)
    slope = backward(slope, second, 2, False)
    slope = backward(slope, first, 1, True)
    backward(slope, x, 0, True)
    return loss, gradients


def read_npy(path, code, width):
    with open(path, "rb") as file:
        content = file.read()
    at = 10 + int.from_bytes(content[8:10], "little")
    values = array.array(code, content[at:])
    return [list(values[i:i + width]) for i in range(0, len(values), width)]


def compile_model(tools, model, tag, *options, precision="fp8",
                  optimizer="sgd:lr=0.05"):
    plan = tools.path(tag + ".plan")
    said = tools.run("merakc", os.path.join(harness.MODELS, model, "model.onnx"),
                     "-o", plan, f"--precision={precision}",
                     f"--optimizer={optimizer}", *options)
    return plan, "".join(said)


def run(tools, plan, model, tag, *options, steps=3):
    log = tools.path(tag + ".jsonl")
    said, _ = tools.run("merak-run", plan, "--data=" + os.path.join(
        harness.MODELS, model, "data"), f"--steps={steps}", f"--log={log}",
        f"--save={tools.path(tag)}", *options)
    return [entry["loss"] for entry in harness.read_log(log)], said


def state(folder):
    tensors, _ = harness.read_checkpoint(folder)
    return {name: tensor.data.tobytes() for name, tensor in tensors.items()}


def written_down(tools):
    samples, data = 8, os.path.join(harness.MODELS, "mlp-ce", "data")
    plan, _ = compile_model(tools, "mlp-ce", "one", f"--global-batch={samples}",
                            f"--microbatch={samples}", optimizer="sgd:lr=0")
    file = tools.path("grads.safetensors")
    (loss,), _ = run(tools, plan, "mlp-ce", "one", f"--save-grads={file}", steps=1)
    weights = {}
    for name, tensor in harness.read_checkpoint(tools.path("one"))[0].items():
        values, width = list(tensor.data), tensor.shape[-1] if tensor.shape else 1
        weights[name] = values if len(tensor.shape) < 2 else [
            values[i:i + width] for i in range(0, len(values), width)]
    x = read_npy(os.path.join(data, "x.npy"), "f", 28)[:samples]
    labels = [row[0] for row in read_npy(os.path.join(data, "labels.npy"), "q", 1)]
    wanted, gradients = mlp(x, labels[:samples], weights)
    if abs(loss - wanted) > NUMBERS * wanted:
        raise Failed(f"loss {loss}, expected {wanted}")
    worst = 0
    for name, tensor in harness.read_safetensors(file).items():
        expected = gradients[name]
        if isinstance(expected[0], list):
            expected = [v for row in expected for v in row]
        largest = max(map(abs, expected))
        error = max(abs(a - b) for a, b in zip(tensor.data, expected)) / largest
        if len(tensor.data) != len(expected) or error > NUMBERS:
            raise Failed(f"the gradient of {name} differs by {error:.1e}")
        worst = max(worst, error)
    return f"loss {abs(loss - wanted) / wanted:.0e}  gradients {worst:.0e}"


# --------------------------------------------------------------------- plans


TOLD = {
    "gpt2-tiny": "8 of 9 products in 8 bits; 1 after which nothing is multiplied",
    "bert-tiny": "13 of 14 products in 8 bits; 1 after which nothing is multiplied",
    "resnet-tiny": "0 of 1 products in 8 bits; 1 after which nothing is multiplied",
}


def told(model, tools):
    _, said = compile_model(tools, model, "fp8", "--remarks=precision",
                            *matrix.compile_options("none", "whole", "1f1b"))
    if f'Rounded | Category:precision | Remark="fp8: {TOLD[model]}"' not in said:
        raise Failed("the remark is not told: " + harness.last_lines(said))
    count = TOLD[model].split(" in")[0]
    if f"8 bits in {count}; why: --remarks=precision" not in said:
        raise Failed("the summary does not tell")


def nothing(tools):
    """No product is rounded: bf16."""
    found = []
    for precision in ("fp8", "bf16"):
        plan, _ = compile_model(tools, "resnet-tiny", precision, "-q",
                                *matrix.compile_options("none", "whole", "1f1b"),
                                precision=precision)
        found.append(run(tools, plan, "resnet-tiny", precision)[0])
    if found[0] != found[1]:
        raise Failed(f"losses {found[0]}, expected {found[1]}")


def trained(tools, tag, mesh, options, precision="fp8", model="gpt2-tiny"):
    plan, _ = compile_model(tools, model, tag, "-q", *matrix.compile_options(
        mesh, "half", "1f1b"), *options, precision=precision, optimizer="adamw:lr=1e-3")
    losses, _ = run(tools, plan, model, tag)
    return losses, state(tools.path(tag)), plan


# Mesh, and two sets of options.
SAME = {
    "zero": ("dp=2", [], ["--zero=1"]),
    "buckets": ("dp=2", ["--grad-bucket=0"], ["--grad-bucket=auto"]),
    "converted": ("tp=2", ["--cast-weights=step"], ["--cast-weights=use"]),
}


def same(what, tools):
    mesh, *both = SAME[what]
    for precision in ("bf16", "fp8"):
        found = [trained(tools, f"{precision}{i}", mesh, options, precision)
                 for i, options in enumerate(both)]
        if found[0][:2] != found[1][:2]:
            raise Failed(f"{precision}: losses {found[0][0]} and {found[1][0]}")
    # Another plan, and other numbers than those of bf16.
    texts = [tools.run("merak-plan", "print", plan)[0] for _, _, plan in found]
    if texts[0] == texts[1]:
        raise Failed("both options give one plan")
    if found[0][0] == trained(tools, "wide", mesh, both[0], "bf16")[0]:
        raise Failed("nothing is rounded to 8 bits")


def overlapped(level, tools):
    alone, _, _ = trained(tools, "alone", "tp=2", ["--tp-overlap=0"])
    found, _, plan = trained(tools, "found", "tp=2", [f"--tp-overlap={level}"])
    error = max(abs(a - b) / b for a, b in zip(found, alone))
    if not error <= OVERLAP:
        raise Failed(f"losses differ by {error:.1e}")
    text, _ = tools.run("merak-plan", "print", plan)
    count = len(re.findall("rounds", text))
    text, _ = tools.run("merak-plan", "print", tools.path("alone.plan"))
    if not count > len(re.findall("rounds", text)) > 0:
        raise Failed("no product is cut")
    return f"loss {error:.0e}, {count} products"


def inferred(tools):
    """The losses of the recorded data with the weights as they are."""
    plan, said = compile_model(tools, "bert-tiny", "fp8", "--mode=infer",
                               *matrix.compile_options("none", "whole", "1f1b"))
    log = tools.path("fp8.jsonl")
    tools.run("merak-run", plan, f"--log={log}", "--steps=3", "--data=" +
              os.path.join(harness.MODELS, "bert-tiny", "data"))
    wanted = oracle.expected("bert-tiny")["losses_without_update"]
    error = max(abs(entry["loss"] - loss) / loss
                for entry, loss in zip(harness.read_log(log), wanted))
    if not 1e-6 < error <= LOSS or "8 bits in 13 of 14" not in said:
        raise Failed(f"losses differ by {error:.1e}")
    return f"loss {error:.0e}"


def bad(tools):
    model = os.path.join(harness.MODELS, "mlp-ce", "model.onnx")
    _, errors = tools.run("merakc", model, "-o", tools.path("o.plan"),
                          "--precision=fp9", expect=2)
    if "--precision" not in errors or "fp8" not in errors:
        raise Failed(harness.last_lines(errors))
    text, plan = tools.path("plan.mlir"), tools.path("out.plan")
    tools.run("merakc", model, "-q", "--precision=fp8", "--global-batch=8",
              "--to=plan", "-o", text)
    with open(text, encoding="utf-8") as file:
        lines = file.read()
    with open(text, "w", encoding="utf-8") as file:
        file.write(lines.replace('rounds = "e4m3,e5m2"', 'rounds = "e4m3,bf16"'))
    tools.run("merakc", text, "--from=plan", "-q", "-o", plan)
    _, errors = tools.run("merak-run", plan, "--data=" + os.path.join(
        harness.MODELS, "mlp-ce", "data"), expect=1)
    if "expected 'rounds' to be e4m3 or e5m2 for each factor, found 'e4m3,bf16'" \
            not in errors:
        raise Failed(harness.last_lines(errors))


def main():
    args = harness.parser(__doc__).parse_args()
    cases = [Case("numbers mlp-ce", written_down)]
    cases += [Case(f"told {model}", functools.partial(told, model))
              for model in TOLD]
    cases += [Case("told by bf16 resnet-tiny", nothing)]
    cases += [Case(f"same {what}", functools.partial(same, what)) for what in SAME]
    cases += [Case(f"overlap {level}", functools.partial(overlapped, level))
              for level in (1, 2, 3)]
    cases += [Case("infer bert-tiny", inferred), Case("bad", bad)]
    return harness.run_cases("fp8", cases, args)


if __name__ == "__main__":
    sys.exit(main())
