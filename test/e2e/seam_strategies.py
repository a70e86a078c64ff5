"""Strategies with seams of their own: one for each row of the table in
docs/Seams.md that no option has, and random ones.

Each row names an exact model and says which seams it has, what the classes on
their sides are split over, and which parts of axes that takes.
"""
import json
import re

# dp = 2 or tp in parts; classes are (tensor, dimension, size, axes) or the same
# with (op, operand) behind.
ROWS = {
    # A lookup of 4 of 8 columns for all samples, then all columns of half of
    # the samples.
    "columns": ("embedding", {"dp": 2}, {},
                [("Add_2", 0)],
                [("table", 1, 8, ["dp"]),
                 ("", 0, 8, ["mb"], "Gather_1", 1)]),
    # Tokens of half of the samples outside, half of the experts inside.
    "experts": ("experts", {"dp": 2}, {},
                [("Einsum_6", 0), ("Einsum_9", 1)],
                [("up", 0, 4, ["dp"]),
                 ("", 0, 8, ["mb"], "Einsum_6", 0)]),
    # Convolutions by samples, wide layers by width.
    "weird trick": ("wide", {"dp": 2}, {},
                    [("MatMul_4", 0), ("MatMul_8", 0)],
                    [("wide0", 1, 32, ["dp"]),
                     ("", 0, 8, ["mb"], "MatMul_4", 0)]),
    # Widths over (tp, dp), then over dp alone: the axis that stays is not the
    # major one, so that both are gathered.
    "order": ("wide", {"dp": 2, "tp": 2}, {},
              [("MatMul_4", 0), ("MatMul_6", 0), ("MatMul_8", 0)],
              [("wide0", 1, 32, ["tp", "dp"]),
               ("", 0, 8, ["mb"], "MatMul_4", 0),
               ("", 1, 32, ["dp"], "MatMul_6", 0),
               ("", 0, 8, ["mb"], "MatMul_6", 0)]),
    # A degree of four in one layer, of two in another, none in between.
    "degrees": ("gemm", {"tp": 4}, {"tp": [2, 2]},
                [("Gemm_3", 0), ("Gemm_5", 0)],
                [("fc0.weight", 0, 16, ["tp"]),
                 ("fc1.weight", 0, 16, ["tp.1"]),
                 ("fc2.weight", 0, 16, ["tp.0"])]),
    # Tokens over one half of tp, heads and widths over the other one.
    "tokens and heads": ("attention_block", {"tp": 4}, {"tp": [2, 2]}, [],
                         [("x", 1, 4, ["tp.0"]),
                          ("proj", 0, 2, ["tp.1"]),
                          ("up", 1, 16, ["tp.1"])]),
    # Replicas in parts: parameters in half over one part, whole over the other.
    "half stored": ("linear", {"dp": 4}, {"dp": [2, 2]}, [], []),
}
STORED = {"half stored": {"w1": [["dp.0"], []], "w2": [[], ["dp"]]}}


def write(path, name, pipeline, rows=None):
    """The strategy file of a row with so many stages."""
    _, mesh, parts, seams, classes = (rows or ROWS)[name]
    strategy = {"version": 2,
                "mesh": {"pp": pipeline, "dp": mesh.get("dp", 1),
                         "tp": mesh.get("tp", 1)},
                "parts": parts,
                "seams": [{"op": op, "operand": k} for op, k in seams],
                "classes": [entry(*c) for c in classes],
                "stored": {k: {"dims": dims, "gathered": "use",
                               "gradient": "microbatch"}
                           for k, dims in STORED.get(name, {}).items()}}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({k: v for k, v in strategy.items() if v}, file)


def entry(tensor, dim, size, axes, op=None, operand=0):
    at = {"op": op, "operand": operand} if op else {"tensor": tensor}
    return {"dim": dim, **({"size": size} if size else {}), "axes": axes, **at}


def mesh_of(name, pipeline, rows=None):
    mesh = (rows or ROWS)[name][1]
    return f"pp={pipeline}," + ",".join(f"{a}={n}" for a, n in mesh.items())


def uses_of(graph):
    """Of what a node of an exact model reads from another one: (node, operand,
    place of the node, place of the other one)."""
    made = {}
    for place, text in enumerate(graph.nodes):
        fields = re.findall(r'^\s*(input|output|name): "([^"]*)"', text, re.M)
        name = [value for key, value in fields if key == "name"][-1]
        inputs = [value for key, value in fields if key == "input"]
        yield from ((name, k, place, made[value])
                    for k, value in enumerate(inputs) if value in made)
        made.update((value, place) for key, value in fields if key == "output")


def random_strategy(uses, mesh, pick):
    """One to three seams at random uses, or at all uses across a random place of
    the program; up to three of them have a random dimension behind them split over
    random axes. Not every strategy of these makes sense."""
    if pick.random() < 0.5:
        chosen = pick.sample(uses, min(len(uses), pick.randint(1, 3)))
    else:
        at = pick.randrange(1, max(use[2] for use in uses) + 1)
        chosen = [use for use in uses if use[3] < at <= use[2]]
    axes = [a for a in ("dp", "tp") if mesh[a] > 1]
    classes = []
    for op, operand, *_ in pick.sample(chosen, min(len(chosen), 3)):
        dim = pick.choice([0, 1, 1, 2])
        over = pick.choice([[], *([a] for a in axes), axes, axes[::-1]])
        if dim == 0:
            over = ["mb", *over]
        classes.append(entry("", dim, 0, over, op, operand))
    return {"version": 2, "mesh": mesh,
            "seams": [{"op": op, "operand": k} for op, k, *_ in chosen],
            "classes": classes}


def write_random(path, graph, mesh, pick):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(random_strategy(list(uses_of(graph)), mesh, pick), file)
