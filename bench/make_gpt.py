#!/usr/bin/env python3
"""Writes a GPT training graph as ONNX (opset 17), with random weights.

    python3 make_gpt.py gpt.onnx --layers 4 --width 128 --heads 4 \\
        --vocabulary 65 --context 64

Inputs `tokens` and `labels` [batch, context] (int64), output `loss`, the mean
cross entropy. Pre-norm blocks, packed QKV, tanh GELU as single operators, head
tied to the embedding. Weights go to <output>.data; with --no-weights the file is left
out, which is enough to plan. Needs the `onnx` and `numpy`
packages.
"""
import argparse
import math
import os

import numpy as np
import onnx
import onnx.numpy_helper
from onnx import TensorProto, helper


class Graph:
    """Nodes and parameters of the graph under construction."""

    def __init__(self, batch, context):
        self.nodes, self.parameters = [], {}
        self.batch, self.context = batch, context
        self.scope = ""

    def op(self, kind, *inputs, outputs=1, **attributes):
        name = f"{self.scope}/{kind}_{len(self.nodes)}"
        results = [f"{name}:{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), results,
                                           name=name, **attributes))
        return results[0] if outputs == 1 else results

    def parameter(self, name, *shape, deviation=0.02, one=False):
        self.parameters[name] = (shape, deviation, one)
        return name

    def constant(self, value):
        """A Constant node, as exporters write it; an initializer is trained."""
        return self.op("Constant", value=onnx.numpy_helper.from_array(
            np.asarray(value)))

    def norm(self, x, name, width):
        scale = self.parameter(name + ".weight", width, deviation=0, one=True)
        bias = self.parameter(name + ".bias", width, deviation=0)
        return self.op("LayerNormalization", x, scale, bias, axis=-1,
                       epsilon=1e-5)

    def linear(self, x, name, inputs, outputs, deviation=0.02):
        weight = self.parameter(name + ".weight", inputs, outputs,
                                deviation=deviation)
        bias = self.parameter(name + ".bias", outputs, deviation=0)
        return self.op("Add", self.op("MatMul", x, weight), bias)


def attention(g, x, name, width, heads, deviation, causal):
    size = width // heads
    packed = g.linear(x, name + ".qkv", width, 3 * width)
    parts = g.op("Split", packed, g.constant(np.array([width] * 3)),
                 outputs=3, axis=2)
    shape = g.constant(np.array([0, 0, heads, size]))
    q, k, v = (g.op("Reshape", part, shape) for part in parts)
    q = g.op("Transpose", q, perm=[0, 2, 1, 3])
    k = g.op("Transpose", k, perm=[0, 2, 3, 1])
    v = g.op("Transpose", v, perm=[0, 2, 1, 3])
    scale = g.constant(np.float32(1 / math.sqrt(size)))
    scores = g.op("Mul", g.op("MatMul", q, k), scale)
    masked = g.op("Where", causal, scores, g.constant(np.float32(-np.inf)))
    y = g.op("MatMul", g.op("Softmax", masked, axis=-1), v)
    y = g.op("Transpose", y, perm=[0, 2, 1, 3])
    y = g.op("Reshape", y, g.constant(np.array([0, 0, width])))
    return g.linear(y, name + ".out", width, width, deviation)


def gelu(g, x):
    cube = g.op("Mul", g.op("Mul", x, x), x)
    inner = g.op("Add", x, g.op("Mul", cube, g.constant(np.float32(0.044715))))
    root = g.constant(np.float32(math.sqrt(2 / math.pi)))
    tanh = g.op("Tanh", g.op("Mul", inner, root))
    half = g.op("Mul", x, g.constant(np.float32(0.5)))
    return g.op("Mul", half, g.op("Add", tanh, g.constant(np.float32(1))))


def build(o):
    g = Graph(o.batch, o.context)
    small = 0.02 / math.sqrt(2 * o.layers)
    table = g.parameter("token.weight", o.vocabulary, o.width)
    positions = g.parameter("position.weight", o.context, o.width)
    x = g.op("Add", g.op("Gather", table, "tokens"), positions)
    causal = g.constant(np.tril(np.ones((1, 1, o.context, o.context), bool)))
    for layer in range(o.layers):
        g.scope = f"/blocks.{layer}"
        name = f"blocks.{layer}"
        y = attention(g, g.norm(x, name + ".norm1", o.width), name, o.width,
                      o.heads, small, causal)
        x = g.op("Add", x, y)
        y = g.norm(x, name + ".norm2", o.width)
        y = gelu(g, g.linear(y, name + ".up", o.width, 4 * o.width))
        x = g.op("Add", x, g.linear(y, name + ".down", 4 * o.width, o.width,
                                    small))
    g.scope = ""
    x = g.norm(x, "norm", o.width)
    logits = g.op("MatMul", x, g.op("Transpose", table, perm=[1, 0]))
    logits = g.op("Reshape", logits, g.constant(np.array([-1, o.vocabulary])))
    labels = g.op("Reshape", "labels", g.constant(np.array([-1])))
    g.nodes.append(helper.make_node("SoftmaxCrossEntropyLoss",
                                    [logits, labels], ["loss"], name="/loss",
                                    reduction="mean"))
    return g


def write(g, path, seed, weights=True):
    shape = [g.batch, g.context]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape)
              for name in ("tokens", "labels")]
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    initializers = []
    rng = np.random.default_rng(seed)
    offset, data = 0, os.path.basename(path) + ".data"
    with open(path + ".data" if weights else os.devnull, "wb") as file:
        for name, (dims, deviation, one) in g.parameters.items():
            length = 4 * math.prod(dims)
            if weights:
                values = rng.standard_normal(dims, dtype=np.float32)
                values = values * np.float32(deviation) + np.float32(one)
                file.write(values.tobytes())
            tensor = TensorProto(name=name, data_type=TensorProto.FLOAT,
                                 dims=dims,
                                 data_location=TensorProto.EXTERNAL)
            for key, value in (("location", data), ("offset", offset),
                               ("length", length)):
                tensor.external_data.add(key=key, value=str(value))
            initializers.append(tensor)
            offset += length
    graph = helper.make_graph(g.nodes, "gpt", inputs, [loss], initializers)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    with open(path, "wb") as file:
        file.write(model.SerializeToString())
    return sum(math.prod(p[0]) for p in g.parameters.values())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=65)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", default="batch",
                        help="a number, or the name of a symbolic dimension")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-weights", action="store_true",
                        help="write no values")
    o = parser.parse_args()
    if o.width % o.heads:
        parser.error("--heads must divide --width")
    o.batch = int(o.batch) if o.batch.isdigit() else o.batch
    print(write(build(o), o.output, o.seed, not o.no_weights), "parameters")


if __name__ == "__main__":
    main()
