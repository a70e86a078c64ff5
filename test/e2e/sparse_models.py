"""Models with tables for tests of row-sparse gradients, and their training."""
import os
import random
import subprocess

import exact_models
import harness
import identity
import matrix
import seam_models
from export_onnx import fields, put
from harness import Failed

ROWS, COLUMNS = 40, 8
BATCH, SAMPLES = matrix.GLOBAL_BATCH, exact_models.SAMPLES
PADDING = {"padded": 3}
EMULATED = "merak-run-emulated"
CLUSTER = os.path.join(os.path.dirname(__file__),
                       "../../samples/clusters/xeon-2.json")
MESHES = ["none", "dp=2", "dp=4", "tp=2", "pp=2", "dp=2,tp=2", "pp=2,dp=2",
          "pp=2,dp=2,tp=2"]
SCHEDULES = ["gpipe", "1f1b", "zb", "interleaved", "auto"]
SGD = ["--optimizer=sgd:lr=0.5"]
CLIP = "--grad-clip=0.5"
# Numbers of few bits for as many steps as the models have.
DYADIC = ["--optimizer=sgd:lr=0.5,momentum=0.5,weight_decay=0.5"]
REPLAYED = {
    "adamw": "adamw:lr=0.1,betas=0.9/0.99,weight_decay=0.1",
    "adam": "adam:lr=0.1,betas=0.9/0.99,weight_decay=0.1",
    "moments": "adamw:lr=0.1,betas=0.9/0.99,weight_decay=0",
    "decay": "sgd:lr=0.1,weight_decay=0.1",
    "momentum": "sgd:lr=0.1,momentum=0.9,dampening=0.2",
    "nesterov": "sgd:lr=0.1,momentum=0.9,nesterov=1,weight_decay=0.01",
    "adagrad": "adagrad:lr=0.1,lr_decay=0.1,weight_decay=0.1"}


class Rough(exact_models.Graph):
    """Other numbers than integers, whose sums do not cancel out."""

    def numbers(self, values):
        return [round(0.37 * v + self.random.uniform(0.01, 0.3), 4)
                for v in values]

    def input(self, name, shape, low=-1, high=1, kind=exact_models.FLOAT):
        super().input(name, shape, low, high, kind)
        descr, sizes, values = self.data[name]
        if kind == exact_models.FLOAT:
            self.data[name] = descr, sizes, self.numbers(values)
        return name

    def tensor(self, name, kind, shape, values):
        if kind == exact_models.FLOAT:
            values = self.weights[name] = self.numbers(values)
        return super().tensor(name, kind, shape, values)


def lookup(graph=exact_models.Graph):
    """Ids that repeat, of which two ranks have some in common."""
    g = graph("lookup")
    ids = g.input("ids", [5], 0, ROWS - 1, exact_models.INT64)
    h = g.op("Gather", g.weight("table", [ROWS, COLUMNS]), ids, axis=0)
    h = g.op("Relu", g.op("MatMul", h, g.weight("w", [COLUMNS, COLUMNS])))
    g.target_loss(g.op("MatMul", h, g.weight("out", [COLUMNS, 4])), [5, 4])
    return g


def twice(graph=exact_models.Graph):
    """A table that is used at two places, with other numbers of ids."""
    g = graph("twice")
    table = g.weight("table", [ROWS, COLUMNS])
    first = g.op("Gather", table, g.input("a", [3], 0, ROWS - 1,
                                          exact_models.INT64), axis=0)
    second = g.op("Gather", table, g.input("b", [2], 0, 5, exact_models.INT64),
                  axis=0)
    h = g.op("Concat", g.op("MatMul", first, g.weight("w", [COLUMNS, 4])),
             g.op("MatMul", second, g.weight("v", [COLUMNS, 4])), axis=1)
    g.target_loss(g.op("Relu", h), [5, 4])
    return g


def tables(graph=exact_models.Graph):
    """Tables of one id a sample, as of categories."""
    g = graph("tables")
    parts = []
    for k, rows in enumerate((30, 6, 90)):
        ids = g.input(f"c{k}", [1], 0, rows - 1, exact_models.INT64)
        parts.append(g.op("Gather", g.weight(f"t{k}", [rows, 4]), ids, axis=0))
    h = g.op("MatMul", g.op("Concat", *parts, axis=2),
             g.weight("w", [12, COLUMNS]))
    g.target_loss(g.op("MatMul", g.op("Relu", h), g.weight("out", [COLUMNS, 4])),
                  [1, 4])
    return g


def alike(graph=exact_models.Graph):
    """All samples name one row."""
    g = graph("alike")
    ids = g.input("ids", [5], 7, 7, exact_models.INT64)
    h = g.op("Gather", g.weight("table", [ROWS, COLUMNS]), ids, axis=0)
    g.target_loss(g.op("MatMul", h, g.weight("w", [COLUMNS, 4])), [5, 4])
    return g


def padded(graph=exact_models.Graph):
    """Ids that are padding, among them all of some ranks, name no row."""
    g = graph("padded")
    ids = g.input("ids", [4], 0, ROWS - 1, exact_models.INT64)
    values = g.data[ids][2]
    for sample in range(SAMPLES):
        begin, end = sample * 4, (sample + 1) * 4
        if sample % BATCH < BATCH // 2:
            values[begin:end] = [PADDING["padded"]] * 4
        else:
            values[begin] = PADDING["padded"]
    h = g.op("Gather", g.weight("table", [ROWS, COLUMNS]), ids, axis=0)
    h = g.op("Relu", g.op("MatMul", h, g.weight("w", [COLUMNS, COLUMNS])))
    g.target_loss(g.op("MatMul", h, g.weight("out", [COLUMNS, 4])), [4, 4])
    return g


def linear(graph=exact_models.Graph):
    """A loss whose gradient does not depend on the table: that of a row is the sum
    of what stands at its ids in the target."""
    g = graph("linear_loss")
    ids = g.input("ids", [3], 0, ROWS - 1, exact_models.INT64)
    h = g.op("Gather", g.weight("table", [ROWS, COLUMNS]), ids, axis=0)
    g.target_loss(h, [3, COLUMNS])
    return g


MODELS = {model.__name__: model
          for model in (lookup, twice, tables, alike, padded)}
TABLES = {"lookup": ["table"], "twice": ["table"], "tables": ["t0", "t1", "t2"],
          "alike": ["table"], "padded": ["table"], "linear": ["table"]}


def with_padding(path, row):
    """The model with a note at its lookups that this row is padding. Notes of nodes
    are newer than what reads text: they are added to the encoded model."""
    protos = "/usr/include"
    with open(path, "rb") as text:
        model = subprocess.run(
            ["protoc", f"-I{protos}", "--encode=onnx.ModelProto",
             f"{protos}/onnx/onnx.proto"], stdin=text, capture_output=True,
            check=True).stdout
    note = put(9, put(1, b"org.merak.padding_idx") + put(2, str(row).encode()))

    def node(number, value):
        is_lookup = number == 1 and (4, 2, b"Gather") in fields(value)
        return put(number, value + note if is_lookup else value)

    path = path.replace(".textproto", ".onnx")
    with open(path, "wb") as file:
        for number, _, value in fields(model):
            file.write(put(number, b"".join(
                node(n, v) for n, _, v in fields(value)) if number == 7 else
                value))
    return path


def write(tools, graph):
    model, data = seam_models.write(tools, graph)
    if graph.name in PADDING:
        model = with_padding(model, PADDING[graph.name])
    return model, data


def train(tools, graph, layout, options, *more, **others):
    """With one mesh for all ranks."""
    return train_with(tools, graph, [*matrix.compile_options(*layout), *options],
                      *more, **others)


def train_with(tools, graph, options, steps=2, tag="", resume=False,
               runner="merak-run"):
    """As identity.train; the gradients of row-sparse tables are in no file."""
    model, data = write(tools, graph)
    plan, log = tools.path(f"out{tag}.plan"), tools.path(f"log{tag}.jsonl")
    saved = tools.path(f"saved{tag}")
    tools.run("merakc", model, "-o", plan, *options)
    run = [runner, plan, f"--data={data}", f"--log={log}"]
    if resume:
        half = tools.path(f"half{tag}")
        tools.run(*run, "--steps=1", f"--save={half}")
        tools.run(*run, f"--load={half}", f"--steps={steps - 1}",
                  f"--save={saved}")
    else:
        tools.run(*run, f"--steps={steps}", f"--save={saved}")
    return identity.Result([entry["loss"] for entry in harness.read_log(log)],
                           {}, harness.read_checkpoint(saved)[0])


def close(what, found, expected):
    for at, (x, y) in enumerate(zip(found, expected)):
        if abs(x - y) > 1e-5 * max(1, abs(y)):
            raise Failed(f"{what}[{at // COLUMNS}, {at % COLUMNS}] is {x!r}, "
                         f"expected {y!r}")


def long_linear(steps, ids, name="linear_loss"):
    """A loss that is linear in the table over so many steps; `ids(step)` are those
    of its samples."""
    graph = linear()
    graph.name = name
    samples = steps * BATCH
    r = random.Random(name)
    graph.data["ids"] = ("<i8", [samples, 3], [
        r.choice(ids(at // BATCH)) for at in range(samples) for _ in range(3)])
    graph.data["target"] = ("<f4", [samples, 3, COLUMNS], [
        r.randint(-2, 2) for _ in range(samples * 3 * COLUMNS)])
    return graph


# Rows that come and go, some for as long as nothing is left to be seen of their
# moments, one that never comes.
def come_and_go(step):
    return [r for r in range(ROWS - 1)
            if (step // (1 + 3 * r) + r) % (2 + r % 5) == 0] or [0]
