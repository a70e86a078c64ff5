"""Models for seams that no recorded model has: dropout on both sides of each, and
batch norm in front of wide layers. Sums of those with dropout are exact in any
order; they are compared with one rank only, so they are written where a case runs.
"""
import os

import exact_models
import harness


def columns():
    """Dropout on rows of a table, behind the seam."""
    g = exact_models.Graph("columns")
    ids = g.input("ids", [8], 0, 15, exact_models.INT64)
    h = g.op("Gather", g.weight("table", [16, 8]), ids, axis=0)
    h = g.dropout(g.op("Add", h, g.weight("position", [8, 8])), 0.5)
    g.target_loss(g.op("MatMul", h, g.weight("w", [8, 8])), [8, 8])
    return g


def experts():
    """Dropout inside of the experts and of what they return."""
    g = exact_models.Graph("experts")
    x = g.input("x", [4, 8])
    route = g.input("route", [4, 4, 2], 0, 1)
    h = g.op("Einsum", route, x, equation="btec,btd->ebcd")
    h = g.op("Relu", g.op("Einsum", h, g.weight("up", [4, 8, 8], zeros=0.8),
                          equation="ebcd,edf->ebcf"))
    h = g.op("Einsum", g.dropout(h, 0.5), g.weight("down", [4, 8, 8], zeros=0.8),
             equation="ebcf,efd->ebcd")
    y = g.dropout(g.op("Einsum", route, h, equation="btec,ebcd->btd"), 0.5)
    g.target_loss(g.op("MatMul", g.op("Add", x, y),
                       g.weight("out", [8, 4], zeros=0.7)), [4, 4])
    return g


def front(g):
    """A convolution of few channels."""
    return g.op("Conv", g.input("x", [2, 4, 4]),
                g.weight("c.weight", [4, 2, 3, 3], zeros=0.6),
                g.weight("c.bias", [4]), kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def wide():
    """Dropout by samples, then by width."""
    g = exact_models.Graph("wide")
    h = g.dropout(g.op("Flatten", g.op("Relu", front(g)), axis=1), 0.5)
    h = g.op("Relu", g.op("MatMul", h, g.weight("wide0", [64, 32], zeros=0.85)))
    h = g.op("MatMul", g.dropout(h, 0.5), g.weight("wide1", [32, 16], zeros=0.85))
    g.target_loss(g.op("MatMul", g.op("Relu", h),
                       g.weight("out", [16, 4], zeros=0.7)), [4])
    return g


def degrees():
    """Dropout behind layers of different degrees."""
    g = exact_models.Graph("degrees")
    h = g.input("x", [8])
    for k, (n, m) in enumerate([(8, 16), (16, 16), (16, 16), (16, 4)]):
        h = g.op("Gemm", h, g.weight(f"fc{k}.weight", [m, n], zeros=0.7),
                 g.weight(f"fc{k}.bias", [m]), transB=1)
        h = g.dropout(g.op("Relu", h), 0.5) if k < 3 else h
    g.target_loss(h, [4])
    return g


def norms():
    """Batch norm behind the convolution: not exact."""
    g = exact_models.Graph("norms")
    h = front(g)
    h = g.op("BatchNormalization", h, g.weight("bn.scale", [4], 1, 1, 0),
             g.weight("bn.bias", [4]), g.weight("bn.mean", [4], 0, 0),
             g.weight("bn.var", [4], 1, 1, 0), outputs=3, training_mode=1)[0]
    h = g.op("Flatten", g.op("Relu", h), axis=1)
    h = g.op("Relu", g.op("MatMul", h, g.weight("wide0", [64, 32], zeros=0.85)))
    g.target_loss(g.op("MatMul", h, g.weight("out", [32, 4], zeros=0.7)), [4])
    return g


# As seam_strategies.ROWS, of these models.
ROWS = {
    "columns, dropout": (
        columns, {"dp": 2}, {}, [("Add_2", 0)],
        [("table", 1, 8, ["dp"]), ("", 0, 8, ["mb"], "Gather_1", 1)]),
    "experts, dropout": (
        experts, {"dp": 2}, {}, [("Einsum_2", 0), ("Einsum_7", 1)],
        [("up", 0, 4, ["dp"]), ("", 0, 8, ["mb"], "Einsum_2", 0)]),
    "weird trick, dropout": (
        wide, {"dp": 2}, {}, [("MatMul_6", 0), ("MatMul_12", 0)],
        [("wide0", 1, 32, ["dp"]), ("", 0, 8, ["mb"], "MatMul_6", 0)]),
    "degrees, dropout": (
        degrees, {"tp": 4}, {"tp": [2, 2]}, [("Gemm_5", 0), ("Gemm_9", 0)],
        [("fc0.weight", 0, 16, ["tp"]), ("fc1.weight", 0, 16, ["tp.1"]),
         ("fc2.weight", 0, 16, ["tp.0"])]),
}


def write(tools, graph):
    """The model's file and the folder of its data."""
    path, data = tools.path(graph.name + ".textproto"), tools.path("data")
    os.makedirs(data, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(graph.text())
    for key, (descr, shape, values) in graph.data.items():
        harness.write_npy(os.path.join(data, key + ".npy"), descr, shape, values)
    return path, data
