#!/usr/bin/env python3
"""What import takes apart ahead of time, and operators whose values the node
tests cannot show; outputs against formulas written out here.

sequences  every operator of sequences and optionals, in a Loop and an If too
scan       the form of opset 8: a batch, and directions
quantized  sums of whole numbers that f32 alone would round
shifts     by the width or more, on which processors do not agree
random     statistics of drawn numbers; equal for equal seeds, whatever the mesh
refused    positions, lengths and presence that depend on data, all at once
"""
import functools
import math
import random
import sys

import harness
import training_info as build
from harness import Case, Failed


def info(field, name, shape, kind=1):
    return build.info(field, name, shape).replace("elem_type: 1",
                                                  f"elem_type: {kind}")


def model(nodes, opset=18):
    return (f"ir_version: 8 graph {{ name: 'ahead' {nodes} }}\n"
            f"opset_import {{ version: {opset} }}\n")


def body(text):
    return build.Raw(f"type: GRAPH g {{ name: 'body' {text} }} ")


def number(name, *values):
    """Whole numbers that are known."""
    shape = [] if len(values) == 1 else [len(values)]
    return build.tensor("initializer", name, shape, values, 7)


def draws(name, count):
    draw = random.Random(name)
    return [draw.uniform(-1, 1) for _ in range(count)]


def read_npy(path):
    with open(path, "rb") as file:
        data = file.read()
    end = 10 + int.from_bytes(data[8:10], "little")
    code = next(code for descr, code in harness.DESCRS.items()
                if f"'{descr}'" in data[10:end].decode())
    return harness.array.array(code, data[end:])


def infer(tools, text, feeds, options=(), run=()):
    """Values of all outputs, of feeds {name: (shape, values)}."""
    tools.run("merakc", build.write(tools, text), "-o", tools.path("out.plan"),
              "--mode=infer", "-q", *options)
    for name, (shape, values) in feeds.items():
        harness.write_npy(tools.path(name + ".npy"), "<f4", shape, values)
    tools.run("merak-run", tools.path("out.plan"), "--data=" + tools.folder,
              "--out=" + tools.path("results"), *run)

    def read(name):
        return read_npy(tools.path(f"results/{name}.npy"))
    return read


def close(name, found, expected, tolerance=1e-5):
    found = list(found)
    if len(found) != len(expected):
        raise Failed(f"{name} has {len(found)} elements, expected "
                     f"{len(expected)}")
    for i, (a, b) in enumerate(zip(found, expected)):
        if not abs(a - b) <= tolerance * max(1, abs(b)):
            raise Failed(f"{name}[{i}] is {a:.9g}, expected {b:.9g}")


# --------------------------------------------------------------- the cases


def sequences(tools):
    """x is [4, 3]; rows are called r0 to r3 below."""
    node = build.node
    text = "".join(number(f"n{i}", i) for i in range(4))
    text += number("back", -1) + number("sizes", 1, 3) + number("two", 2)
    # [r0, r1, r2, r3] without the dimension that was split.
    text += node("SplitToSequence", ["x"], ["rows"], keepdims=0)
    text += node("SequenceAt", ["rows", "back"], ["last"])           # r3
    text += node("SequenceEmpty", [], ["none"])
    text += node("SequenceInsert", ["none", "last"], ["one"])        # [r3]
    text += node("SequenceAt", ["rows", "n1"], ["second"])
    text += node("SequenceInsert", ["one", "second", "n0"], ["two_rows"])
    text += node("SequenceInsert", ["two_rows", "last", "back"], ["three"])
    # [r1, r3, r3] by now: before the last one.
    text += node("ConcatFromSequence", ["three"], ["stacked"], axis=0,
                 new_axis=1)
    text += node("SequenceErase", ["rows", "n1"], ["fewer"])  # [r0, r2, r3]
    text += node("SequenceErase", ["fewer"], ["fewest"])      # [r0, r2]
    text += node("ConcatFromSequence", ["fewest"], ["joined"], axis=-1)
    text += node("SequenceLength", ["fewer"], ["length"])
    # Parts of given sizes, and of one size.
    text += node("SplitToSequence", ["x", "sizes"], ["uneven"], axis=0)
    text += node("SequenceAt", ["uneven", "n1"], ["rest"])    # r1 to r3
    text += node("SplitToSequence", ["x", "two"], ["pairs"], axis=1)
    text += node("SequenceAt", ["pairs", "n1"], ["column"])   # column 2
    # The body once for each row.
    text += node("SequenceMap", ["rows", "w"], ["mapped"], body=body(
        "input { name: 'row' } input { name: 'by' } "
        + node("Mul", ["row", "by"], ["scaled"])
        + "output { name: 'scaled' } "))
    text += node("ConcatFromSequence", ["mapped"], ["products"], axis=0)
    # A list that a loop fills: r0 + 1, r0 + 2, r0 + 3.
    text += node("SequenceAt", ["rows", "n0"], ["first"])
    text += node("SequenceConstruct", ["first"], ["begun"])
    text += node("Loop", ["n3", "", "first", "begun"], ["end", "filled"],
                 body=body(
        "input { name: 'i' } input { name: 'on' } input { name: 'v' } "
        "input { name: 'list' } " + node("Identity", ["on"], ["still"])
        + node("Add", ["v", "unit"], ["next"])
        + node("SequenceInsert", ["list", "next"], ["longer"])
        + "output { name: 'still' } output { name: 'next' } "
        "output { name: 'longer' } "))
    text += node("ConcatFromSequence", ["filled"], ["grown"], axis=0)
    # A branch gives a list, and an optional a value.
    text += node("If", ["yes"], ["chosen"], then_branch=body(
        node("Identity", ["fewest"], ["them"]) + "output { name: 'them' } "),
        else_branch=body(node("SequenceEmpty", [], ["nobody"])
                         + "output { name: 'nobody' } "))
    text += node("Optional", ["chosen"], ["maybe"])
    text += node("OptionalHasElement", ["maybe"], ["has"])
    text += node("OptionalGetElement", ["maybe"], ["surely"])
    text += node("SequenceAt", ["surely", "n1"], ["third"])   # r2
    text += node("Optional", ["last"], ["maybe_row"])
    text += node("OptionalGetElement", ["maybe_row"], ["row"])
    text += node("Optional", [], ["nothing"], type=build.Raw(
        "type: TYPE_PROTO tp { tensor_type { elem_type: 1 } } "))
    text += node("OptionalHasElement", ["nothing"], ["has_not"])
    # What is known folds; added so that outputs depend on data.
    for name in ("has", "has_not", "length"):
        text += node("Cast", [name], [name + "_f"], to=1)
        text += node("Add", ["first", name + "_f"], [name + "_sum"])
    text += build.tensor("initializer", "unit", [], [1.0])
    text += "initializer { data_type: 9 name: 'yes' int32_data: 1 }\n"
    text += info("input", "x", [4, 3]) + info("input", "w", [3])
    outputs = {"stacked": [3, 3], "joined": [6], "rest": [3, 3],
               "column": [4, 1], "products": [12], "grown": [12],
               "third": [3], "row": [3], "has_sum": [3], "has_not_sum": [3],
               "length_sum": [3]}
    text += "".join(info("output", name, shape)
                    for name, shape in outputs.items())
    x, w = draws("x", 12), draws("w", 3)
    read = infer(tools, model(text), {"x": ([4, 3], x), "w": ([3], w)},
                 ["--devices=1"])
    r = [x[3 * i:3 * i + 3] for i in range(4)]
    expected = {
        "stacked": r[1] + r[3] + r[3], "joined": r[0] + r[2],
        "rest": r[1] + r[2] + r[3], "column": [row[2] for row in r],
        "products": [a * b for row in r for a, b in zip(row, w)],
        "grown": [a + k for k in range(4) for a in r[0]],
        "third": r[2], "row": r[3], "has_sum": [a + 1 for a in r[0]],
        "has_not_sum": r[0], "length_sum": [a + 3 for a in r[0]]}
    for name in outputs:
        close(name, read(name), expected[name])


def scan(tools):
    """Running sums of two sequences of 4 in a batch of 2, the second sequence
    read from its end; state and scan outputs carry the batch."""
    node = build.node
    text = node("Scan", ["", "start", "a", "b"], ["last", "sums"],
                num_scan_inputs=2, directions=[0, 1], body=body(
        "input { name: 's' } input { name: 'p' } input { name: 'q' } "
        + node("Add", ["s", "p"], ["t"]) + node("Sub", ["t", "q"], ["u"])
        + node("Neg", ["u"], ["v"])
        + "output { name: 'u' } output { name: 'v' } "))
    for name, shape in (("start", [2, 3]), ("a", [2, 4, 3]), ("b", [2, 4, 3])):
        text += info("input", name, shape)
    text += info("output", "last", [2, 3]) + info("output", "sums", [2, 4, 3])
    start, a, b = draws("start", 6), draws("a", 24), draws("b", 24)
    read = infer(tools, model(text, 8),
                 {"start": ([2, 3], start), "a": ([2, 4, 3], a),
                  "b": ([2, 4, 3], b)}, ["--devices=1"])
    last, sums = [], []
    for k in range(2):
        state = start[3 * k:3 * k + 3]
        for t in range(4):
            at, back = 12 * k + 3 * t, 12 * k + 3 * (3 - t)
            state = [s + p - q for s, p, q in zip(state, a[at:at + 3],
                                                  b[back:back + 3])]
            sums += [-s for s in state]
        last += state
    close("last", read("last"), last)
    close("sums", read("sums"), sums)


def quantized(tools):
    """All products are 255 * 255, 288 to 900 a sum: above 2^24, which f32
    would round; one of them less shows whether it did."""
    node = build.node
    text = "".join(
        f"initializer {{ data_type: 2 name: '{name}' "
        + "".join(f"dims: {d} " for d in shape)
        + "".join(f"int32_data: {v} " for v in values) + "}\n"
        for name, shape, values in (
            ("w", [1, 32, 3, 3], [255] * 287 + [254]),
            ("m", [900, 2], [255] * 1799 + [254])))
    text += node("Cast", ["x"], ["x8"], to=2)
    text += node("ConvInteger", ["x8", "w"], ["y"])
    text += node("Cast", ["l"], ["l8"], to=2)
    text += node("MatMulInteger", ["l8", "m"], ["z"])
    text += info("input", "x", [1, 32, 3, 3]) + info("input", "l", [1, 900])
    text += info("output", "y", [1, 1, 1, 1], 6)
    text += info("output", "z", [1, 2], 6)
    read = infer(tools, model(text), {"x": ([1, 32, 3, 3], [255.0] * 288),
                                      "l": ([1, 900], [255.0] * 900)},
                 ["--devices=1"])
    close("y", read("y"), [255 * 255 * 288 - 255], 0)
    close("z", read("z"), [255 * 255 * 900, 255 * 255 * 900 - 255], 0)


def shifts(tools):
    """Of i32 and u8, by amounts in and out of range; negative ones are large."""
    node = build.node
    x = [5, -8, 7, -1, 3, -9, 1, 100]
    by = [0, 1, 31, 32, 33, 100, -1, 3]
    text, expected = "", {}
    for kind, width in ((6, 32), (2, 8)):
        for name in ("x", "by"):
            text += node("Cast", [name], [f"{name}{kind}"], to=kind)
        mask = (1 << width) - 1
        values, amounts = ((x, by) if kind == 6 else
                           ([abs(v) for v in x], [abs(n) for n in by]))
        for direction in ("LEFT", "RIGHT"):
            name = f"{direction}{kind}"
            text += node("BitShift", [f"x{kind}", f"by{kind}"], [name + "_i"],
                         direction=direction)
            text += node("Cast", [name + "_i"], [name], to=1)
            text += info("output", name, [8])
            shifted = []
            for v, n in zip(values, amounts):
                n = n if 0 <= n < width else width
                bits = (v << n if direction == "LEFT" else v >> n) & mask
                signed = kind == 6 and bits >> (width - 1)
                shifted.append(float(bits - (mask + 1 if signed else 0)))
            expected[name] = shifted
    # u8 has no negative numbers.
    text = text.replace("input: 'x' output: 'x2'", "input: 'x_u' output: 'x2'")
    text = text.replace("input: 'by' output: 'by2'",
                        "input: 'by_u' output: 'by2'")
    text = node("Abs", ["x"], ["x_u"]) + node("Abs", ["by"], ["by_u"]) + text
    text += info("input", "x", [8]) + info("input", "by", [8])
    read = infer(tools, model(text), {"x": ([8], [float(v) for v in x]),
                                      "by": ([8], [float(v) for v in by])},
                 ["--devices=1"])
    for name, values in expected.items():
        close(name, read(name), values, 0)


def drawn():
    """Numbers drawn beside a batch of 4096 samples."""
    node, shape = build.node, [4096, 4]
    text = node("Sub", ["x", "x"], ["zero"])
    text += node("Expand", ["quarter", "shape"], ["quarters"])
    text += node("RandomUniformLike", ["x"], ["uniform"], low=2.0, high=4.0)
    text += node("RandomNormalLike", ["x"], ["normal"], mean=-1.0, scale=0.5)
    text += node("RandomUniform", [], ["shaped"], shape=shape)
    text += node("RandomNormal", [], ["shaped_normal"], shape=shape)
    text += node("Bernoulli", ["x"], ["coins"])
    text += node("Bernoulli", ["quarters"], ["few"])
    names = ["uniform", "normal", "shaped", "shaped_normal", "coins", "few"]
    for name in names:
        text += node("Add", [name, "zero"], [name + "_y"])
        text += info("output", name + "_y", shape)
    text += build.tensor("initializer", "quarter", [], [0.25])
    return text + number("shape", *shape) + info("input", "x", shape), names


def draw(tools):
    text, names = drawn()
    chances = [0.75] * 8192 + [0.0, 1.0] * 4096
    found = {}
    for run, mesh, seed in (("a", [], 5), ("b", ["--mesh=dp=2"], 5),
                            ("c", [], 6)):
        read = infer(tools, model(text, 15), {"x": ([4096, 4], chances)},
                     mesh or ["--devices=1"], [f"--seed={seed}"])
        found[run] = {name: list(read(name + "_y")) for name in names}
    for name in names:
        if found["a"][name] != found["b"][name]:
            raise Failed(f"{name} depends on the mesh")
        if found["a"][name] == found["c"][name]:
            raise Failed(f"{name} does not depend on the seed")
    a = found["a"]
    if a["uniform"] == [2 + 2 * v for v in a["shaped"]]:
        raise Failed("two nodes drew the same numbers")

    def check(name, values, mean, deviation, low, high):
        count = len(values)
        found_mean = sum(values) / count
        found_dev = math.sqrt(sum((v - found_mean) ** 2
                                  for v in values) / count)
        # Five standard errors of the mean, more of the deviation.
        if not (abs(found_mean - mean) < 5 * deviation / math.sqrt(count)
                and abs(found_dev - deviation) < 0.03
                and all(low <= v <= high for v in values)):
            raise Failed(f"{name}: mean {found_mean:.4g}, deviation "
                         f"{found_dev:.4g}, from {min(values):.4g} to "
                         f"{max(values):.4g}")
    check("uniform", a["uniform"], 3, 2 / math.sqrt(12), 2, 4)
    check("shaped", a["shaped"], 0.5, 1 / math.sqrt(12), 0, 1)
    check("normal", a["normal"], -1, 0.5, -4, 2)
    check("shaped_normal", a["shaped_normal"], 0, 1, -6, 6)
    check("coins", a["coins"][:8192], 0.75, math.sqrt(0.1875), 0, 1)
    check("few", a["few"], 0.25, math.sqrt(0.1875), 0, 1)
    close("coins", a["coins"][8192:], [0.0, 1.0] * 4096, 0)
    # A fifth of a normal distribution lies beyond 1.2816 deviations.
    outside = sum(abs(v) > 1.281552 for v in a["shaped_normal"]) / 16384
    if abs(outside - 0.2) > 0.016:
        raise Failed(f"{outside:.3g} of the normal numbers lie outside")


def refused(tools):
    node = build.node
    text = node("Cast", ["x"], ["at"], to=7)
    text += node("SplitToSequence", ["x"], ["parts"])
    text += node("SequenceAt", ["parts", "at"], ["a"])
    text += node("SequenceAt", ["parts", "far"], ["b"])
    text += node("SequenceErase", ["x"], ["c"])
    text += node("SequenceEmpty", [], ["none"])
    text += node("ConcatFromSequence", ["none"], ["d"], axis=0)
    text += node("SequenceInsert", ["none", "x"], ["list"])
    text += node("OptionalGetElement", [""], ["e"])
    text += number("far", 9)
    text += info("input", "x", [1])
    text += "".join(info("output", n, [1]) for n in ("a", "b", "c", "d", "e",
                                                     "list"))
    _, errors = tools.run("merakc", build.write(tools, model(text)), "-o",
                          tools.path("out.plan"), "--mode=infer", expect=1)
    for sentence in (
            "SequenceAt: expected a constant position, found data computed",
            "SequenceAt: expected a position in a sequence of 1, found 9",
            "SequenceErase: expected a sequence made by the model, found 'x'",
            "ConcatFromSequence: expected a sequence with a part, found an "
            "empty one",
            "OptionalGetElement: expected a value, found an optional that is "
            "empty"):
        if sentence not in errors:
            raise Failed(f"no '{sentence}' in: {errors[:900]}")
    # By itself: an output that is no tensor.
    text = (node("SequenceConstruct", ["x"], ["list"])
            + info("input", "x", [1]) + info("output", "list", [1]))
    _, errors = tools.run("merakc", build.write(tools, model(text)), "-o",
                          tools.path("out.plan"), "--mode=infer", expect=1)
    if "output 'list': expected a tensor, found a sequence" not in errors:
        raise Failed(errors[:300])


def main():
    args = harness.parser(__doc__).parse_args()
    cases = [Case("sequences", sequences), Case("scan", scan),
             Case("quantized", quantized), Case("shifts", shifts),
             Case("random", draw),
             Case("refused", refused)]
    return harness.run_cases("ahead", cases, args)


if __name__ == "__main__":
    sys.exit(main())
