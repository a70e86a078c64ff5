"""Layouts that differ between parts of the model, found by the search: models and
machines for which they are best, since links are slow."""
import json
import math
import os
import re

import exact_models
import harness
import identity
import matrix
import prices
import real_models
from harness import Failed

# A microbatch waits long for what it sends; or about as long as it computes.
SLOW, EVEN = {"flops": 1e11, "bandwidth": 1e6}, {"flops": 1e9, "bandwidth": 1e8}


def table():
    """A table of which a step reads little."""
    g = exact_models.Graph("table")
    ids = g.input("ids", [2], 0, 255, exact_models.INT64)
    h = g.op("Relu", g.op("Gather", g.weight("table", [256, 8]), ids, axis=0))
    g.target_loss(g.op("MatMul", h, g.weight("w", [8, 4])), [2, 4])
    return g


SQUARES = 8


def squares():
    """Layers with about as many weights as there are samples, and wide ones."""
    g = exact_models.Graph("squares")
    h = g.input("x", [16])
    for k in range(SQUARES):
        h = g.op("Relu", g.op("MatMul", h, g.weight(f"square{k}", [16, 16],
                                                    zeros=0.8)))
    h = g.op("Relu", g.op("MatMul", h, g.weight("wide", [16, 64], zeros=0.8)))
    g.target_loss(g.op("MatMul", h, g.weight("back", [64, 16], zeros=0.9)), [16])
    return g


def convolutions():
    """Two of them, small beside their values, in front of wide layers."""
    g = exact_models.Graph("convolutions")
    h, channels = g.input("x", [2, 4, 4]), 2
    for k in range(2):
        h = g.op("Relu", g.op("Conv", h, g.weight(f"c{k}", [4, channels, 3, 3],
                                                  zeros=0.8),
                              kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
        channels = 4
    h = g.op("Flatten", h, axis=1)
    for k, (n, m) in enumerate([(64, 32), (32, 16)]):
        h = g.op("Relu", g.op("MatMul", h, g.weight(f"wide{k}", [n, m],
                                                    zeros=0.85)))
    g.target_loss(g.op("MatMul", h, g.weight("out", [16, 4], zeros=0.7)), [4])
    return g


# By row of docs/Seams.md: the model, samples a step, the mesh besides pp, the machine,
# and what dimensions of tensors are split over.
ROWS = {
    "columns": (table, 8, "dp=2,tp=1", SLOW, {("table", 1): ["dp"]}),
    "experts": (exact_models.experts, 2, "dp=2,tp=1", SLOW, {("up", 0): ["dp"]}),
    "weird trick": (convolutions, 8, "dp=2,tp=1", SLOW,
                    {("x", 0): ["dp"], ("wide0", 0): ["dp"],
                     ("wide1", 1): ["dp"]}),
    "degrees": (squares, 16, "dp=1,tp=4", EVEN,
                {("wide", 1): ["tp.0", "tp.1"], ("square1", 0): ["tp.0"],
                 **{(f"square{k}", 1): ["tp.0"] for k in range(2, SQUARES)}}),
}


def cluster_file(tools, mesh, machine):
    ranks = math.prod(matrix.degrees(mesh).values())
    path = tools.path("slow.json")
    link = {"bandwidth": machine["bandwidth"], "latency": 1e-9}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"devices": ranks, "devices_per_node": ranks,
                   "device": {"kind": "cpu", "flops": machine["flops"],
                              "memory_bandwidth": 2e10, "launch_seconds": 1e-8},
                   "links": {"intra": link, "inter": link}}, file)
    return path


def options(tools, mesh, machine=None):
    """Options of the compiler, and the strategy that it writes."""
    strategy = tools.path("found.json")
    return [f"--cluster={cluster_file(tools, mesh, machine or SLOW)}", "--mixed-layouts=auto",
            f"--emit-strategy={strategy}"], strategy


def seams_of(strategy):
    with open(strategy, encoding="utf-8") as file:
        return json.load(file).get("seams", [])


def splits_of(strategy):
    """Axes by dimensions of tensors, as anchors say."""
    with open(strategy, encoding="utf-8") as file:
        classes = json.load(file).get("classes", [])
    return {(c["tensor"], c["dim"]): c["axes"] for c in classes
            if not c.get("op")}


def write_model(tools, graph):
    path, data = tools.path("model.textproto"), tools.path("data")
    with open(path, "w", encoding="utf-8") as file:
        file.write(graph.text())
    os.makedirs(data, exist_ok=True)
    for key, (descr, shape, values) in graph.data.items():
        harness.write_npy(os.path.join(data, key + ".npy"), descr, shape, values)
    return path, data


def seconds_of(tools, plan):
    number, unit = re.match(r"step ([\d.]+) (\w+)", tools.run(
        "merak-plan", "simulate", plan)[0]).groups()
    return float(number) * prices.UNITS[unit]


def check_faster(tools, model, mesh, plain, cluster):
    """Than one layout everywhere."""
    tools.run("merakc", model, "-o", tools.path("one.plan"), f"--mesh={mesh}",
              cluster, *plain)
    one, mixed = (seconds_of(tools, tools.path(leaf))
                  for leaf in ("one.plan", "out.plan"))
    if mixed > 0.95 * one:
        raise Failed(f"{mixed:.4g} s, with one layout everywhere {one:.4g} s")


def row_body(row, pipeline, tools):
    """The search finds the row, and the plan gives the bits of one rank."""
    make, samples, degrees, machine, expected = ROWS[row]
    model, data = write_model(tools, make())
    mesh = f"pp={pipeline},{degrees}"
    found, strategy = options(tools, mesh, machine)
    plain = ["--optimizer=sgd:lr=0.125", f"--global-batch={samples}",
             f"--microbatch={samples // 2}"]
    result = identity.train(tools, model, data,
                            [f"--mesh={mesh}", *plain, *found], 1)
    splits = splits_of(strategy)
    for place, axes in expected.items():
        if splits.get(place) != axes:
            raise Failed(f"dimension {place[1]} of '{place[0]}' is not split over "
                         f"{axes}: {splits}")
    check_faster(tools, model, mesh, plain, found[0])
    base = identity.train(tools, model, data,
                          plain[:2] + [f"--microbatch={samples}"], 1, "-base")
    identity.compare(result, base)
    # The file that was written says the same plan.
    tools.run("merakc", model, "-o", tools.path("again.plan"), *plain,
              found[0], f"--strategy={strategy}")
    again = tools.run("merak-plan", "print", tools.path("again.plan"))
    first = tools.run("merak-plan", "print", tools.path("out.plan"))
    if again != first:
        raise Failed("another plan from the strategy that was written")
    return f"identical, {len(seams_of(strategy))} seams"


CLUSTER = os.path.join(harness.ROOT, "samples/clusters/rtx3090-16x4.json")
TAKEN = re.compile(r"^plan .* ([\d.]+) (\w+) simulated; taken$", re.M)


def real_body(tools):
    """GPT-2 of 1.5B parameters, whose loss is taken apart for the layouts that are
    found: they are those of the plan that was simulated and taken, and of the one
    that is written."""
    model = tools.path("model.textproto")
    with open(model, "w", encoding="utf-8") as file:
        file.write(real_models.MODELS["gpt2-1.5b"]())
    mesh, strategy = "pp=2,dp=2,tp=4", tools.path("found.json")
    plain = ["--devices=16", "--precision=bf16", "--global-batch=64",
             "--microbatch=2"]
    cluster = f"--cluster={CLUSTER}"
    text = "".join(tools.run(
        "merakc", model, "-v", "-o", tools.path("out.plan"), f"--mesh={mesh}", cluster,
        *plain, "--mixed-layouts=auto", f"--emit-strategy={strategy}"))
    number, unit = TAKEN.search(text).groups()
    taken, written = float(number) * prices.UNITS[unit], seconds_of(
        tools, tools.path("out.plan"))
    if abs(written - taken) > 1e-3 * taken:
        raise Failed(f"{taken} s were simulated, the plan takes {written}")
    if not seams_of(strategy):
        raise Failed("no layout that was found is in the strategy")
    tools.run("merak-plan", "verify", tools.path("out.plan"))
    check_faster(tools, model, mesh, plain, cluster)
    return f"{written} s, {len(seams_of(strategy))} seams"
