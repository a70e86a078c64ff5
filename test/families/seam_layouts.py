"""Strategies with seams at random places of a recorded family: its ops by name from
the ONNX file, what each reads of another one, dimensions behind a seam over random
axes, parameters in parts."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../e2e"))
import export_onnx  # noqa: E402
import matrix  # noqa: E402
import seam_strategies  # noqa: E402

MESHES = ["tp=2", "dp=2", "dp=2,tp=2", "pp=2,dp=2", "tp=4"]


def strings(node, field):
    return [v.decode() for n, _, v in export_onnx.fields(node) if n == field]


def uses_of(path):
    """(op, operand, place of the op, place of the other one) of what a named op
    reads of another one."""
    with open(path, "rb") as file:
        model = file.read()
    graph = next(v for n, _, v in export_onnx.fields(model) if n == 7)
    nodes = [v for n, _, v in export_onnx.fields(graph) if n == 1]
    made = {name: place for place, node in enumerate(nodes)
            if strings(node, 4) != ["Constant"] for name in strings(node, 2)}
    return [(strings(node, 3)[0], k, place, made[name])
            for place, node in enumerate(nodes) if strings(node, 3)
            for k, name in enumerate(strings(node, 1)) if name in made]


def write_random(path, uses, mesh, pick):
    """As often as not with a level of ZeRO, or with tokens over tp."""
    sizes = matrix.degrees(mesh)
    strategy = seam_strategies.random_strategy(uses, sizes, pick)
    if sizes["dp"] > 1 and pick.random() < 0.5:
        strategy["zero"] = pick.choice([1, 2, 3])
    if sizes["tp"] > 1 and pick.random() < 0.3:
        strategy["sequence"] = True
    with open(path, "w", encoding="utf-8") as file:
        json.dump(strategy, file)
