#!/usr/bin/env python3
"""A small GPT in training mode, with dropout on embeddings, attention weights
and both branches of every block.

gradient   directional derivatives of the loss of a fixed seed by central
           differences, one tensor at a time and all together
layout     losses of all meshes, microbatches and schedules; a mask that knew
           its layout would move them by far more than rounding does
order      choices that reorder no sum (stages, schedule, recomputation) change
           no bit
recomputed which masks an action R draws
continued  a saved and loaded run goes on with the masks of the whole run
off        --dropout=off and --mode=infer are the model without its dropout
seed       the seed makes the masks
That masks are right bit by bit is in identity.py (models dropout and
attention_dropout).
"""
import functools
import math
import os
import re
import random
import sys

import exact_models
import harness
import identity
import matrix
import oracle
from harness import Case, Failed

TOKENS, WIDTH, HEADS, VOCABULARY, BLOCKS = 8, 16, 2, 32, 4
RATIO = 0.1


class Gpt(exact_models.Graph):
    """`shift` moves weights: {name: (factor, direction)}."""

    def __init__(self, shift=None, ratio=RATIO):
        super().__init__("gpt")
        self.shift, self.ratio = shift or {}, ratio
        self.random = random.Random(5)
        ids = self.input("ids", [TOKENS], 0, VOCABULARY - 1, exact_models.INT64)
        labels = self.input("labels", [TOKENS], 0, VOCABULARY - 1,
                            exact_models.INT64)
        table = self.real("wte", [VOCABULARY, WIDTH])
        h = self.op("Add", self.op("Gather", table, ids, axis=0),
                    self.real("wpe", [TOKENS, WIDTH]))
        h = self.drop(h)
        for k in range(BLOCKS):
            h = self.block(f"h{k}.", h)
        h = self.norm("ln_f.", h)
        logits = self.op("MatMul", h, self.op("Transpose", table, perm=[1, 0]))
        logits = self.op("Reshape", logits, self.shape([-1, VOCABULARY]))
        labels = self.op("Reshape", labels, self.shape([-1]))
        self.nodes.append(
            f"  node {{\n    input: \"{logits}\"\n    input: \"{labels}\"\n"
            "    output: \"loss\"\n    name: \"Loss\"\n"
            "    op_type: \"SoftmaxCrossEntropyLoss\"\n  }\n")

    def real(self, name, shape, mean=0.0, spread=0.3):
        values = [self.random.gauss(mean, spread)
                  for _ in range(math.prod(shape))]
        factor, direction = self.shift.get(name, (0.0, values))
        values = [v + factor * d for v, d in zip(values, direction)]
        return self.tensor(name, exact_models.FLOAT, shape, values)

    def drop(self, value):
        return self.dropout(value, self.ratio) if self.ratio else value

    def norm(self, prefix, x):
        return self.op("LayerNormalization", x,
                       self.real(prefix + "weight", [WIDTH], 1.0),
                       self.real(prefix + "bias", [WIDTH]), axis=-1)

    def linear(self, prefix, x, n, m):
        y = self.op("MatMul", x, self.real(prefix + "weight", [n, m]))
        return self.op("Add", y, self.real(prefix + "bias", [m]))

    def block(self, prefix, x):
        h = self.norm(prefix + "ln1.", x)
        qkv = self.linear(prefix + "attn.", h, WIDTH, 3 * WIDTH)
        parts = self.op("Split", qkv, self.shape([WIDTH] * 3), outputs=3, axis=2)
        split = self.shape([-1, TOKENS, HEADS, WIDTH // HEADS])
        q, k, v = (self.op("Transpose", self.op("Reshape", p, split), perm=perm)
                   for p, perm in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1],
                                              [0, 2, 1, 3])))
        scores = self.op("MatMul", q, k)
        mask = self.tensor(
            prefix + "mask", exact_models.FLOAT, [1, 1, TOKENS, TOKENS],
            [0 if j <= i else -10000 for i in range(TOKENS)
             for j in range(TOKENS)])
        p = self.op("Softmax", self.op("Add", scores, mask), axis=-1)
        a = self.op("MatMul", self.drop(p), v)
        a = self.op("Reshape", self.op("Transpose", a, perm=[0, 2, 1, 3]),
                    self.shape([-1, TOKENS, WIDTH]))
        x = self.op("Add", x, self.drop(
            self.linear(prefix + "proj.", a, WIDTH, WIDTH)))
        h = self.linear(prefix + "fc1.", self.norm(prefix + "ln2.", x), WIDTH,
                        4 * WIDTH)
        h = self.linear(prefix + "fc2.", self.op("Tanh", h), 4 * WIDTH, WIDTH)
        return self.op("Add", x, self.drop(h))


def write(tools, name, graph):
    path = tools.path(name + ".textproto")
    with open(path, "w", encoding="utf-8") as file:
        file.write(graph.text())
    data = tools.path("data")
    os.makedirs(data, exist_ok=True)
    for key, (descr, shape, values) in graph.data.items():
        harness.write_npy(os.path.join(data, key + ".npy"), descr, shape, values)
    return path, "--data=" + data


def compile_plan(tools, model, mesh="none", microbatch="whole",
                 schedule="1f1b", *options):
    plan = model.replace(".textproto", ".plan")
    tools.run("merakc", model, "-o", plan,
              *matrix.compile_options(mesh, microbatch, schedule), *options)
    return plan


def losses(tools, plan, data, steps, *options):
    log = harness.fresh(tools.path("log.jsonl"))
    tools.run("merak-run", plan, data, f"--steps={steps}", f"--log={log}",
              *options)
    return [entry["loss"] for entry in harness.read_log(log)]


# ------------------------------------------------------------------ gradient


def gradient(mesh, tools):
    model, data = write(tools, "base", Gpt())
    grads = tools.path("grads.safetensors")
    losses(tools, compile_plan(tools, model, mesh, "half"), data, 1,
           "--seed=7", f"--save-grads={grads}")
    found = {key: list(t.data)
             for key, t in harness.read_safetensors(grads).items()}
    worst = 0.0
    for names in [list(found), ["wte"], ["h0.attn.weight"], ["h3.fc2.weight"]]:
        norm = math.sqrt(sum(g * g for n in names for g in found[n]))
        step = 0.004
        ends = []
        for sign in (1, -1):
            shift = {n: (sign * step / norm, found[n]) for n in names}
            moved, _ = write(tools, "moved", Gpt(shift))
            plan = compile_plan(tools, moved)
            ends += losses(tools, plan, data, 1, "--seed=7")
        error = abs((ends[0] - ends[1]) / (2 * step) / norm - 1)
        if not error <= 0.01:
            raise Failed(f"derivative along the gradient of {names[:2]} is "
                         f"{(ends[0] - ends[1]) / (2 * step):.6g}, expected "
                         f"{norm:.6g}")
        worst = max(worst, error)
    return f"error {worst:.0e}"


# -------------------------------------------------------------------- layout

BASES = identity.Bases()
ADAMW = "--optimizer=adamw:lr=0.01"


def layout(mesh, microbatch, schedule, tools):
    def make():
        model, data = write(tools, "base", Gpt())
        return losses(tools, compile_plan(tools, model, "none", "whole",
                                          "gpipe", ADAMW), data, 4)

    model, data = write(tools, "gpt", Gpt())
    found = losses(tools, compile_plan(tools, model, mesh, microbatch, schedule,
                                       ADAMW), data, 4)
    return f"loss {oracle.compare_losses(found, BASES.get('layout', make)):.0e}"


def order(mesh, rest, microbatch, schedule, recompute, tools):
    def run(name, mesh, schedule, recompute):
        model, _ = write(tools, name, Gpt())
        options = matrix.compile_options(mesh, microbatch, schedule, recompute)
        return identity.train(tools, model, tools.path("data"),
                              options + [ADAMW], 3, name)

    base = BASES.get((rest, microbatch),
                     lambda: run("base", identity.join(rest), "gpipe", "none"))
    identity.compare(run("other", identity.join(mesh, rest), schedule,
                         recompute), base)
    return "identical"


def recomputed(tools):
    """The masks of an action R are those of its F, and it has some."""
    model, _ = write(tools, "gpt", Gpt())
    text, _ = tools.run("merakc", model, "-o", "-", "--to=stage",
                        *matrix.compile_options("pp=2", "half", "1f1b", "full"))
    stages = text.split("pipe.stage ")[1:]
    masks = {}
    for stage in stages:
        for action in stage.split("pipe.action ")[1:]:
            drawn = re.findall(r"train\.dropout .*? ratio \S+ id (\d+)", action)
            masks[stage.split()[0], action[0]] = set(drawn)
    found = [masks.get((name, "R"), set()) for name in ("@stage0", "@stage1")]
    if not any(found):
        raise Failed(f"no mask is drawn again in {sorted(masks)}")
    for name, again in zip(("@stage0", "@stage1"), found):
        if not again <= masks[name, "F"]:
            raise Failed(f"{name} draws {again} again, F {masks[name, 'F']}")
    return f"{sum(map(len, found))} masks"


# --------------------------------------------------- continued, off and seed


def continued(source, target, tools):
    model, data = write(tools, "source", Gpt())
    other, _ = write(tools, "target", Gpt())
    before = compile_plan(tools, model, source, "half", "1f1b", ADAMW)
    after = compile_plan(tools, other, target, "half", "1f1b", ADAMW)
    whole, parts = tools.path("whole"), tools.path("parts")
    wanted = losses(tools, before, data, 6, "--seed=3", f"--save={whole}")
    found = losses(tools, before, data, 3, "--seed=3", f"--save={parts}")
    found += losses(tools, after, data, 3, "--seed=3", f"--load={parts}",
                    f"--save={parts}2")
    if source != target:
        return f"loss {oracle.compare_losses(found, wanted):.0e}"
    weights = [harness.read_checkpoint(p)[0] for p in (whole, parts + "2")]
    identity.compare(identity.Result(found, {}, weights[1]),
                     identity.Result(wanted, {}, weights[0]))
    return "identical"


def off(tools):
    model, data = write(tools, "with", Gpt())
    plain, _ = write(tools, "without", Gpt(ratio=0))
    wanted = losses(tools, compile_plan(tools, plain), data, 3)
    plan = compile_plan(tools, model, "none", "whole", "1f1b", "--dropout=off")
    found = losses(tools, plan, data, 3, "--seed=9")
    if oracle.compare_losses(found, wanted) > 1e-6:
        raise Failed(f"losses {found}, without dropout {wanted}")
    kept = losses(tools, compile_plan(tools, model), data, 3)
    if abs(kept[0] - wanted[0]) < 1e-3:
        raise Failed(f"dropout does not change the loss {wanted[0]}")
    out, _ = tools.run("merakc", model, "-o", "-", "--to=graph", "--mode=infer",
                       "--global-batch=8")
    if "train.dropout" in out:
        raise Failed("an inference plan drops")
    return "the model without dropout"


def seed(tools):
    model, data = write(tools, "gpt", Gpt())
    plan = compile_plan(tools, model, "none", "half")
    runs = [losses(tools, plan, data, 3, f"--seed={s}") for s in (0, 1, 1)]
    if runs[1] != runs[2]:
        raise Failed(f"one seed gives {runs[1]} and {runs[2]}")
    if any(abs(a - b) < 1e-4 for a, b in zip(runs[0], runs[1])):
        raise Failed(f"two seeds give {runs[0]} and {runs[1]}")
    # Without an optimizer's help: the same weights and samples, other steps.
    still = compile_plan(tools, model, "none", "half", "1f1b",
                         "--optimizer=sgd:lr=0")
    steps = losses(tools, still, data, 4)
    if steps[0] == steps[2] or steps[1] == steps[3]:
        raise Failed(f"the masks of several steps are the same: {steps}")
    return "every step has its masks"


def main():
    args = harness.parser(__doc__).parse_args()
    layouts = [(mesh, microbatch, schedule)
               for mesh in matrix.MESHES[1:] + ["pp=4"]
               for microbatch in matrix.MICROBATCHES
               for schedule in matrix.SCHEDULES]
    orders = [(stages, rest, "half", schedule, recompute)
              for rest in ("", "tp=2", "dp=2") for stages in ("pp=2", "pp=4")
              for schedule in matrix.ALL_SCHEDULES
              for recompute in matrix.RECOMPUTE
              if matrix.defined(identity.join(stages, rest), "half", schedule)]
    if not args.all:
        layouts, orders = matrix.pairwise(layouts), matrix.pairwise(orders)
    cases = [Case(f"gradient {m}", functools.partial(gradient, m))
             for m in ("none", "pp=2,dp=2,tp=2")]
    cases += [Case("layout " + " ".join(c), functools.partial(layout, *c))
              for c in layouts]
    cases += [Case("order " + " ".join(c), functools.partial(order, *c))
              for c in orders]
    cases += [Case(f"continued {a} to {b}", functools.partial(continued, a, b))
              for a, b in [("none", "none"), ("pp=2,tp=2", "pp=2,tp=2"),
                           ("dp=2", "pp=2")]]
    cases += [Case("recomputed", recomputed), Case("off", off),
              Case("seed", seed)]
    return harness.run_cases("dropout", cases, args)


if __name__ == "__main__":
    sys.exit(main())
