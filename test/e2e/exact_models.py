#!/usr/bin/env python3
"""Models whose arithmetic is exact on small integers: any order of any sum
gives the same bits, so every layout must agree bit for bit with one rank.

Weights and data are small integers, losses are sums, the learning rate is a
power of two. Each model reduces in another op. The models are kept as ONNX in
protobuf text form under test/data/exact/. expected.json there holds what PyTorch
1.13 gets, in float32 and float64 alike and for the samples of a batch in any
order: losses, and [sum, sum of squares] of each first gradient and final weight
("steps" is as far as everything stays exact). Models with dropout are compared
with dropout_reference.py instead. This file writes the models:

    exact_models.py --write      writes test/data/exact/*.textproto
    exact_models.py --check      fails if a stored model differs
"""
import math
import os
import random
import sys

FOLDER = os.path.join(os.path.dirname(__file__), "../data/exact")
FLOAT, INT64, BOOL = 1, 7, 9
SAMPLES = 16  # two steps of 8


class Graph:
    """Writes an ONNX model as protobuf text."""

    def __init__(self, name):
        self.name, self.nodes, self.initializers = name, [], []
        self.inputs, self.data, self.count = [], {}, 0
        self.weights, self.shapes = {}, {}
        self.random = random.Random(name)

    def integers(self, count, low, high, zeros=0.0):
        r = self.random
        return [0 if r.random() < zeros else r.randint(low, high)
                for _ in range(count)]

    def input(self, name, shape, low=-1, high=1, kind=FLOAT):
        """An input of shape [batch, *shape] and its data."""
        self.inputs.append((name, kind, shape))
        self.data[name] = ("<f4" if kind == FLOAT else "<i8",
                           [SAMPLES, *shape],
                           self.integers(SAMPLES * math.prod(shape), low, high))
        return name

    def weight(self, name, shape, low=-1, high=1, zeros=0.5):
        values = self.integers(math.prod(shape), low, high, zeros)
        self.weights[name], self.shapes[name] = values, shape
        return self.tensor(name, FLOAT, shape, values)

    def tensor(self, name, kind, shape, values):
        field = "float_data" if kind == FLOAT else "int64_data"
        self.initializers.append(
            "  initializer {\n" + "".join(f"    dims: {n}\n" for n in shape) +
            f"    data_type: {kind}\n    name: \"{name}\"\n" +
            f"    {field}: [{', '.join(map(str, values))}]\n  }}\n")
        return name

    def shape(self, values):
        self.count += 1
        return self.tensor(f"shape{self.count}", INT64, [len(values)], values)

    def op(self, kind, *inputs, outputs=1, **attributes):
        self.count += 1
        name = f"{kind}_{self.count}"
        outs = [f"{name}_out{k}" if outputs > 1 else f"{name}_out"
                for k in range(outputs)]
        text = "  node {\n"
        text += "".join(f"    input: \"{i}\"\n" for i in inputs)
        text += "".join(f"    output: \"{o}\"\n" for o in outs)
        text += f"    name: \"{name}\"\n    op_type: \"{kind}\"\n"
        for key, value in attributes.items():
            text += f"    attribute {{ name: \"{key}\" "
            if isinstance(value, str):
                text += f"s: \"{value}\" type: STRING }}\n"
            elif isinstance(value, list) and isinstance(value[0], str):
                text += "".join(f"strings: \"{n}\" " for n in value)
                text += "type: STRINGS }\n"
            elif isinstance(value, list):
                text += "".join(f"ints: {n} " for n in value) + "type: INTS }\n"
            else:
                text += f"i: {value} type: INT }}\n"
        self.nodes.append(text + "  }\n")
        return outs if outputs > 1 else outs[0]

    def dropout(self, value, ratio, outputs=1):
        """Dropout in training mode."""
        self.count += 1
        constants = []
        for name, kind, field, number in [
                ("ratio", FLOAT, "float_data", ratio),
                ("training", BOOL, "int32_data", 1)]:
            constants.append(f"{name}{self.count}")
            self.initializers.append(
                f"  initializer {{\n    data_type: {kind}\n    name: "
                f"\"{constants[-1]}\"\n    {field}: [{number}]\n  }}\n")
        return self.op("Dropout", value, *constants, outputs=outputs)

    def loss(self, value):
        """Ends the graph with the sum of `value` as `loss`."""
        self.nodes.append(
            f"  node {{\n    input: \"{value}\"\n    output: \"loss\"\n"
            "    name: \"Loss\"\n    op_type: \"ReduceSum\"\n"
            "    attribute { name: \"keepdims\" i: 0 type: INT }\n  }\n")

    def target_loss(self, value, shape):
        """Loss: the sum of value * target."""
        self.loss(self.op("Mul", value, self.input("target", shape)))

    def text(self):
        out = (f"ir_version: 8\nproducer_name: \"exact\"\n"
               f"opset_import {{ domain: \"\" version: 17 }}\n"
               f"graph {{\n  name: \"{self.name}\"\n")
        out += "".join(self.nodes) + "".join(self.initializers)
        for name, kind, shape in self.inputs:
            dims = "dim { dim_param: \"batch\" } " + "".join(
                f"dim {{ dim_value: {n} }} " for n in shape)
            out += (f"  input {{ name: \"{name}\" type {{ tensor_type {{ "
                    f"elem_type: {kind} shape {{ {dims}}} }} }} }}\n")
        out += ("  output { name: \"loss\" type { tensor_type { elem_type: 1 "
                "shape { } } } }\n}\n")
        return out


def linear():
    g = Graph("linear")
    h = g.op("Relu", g.op("MatMul", g.input("x", [16]), g.weight("w1", [16, 32])))
    g.target_loss(g.op("MatMul", h, g.weight("w2", [32, 8])), [8])
    return g


def gemm():
    g = Graph("gemm")
    h = g.input("x", [8])
    for k, (n, m) in enumerate([(8, 16), (16, 16), (16, 16), (16, 4)]):
        h = g.op("Gemm", h, g.weight(f"fc{k}.weight", [m, n]),
                 g.weight(f"fc{k}.bias", [m]), transB=1)
        h = g.op("Relu", h) if k < 3 else h
    g.target_loss(h, [4])
    return g


def squares():
    g = Graph("squares")
    y = g.op("Add", g.op("MatMul", g.input("x", [8]), g.weight("w", [8, 4])),
             g.weight("b", [4]))
    d = g.op("Sub", y, g.input("target", [4]))
    g.loss(g.op("Mul", d, d))
    return g


def embedding():
    g = Graph("embedding")
    ids = g.input("ids", [8], 0, 15, INT64)
    h = g.op("Gather", g.weight("table", [16, 8]), ids, axis=0)
    h = g.op("Add", h, g.weight("position", [8, 8]))
    g.target_loss(g.op("MatMul", h, g.weight("w", [8, 8])), [8, 8])
    return g


def tied():
    g = Graph("tied")
    table = g.weight("table", [16, 8])
    h = g.op("Gather", table, g.input("ids", [4], 0, 15, INT64), axis=0)
    h = g.op("Relu", g.op("MatMul", h, g.weight("w", [8, 8])))
    logits = g.op("MatMul", h, g.op("Transpose", table, perm=[1, 0]))
    g.target_loss(logits, [4, 16])
    return g


def conv():
    g = Graph("conv")
    h = g.op("Conv", g.input("x", [2, 6, 6]), g.weight("c1.weight", [8, 2, 3, 3]),
             g.weight("c1.bias", [8]), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    h = g.op("Relu", h)
    h = g.op("Conv", h, g.weight("c2.weight", [4, 8, 3, 3], zeros=0.7),
             kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    g.target_loss(h, [4, 3, 3])
    return g


def pool():
    g = Graph("pool")
    h = g.op("Conv", g.input("x", [2, 8, 8], -2, 2),
             g.weight("c.weight", [4, 2, 3, 3]), kernel_shape=[3, 3],
             pads=[1, 1, 1, 1])
    h = g.op("MaxPool", h, kernel_shape=[2, 2], strides=[2, 2])
    h = g.op("AveragePool", h, kernel_shape=[2, 2], strides=[2, 2])
    h = g.op("Flatten", g.op("GlobalAveragePool", h), axis=1)
    h = g.op("Gemm", h, g.weight("fc.weight", [4, 4]), g.weight("fc.bias", [4]),
             transB=1)
    g.target_loss(h, [4])
    return g


def broadcast():
    g = Graph("broadcast")
    h = g.op("MatMul", g.input("x", [4, 8]), g.weight("w1", [8, 16]))
    h = g.op("Sub", h, g.op("ReduceMean", h, axes=[2], keepdims=1))
    h = g.op("Mul", h, g.weight("scale", [16], 1, 2, 0))
    h = g.op("Add", h, g.weight("shift", [4, 1]))
    h = g.op("ReduceMean", h, axes=[1], keepdims=0)
    g.target_loss(g.op("MatMul", h, g.weight("w2", [16, 4])), [4])
    return g


def residual():
    g = Graph("residual")
    h = first = g.op("MatMul", g.input("x", [8]), g.weight("in", [8, 16]))
    for k in range(4):
        branch = g.op("MatMul", h, g.weight(f"block{k}", [16, 16], zeros=0.9))
        h = g.op("Add", h, g.op("Relu", branch))
    # A skip over all stages.
    h = g.op("Add", h, first)
    g.target_loss(g.op("MatMul", h, g.weight("out", [16, 4])), [4])
    return g


def recurrent():
    """Weights made of parameters, in several layers: their gradients are sums
    over the stages."""
    g = Graph("recurrent")
    h = g.op("MatMul", g.input("x", [8]), g.weight("in", [8, 16]))
    w = g.weight("cell", [16, 16], zeros=0.93)
    cell = g.op("Add", w, g.op("Transpose", w, perm=[1, 0]))
    s = g.weight("scale", [16], 1, 1, zeros=0.3)
    scale = g.op("Add", s, s)
    for k in range(4):
        h = g.op("Add", h, g.op("Relu", g.op("MatMul", h, cell)))
        if k % 2:
            h = g.op("Mul", h, scale)
    g.target_loss(g.op("MatMul", h, g.weight("out", [16, 4])), [4])
    return g


def bidirectional():
    """A recurrent layer in both directions: its steps are parts of parts of one
    tensor, in which the directions lie side by side."""
    g = Graph("bidirectional")
    steps = g.op("Transpose", g.input("x", [4, 8]), perm=[1, 0, 2])
    h = g.op("RNN", steps, g.weight("w", [2, 4, 8], zeros=0.8),
             g.weight("r", [2, 4, 4], zeros=0.7), g.weight("b", [2, 8]),
             activations=["Relu", "Relu"], direction="bidirectional",
             hidden_size=4)
    h = g.op("Transpose", h, perm=[0, 2, 1, 3])
    h = g.op("Transpose", g.op("Reshape", h, g.shape([0, 0, 8])),
             perm=[1, 0, 2])
    g.target_loss(g.op("MatMul", h, g.weight("out", [8, 4])), [4, 4])
    return g


def indexing():
    """Every sample looks into itself: by elements, by slices, by a flat table
    and a count of the samples (what exporters make of x[arange(B), at])."""
    g = Graph("indexing")
    h = g.op("Gather", g.weight("table", [16, 8]),
             g.input("ids", [8], 0, 15, INT64), axis=0)
    h = g.op("MatMul", h, g.weight("w", [8, 8], zeros=0.8))
    at = g.op("Expand", g.op("Unsqueeze", g.input("at", [2], -8, 7, INT64),
                             g.shape([2])), g.shape([1, 1, 8]))
    slices = g.op("GatherElements", h, at, axis=1)
    columns = g.op("GatherElements", h, g.input("column", [8, 3], 0, 7, INT64),
                   axis=2)
    columns = g.op("Unsqueeze", g.op("ReduceSum", columns, g.shape([2]),
                                     keepdims=0), g.shape([1]))
    batched = g.op("GatherND", h, g.input("row", [3, 1], 0, 7, INT64),
                   batch_dims=1)
    put = g.op("ScatterElements", h, g.input("to", [2, 8], 0, 7, INT64), slices,
               axis=1, reduction="add")
    zero, one, eight = (g.tensor(name, INT64, [], [value]) for name, value in
                        (("zero", 0), ("one", 1), ("eight", 8)))
    batch = g.op("Gather", g.op("Shape", h), zero, axis=0)
    starts = g.op("Mul", g.op("Range", zero, batch, one), eight)
    last = g.op("Gather", g.op("Flatten", h, axis=2),
                g.op("Add", starts, g.input("last", [], 0, 7, INT64)), axis=0)
    parts = g.op("Concat", slices, columns, batched, put,
                 g.op("Unsqueeze", last, g.shape([1])), axis=1)
    g.target_loss(g.op("MatMul", parts, g.weight("out", [8, 4])), [15, 4])
    return g


def dropout():
    """Behind a product split by columns, behind one split by rows (where the
    sum over ranks may still be open), and a mask used by itself."""
    g = Graph("dropout")
    x = g.input("x", [4, 8])
    h = g.op("Relu", g.op("MatMul", x, g.weight("w1", [8, 16])))
    h = g.dropout(h, 0.5)
    h = g.dropout(g.op("MatMul", h, g.weight("w2", [16, 8])), 0.75)
    h, mask = g.dropout(g.op("Add", h, x), 0.5, outputs=2)
    h = g.op("Add", h, g.op("Cast", mask, to=FLOAT))
    g.target_loss(g.op("MatMul", h, g.weight("w3", [8, 4])), [4, 4])
    return g


def split_heads(g, x):
    """Q, K (transposed) and V of two heads, from one fused product."""
    qkv = g.op("MatMul", x, g.weight("qkv", [8, 24], zeros=0.8))
    parts = g.op("Split", qkv, g.shape([8, 8, 8]), outputs=3, axis=2)
    return [g.op("Transpose", g.op("Reshape", p, g.shape([-1, 4, 2, 4])),
                 perm=perm)
            for p, perm in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))]


def attention_dropout():
    """Masks of scores, which are split over heads."""
    g = Graph("attention_dropout")
    x = g.input("x", [4, 8])
    heads = split_heads(g, x)
    scores = g.dropout(g.op("MatMul", heads[0], heads[1]), 0.5)
    mixed = g.op("MatMul", scores, heads[2])
    mixed = g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1, 3]),
                 g.shape([-1, 4, 8]))
    mixed = g.dropout(g.op("MatMul", mixed, g.weight("proj", [8, 8])), 0.5)
    g.target_loss(mixed, [4, 8])
    return g


def attention():
    """Attention without softmax: a fused QKV whose dimension is 3 x heads x d."""
    g = Graph("attention")
    x = g.input("x", [4, 8])
    heads = split_heads(g, x)
    mixed = g.op("MatMul", g.op("MatMul", heads[0], heads[1]), heads[2])
    mixed = g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1, 3]),
                 g.shape([-1, 4, 8]))
    g.target_loss(g.op("MatMul", mixed, g.weight("proj", [8, 8])), [4, 8])
    return g


def attention_block():
    """Attention whose result has to be whole before the next layer."""
    g = Graph("attention_block")
    x = g.input("x", [4, 8])
    heads = split_heads(g, x)
    mixed = g.op("MatMul", g.op("MatMul", heads[0], heads[1]), heads[2])
    mixed = g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1, 3]),
                 g.shape([-1, 4, 8]))
    h = g.op("Relu", g.op("Add", x, g.op("MatMul", mixed,
                                         g.weight("proj", [8, 8], zeros=0.8))))
    h = g.op("Relu", g.op("MatMul", h, g.weight("up", [8, 16], zeros=0.8)))
    h = g.op("Add", x, g.op("MatMul", h, g.weight("down", [16, 8], zeros=0.8)))
    g.target_loss(g.op("Relu", h), [4, 8])
    return g


def biased():
    """One table of the tokens, without a batch, in every layer."""
    g = Graph("biased")
    h = g.input("x", [4, 8])
    table = g.weight("table", [1, 4, 8])
    for k in range(3):
        inner = g.op("MatMul", g.op("Add", h, table),
                     g.weight(f"up{k}", [8, 16], zeros=0.85))
        h = g.op("Add", h, g.op("MatMul", g.op("Relu", inner),
                                g.weight(f"down{k}", [16, 8], zeros=0.85)))
    g.target_loss(g.op("Relu", h), [4, 8])
    return g


def nhwc():
    """What tf2onnx makes of Keras layers: channels last and filters [h, w, in,
    out], with transposes around what ONNX has channels first."""
    g = Graph("nhwc")

    def first(h):
        return g.op("Transpose", h, perm=[0, 3, 1, 2])

    def last(h):
        return g.op("Transpose", h, perm=[0, 2, 3, 1])

    h = g.input("x", [6, 6, 2])
    for k, channels in enumerate((2, 4)):
        kernel = g.weight(f"conv2d_{k}/kernel", [3, 3, channels, 4], zeros=0.8)
        filters = g.op("Transpose", kernel, perm=[3, 2, 0, 1])
        h = last(g.op("Conv", first(h), filters, auto_pad="SAME_UPPER",
                      kernel_shape=[3, 3], strides=[1, 1]))
        h = g.op("Relu", g.op("Add", h, g.weight(f"conv2d_{k}/bias", [4])))
    h = last(g.op("AveragePool", first(h), kernel_shape=[2, 2], strides=[2, 2]))
    h = g.op("Reshape", h, g.shape([-1, 36]))
    # Weights may begin with zeros alone.
    h = g.op("Add", g.op("MatMul", h, g.weight("gate/kernel", [36, 4], 0, 0)),
             g.op("MatMul", h, g.weight("dense/kernel", [36, 4], zeros=0.8)))
    g.target_loss(g.op("Add", h, g.weight("dense/bias", [4])), [4])
    return g


def penalty():
    """A loss over the batch, weighted by a number that is learned, and
    penalties on weights, one of them on a weight that two layers share: these
    are there once a step, not once a microbatch."""
    g = Graph("penalty")
    w1, w2 = g.weight("w1", [8, 8]), g.weight("w2", [8, 4])
    s = g.weight("s", [1], 1, 2, zeros=0)
    h = g.op("MatMul", g.input("x", [8]), w1)
    y = g.op("MatMul", g.op("Relu", g.op("MatMul", h, w1)), w2)
    product = g.op("Mul", y, g.input("target", [4], -1, 1))
    data = g.op("ReduceSum", product, keepdims=0)
    total = g.op("Add", g.op("Mul", data, s), g.op("Mul", s, s))
    for w in (w1, w2):
        square = g.op("ReduceSum", g.op("Mul", w, w), keepdims=0)
        total = g.op("Add", square, total)
    g.loss(g.op("Mul", total, s))
    return g


def deviation():
    """Data without its mean over the batch, times its variance: a sum over the
    batch that needs another one first."""
    g = Graph("deviation")
    x = g.input("x", [8])
    away = g.op("Sub", x, g.op("ReduceMean", x, axes=[0]))
    variance = g.op("ReduceMean", g.op("Mul", away, away), axes=[0])
    h = g.op("MatMul", g.op("Mul", away, variance), g.weight("w1", [8, 8]))
    g.target_loss(g.op("MatMul", g.op("Relu", h), g.weight("w2", [8, 4])), [4])
    return g


def one_sided():
    """A weight that two stages read, of which only the later one has a
    gradient of it: that of a floor is zero."""
    g = Graph("one_sided")
    t = g.weight("t", [8, 8])
    h = g.op("MatMul", g.input("x", [8]), g.weight("w1", [8, 8]))
    h = g.op("Relu", g.op("MatMul", h, g.op("Floor", t)))
    h = g.op("Relu", g.op("MatMul", h, g.weight("w2", [8, 8])))
    g.target_loss(g.op("MatMul", h, t), [8])
    return g


def joined():
    """The product of two sums over the batch: the gradient of each needs the
    other one."""
    g = Graph("joined")
    h = g.op("MatMul", g.input("x", [8]), g.weight("w1", [8, 8]))
    y = g.op("MatMul", g.op("Relu", h), g.weight("w2", [8, 4]))
    one, other = (g.op("ReduceSum", g.op("Mul", y, g.input(name, [4])),
                       keepdims=0) for name in ("target", "other"))
    total = g.op("Mul", one, other)
    g.loss(g.op("Mul", total, g.weight("s", [1], 1, 1, zeros=0)))
    return g


def spread():
    """The variance of outputs over the batch, squared: needs their mean, then
    the variance, then the gradient of the mean."""
    g = Graph("spread")
    h = g.op("MatMul", g.input("x", [8]), g.weight("w1", [8, 8]))
    y = g.op("MatMul", g.op("Relu", h), g.weight("w2", [8, 4], zeros=0.7))
    away = g.op("Sub", y, g.op("ReduceMean", y, axes=[0]))
    variance = g.op("ReduceMean", g.op("Mul", away, away), axes=[0])
    square = g.op("ReduceSum", g.op("Mul", variance, variance), keepdims=0)
    product = g.op("Mul", away, g.input("target", [4]))
    g.loss(g.op("Add", g.op("ReduceSum", product, keepdims=0), square))
    return g


def wide():
    """Convolutions in front of wide layers: the former by samples, the latter by
    width (Krizhevsky, "One weird trick", 2014)."""
    g = Graph("wide")
    h = g.op("Conv", g.input("x", [2, 4, 4]),
             g.weight("c.weight", [4, 2, 3, 3], zeros=0.6), g.weight("c.bias", [4]),
             kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    h = g.op("Flatten", g.op("Relu", h), axis=1)
    for k, (n, m) in enumerate([(64, 32), (32, 16)]):
        h = g.op("Relu", g.op("MatMul", h, g.weight(f"wide{k}", [n, m],
                                                    zeros=0.85)))
    g.target_loss(g.op("MatMul", h, g.weight("out", [16, 4], zeros=0.7)), [4])
    return g


def experts():
    """A mixture of experts as static products (GShard, Lepikhin et al., 2020):
    `route` says which of two places of each of four experts a token has. Each
    sample is a group of its own."""
    g = Graph("experts")
    x = g.input("x", [4, 8])
    route = g.input("route", [4, 4, 2], 0, 1)
    gate = g.op("MatMul", x, g.weight("gate", [8, 4], zeros=0.7))
    combine = g.op("Mul", route, g.op("Unsqueeze", gate, g.shape([3])))
    h = g.op("Einsum", route, x, equation="btec,btd->ebcd")
    h = g.op("Relu", g.op("Einsum", h, g.weight("up", [4, 8, 8], zeros=0.8),
                          equation="ebcd,edf->ebcf"))
    h = g.op("Einsum", h, g.weight("down", [4, 8, 8], zeros=0.8),
             equation="ebcf,efd->ebcd")
    y = g.op("Einsum", combine, h, equation="btec,ebcd->btd")
    g.target_loss(g.op("MatMul", g.op("Add", x, y),
                       g.weight("out", [8, 4], zeros=0.7)), [4, 4])
    return g


MODELS = [linear, gemm, squares, embedding, tied, conv, pool, broadcast,
          residual, attention, dropout, attention_dropout, attention_block,
          indexing, recurrent, biased, nhwc, bidirectional, penalty, deviation,
          joined, spread, one_sided, wide, experts]


# Gradients of these read sums over all microbatches.
JOINS = {"joined", "spread"}


def runs(name, microbatch, schedule):
    """Whether the schedule runs all forwards before it needs such a sum."""
    return (name not in JOINS or microbatch == "whole"
            or schedule in ("gpipe", "auto"))


def path(name):
    return os.path.abspath(os.path.join(FOLDER, name + ".textproto"))


def stale():
    """Names of the models whose stored form is not what this file writes."""
    names = []
    for model in MODELS:
        try:
            with open(path(model.__name__), encoding="utf-8") as file:
                stored = file.read()
        except FileNotFoundError:
            stored = None
        if stored != model().text():
            names.append(model.__name__)
    return names


def main():
    if sys.argv[1:] == ["--write"]:
        os.makedirs(FOLDER, exist_ok=True)
        for model in MODELS:
            with open(path(model.__name__), "w", encoding="utf-8") as file:
                file.write(model().text())
        return 0
    if sys.argv[1:] == ["--check"]:
        for name in (names := stale()):
            print(f"{path(name)} differs: run exact_models.py --write")
        return 1 if names else 0
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
