#!/usr/bin/env python3
"""Row-sparse gradients of tables.

exact    models whose sums are exact in any order: every layout gives the losses
         and weights of one rank with dense gradients; SGD, clipped or not
with     the same with parameters stored in parts, overlap of tensor parallelism and of
         gradients, recomputation, tokens over tp
columns  a table in columns over replicas: rows and slices go by all-to-all, ids are
         gathered once; the bits of one rank
touched  with --touched replicas sum slices of one id before they send them: the same
         bits, and as few bytes as there are different rows; with --data the share is
         the one that Python counts
found    over slow links the search finds them by itself, and gathers rows where
         there are few
same     any numbers, one rank: the bits that the dense gradient leaves, under
         optimizers that change no row without a gradient
replayed under optimizers that change every row in each step: the bits that dense
         gradients leave, of tables and of their states, in every layout; with
         other numbers on one rank, with what a run has besides (clipping, rates
         that change, steps skipped as not finite), over hundreds of steps; from
         checkpoints of dense plans and back
delayed  with --delayed-rows, rows that no lookup of the next step needs are exchanged and
         updated beside it: the bits of updates at once, over many steps, with
         checkpoints in between and steps that are skipped; what would be wrong
         (ids of other steps or of one worker, rows one lookup late, numbers of
         another step) is found out
lazy     the others against plain Python in doubles: rows that no sample names keep
         their bits and their states
pytorch  any numbers: losses and weights of PyTorch's sparse optimizers and, with
         --sparse=exact, of its dense ones (sparse_record.py), tables at one and at
         several places, with padding
exported models that PyTorch exported and trained (sparse_torch.py): a DLRM, bags, a
         language model with a sampled head
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
import re
import sys

import exact_models
import harness
import identity
import matrix
import prices
import seam_models
import seam_strategies
from bad_input import refuse
from harness import Case, Failed
from sparse_models import (BATCH, CLIP, CLUSTER, COLUMNS, DYADIC, EMULATED, MESHES,
                           MODELS, PADDING, ROWS, Rough, SAMPLES, SCHEDULES, SGD,
                           TABLES, close, linear, lookup, padded, train, write)
from sparse_delayed import delayed_cases
from sparse_exported import exported_cases
from sparse_replayed import has_replays, replayed_base, replayed_cases


# ------------------------------------------------------------- exact, same


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


# Inputs that hold the ids of a table of ROWS rows.
COUNTED = {"lookup": {"table": ["ids"]}, "twice": {"table": ["a", "b"]}}


def named_by(graph, inputs, samples):
    """Different rows that so many samples name, on average, and their ids."""
    total = exact_models.SAMPLES // matrix.GLOBAL_BATCH * matrix.GLOBAL_BATCH
    found, ids = 0, 0
    for first in range(0, total, samples):
        rows = set()
        for key in inputs:
            _, shape, values = graph.data[key]
            each = math.prod(shape[1:])
            part = values[first * each:(first + samples) * each]
            rows.update(part)
            ids += len(part)
        found += len(rows)
    return found * samples / total, ids * samples / total


def touched_counted(name, microbatch, tools):
    """With --data the share is that of the ids that a replica sends at once, as
    Python counts it; one that is given goes before."""
    graph = MODELS[name]()
    model, data = write(tools, graph)
    told = [f"--touched={table}=0.1" for table in COUNTED[name]]
    shares = {}
    for tag, options in (("data", [f"--data={data}"]), ("told", told),
                         ("both", [f"--data={data}", *told])):
        tools.run("merakc", model, "-o", tools.path("out.plan"), *SGD,
                  "--sparse=exact", "--mixed-layouts=off", *options,
                  *matrix.compile_options("dp=2", microbatch, "1f1b"))
        shares[tag] = trimmed(tools)
    expected = []
    for inputs in COUNTED[name].values():
        rows, ids = named_by(graph, inputs, matrix.samples("dp=2", microbatch))
        expected += [rows / ids] if rows <= 0.9 * ids else []
    if not shares["told"] or shares["both"] != shares["told"]:
        raise Failed(str(shares))
    # The last microbatch may have an exchange of its own.
    if len(set(shares["data"])) != len(expected) or any(
            abs(x - expected[0]) > 1e-5 for x in shares["data"]):
        raise Failed(f"{shares['data']}, expected {expected}")
    return f"shares {shares['data']}"


def touched_uncounted(tools):
    """Data that lack the ids."""
    model, data = write(tools, lookup())
    os.rename(os.path.join(data, "ids.npy"), os.path.join(data, "idz.npy"))
    return refuse(tools, "merakc", model, "--sparse=lazy", f"--data={data}",
                  "--global-batch=8", "-o", tools.path("x.plan"),
                  says=["--data", "ids"])


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
    for name, microbatch in itertools.product(COUNTED, ("whole", "half")):
        yield Case(f"touched counted {name} {microbatch}",
                   functools.partial(touched_counted, name, microbatch))
    yield Case("touched refused data", touched_uncounted)
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
             *same_cases(), *replayed_cases(args), *delayed_cases(args),
             *lazy_cases(), *pytorch_cases(), *exported_cases(args.all),
             *device_cases(args),
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
