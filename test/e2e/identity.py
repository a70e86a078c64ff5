#!/usr/bin/env python3
"""Layouts that must not change a single bit.

exact   models whose sums are exact in any order: every layout gives the losses,
        gradients and weights of one rank, and one rank those of PyTorch
        (with dropout: those of dropout_reference.py)
order   recorded models: choices that reorder no sum (pipeline stages, schedule,
        recomputation) at equal microbatches and tensor degree
sends   the same with values that leave late, or that stages wait for
tight   the same under a memory limit that makes auto recompute a part
Values are compared with ==, so that 0 and -0 count as equal.
"""
import array
import functools
import itertools
import json
import os
import re
import sys
import threading

import dropout_reference
import exact_models
import harness
import matrix
import oracle
from harness import Case, Failed, WithOption

EXACT_MESHES = matrix.MESHES + ["dp=4", "tp=4", "pp=2,tp=2", "pp=2,dp=2"]
DEEP_EXACT = {"gemm", "residual", "recurrent"}
# Besides the pairs: values that skip stages, on chunks, with and without R.
ALWAYS_EXACT = [("residual", "pp=4", "one", schedule, recompute)
                for schedule in ("interleaved", "auto", "gpipe")
                for recompute in ("none", "full")]
# Models and schedules that recompute rather than cut elsewhere.
TIGHT = ["gpt2-tiny", "bert-tiny", "vit-tiny"]
TIGHT_SCHEDULES = [s for s in matrix.ALL_SCHEDULES if
                   s not in ("zb", "auto", "interleaved")]
# Axes that a model has nothing to split over: its sizes are too small.
NO_TP4 = {"attention", "attention_block", "attention_dropout"}


class Result:
    """What a training run leaves behind."""

    def __init__(self, losses, gradients, weights):
        self.losses, self.gradients, self.weights = losses, gradients, weights


def train(tools, model, data, options, steps, tag=""):
    plan = tools.path(f"out{tag}.plan")
    tools.run("merakc", model, "-o", plan, *options)
    log, saved = tools.path(f"log{tag}.jsonl"), tools.path(f"saved{tag}")
    grads = tools.path(f"grads{tag}.safetensors")
    tools.run("merak-run", plan, f"--data={data}", "--steps=1",
              f"--save-grads={grads}")
    tools.run("merak-run", plan, f"--data={data}", f"--steps={steps}",
              f"--log={log}", f"--save={saved}")
    return Result([entry["loss"] for entry in harness.read_log(log)],
                  harness.read_safetensors(grads),
                  harness.read_checkpoint(saved)[0])


def compare(found, base):
    """Fails unless two results are equal in every element."""
    if found.losses != base.losses:
        pairs = [(k, a, b) for k, (a, b) in
                 enumerate(zip(found.losses, base.losses), 1) if a != b]
        raise Failed(f"losses differ, first at (step, found, expected) "
                     f"{pairs[:1]}, {len(found.losses)} steps")
    for what in ("gradients", "weights"):
        a, b = getattr(found, what), getattr(base, what)
        if set(a) != set(b):
            raise Failed(f"{what}: other names: {sorted(set(a) ^ set(b))[:4]}")
        for name in sorted(b):
            if a[name].shape != b[name].shape:
                raise Failed(f"{what}: {name} has shape {a[name].shape}, "
                             f"expected {b[name].shape}")
            x, y = a[name].data, b[name].data
            # Comparing bytes is quick, but tells 0 from -0.
            if x.tobytes() != y.tobytes() and x != y:
                differ = [k for k in range(len(y)) if x[k] != y[k]]
                raise Failed(
                    f"{what}: {len(differ)} of {len(y)} elements of {name} "
                    f"differ, first [{differ[0]}]: {x[differ[0]]!r}, "
                    f"expected {y[differ[0]]!r}")


def compare_saved(folder, base):
    """Fails unless a checkpoint has the weights and states of a result."""
    compare(Result(base.losses, base.gradients, harness.read_checkpoint(folder)[0]),
            base)


class Bases:
    """Results that several cases are compared with, each computed once."""

    def __init__(self):
        self.lock, self.entries = threading.Lock(), {}

    def get(self, key, make):
        with self.lock:
            lock, _ = entry = self.entries.setdefault(key, (threading.Lock(), []))
        with lock:
            if not entry[1]:
                entry[1].append(make())
        return entry[1][0]


BASES = Bases()

# --------------------------------------------------------------------- exact


@functools.lru_cache(maxsize=None)
def recorded():
    with open(os.path.join(exact_models.FOLDER, "expected.json"),
              encoding="utf-8") as file:
        return json.load(file)


def exact_run(tools, name, mesh, microbatch, schedule, recompute, tag=""):
    graph = next(m for m in exact_models.MODELS if m.__name__ == name)()
    data = tools.path("data")
    os.makedirs(data, exist_ok=True)
    for key, (descr, shape, values) in graph.data.items():
        harness.write_npy(os.path.join(data, key + ".npy"), descr, shape, values)
    info = dropout_reference.MODELS.get(name)
    lr, steps = ((info.lr, info.steps) if info else
                 (recorded()[name]["lr"], recorded()[name]["steps"]))
    options = matrix.compile_options(mesh, microbatch, schedule, recompute)
    return train(tools, exact_models.path(name), data,
                 options + [f"--optimizer=sgd:lr={lr}"], steps, tag)


def matches_reference(result, name):
    """Dropout is compared element by element with plain Python."""
    losses, gradients, weights = dropout_reference.run(name)

    def tensors(values):
        return {key: harness.Tensor("F32", [], array.array("f", data))
                for key, data in values.items()}

    reference = Result(losses, tensors(gradients), tensors(weights))
    for what in ("gradients", "weights"):
        for key, tensor in getattr(reference, what).items():
            tensor.shape = getattr(result, what)[key].shape
    compare(result, reference)


def matches_record(result, name):
    if name in dropout_reference.MODELS:
        return matches_reference(result, name)
    info = recorded()[name]
    if result.losses != info["losses"]:
        raise Failed(f"losses {result.losses}, PyTorch has {info['losses']}")
    for what in ("gradients", "weights"):
        found = getattr(result, what)
        for key, sums in info[what].items():
            if key not in found:
                raise Failed(f"{what}: no {key}, only {sorted(found)[:6]}")
            values = found[key].data
            sums_found = [sum(values), sum(x * x for x in values)]
            if sums_found != sums:
                raise Failed(f"{what}: {key} has [sum, sum of squares] "
                             f"{sums_found}, PyTorch has {sums}")


def exact_body(name, mesh, microbatch, schedule, recompute, tools):
    def make():
        result = exact_run(tools, name, "none", "whole", "gpipe", "none",
                           "-base")
        matches_record(result, name)
        return result

    base = BASES.get(("exact", name), make)
    compare(exact_run(tools, name, mesh, microbatch, schedule, recompute),
            base)
    return "identical"


def exact_layouts():
    for model in exact_models.MODELS:
        name = model.__name__
        meshes = EXACT_MESHES + (["pp=4"] if name in DEEP_EXACT else [])
        for mesh, microbatch, schedule, recompute in itertools.product(
                meshes, matrix.MICROBATCHES, matrix.ALL_SCHEDULES,
                matrix.RECOMPUTE):
            if mesh == "tp=4" and name in NO_TP4:
                continue
            if not exact_models.runs(name, microbatch, schedule):
                continue
            if matrix.defined(mesh, microbatch, schedule):
                yield name, mesh, microbatch, schedule, recompute


# --------------------------------------------------------------------- order


def order_options(model, *layout):
    options = matrix.compile_options(*layout)
    options.append(oracle.optimizer_option(model, "adamw"))
    if model in oracle.FREEZE:
        options.append(f"--freeze={oracle.FREEZE[model]}")
    return options


def order_run(tools, model, mesh, microbatch, schedule, recompute, tag=""):
    options = order_options(model, mesh, microbatch, schedule, recompute)
    folder = os.path.join(harness.MODELS, model)
    return train(tools, os.path.join(folder, "model.onnx"),
                 os.path.join(folder, "data"), options, 3, tag)


def join(*parts):
    return ",".join(p for p in parts if p) or "none"


def order_body(model, stages, rest, microbatch, schedule, recompute, tools):
    base = BASES.get(("order", model, rest, microbatch), lambda: order_run(
        tools, model, join(rest), microbatch, "gpipe", "none", "-base"))
    compare(order_run(tools, model, join(stages, rest), microbatch, schedule,
                      recompute), base)
    return "identical"


def sends_body(*case):
    """Values that leave later, or are waited for, change no bit."""
    *layout, sends, tools = case
    return order_body(*layout, WithOption(tools, f"--sends={sends}"))


def largest_arena(tools, model, mesh, microbatch, schedule, recompute):
    """Bytes of the rank that needs most."""
    plan = tools.path(f"{recompute}.plan")
    tools.run("merakc", os.path.join(harness.MODELS, model, "model.onnx"),
              "-o", plan,
              *order_options(model, mesh, microbatch, schedule, recompute))
    return max(map(int, re.findall(r"^  arena (\d+) bytes", tools.run(
        "merak-plan", "print", plan)[0], re.M)))


def tight(tools, model, mesh, microbatch, schedule, base):
    """Under a limit that is tight enough something is recomputed. (Under the first
    ones other cuts of the stages may do without.)"""
    least, most = (largest_arena(tools, model, mesh, microbatch, schedule, how)
                   for how in ("full", "none"))
    # The fastest cut of a plan that recomputes all may need more than another one.
    if least > 0.995 * most:
        least = most - most // 20
    between = most - least
    for limit in (*(least + between * n // 4 for n in (2, 3, 1, 0)),
                  least - between // 2,
                  *(least - n * between for n in (1, 2, 3, 5)),
                  *(most * n // 20 for n in (17, 16, 15))):
        result = order_run(WithOption(tools, f"--memory-limit={limit}"), model,
                           mesh, microbatch, schedule, "auto")
        compare(result, base)
        printed = tools.run("merak-plan", "print", tools.path("out.plan"))[0]
        if re.search(r"^program \d+ procedure .* \(R\)", printed, re.M):
            return f"identical under {limit} bytes, {least} to {most}"
    raise Failed(f"nothing is recomputed under {limit} of {most} bytes")


def tight_body(model, mesh, microbatch, schedule, tools):
    rest = join(*(p for p in mesh.split(",") if not p.startswith("pp")))
    base = BASES.get(("order", model, "" if rest == "none" else rest, microbatch),
                     lambda: order_run(tools, model, rest, microbatch, "gpipe",
                                       "none", "-base"))
    return tight(tools, model, mesh, microbatch, schedule, base)


def file_body(tools):
    """A schedule file equal to 1f1b, and one of our own with all weight
    gradients at the end, give the bits of gpipe."""
    model = "mlp-ce"
    base = order_run(tools, model, "pp=2", "one", "gpipe", "none", "-base")
    file = tools.path("schedule.json")
    folder = os.path.join(harness.MODELS, model)
    tools.run("merakc", os.path.join(folder, "model.onnx"), "-o",
              tools.path("emit.plan"), f"--emit-schedule={file}",
              *matrix.compile_options("pp=2", "one", "1f1b"))
    compare(order_run(tools, model, "pp=2", "one", file, "none"), base)
    with open(file, encoding="utf-8") as stream:
        schedule = json.load(stream)
    for stage, line in enumerate(schedule["stages"]):
        cells = line.split()
        late = [cell for cell in cells if cell[0] == "W"]
        if not late:
            raise Failed(f"no W on stage {stage} of the emitted schedule")
        schedule["stages"][stage] = " ".join(
            [cell for cell in cells if cell[0] not in "WU"] + late)
    with open(file, "w", encoding="utf-8") as stream:
        json.dump(schedule, stream)
    compare(order_run(tools, model, "pp=2", "one", file, "none"), base)
    return "identical"


def order_layouts():
    for model in sorted(os.listdir(harness.MODELS)):
        if not os.path.isdir(os.path.join(harness.MODELS, model)):
            continue
        deep = ["pp=4"] if model in oracle.DEEP else []
        for rest, microbatch, stages, schedule, recompute in itertools.product(
                ["", "dp=2", "tp=2", "dp=2,tp=2"], ["half", "one"],
                ["", "pp=2"] + deep, matrix.ALL_SCHEDULES, matrix.RECOMPUTE):
            if matrix.defined(join(stages, rest), microbatch, schedule):
                yield model, stages, rest, microbatch, schedule, recompute


def main():
    args = harness.parser(__doc__).parse_args()
    exact, order = list(exact_layouts()), list(order_layouts())
    sends = [(*c, how) for c in order for how in ("late", "blocking")
             if c[0] in ("gpt2-tiny", "resnet-tiny", "mlp-ce") and c[1]]
    if not args.all:
        exact = list(dict.fromkeys(matrix.pairwise(exact) + ALWAYS_EXACT))
        # One rank and tp=2 for every model; the rest is for --all.
        # Many microbatches, so that schedules differ.
        order = matrix.pairwise([c for c in order if c[1] and c[3] == "one" and
                                 c[2] in ("", "tp=2")])
        sends = matrix.pairwise(sends)
    cases = [Case("exact " + " ".join(c), functools.partial(exact_body, *c))
             for c in exact]
    cases += [Case("order " + " ".join((c[0], join(c[1], c[2]), *c[3:])),
                   functools.partial(order_body, *c)) for c in order]
    cases += [Case("sends " + " ".join((c[0], join(c[1], c[2]), *c[3:])),
                   functools.partial(sends_body, *c)) for c in sends]
    cases += [Case("tight " + " ".join(c), functools.partial(tight_body, *c))
              for c in itertools.product(TIGHT, ["pp=4"], ["one"],
                                         TIGHT_SCHEDULES)]
    cases.append(Case("schedule files", file_body))
    stale = exact_models.stale()
    if stale:
        print("stored models differ, run exact_models.py --write:", *stale)
        return 1
    return harness.run_cases("identity", cases, args)


if __name__ == "__main__":
    sys.exit(main())
