#!/usr/bin/env python3
"""Models that bring their training algorithm (TrainingInfoProto): a loss, a
Gradient node and nodes Adam, Adagrad or Momentum of ai.onnx.preview.training.

train     losses and weights of six steps against the operators' formulas in
          double precision, with gradients written out by hand, on several meshes
rate      the same with rates that the algorithm computes
begun     the same with states that do not begin with zeros
torch     the same with --optimizer, which goes before the algorithm's, and
          PyTorch's formulas
resume    three steps, a checkpoint, three steps
start     what the initialization graph computes
replace   what goes before what, and what the report says of it
refused   all that does not fit, at once
"""
import functools
import math
import random
import sys

import harness
import matrix
from harness import Case, Failed

SIZES = [("w1", [4, 6]), ("b1", [6]), ("w2", [6, 3]), ("b2", [3])]
STEPS, RATE = 6, 0.125
TOLERANCE = 2e-5
# ONNX holds attributes as f32.
ALPHA, BETA, EPSILON = 0.875, 0.96875, 1e-3
# Name, operator, attributes, count in the first step.
FORMS = {
    "momentum": ("Momentum", dict(alpha=ALPHA, beta=1.0, norm_coefficient=0.0,
                                  mode="standard"), 0),
    "damped": ("Momentum", dict(alpha=ALPHA, beta=0.75, mode="standard",
                                norm_coefficient=0.125), 0),
    "nesterov": ("Momentum", dict(alpha=ALPHA, beta=1.0, norm_coefficient=0.25,
                                  mode="nesterov"), 1),
    "damped-3": ("Momentum", dict(alpha=ALPHA, beta=0.75, mode="nesterov",
                                  norm_coefficient=0.125), 3),
    "plain": ("Momentum", dict(alpha=0.0, beta=1.0, norm_coefficient=0.0,
                               mode="standard"), 3),
    "adam": ("Adam", dict(alpha=ALPHA, beta=BETA, epsilon=EPSILON), 0),
    "adam-1": ("Adam", dict(alpha=ALPHA, beta=BETA, epsilon=EPSILON), 1),
    "adam-norm": ("Adam", dict(alpha=ALPHA, beta=BETA, epsilon=EPSILON,
                               norm_coefficient=0.125,
                               norm_coefficient_post=0.0625), 0),
    "adagrad": ("Adagrad", dict(epsilon=EPSILON), 0),
    "adagrad-decay": ("Adagrad", dict(epsilon=EPSILON, decay_factor=0.5,
                                      norm_coefficient=0.125), 1),
}
TORCH = {
    "adam": dict(lr=0.0625, betas="0.875/0.9375", eps=1e-3, weight_decay=0.125),
    "adagrad": dict(lr=0.125, lr_decay=0.25, eps=1e-3, weight_decay=0.0625)}
MESHES = ["none", "dp=2", "tp=2", "pp=2", "pp=2,dp=2,tp=2"]




def const(name, value, kind=1):
    return tensor("initializer", name, [], [value], kind)


def rates():
    """{name: (nodes and initializers, updates, result, rate of a step)}. Counts
    of the model begin at 2 where the rate reads them."""
    count = node("Cast", ["count"], ["count_f"], to=1)
    ramp = (count + const("four", 4.0) + const("half", 0.5)
            + node("Less", ["count_f", "four"], ["early"])
            + node("Div", ["count_f", "four"], ["part"])
            + node("Cos", ["count_f"], ["wave"])
            + node("Clip", ["wave", "", "half"], ["low"])
            + node("Exp", ["low"], ["grown"])
            + node("Where", ["early", "part", "grown"], ["factor"])
            + node("Mul", ["rate", "factor"], ["rate_now"]))
    state = (const("fall", 0.75) + const("least", 0.0625)
             + node("Mul", ["rate", "fall"], ["fallen"])
             + node("Max", ["fallen", "least"], ["rate_next"]))
    halves = (const("even", 1.0) + const("one_f", 1.0)
              + node("Sub", ["one_f", "even"], ["even_next"])
              + node("Add", ["even", "one_f"], ["double"])
              + node("Div", ["rate", "double"], ["rate_now"]))
    return {
        "decay": (count + const("base", 0.875)
                  + node("Pow", ["base", "count_f"], ["power"])
                  + node("Mul", ["rate", "power"], ["rate_now"]),
                  [], "rate_now", lambda t: RATE * 0.875 ** (t + 2)),
        "ramp": (ramp, [], "rate_now", lambda t: RATE * (
            (t + 2) / 4 if t < 2 else math.exp(min(0.5, math.cos(t + 2))))),
        "state": (state, [("rate", "rate_next")], "rate",
                  lambda t: max(RATE * 0.75 ** t, 0.0625)),
        "next": (state, [("rate", "rate_next")], "rate_next",
                 lambda t: max(RATE * 0.75 ** (t + 1), 0.0625)),
        "two": (halves, [("even", "even_next")], "rate_now",
                lambda t: RATE / (1 + (t + 1) % 2)),
        "folded": (const("twice", 2.0)
                   + node("Mul", ["rate", "twice"], ["rate_now"]),
                   [], "rate_now", lambda t: 2 * RATE),
    }


# ------------------------------------------------------------------ the model


def numbers(name, shape):
    draw = random.Random(name)
    return [draw.uniform(-0.8, 0.8) for _ in range(math.prod(shape))]


def tensor(field, name, shape, values, kind=1):
    key = {1: "float_data", 7: "int64_data"}[kind]
    return (f"{field} {{ data_type: {kind} name: '{name}' "
            + "".join(f"dims: {d} " for d in shape)
            + "".join(f"{key}: {v!r} " for v in values) + "}\n")


def info(field, name, shape):
    dims = "".join(f"dim {{ dim_value: {d} }} " for d in shape)
    return (f"{field} {{ name: '{name}' type {{ tensor_type {{ elem_type: 1 "
            f"shape {{ {dims} }} }} }} }}\n")


def node(op, inputs, outputs, training=False, **attributes):
    text = f"node {{ op_type: '{op}' "
    text += "domain: 'ai.onnx.preview.training' " if training else ""
    text += "".join(f"input: '{name}' " for name in inputs)
    text += "".join(f"output: '{name}' " for name in outputs)
    for name, value in attributes.items():
        text += f"attribute {{ name: '{name}' "
        if isinstance(value, float):
            text += f"type: FLOAT f: {value!r} "
        elif isinstance(value, int):
            text += f"type: INT i: {value} "
        elif isinstance(value, str):
            text += f"type: STRING s: '{value}' "
        elif isinstance(value, Raw):
            text += value.text
        elif isinstance(value[0], int):
            text += "type: INTS " + "".join(f"ints: {v} " for v in value)
        else:
            text += "type: STRINGS " + "".join(f"strings: '{v}' "
                                               for v in value)
        text += "} "
    return text + "}\n"


class Raw:
    def __init__(self, text):
        self.text = text


def bindings(field, pairs):
    return "".join(f"{field} {{ key: '{k}' value: '{v}' }}\n"
                   for k, v in pairs)


def model(op="Adam", attributes=None, start=0, split=False, extra="",
          begun=False, clip=False, initialization="", more=(),
          rate=("", [], "rate")):
    """Prediction as the model; loss and update as its algorithm. `start` is the
    count of the first step; from 1 on the optimizer sees the new count. `begun`:
    states have values. `rate`: nodes, updates and the rate."""
    sees_new = start > 0
    count = start - sees_new
    names = [name for name, _ in SIZES]
    states = ["v", "h"] if op == "Adam" else ["v"]
    graph = "".join(tensor("initializer", name, shape, numbers(name, shape))
                    for name, shape in SIZES)
    graph += node("Gemm", ["x", "w1", "b1"], ["z"])
    graph += node("Tanh", ["z"], ["a"])
    graph += node("Gemm", ["a", "w2", "b2"], ["y"])
    graph += info("input", "x", [8, 4]) + info("output", "y", [8, 3])
    algorithm = rate[0] + node("Sub", ["y", "t"], ["d"])
    algorithm += node("Mul", ["d", "d"], ["q"])
    algorithm += node("ReduceMean", ["q"], ["mse"], keepdims=0)
    algorithm += node("Gradient", names + ["x", "t"],
                      ["g_" + n for n in names], True, xs=names,
                      zs=["x", "t"], y="mse")
    algorithm += node("Add", ["count", "one"], ["count_next"])
    gradients = ["g_" + n for n in names]
    if clip:
        algorithm += node("Clip", ["g_w1"], ["clipped"])
        gradients[0] = "clipped"
    updates = [("count", "count_next"), *rate[1]]
    for group in ([[n] for n in names] if split else [names]):
        algorithm += node(
            op, [rate[2], "count_next" if sees_new else "count"] + group
            + [gradients[names.index(n)] for n in group]
            + [f"{s}_{n}" for s in states for n in group],
            ["new_" + n for n in group]
            + [f"new_{s}_{n}" for s in states for n in group], True,
            **(attributes or {}))
        updates += [(n, "new_" + n) for n in group]
        updates += [(f"{s}_{n}", f"new_{s}_{n}")
                    for s in states for n in group]
    algorithm += tensor("initializer", "rate", [], [RATE])
    algorithm += tensor("initializer", "count", [], [count], 7)
    algorithm += tensor("initializer", "one", [], [1], 7)
    algorithm += "".join(
        tensor("initializer", f"{s}_{name}", shape,
               begin(s, name) if begun else [0.0] * math.prod(shape))
        for s in states for name, shape in SIZES)
    algorithm += info("input", "t", [8, 3]) + extra
    return (f"ir_version: 8 graph {{ name: 'predict' {graph} }}\n"
            "opset_import { version: 17 }\n"
            "opset_import { domain: 'ai.onnx.preview.training' version: 1 }\n"
            f"training_info {{ {initialization} algorithm {{ name: 'step' "
            f"{algorithm} }} {bindings('update_binding', updates)} "
            f"{bindings('update_binding', more)} }}\n")


def begin(state, name):
    """First values of a state; a sum of squares is not negative."""
    return [v * v for v in numbers(state + name, dict(SIZES)[name])]


def write(tools, text):
    path = tools.path("model.textproto")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def data(tools):
    for name, width in (("x", 4), ("t", 3)):
        harness.write_npy(tools.path(name + ".npy"), "<f4",
                          [8 * STEPS, width], numbers(name, [8 * STEPS, width]))
    return "--data=" + tools.folder


# ----------------------------------------------------------------- the oracle


def single(values):
    """As f32 holds them."""
    return list(harness.array.array("f", values))


def forward_backward(weights, x, t):
    """Loss and gradients of mean((tanh(x w1 + b1) w2 + b2 - t)^2)."""
    w1, b1, w2, b2 = (weights[name] for name, _ in SIZES)
    g = {name: [0.0] * math.prod(shape) for name, shape in SIZES}
    loss, rows = 0.0, len(x) // 4
    for r in range(rows):
        row = x[4 * r:4 * r + 4]
        a = [math.tanh(b1[j] + sum(row[i] * w1[6 * i + j] for i in range(4)))
             for j in range(6)]
        d = [b2[k] + sum(a[j] * w2[3 * j + k] for j in range(6))
             - t[3 * r + k] for k in range(3)]
        loss += sum(e * e for e in d) / (3 * rows)
        d = [2 * e / (3 * rows) for e in d]
        for k in range(3):
            g["b2"][k] += d[k]
        for j in range(6):
            dz = (1 - a[j] ** 2) * sum(d[k] * w2[3 * j + k] for k in range(3))
            g["b1"][j] += dz
            for k in range(3):
                g["w2"][3 * j + k] += a[j] * d[k]
            for i in range(4):
                g["w1"][6 * i + j] += row[i] * dz
    return loss, g


def onnx_update(op, at, count, x, g, v, h, rate=RATE):
    """One element; the operators' text."""
    g = at.get("norm_coefficient", 0) * x + g
    if op == "Momentum":
        v = at["alpha"] * v + (at["beta"] if count > 0 else 1) * g
        step = g + at["alpha"] * v if at["mode"] == "nesterov" else v
        return x - rate * step, v, h
    if op == "Adagrad":
        v += g * g
        rate /= (1 + count * at.get("decay_factor", 0))
        return x - rate * g / (math.sqrt(v) + at["epsilon"]), v, h
    v = at["alpha"] * v + (1 - at["alpha"]) * g
    h = at["beta"] * h + (1 - at["beta"]) * g * g
    if count > 0:
        rate *= math.sqrt(1 - at["beta"] ** count) / (1 - at["alpha"] ** count)
    x -= rate * v / (math.sqrt(h) + at["epsilon"])
    return x * (1 - at.get("norm_coefficient_post", 0)), v, h


def torch_update(op, at, count, x, g, v, h):
    """torch.optim.Adam and Adagrad."""
    g += at["weight_decay"] * x
    if op == "adagrad":
        v += g * g
        rate = at["lr"] / (1 + count * at["lr_decay"])
        return x - rate * g / (math.sqrt(v) + at["eps"]), v, h
    b1, b2 = map(float, at["betas"].split("/"))
    v = b1 * v + (1 - b1) * g
    h = b2 * h + (1 - b2) * g * g
    root = math.sqrt(h / (1 - b2 ** (count + 1))) + at["eps"]
    return x - at["lr"] * v / (1 - b1 ** (count + 1)) / root, v, h


def oracle(update, op, attributes, start, begun=False, rate=None):
    """Losses and the weights after STEPS."""
    weights = {n: single(numbers(n, shape)) for n, shape in SIZES}
    v, h = ({n: single(begin(s, n)) if begun else [0.0] * len(w)
             for n, w in weights.items()} for s in "vh")
    x, t = (single(numbers(n, [8 * STEPS, width]))
            for n, width in (("x", 4), ("t", 3)))
    losses = []
    for step in range(STEPS):
        loss, g = forward_backward(weights, x[32 * step:32 * step + 32],
                                   t[24 * step:24 * step + 24])
        losses.append(loss)
        for n, w in weights.items():
            for i, one in enumerate(w):
                w[i], v[n][i], h[n][i] = update(
                    op, attributes, start + step, one, g[n][i], v[n][i],
                    h[n][i], *([rate(step)] if rate else []))
    return losses, weights


def close(what, found, wanted):
    worst = 0.0
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        error = abs(a - b) / max(abs(b), 0.1)
        if not error <= TOLERANCE:
            raise Failed(f"{what}[{i}] is {a:.7g}, expected {b:.7g}")
        worst = max(worst, error)
    return worst


# ------------------------------------------------------------------ the cases


def build(tools, text, mesh, *options, name="out.plan"):
    out, _ = tools.run("merakc", write(tools, text), "-v", "-o",
                       tools.path(name),
                       *matrix.compile_options(mesh, "half", "gpipe"), *options)
    return out


def run(tools, *options, plan="out.plan"):
    log, saved = harness.fresh(tools.path("log.jsonl")), tools.path("saved")
    tools.run("merak-run", tools.path(plan), data(tools), f"--log={log}",
              *options, *([] if any(o.startswith("--save") for o in options)
                          else [f"--save={saved}"]))
    tensors, _ = harness.read_checkpoint(saved)
    return [e.get("mse", e.get("sse")) for e in harness.read_log(log)], tensors


def compare(losses, tensors, expected):
    worst = close("loss", losses, expected[0])
    weights = max(close(name, tensors[name].data, values)
                  for name, values in expected[1].items())
    return f"loss {worst:.0e}  weights {weights:.0e}"


def train(form, mesh, tools):
    op, attributes, start = FORMS[form]
    build(tools, model(op, attributes, start, split=form == "adagrad"), mesh)
    return compare(*run(tools, f"--steps={STEPS}"),
                   oracle(onnx_update, op, attributes, start))


def rate(name, form, mesh, tools):
    """Six steps, or three and three."""
    op, attributes, _ = FORMS[form]
    *parts, function = rates()[name]
    text = model(op, attributes, 2, rate=parts).replace(
        "name: 'count' int64_data: 1", "name: 'count' int64_data: 2")
    # The optimizer sees the new count, the rate the old one.
    out = build(tools, text, mesh)
    if ("its rate computed every step" in out) != (name != "folded"):
        raise Failed(f"the report does not say how the rate is made: {out}")
    first, _ = run(tools, "--steps=3")
    second, _ = run(tools, "--steps=3", "--load=" + tools.path("saved"),
                    "--save=" + tools.path("last"))
    tensors, _ = harness.read_checkpoint(tools.path("last"))
    return compare(first + second, tensors, oracle(
        onnx_update, op, attributes, 3, rate=function))


def begun(form, mesh, tools):
    """The values of states lie in the model, some in a file beside it."""
    op, attributes, start = FORMS[form]
    text = model(op, attributes, start, begun=True)
    at = text.index("name: 'v_w1'")
    values = begin("v", "w1")
    end = text.index("}", at)
    text = (text[:at] + "name: 'v_w1' dims: 4 dims: 6 data_location: EXTERNAL "
            "external_data { key: 'location' value: 'states' } "
            "external_data { key: 'offset' value: '8' } " + text[end:])
    with open(tools.path("states"), "wb") as file:
        file.write(bytes(8) + harness.array.array("f", values).tobytes())
    if "from states of the model" not in build(tools, text, mesh):
        raise Failed("the report does not name the states")
    return compare(*run(tools, f"--steps={STEPS}"),
                   oracle(onnx_update, op, attributes, start, begun=True))


def torch(kind, mesh, tools):
    text = ",".join(f"{k}={v}" for k, v in TORCH[kind].items())
    build(tools, model(), mesh, f"--optimizer={kind}:{text}")
    return compare(*run(tools, f"--steps={STEPS}"),
                   oracle(torch_update, kind, TORCH[kind], 0))


def resume(form, tools):
    op, attributes, start = FORMS[form]
    build(tools, model(op, attributes, start), "dp=2")
    first, _ = run(tools, "--steps=3")
    build(tools, model(op, attributes, start), "tp=2", name="after.plan")
    second, tensors = run(tools, "--steps=3",
                          "--load=" + tools.path("saved"),
                          "--save=" + tools.path("last"), plan="after.plan")
    tensors, _ = harness.read_checkpoint(tools.path("last"))
    return compare(first + second, tensors,
                   oracle(onnx_update, op, attributes, start))


def start(tools):
    """A fill, a draw and a normal draw; the count goes to where it was."""
    graph = "initialization { name: 'init' "
    graph += tensor("initializer", "shape", [1], [6], 7)
    graph += node("ConstantOfShape", ["shape"], ["i_b1"],
                  value=Raw("type: TENSOR t { data_type: 1 dims: 1 "
                            "float_data: 0.25 } "))
    graph += node("RandomUniform", [], ["i_w1"], shape=[4, 6], low=2.0,
                  high=3.0, seed=1.0)
    graph += node("RandomNormal", [], ["i_w2"], shape=[6, 3], mean=-5.0,
                  scale=0.5)
    graph += "}\n" + bindings("initialization_binding", [
        (n, "i_" + n) for n in ("w1", "b1", "w2")])
    text = model("Momentum", dict(FORMS["plain"][1], alpha=0.5),
                 initialization=graph)
    found = []
    for name in ("a", "b"):
        build(tools, text, "none", "--optimizer=sgd:lr=0", name=name + ".plan")
        found.append(run(tools, "--steps=1", plan=name + ".plan")[1])
    values = {n: list(found[0][n].data) for n, _ in SIZES}
    if any(list(found[1][n].data) != values[n] for n in values):
        raise Failed("two compilations drew other numbers")
    if values["b1"] != [0.25] * 6 or values["b2"] != single(
            numbers("b2", [3])):
        raise Failed(f"b1 is {values['b1']}, b2 {values['b2']}")
    if not all(2 <= v < 3 for v in values["w1"]) or len(
            set(values["w1"])) < 20:
        raise Failed(f"w1 is {values['w1']}")
    w2 = values["w2"]
    mean = sum(w2) / len(w2)
    spread = math.sqrt(sum((v - mean) ** 2 for v in w2) / len(w2))
    if not (abs(mean + 5) < 0.5 and 0.2 < spread < 0.9):
        raise Failed(f"w2 has mean {mean:.3g} and deviation {spread:.3g}")


def replace(tools):
    def expect(out, *texts):
        for text in texts:
            if text not in out:
                raise Failed(f"no '{text}' in: {out[:600]}")
    extra = info("output", "mse", []) + node(
        "ReduceSum", ["q"], ["sse"], keepdims=0)
    text = model(extra=extra)
    expect(build(tools, text, "none"),
           "training algorithm of the model: loss 'mse', Adam on 4 ")
    expect(build(tools, text, "none", "--optimizer=sgd:lr=0.1"),
           "--optimizer replaces the Adam of the model's training algorithm")
    expect(build(tools, text, "none", "--loss=sse"),
           "--loss replaces 'mse' of the model's training algorithm")
    found = run(tools, "--steps=1")[0][0]
    wanted = 24 * oracle(onnx_update, "Adam", dict(
        alpha=0.9, beta=0.999, epsilon=1e-6), 0)[0][0]
    close("loss", [found], [wanted])
    # With both there is no algorithm, and no input of it either.
    whole = model().replace("output { name: 'y'", "output { name: 'mean' type "
                            "{ tensor_type { elem_type: 1 shape { } } } } "
                            + node("ReduceMean", ["y"], ["mean"], keepdims=0)
                            + "output { name: 'y'")
    expect(build(tools, whole, "none", "--optimizer=sgd:lr=0.1",
                 "--loss=mean"),
           "--loss and --optimizer replace the training algorithm that the "
           "model brings")
    # Of the algorithm only what it updates is trained.
    part = model("Momentum", FORMS["momentum"][1], split=True)
    part = part.replace("key: 'w2' value: 'new_w2'",
                        "key: 'w2x' value: 'new_w2'")
    _, errors = tools.run("merakc", write(tools, part), "-o",
                          tools.path("out.plan"), expect=1)
    expect(errors, "expected its result to update parameter 'w2'")


def refused(tools):
    """Each problem has a sentence; --check lists them as well."""
    text = model("Adam", dict(alpha=0.5), begun=True, clip=True,
                 rate=(node("Mul", ["rate", "mse"], ["rate_now"]), [],
                       "rate_now"),
                 extra=node("Neg", ["b1"], ["stray"])
                 + tensor("initializer", "other", [6], [0.0] * 6),
                 more=[("other", "stray")])
    text = text.replace("name: 'v_w1' dims: 4 dims: 6",
                        "name: 'v_w1' dims: 6 dims: 4")
    text = text.replace("value: 'count_next'", "value: 'count'")
    text = text.replace("strings: 't'", "strings: 'x'")
    wanted = ["expected the gradient of 'w1' to come from Gradient, found "
              "'clipped' of Clip 'clipped'",
              "expected state 'v_w1' to have the type and shape of 'w1'",
              "expected a rate made of numbers and counts of steps, found 'mse' "
              "of ReduceMean 'mse'; use --optimizer with a schedule",
              "expected a count of updates that begins at a number and goes up "
              "by one a step, found 'count'",
              "expected updates by optimizers, found one of 'other' by 'stray'",
              "expected the tensors that xs and zs name as inputs"]
    path = write(tools, text)
    _, errors = tools.run("merakc", path, "-o", tools.path("out.plan"),
                          expect=1)
    listed, _ = tools.run("merakc", "--check", path, expect=1)
    for sentence in wanted:
        for found in (errors, listed):
            if "training algorithm: " not in found or sentence not in found:
                raise Failed(f"no '{sentence}' in: {found[:600]}")
    if "--loss and --optimizer together replace" not in errors:
        raise Failed("the errors name no way out")


def main():
    args = harness.parser(__doc__).parse_args()
    cases = [(form, mesh) for form in FORMS for mesh in MESHES]
    if not args.all:
        cases = [(form, mesh) for i, form in enumerate(FORMS)
                 for j, mesh in enumerate(MESHES)
                 if mesh == "none" or (i + j) % 4 == 0]
    cases = [Case(f"train {form} {mesh}", functools.partial(train, form, mesh))
             for form, mesh in cases]
    cases += [Case(f"rate {name} {form} {mesh}",
                   functools.partial(rate, name, form, mesh))
              for name, form, mesh in (
                  ("decay", "adam", "none"), ("ramp", "adagrad", "dp=2"),
                  ("state", "nesterov", "pp=2"), ("next", "plain", "tp=2"),
                  ("two", "adam-norm", "none"), ("folded", "adam", "none"))]
    cases += [Case(f"begun {form} {mesh}", functools.partial(begun, form, mesh))
              for form, mesh in (
                  ("momentum", "none"), ("damped", "dp=2"),
                  ("damped-3", "none"), ("adam-1", "tp=2"),
                  ("adam", "pp=2,dp=2,tp=2"), ("adagrad", "pp=2"))]
    cases += [Case(f"torch {kind} {mesh}", functools.partial(torch, kind, mesh))
              for kind, mesh in (("adam", "none"), ("adam", "dp=2"),
                                 ("adagrad", "none"), ("adagrad", "pp=2"))]
    cases += [Case(f"resume {form}", functools.partial(resume, form))
              for form in ("adam-1", "adagrad-decay", "damped")]
    cases += [Case("start", start), Case("replace", replace),
              Case("refused", refused)]
    return harness.run_cases("training-info", cases, args)


if __name__ == "__main__":
    sys.exit(main())
