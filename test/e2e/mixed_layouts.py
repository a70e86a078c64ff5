"""Layouts that differ between parts of the model, found by the search: models and
machines for which they are best, since links are slow."""
import json
import math
import os

import exact_models
import harness
import identity
import matrix
from harness import Failed

# A microbatch waits long for what it sends.
LINK = {"bandwidth": 1e6, "latency": 1e-9}


def table():
    """A table of which a step reads little."""
    g = exact_models.Graph("table")
    ids = g.input("ids", [2], 0, 255, exact_models.INT64)
    h = g.op("Relu", g.op("Gather", g.weight("table", [256, 8]), ids, axis=0))
    g.target_loss(g.op("MatMul", h, g.weight("w", [8, 4])), [2, 4])
    return g


# By row of docs/Seams.md: the model, samples a step, and what is split over dp.
ROWS = {
    "columns": (table, 8, {"table": 1}),
    "experts": (exact_models.experts, 2, {"up": 0}),
    "weird trick": (exact_models.wide, 8, {"wide0": 1}),
}


def cluster_file(tools, mesh):
    ranks = math.prod(matrix.degrees(mesh).values())
    path = tools.path("slow.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"devices": ranks, "devices_per_node": ranks,
                   "device": {"kind": "cpu", "flops": 1e11,
                              "memory_bandwidth": 2e10, "launch_seconds": 1e-8},
                   "links": {"intra": LINK, "inter": LINK}}, file)
    return path


def options(tools, mesh):
    """Options of the compiler, and the strategy that it writes."""
    strategy = tools.path("found.json")
    return [f"--cluster={cluster_file(tools, mesh)}", "--mixed-layouts=auto",
            f"--emit-strategy={strategy}"], strategy


def seams_of(strategy):
    with open(strategy, encoding="utf-8") as file:
        return json.load(file).get("seams", [])


def split_over(strategy, axis):
    """Dimensions of tensors that are split over an axis, as anchors say."""
    with open(strategy, encoding="utf-8") as file:
        classes = json.load(file).get("classes", [])
    return {(c["tensor"], c["dim"]) for c in classes
            if axis in c["axes"] and not c.get("op")}


def write_model(tools, graph):
    path, data = tools.path("model.textproto"), tools.path("data")
    with open(path, "w", encoding="utf-8") as file:
        file.write(graph.text())
    os.makedirs(data, exist_ok=True)
    for key, (descr, shape, values) in graph.data.items():
        harness.write_npy(os.path.join(data, key + ".npy"), descr, shape, values)
    return path, data


def row_body(row, pipeline, tools):
    """The search finds the row, and the plan gives the bits of one rank."""
    make, samples, expected = ROWS[row]
    model, data = write_model(tools, make())
    mesh = f"pp={pipeline},dp=2,tp=1"
    found, strategy = options(tools, mesh)
    plain = ["--optimizer=sgd:lr=0.125", f"--global-batch={samples}",
             f"--microbatch={samples // 2}"]
    result = identity.train(tools, model, data,
                            [f"--mesh={mesh}", *plain, *found], 1)
    for tensor, dim in expected.items():
        if (tensor, dim) not in split_over(strategy, "dp"):
            raise Failed(f"dimension {dim} of '{tensor}' is not split over dp, "
                         f"only {sorted(split_over(strategy, 'dp'))}")
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
