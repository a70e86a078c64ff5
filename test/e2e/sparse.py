#!/usr/bin/env python3
"""Row-sparse gradients of tables.

exact    models whose sums are exact in any order: every layout gives the losses
         and weights of one rank with dense gradients; SGD, clipped or not
with     the same with parameters stored in parts, overlap of tensor parallelism and of
         gradients, recomputation, tokens over tp
columns  a table in columns over replicas: rows and slices go by all-to-all, ids are
         gathered once; the bits of one rank
touched  with --touched replicas sum slices of one id before they send them: the same
         bits, and as few bytes as there are different rows
found    over slow links the search finds them by itself, and gathers rows where
         there are few
same     any numbers, one rank: the bits that the dense gradient leaves, under
         optimizers that change no row without a gradient
replayed under optimizers that change every row in each step: the bits that dense
         gradients leave, of tables and of their states, in every layout; with
         other numbers on one rank, with what a run has besides (clipping, rates
         that change, steps skipped as not finite), over hundreds of steps; from
         checkpoints of dense plans and back
lazy     the others against plain Python in doubles: rows that no sample names keep
         their bits and their states
pytorch  any numbers: losses and weights of PyTorch's sparse optimizers and, with
         --sparse=exact, of its dense ones (sparse_record.py), tables at one and at
         several places, with padding
device   the kernels of GPUs, on the emulated device: the bits of the CPU
resumed  steps, a checkpoint, more steps leave the bits of all steps
bytes    no gradient, activation or workspace of a step has the size of a table
rows     the step that is predicted follows the rows looked up, not those held
grads    --save-grads writes all gradients but those of tables
dense    a table that is more than looked up keeps its gradient: the same plan
refused  what cannot be: one sentence each
"""
import functools
import itertools
import json
import math
import os
import random
import re
import subprocess
import sys

import exact_models
import harness
import identity
import matrix
import prices
import seam_models
import seam_strategies
from bad_input import refuse
from export_onnx import fields, put
from harness import Case, Failed

ROWS, COLUMNS = 40, 8
BATCH, SAMPLES = matrix.GLOBAL_BATCH, exact_models.SAMPLES
PADDING = {"padded": 3}
EMULATED = "merak-run-emulated"
CLUSTER = os.path.join(os.path.dirname(__file__),
                       "../../samples/clusters/xeon-2.json")
MESHES = ["none", "dp=2", "dp=4", "tp=2", "pp=2", "dp=2,tp=2", "pp=2,dp=2",
          "pp=2,dp=2,tp=2"]
SCHEDULES = ["gpipe", "1f1b", "zb", "interleaved", "auto"]


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


def train(tools, graph, layout, options, steps=2, tag="", resume=False,
          runner="merak-run"):
    """As identity.train; the gradients of row-sparse tables are in no file."""
    model, data = write(tools, graph)
    plan, log = tools.path(f"out{tag}.plan"), tools.path(f"log{tag}.jsonl")
    saved = tools.path(f"saved{tag}")
    tools.run("merakc", model, "-o", plan, *matrix.compile_options(*layout),
              *options)
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


# ------------------------------------------------------------- exact, same


SGD = ["--optimizer=sgd:lr=0.5"]
CLIP = "--grad-clip=0.5"


def exact_base(name, clip, tools):
    """One rank with dense gradients. Clipped, sums are exact for one step."""
    return identity.BASES.get(
        ("sparse", name, *clip), lambda: train(
            tools, MODELS[name](), ("none", "whole", "gpipe", "none"),
            SGD + clip, 1 if clip else 2, tag="-base"))


def exact_body(name, mesh, microbatch, schedule, clipped, tools):
    clip = [CLIP] if clipped == "clipped" else []
    found = train(tools, MODELS[name](), (mesh, microbatch, schedule, "none"),
                  [*SGD, *clip, "--sparse=exact"], 1 if clip else 2)
    identity.compare(found, exact_base(name, clip, tools))
    return "identical"


def exact_cases(every):
    cases = [case for case in itertools.product(
        MODELS, MESHES, ("whole", "half", "one"), SCHEDULES,
        ("whole", "clipped"))
        if matrix.defined(case[1], case[2], case[3]) and
        not (case[3] == "interleaved" and matrix.degrees(case[1])["pp"] == 1)]
    if not every:
        cases = matrix.pairwise(cases)
    yield from (Case("exact " + " ".join(c), functools.partial(exact_body, *c))
                for c in cases)


WITH = [["--zero=1"], ["--zero=2"], ["--zero=3"], ["--tp-overlap=1"],
        ["--tp-overlap=3"], ["--grad-overlap=off"], ["--grad-bucket=0"],
        ["--context-parallel=on"], ["--sequence-parallel=on"]]
# Without tokens to split.
NO_TOKENS = {"lookup", "tables", "alike", "padded"}


def with_body(name, mesh, microbatch, recompute, options, tools):
    found = train(tools, MODELS[name](), (mesh, microbatch, "1f1b", recompute),
                  [*SGD, "--sparse=exact", *options])
    identity.compare(found, exact_base(name, [], tools))
    return "identical"


def with_cases(every):
    cases = [case for case in itertools.product(
        MODELS, ("dp=2", "dp=2,tp=2", "pp=2,dp=2", "pp=2,dp=2,tp=2"),
        ("whole", "half"), ("none", "full"), range(len(WITH)))
        if not (("tp-" in WITH[case[4]][0] or "parallel" in WITH[case[4]][0]) and
                "tp" not in case[1]) and
        not ("parallel" in WITH[case[4]][0] and case[0] in NO_TOKENS)]
    if not every:
        cases = matrix.pairwise(cases)
    for *layout, number in cases:
        yield Case(" ".join(["with", *layout, *WITH[number]]),
                   functools.partial(with_body, *layout, WITH[number]))


# As seam_strategies.ROWS, of the model `lookup`.
COLUMN_ROWS = {f"columns of {n}": (
    lookup, {"dp": n}, {}, [("MatMul_2", 0)],
    [("table", 1, COLUMNS, ["dp"]), ("", 0, 8, ["mb"], "Gather_1", 1)])
    for n in (2, 4)}


def columns_body(row, pipeline, microbatch, optimizer, tools):
    path = tools.path("row.json")
    seam_strategies.write(path, row, pipeline, COLUMN_ROWS)
    mesh = seam_strategies.mesh_of(row, pipeline, COLUMN_ROWS)
    found = train(tools, lookup(), (mesh, microbatch, "1f1b", "none"),
                  [*optimizer, "--sparse=exact", f"--strategy={path}"])
    identity.compare(found, exact_base("lookup", [], tools) if optimizer == SGD
                     else replayed_base("lookup", [], tools))
    said = tools.run("merak-plan", "account", tools.path("out.plan"))[0]
    microbatches = matrix.GLOBAL_BATCH // (
        COLUMN_ROWS[row][1]["dp"] * matrix.samples(mesh, microbatch))
    slices = sum(int(count) for count in re.findall(
        r"^  [BWU] all_to_all over dp: (\d+) times", said, re.M))
    if slices != microbatches:
        raise Failed(f"{slices} exchanges of slices, expected {microbatches}")
    split = re.search(r"^  over dp: (\d+) parameters", said, re.M)
    if not split or split[1] != "1":
        raise Failed(f"{split and split[1]} parameters are split, not the table")
    # Ids are those that the lookup gathered.
    if re.search(r"^  [BWU] all_gather over dp", said, re.M):
        raise Failed("something is gathered for the gradient")
    return f"{slices} exchanges"


def columns_cases():
    for row, pipeline, microbatch, optimizer in itertools.product(
            COLUMN_ROWS, (1, 2), ("whole", "half", "one"), (SGD, DYADIC)):
        tag = "" if optimizer == SGD else " replayed"
        yield Case(f"columns {row} pp={pipeline} {microbatch}{tag}",
                   functools.partial(columns_body, row, pipeline, microbatch,
                                     optimizer))


def trimmed(tools):
    """Shares that exchanges of the plan are expected to send."""
    said = tools.run("merak-plan", "print", tools.path("out.plan"))[0]
    return [float(share) for share in re.findall(r"\btrim=([0-9.e-]+)", said)]


def touched_body(name, mesh, microbatch, optimizer, tools):
    found = train(tools, MODELS[name](), (mesh, microbatch, "1f1b", "none"),
                  [*optimizer, "--sparse=exact", "--mixed-layouts=off",
                   *(f"--touched={table}=0.1" for table in TABLES[name])])
    identity.compare(found, exact_base(name, [], tools) if optimizer == SGD else
                     replayed_base(name, [], tools))
    shares = trimmed(tools)
    if not shares or not all(0 < share < 0.9 for share in shares):
        raise Failed(f"exchanges of the shares {shares}")
    return f"shares {shares}"


def touched_columns(row, pipeline, microbatch, tools):
    path = tools.path("row.json")
    seam_strategies.write(path, row, pipeline, COLUMN_ROWS)
    mesh = seam_strategies.mesh_of(row, pipeline, COLUMN_ROWS)
    found = train(tools, lookup(), (mesh, microbatch, "1f1b", "none"),
                  [*SGD, "--sparse=exact", f"--strategy={path}",
                   "--touched=table=0.1"])
    identity.compare(found, exact_base("lookup", [], tools))
    shares = trimmed(tools)
    if not shares:
        raise Failed("slices are not summed before they are sent")
    return f"shares {shares}"


def touched_sent(tools):
    """All ids are one: of an exchange over emulated links one row in 40 travels."""
    steps = {}
    for tag, options in (("", ["--touched=table=0.001"]), ("-all", [])):
        graph = exact_models.Graph("one")
        ids = graph.input("ids", [64], 7, 7, exact_models.INT64)
        h = graph.op("Gather", graph.weight("table", [1000, 64]), ids, axis=0)
        graph.target_loss(graph.op("MatMul", h, graph.weight("w", [64, 1])),
                          [64, 1])
        model, data = write(tools, graph)
        plan, log = tools.path(f"out{tag}.plan"), tools.path(f"log{tag}.jsonl")
        tools.run("merakc", model, "-o", plan, *SGD, "--sparse=exact", *options,
                  "--mixed-layouts=off", *matrix.compile_options("dp=2", "whole", "1f1b"))
        with open(CLUSTER, encoding="utf-8") as file:
            cluster = json.load(file)
        cluster["nodes"][0].update(count=1, devices=2)
        for link in cluster["links"].values():
            link.update(bandwidth=2e5, latency=1e-5)
        path = tools.path("cluster.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(cluster, file)
        tools.run("merak-run", plan, f"--data={data}", "--steps=2",
                  f"--log={log}", f"--links={path}")
        steps[tag] = min(e["seconds"] for e in harness.read_log(log))
    # 256 rows of 256 bytes each way, or one.
    if steps[""] > 0.5 * steps["-all"]:
        raise Failed(f"{steps[''] * 1e3:.1f} ms, {steps['-all'] * 1e3:.1f} ms "
                     "if all are sent")
    return f"{steps[''] * 1e3:.1f} ms of {steps['-all'] * 1e3:.1f}"


def touched_cases():
    for name, (mesh, microbatch), optimizer in itertools.product(
            MODELS, [("dp=2", "whole"), ("dp=2", "half"), ("dp=4", "one"),
                     ("dp=2,tp=2", "half"), ("pp=2,dp=2", "half")],
            (SGD, DYADIC)):
        tag = "" if optimizer == SGD else " replayed"
        if (name, microbatch) in (("tables", "one"), ("lookup", "one")):
            continue  # too few ids to repeat
        yield Case(f"touched {name} {mesh} {microbatch}{tag}",
                   functools.partial(touched_body, name, mesh, microbatch,
                                     optimizer))
    for row, pipeline in itertools.product(COLUMN_ROWS, (1, 2)):
        yield Case(f"touched {row} pp={pipeline}", functools.partial(
            touched_columns, row, pipeline, "whole"))
    yield Case("touched sent", touched_sent)
    yield Case("touched refused tabel", lambda tools: refuse(
        tools, "merakc", write(tools, lookup())[0], "--sparse=lazy",
        "--touched=tabel=0.5", "--global-batch=8", "-o", tools.path("x.plan"),
        says=["there is no table 'tabel'"]))


def found_body(bandwidth, exchange, said, tools):
    with open(CLUSTER, encoding="utf-8") as file:
        cluster = json.load(file)
    cluster["nodes"][0].update(count=1, devices=4)
    for link in cluster["links"].values():
        link.update(bandwidth=bandwidth, latency=1e-5)
    path = tools.path("cluster.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(cluster, file)
    layout = ("dp=4", "whole", "1f1b", "none")
    options = [*SGD, "--sparse=exact", f"--cluster={path}"]
    found = train(tools, lookup(), layout, options)
    identity.compare(found, exact_base("lookup", [], tools))
    sent = tools.run("merak-plan", "account", tools.path("out.plan"))[0]
    if not re.search(rf"^  [BWU] {exchange} over dp", sent, re.M):
        raise Failed(f"no {exchange} of slices")
    lines = tools.run("merakc", write(tools, lookup())[0], "-v", "-o",
                      tools.path("out.plan"), *matrix.compile_options(*layout),
                      *options)[0]
    if f"; {said} taken" not in lines:
        raise Failed(f"the report does not say that {said} are taken")
    return said


def same_body(name, optimizer, tools):
    graph = MODELS[name](Rough)
    layout = ("none", "whole", "1f1b", "none")
    options = [f"--optimizer={optimizer}"]
    identity.compare(
        train(tools, graph, layout, [*options, "--sparse=exact"], 4),
        train(tools, graph, layout, options, 4, tag="-dense"))
    return "identical"


def same_cases():
    for name, optimizer in itertools.product(
            ("lookup", "tables"), ("sgd:lr=0.1", "adagrad:lr=0.1")):
        yield Case(f"same {name} {optimizer}",
                   functools.partial(same_body, name, optimizer))


# ----------------------------------------------------------------- replayed


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


def replayed_base(name, clip, tools):
    return identity.BASES.get(
        ("replayed", name, *clip), lambda: train(
            tools, MODELS[name](), ("none", "whole", "gpipe", "none"),
            DYADIC + clip, 1 if clip else 2, tag="-base"))


def replayed_body(name, mesh, microbatch, schedule, options, tools):
    clip = [CLIP] if options == [CLIP] else []
    recompute = "full" if options == ["full"] else "none"
    found = train(tools, MODELS[name](), (mesh, microbatch, schedule, recompute),
                  [*DYADIC, *(o for o in options if o != "full"),
                   "--sparse=exact"], 1 if clip else 2)
    identity.compare(found, replayed_base(name, clip, tools))
    return "identical"


def has_replays(tools, tag=""):
    said = tools.run("merak-plan", "print", tools.path(f"out{tag}.plan"))[0]
    return len(re.findall(r"_replay\b", said))


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


def linear_run(optimizer, layout, options, graph, steps, tag, tools, **more):
    return train(tools, graph, layout, [f"--optimizer={REPLAYED[optimizer]}",
                                        *options], steps, tag, **more)


ONE = ("none", "whole", "gpipe", "none")


def sums_body(optimizer, mesh, microbatch, options, runner, tools):
    """Gradients of integers are exact however they are summed, and what follows is
    done element by element."""
    graph = long_linear(12, come_and_go)
    base = identity.BASES.get(("sums", optimizer), lambda: linear_run(
        optimizer, ONE, [], graph, 12, "-dense", tools))
    found = linear_run(optimizer, (mesh, microbatch, "1f1b", "none"),
                       ["--sparse=exact", *options], graph, 12, "", tools,
                       runner=runner)
    if not has_replays(tools):
        raise Failed("nothing is replayed")
    found.losses = base.losses  # sums of other numbers
    if runner == EMULATED:
        for name, tensor in base.weights.items():
            close(name, found.weights[name].data, tensor.data)
        return "close"
    identity.compare(found, base)
    return "identical"


def long_body(optimizer, steps, tools):
    graph = long_linear(steps, come_and_go)
    rate = f",schedule=cosine,warmup=5,total={steps}" \
        if optimizer in ("adamw", "momentum") else ""
    results = [train(tools, graph, ONE, [
        f"--optimizer={REPLAYED[optimizer]}{rate}", *option], steps, tag)
        for option, tag in ((["--sparse=exact"], ""), ([], "-dense"))]
    if not has_replays(tools):
        raise Failed("nothing is replayed")
    identity.compare(*results)
    return f"{steps} steps"


def rough_body(name, optimizer, options, tools):
    graph = MODELS[name](Rough)
    options = [f"--optimizer={REPLAYED[optimizer]}", *options]
    identity.compare(
        train(tools, graph, ONE, [*options, "--sparse=exact"], 4),
        train(tools, graph, ONE, options, 4, tag="-dense"))
    if not has_replays(tools):
        raise Failed("nothing is replayed")
    return "identical"


def skipped_body(optimizer, mesh, tools):
    """Gradients of some steps are not finite."""
    steps = 12
    graph = long_linear(steps, come_and_go, "skipping")
    values = graph.data["target"][2]
    each = BATCH * 3 * COLUMNS
    for step in (3, 4, 8):
        values[step * each] = math.inf
    found = []
    for option, tag in ((["--sparse=exact"], ""), ([], "-dense")):
        model, data = write(tools, graph)
        plan, saved = tools.path(f"out{tag}.plan"), tools.path(f"saved{tag}")
        layout = (mesh, "half", "1f1b", "none") if not tag else ONE
        tools.run("merakc", model, "-o", plan, *matrix.compile_options(*layout),
                  f"--optimizer={REPLAYED[optimizer]}", *option)
        said = "".join(tools.run(
            "merak-run", plan, f"--data={data}", f"--steps={steps}",
            "--on-nonfinite=skip", f"--save={saved}"))
        if "3 of 12 steps skipped" not in said:
            raise Failed("not three steps were skipped")
        found.append(identity.Result([], {}, harness.read_checkpoint(saved)[0]))
    identity.compare(*found)
    return "identical"


def handed_body(optimizer, first, second, tools):
    """Steps of one plan, more than are remembered, a checkpoint, steps of another
    one: all are dense."""
    before, steps = 140, 150
    graph = long_linear(steps, come_and_go)
    model, data = write(tools, graph)
    whole = linear_run(optimizer, ONE, [], graph, steps, "-dense", tools)
    load = []
    for at, options in enumerate((first, second)):
        plan = tools.path(f"part{at}.plan")
        tools.run("merakc", model, "-o", plan,
                  *matrix.compile_options("dp=2" if at else "none", "half",
                                          "1f1b"),
                  f"--optimizer={REPLAYED[optimizer]}", *options)
        saved = tools.path(f"after{at}")
        tools.run("merak-run", plan, f"--data={data}", *load,
                  f"--steps={steps - before if at else before}",
                  f"--save={saved}")
        load = [f"--load={saved}"]
        others = set(harness.read_checkpoint(saved)[0]) ^ set(whole.weights)
        if others:
            raise Failed(f"the checkpoint has, or lacks, {sorted(others)}")
    found = identity.Result(whole.losses, {}, harness.read_checkpoint(saved)[0])
    identity.compare(found, whole)
    return "identical"


def two_places_body(optimizer, mesh, tools):
    """A table at two places: sums of other order, so to rounding."""
    graph = twice(Rough)
    options = [f"--optimizer={REPLAYED[optimizer]}"]
    found = train(tools, graph, (mesh, "half", "1f1b", "none"),
                  [*options, "--sparse=exact"], 6)
    base = train(tools, graph, ONE, options, 6, tag="-dense")
    for name, tensor in base.weights.items():
        close(name, found.weights[name].data, tensor.data)
    return "close"


def differs_body(optimizer, tools):
    """Lazy updates in place of dense ones are no rounding."""
    graph = long_linear(12, come_and_go)
    dense, lazy = (linear_run(optimizer, ONE, option, graph, 12, tag, tools)
                   for option, tag in (([], "-dense"), (["--sparse=lazy"], "")))
    most = max(abs(x - y) for x, y in zip(lazy.weights["table"].data,
                                          dense.weights["table"].data))
    if most < 0.01:
        raise Failed(f"differ by {most} at most")
    return f"by {most:.2g}"


def replayed_cases(args):
    cases = [(*case, options) for case in itertools.product(
        MODELS, MESHES, ("whole", "half", "one"), SCHEDULES)
        if matrix.defined(case[1], case[2], case[3]) and
        not (case[3] == "interleaved" and matrix.degrees(case[1])["pp"] == 1)
        for options in range(5)
        if options != 4 or case[1] != "none"]
    options = [[], [CLIP], ["full"], ["--grad-overlap=off"],
               ["--zero=1"]]
    if not args.all:
        cases = matrix.pairwise(cases)
    for *layout, at in cases:
        yield Case(" ".join(["replayed", *layout, *options[at]]),
                   functools.partial(replayed_body, *layout, options[at]))
    for optimizer, (mesh, microbatch, more) in itertools.product(
            REPLAYED, [("none", "half", []), ("dp=2", "whole", []),
                       ("dp=4", "half", []), ("tp=2", "one", []),
                       ("dp=2,tp=2", "half", []), ("dp=2", "half", ["--zero=2"]),
                       ("dp=2", "half", ["--zero=3"])]):
        yield Case(" ".join(["replayed sums", optimizer, mesh, microbatch, *more]),
                   functools.partial(sums_body, optimizer, mesh, microbatch, more,
                                     "merak-run"))
    if os.path.exists(os.path.join(args.bin_dir, EMULATED)):
        for optimizer, (mesh, microbatch) in itertools.product(
                REPLAYED, [("none", "half"), ("dp=2", "half"), ("tp=2", "one")]):
            yield Case(f"replayed device {optimizer} {mesh}", functools.partial(
                sums_body, optimizer, mesh, microbatch, [], EMULATED))
    for optimizer in REPLAYED:
        yield Case(f"replayed long {optimizer}",
                   functools.partial(long_body, optimizer, 500))
    # A table at two places has other sums with dense gradients.
    for name, optimizer, clip in itertools.product(
            ("lookup", "tables", "padded"), REPLAYED, ([], [CLIP])):
        yield Case(" ".join(["replayed rough", name, optimizer, *clip]),
                   functools.partial(rough_body, name, optimizer, clip))
    for optimizer, mesh in itertools.product(
            ("adamw", "momentum"), ("none", "pp=2", "pp=2,dp=2")):
        yield Case(f"replayed two places {optimizer} {mesh}",
                   functools.partial(two_places_body, optimizer, mesh))
    for optimizer in ("adamw", "adam", "momentum", "decay"):
        yield Case(f"replayed differs {optimizer}",
                   functools.partial(differs_body, optimizer))
    for optimizer, mesh in itertools.product(
            ("adamw", "momentum", "decay"), ("none", "dp=2", "tp=2")):
        yield Case(f"replayed skipped {optimizer} {mesh}",
                   functools.partial(skipped_body, optimizer, mesh))
    for optimizer, order in itertools.product(
            ("adamw", "momentum"),
            itertools.product(([], ["--sparse=exact"]), repeat=2)):
        if any(order):
            yield Case(" ".join(["replayed handed", optimizer, *(
                "exact" if o else "dense" for o in order)]),
                functools.partial(handed_body, optimizer, *order))


# --------------------------------------------------------------------- lazy


def stepped(kind, p, g, state, step):
    """One step on one element; `state` by name."""
    lr = 0.1
    if kind == "momentum":
        state["momentum"] = (g if step == 1 else
                             0.9 * state["momentum"] + g)
        return p - lr * state["momentum"]
    decay = 0.1
    if kind == "adagrad":
        g += decay * p
        state["sum"] += g * g
        return p - lr * g / (math.sqrt(state["sum"]) + 1e-10)
    if kind == "adamw":
        p *= 1 - lr * decay
    elif kind == "adam":
        g += decay * p
    state["exp_avg"] = 0.9 * state["exp_avg"] + 0.1 * g
    state["exp_avg_sq"] = 0.99 * state["exp_avg_sq"] + 0.01 * g * g
    m = state["exp_avg"] / (1 - 0.9 ** step)
    v = state["exp_avg_sq"] / (1 - 0.99 ** step)
    return p - lr * m / (math.sqrt(v) + 1e-8)


LAZY = {"adamw": ("adamw:lr=0.1,betas=0.9/0.99,weight_decay=0.1",
                  ("exp_avg", "exp_avg_sq")),
        "adam": ("adam:lr=0.1,betas=0.9/0.99,weight_decay=0.1",
                 ("exp_avg", "exp_avg_sq")),
        "momentum": ("sgd:lr=0.1,momentum=0.9", ("momentum",)),
        "adagrad": ("adagrad:lr=0.1,weight_decay=0.1,eps=1e-10", ("sum",))}


def reference(graph, kind, steps):
    """Table and states after so many steps."""
    table = [float(v) for v in graph.weights["table"]]
    states = {name: [0.0] * len(table) for name in LAZY[kind][1]}
    ids, target = graph.data["ids"][2], graph.data["target"][2]
    batch, each = BATCH, graph.data["ids"][1][1]
    touched = set()
    for step in range(1, steps + 1):
        first = (step - 1) * batch % SAMPLES * each
        sums = {}
        for at in range(first, first + batch * each):
            row = sums.setdefault(ids[at], [0.0] * COLUMNS)
            for j in range(COLUMNS):
                row[j] += target[at * COLUMNS + j]
        touched |= set(sums)
        for row, gradient in sums.items():
            for j, g in enumerate(gradient):
                at = row * COLUMNS + j
                state = {name: values[at] for name, values in states.items()}
                table[at] = stepped(kind, table[at], g, state, step)
                for name, value in state.items():
                    states[name][at] = value
    return table, states, touched


def close(what, found, expected):
    for at, (x, y) in enumerate(zip(found, expected)):
        if abs(x - y) > 1e-5 * max(1, abs(y)):
            raise Failed(f"{what}[{at // COLUMNS}, {at % COLUMNS}] is {x!r}, "
                         f"expected {y!r}")


def lazy_body(kind, mesh, microbatch, tools):
    steps = 5
    graph = linear()
    result = train(tools, graph, (mesh, microbatch, "1f1b", "none"),
                   [f"--optimizer={LAZY[kind][0]}", "--sparse=lazy"], steps)
    table, states, touched = reference(graph, kind, steps)
    if len(touched) == ROWS:
        raise Failed("every row has a gradient")
    close("table", result.weights["table"].data, table)
    for name, values in states.items():
        close(name, result.weights[f"table.{name}"].data, values)
    return f"{len(touched)} of {ROWS} rows"


def padding_body(tools):
    """A step on the row of padding, whose gradient is zero, would let it decay."""
    graph = padded(Rough)
    found = train(tools, graph, ("dp=2", "half", "1f1b", "none"),
                  [f"--optimizer={LAZY['adamw'][0]}", "--sparse=lazy"], 3)
    row = PADDING["padded"] * COLUMNS
    before, after = (harness.array.array("f", values)[row:row + COLUMNS]
                     for values in (graph.weights["table"],
                                    found.weights["table"].data))
    if before != after:
        raise Failed(f"was {before}, is {after}")
    return "as it was"


def lazy_cases():
    yield Case("lazy padding", padding_body)
    for kind, (mesh, microbatch) in itertools.product(
            LAZY, [("none", "whole"), ("none", "half"), ("dp=2", "half"),
                   ("tp=2", "whole"), ("dp=2,tp=2", "one")]):
        yield Case(f"lazy {kind} {mesh} {microbatch}",
                   functools.partial(lazy_body, kind, mesh, microbatch))


# ------------------------------------------------------------------ pytorch


RECORDED = os.path.join(os.path.dirname(__file__),
                        "../data/sparse/pytorch.json")
RECORDED_STEPS = 6
# The options of the optimizers that sparse_record.py names.
OPTIMIZERS = {"sgd": "sgd:lr=0.01", "adagrad": "adagrad:lr=0.05,eps=1e-10",
              "adam": "adam:lr=0.01,eps=1e-12",
              "adamw": "adamw:lr=0.01,eps=1e-8,weight_decay=0.1",
              "adam-l2": "adam:lr=0.01,eps=1e-8,weight_decay=0.1",
              "momentum": "sgd:lr=0.01,momentum=0.9,weight_decay=0.01"}
# Recorded with dense gradients.
DENSE = {"adamw", "adam-l2", "momentum"}
# What is multiplied by the target, in PyTorch.
FORWARD = {
    "lookup": lambda t, w, x, torch:
        torch.relu(t["table"](x["ids"]) @ w["w"]) @ w["out"],
    "twice": lambda t, w, x, torch: torch.relu(torch.cat(
        [t["table"](x["a"]) @ w["w"], t["table"](x["b"]) @ w["v"]], 1)),
    "tables": lambda t, w, x, torch: torch.relu(torch.cat(
        [t[f"t{k}"](x[f"c{k}"]) for k in range(3)], 2) @ w["w"]) @ w["out"],
}
FORWARD["padded"] = FORWARD["lookup"]


@functools.cache
def recorded():
    with open(RECORDED, encoding="utf-8") as file:
        return json.load(file)["runs"]


def pytorch_body(name, optimizer, mesh, microbatch, tools):
    found = train(tools, MODELS[name](Rough),
                  (mesh, microbatch, "1f1b", "none"),
                  [f"--optimizer={OPTIMIZERS[optimizer]}", "--sparse=exact"
                   if optimizer in DENSE else "--sparse=lazy"], RECORDED_STEPS)
    if (optimizer in DENSE) != (has_replays(tools) > 0):
        raise Failed("steps are replayed, or not, as they should not be")
    expected = recorded()[f"{name} {optimizer}"]
    close("losses", found.losses, expected["losses"])
    for key, values in expected["weights"].items():
        close(key, found.weights[key].data, values)
    return f"loss {found.losses[-1]:.4f}"


def pytorch_cases():
    for name, optimizer, (mesh, microbatch) in itertools.product(
            FORWARD, OPTIMIZERS, [("none", "whole"), ("dp=2,tp=2", "half"),
                                  ("pp=2,dp=2", "one")]):
        yield Case(f"pytorch {name} {optimizer} {mesh} {microbatch}",
                   functools.partial(pytorch_body, name, optimizer, mesh,
                                     microbatch))


# ------------------------------------------------------------------- device


def device_body(name, mesh, microbatch, tools):
    found = train(tools, MODELS[name](), (mesh, microbatch, "1f1b", "none"),
                  [*SGD, "--sparse=exact"], runner=EMULATED)
    identity.compare(found, exact_base(name, [], tools))
    return "identical"


def device_lazy(kind, tools):
    layout = ("dp=2", "half", "1f1b", "none")
    options = [f"--optimizer={LAZY[kind][0]}", "--sparse=lazy"]
    base = train(tools, linear(), layout, options, 3, "-cpu")
    found = train(tools, linear(), layout, options, 3, runner=EMULATED)
    for name, tensor in base.weights.items():
        close(name, found.weights[name].data, tensor.data)
    return "close"


def device_cases(args):
    if not os.path.exists(os.path.join(args.bin_dir, EMULATED)):
        return  # built without CUDA
    for name, (mesh, microbatch) in itertools.product(
            ("lookup", "twice"), [("none", "whole"), ("dp=2", "half"),
                                  ("tp=2", "one"), ("pp=2,dp=2", "half")]):
        yield Case(f"device {name} {mesh} {microbatch}",
                   functools.partial(device_body, name, mesh, microbatch))
    for kind in LAZY:
        yield Case(f"device lazy {kind}", functools.partial(device_lazy, kind))


# ----------------------------------------------------- resumed, bytes, dense


def resumed_body(kind, mesh, tools):
    layout = (mesh, "half", "1f1b", "none")
    options = [f"--optimizer={LAZY[kind][0]}", "--sparse=lazy"]
    whole = train(tools, lookup(), layout, options, 3)
    again = train(tools, lookup(), layout, options, 3, "-again", resume=True)
    again.losses = whole.losses
    identity.compare(again, whole)
    return "identical"


def of_rows(rows, tools):
    graph = exact_models.Graph("large")
    ids = graph.input("ids", [2], 0, rows - 1, exact_models.INT64)
    h = graph.op("Gather", graph.weight("table", [rows, COLUMNS]), ids, axis=0)
    graph.target_loss(graph.op("MatMul", h, graph.weight("w", [COLUMNS, 4])),
                      [2, 4])
    return seam_models.write(tools, graph)[0]


def rows_body(mesh, tools):
    steps = []
    for rows in (500, 50000):
        tools.run("merakc", of_rows(rows, tools), "-o", tools.path("x.plan"),
                  *matrix.compile_options(mesh, "half", "1f1b"),
                  f"--cluster={CLUSTER}", "--sparse=lazy")
        steps.append(prices.simulated(tools, tools.path("x.plan")))
    if steps[1] > 1.1 * steps[0]:  # caches hold the smaller table
        raise Failed("of 500 rows {:.3g} s, of 50000 {:.3g} s".format(*steps))
    return f"{1e6 * steps[1]:.1f} us"


def bytes_body(mesh, precision, tools):
    model = of_rows(5000, tools)
    plan = tools.path("x.plan")

    def large(*options):
        tools.run("merakc", model, "-o", plan, *matrix.compile_options(
            mesh, "half", "1f1b"), f"--precision={precision}", *options)
        text = tools.run("merak-plan", "print", plan)[0]
        return [line for line in text.splitlines()
                if re.search(r"\[(5000|2500),(4|8)\]", line) and
                re.search(r"\b(gradients|activations|workspace)\b", line)]

    if not large():
        raise Failed("the dense plan has no large gradient")
    found = large("--sparse=lazy")
    if found:
        raise Failed("a buffer of the table's size: " + found[0].strip())
    return "none"


def grads_body(name, tools):
    graph = MODELS[name]()
    model, data = seam_models.write(tools, graph)
    found = []
    for option in ("off", "exact"):
        plan = tools.path(option + ".plan")
        grads = tools.path(option + ".safetensors")
        tools.run("merakc", model, "-o", plan, "--optimizer=sgd:lr=0.5",
                  *matrix.compile_options("dp=2", "half", "1f1b"),
                  f"--sparse={option}")
        tools.run("merak-run", plan, f"--data={data}", "--steps=1",
                  f"--save-grads={grads}")
        found.append(harness.read_safetensors(grads))
    dense, sparse = found
    for table in TABLES[name]:
        dense.pop(table)
    identity.compare(identity.Result([], sparse, {}),
                     identity.Result([], dense, {}))
    return f"{len(sparse)} gradients"


def dense_body(tools):
    model = exact_models.path("tied")
    plans = []
    for option in ("off", "lazy"):
        plan = tools.path(option + ".plan")
        tools.run("merakc", model, "-o", plan,
                  *matrix.compile_options("dp=2", "half", "1f1b"),
                  f"--sparse={option}")
        plans.append(tools.run("merak-plan", "print", plan)[0])
    if plans[0] != plans[1]:
        raise Failed("the plan differs")
    said = "".join(tools.run("merakc", model, "--to=graph", "--sparse=lazy",
                             "--global-batch=8",
                             "--remarks=sparse", "-o", tools.path("x.mlir")))
    if "keeps its gradient" not in said:
        raise Failed(f"no remark says why: {said!r}")
    return "the same plan"


def refused_columns(tools):
    """Eight columns over three replicas."""
    row = "columns of 3"
    rows = {row: (lookup, {"dp": 3}, {}, [("MatMul_2", 0)],
                  [("table", 1, COLUMNS, ["dp"])])}
    seam_strategies.write(tools.path("row.json"), row, 1, rows)
    model, _ = seam_models.write(tools, lookup())
    return refuse(tools, "merakc", model, "--sparse=lazy", "--global-batch=12",
                  "--mesh=dp=3", f"--strategy={tools.path('row.json')}", "-o",
                  tools.path("x.plan"), says=["table", "8", "3"])


def refused_id(number, tools):
    graph = lookup()
    graph.data["ids"][2][7] = number
    model, data = seam_models.write(tools, graph)
    plan = tools.path("x.plan")
    tools.run("merakc", model, "-o", plan, "--sparse=lazy",
              *matrix.compile_options("dp=2", "half", "1f1b"))
    return refuse(tools, "merak-run", plan, f"--data={data}", "--steps=1",
                  says=[str(number), str(ROWS)])


def main():
    args = harness.parser(__doc__).parse_args()
    cases = [*exact_cases(args.all), *with_cases(args.all), *columns_cases(),
             *touched_cases(), Case("found columns", functools.partial(
                 found_body, 1e5, "all_to_all", "columns")),
             Case("found rows", functools.partial(
                 found_body, 1e9, "all_gather", "gathered rows")),
             *same_cases(), *replayed_cases(args), *lazy_cases(), *pytorch_cases(), *device_cases(args),
             *(Case(f"resumed {kind} {mesh}",
                    functools.partial(resumed_body, kind, mesh))
               for kind, mesh in (("adamw", "dp=2"), ("momentum", "pp=2"))),
             *(Case(f"bytes {mesh} {precision}",
                    functools.partial(bytes_body, mesh, precision))
               for mesh, precision in itertools.product(
                   ("none", "dp=2", "tp=2"), ("fp32", "bf16"))),
             *(Case(f"rows {mesh}", functools.partial(rows_body, mesh))
               for mesh in ("none", "dp=2", "pp=2", "tp=2")),
             *(Case(f"grads {name}", functools.partial(grads_body, name))
               for name in ("lookup", "twice")),
             Case("dense tied", dense_body),
             Case("refused columns of 3", refused_columns),
             *(Case(f"refused id {number}",
                    functools.partial(refused_id, number))
               for number in (-ROWS - 1, ROWS))]
    return harness.run_cases("sparse", cases, args)


if __name__ == "__main__":
    sys.exit(main())
