#!/usr/bin/env python3
"""Plans against recorded training runs of the unpartitioned graph.

Every case compiles one model of test/data/models for one layout, trains it for
the recorded number of steps and compares losses, first gradients and, with
AdamW, the final weights; see test/data/models/README.md for the tolerances.
Without --all a subset runs that covers every pair of choices.
"""
import functools
import json
import os
import sys

import harness
import matrix
from harness import Case, Failed

LOSS, GRADIENT, WEIGHTS, UPDATE = 1e-4, 1e-3, 1e-3, 5e-3
# Float tables that no rule can tell from a trained parameter.
FREEZE = {}
# Models with at least four blocks to cut between.
DEEP = {"gpt2-tiny", "gpt2-tiny-opset13", "gpt2-tiny-untied", "bert-tiny",
        "bert-tiny-opset14", "resnet-tiny", "resnet-plain-tiny", "vit-tiny"}


@functools.lru_cache(maxsize=None)
def expected(model):
    folder = os.path.join(harness.MODELS, model)
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as file:
        return json.load(file)


@functools.lru_cache(maxsize=4)
def recorded(model, name):
    return harness.read_safetensors(os.path.join(harness.MODELS, model, name))


def optimizer_option(model, optimizer):
    o = expected(model)["optimizers"][optimizer]
    if optimizer == "sgd":
        return f"--optimizer=sgd:lr={o['lr']}"
    return (f"--optimizer=adamw:lr={o['lr']},"
            f"betas={o['betas'][0]}/{o['betas'][1]},eps={o['eps']},"
            f"weight_decay={o['weight_decay']}")


def compile_adamw(tools, model, mesh, microbatch, schedule, options):
    """The plan, and the option for its data."""
    folder = os.path.join(harness.MODELS, model)
    plan = tools.path("out.plan")
    tools.run("merakc", os.path.join(folder, "model.onnx"), "-o", plan, "-q",
              *matrix.compile_options(mesh, microbatch, schedule),
              optimizer_option(model, "adamw"), *options)
    return plan, "--data=" + os.path.join(folder, "data")


def compare_losses(found, wanted):
    if len(found) != len(wanted):
        raise Failed(f"{len(found)} losses, expected {len(wanted)}")
    worst = 0.0
    for step, (x, y) in enumerate(zip(found, wanted), 1):
        if x is None:  # what JSON has for a value that is not finite
            raise Failed(f"loss of step {step} is not finite")
        # 'not <' so that a NaN fails.
        error = abs(x - y) / abs(y)
        if not error <= LOSS:
            raise Failed(f"loss of step {step} is {x:.7g}, expected {y:.7g} "
                         f"(relative error {error:.1e} > {LOSS:.0e})")
        worst = max(worst, error)
    return worst


def compare_names(found, params, what):
    wanted = {p["name"] for p in params}
    missing, extra = sorted(wanted - set(found)), sorted(set(found) - wanted)
    if missing or extra:
        raise Failed(f"{what}: missing {missing[:4]}, not trained {extra[:4]}")


def compare_tensors(found, wanted, params, tolerance, what, sharp=None):
    """Largest relative L2 error; `sharp` bounds the error relative to the
    recorded change of the weights."""
    problems, worst = [], 0.0
    for p in params:
        name, skip = p["name"], p.get("zero_grad_ranges", [])
        if list(found[name].shape) != list(p["shape"]):
            problems.append(f"{name} has shape {found[name].shape}, expected "
                            f"{p['shape']}")
            continue
        error, distance = harness.relative_l2(
            found[name].data, wanted[name].data, skip)
        if not error <= tolerance:
            problems.append(f"{name}: {error:.1e} > {tolerance:.0e}")
        elif sharp and not distance <= sharp * p["adamw_update_l2"]:
            problems.append(
                f"{name}: {distance / p['adamw_update_l2']:.1e} of the update")
        worst = max(worst, error)
    if problems:
        raise Failed(f"{what}: {len(problems)} of {len(params)} tensors are "
                     "off: " + "; ".join(problems[:3]))
    return worst


def small_where_zero(found, params):
    """Gradients that are zero in exact arithmetic must be small."""
    norm = max(p["grad_l2"] for p in params)
    for p in params:
        for begin, end in p.get("zero_grad_ranges", []):
            values = found[p["name"]].data[begin:end]
            size = sum(x * x for x in values) ** 0.5
            if not size <= 1e-4 * norm:
                raise Failed(f"gradients: {p['name']}[{begin}:{end}] should "
                             f"vanish but has norm {size:.1e}")


def body(model, mesh, optimizer, microbatch, schedule, tools):
    return check(model, matrix.compile_options(mesh, microbatch, schedule),
                 optimizer, tools)


def check(model, options, optimizer, tools):
    """A plan of these options against the recorded run."""
    info = expected(model)
    folder = os.path.join(harness.MODELS, model)
    plan = tools.path("out.plan")
    freeze = [f"--freeze={FREEZE[model]}"] if model in FREEZE else []
    tools.run("merakc", os.path.join(folder, "model.onnx"), "-o", plan,
              *options, optimizer_option(model, optimizer), *freeze)
    data = "--data=" + os.path.join(folder, "data")
    saved = tools.path("saved") if optimizer == "adamw" else ""

    def losses():
        log = tools.path("log.jsonl")
        tools.run("merak-run", plan, data, f"--steps={info['steps']}",
                  f"--log={log}", *([f"--save={saved}"] if saved else []))
        return compare_losses([e["loss"] for e in harness.read_log(log)],
                              info["optimizers"][optimizer]["losses"])

    def gradients():
        path = tools.path("grads.safetensors")
        tools.run("merak-run", plan, data, "--steps=1", f"--save-grads={path}")
        found = harness.read_safetensors(path)
        compare_names(found, info["params"], "gradients")
        small_where_zero(found, info["params"])
        return compare_tensors(found, recorded(model, "grads.safetensors"),
                               info["params"], GRADIENT, "gradients")

    def weights():
        found, _ = harness.read_checkpoint(saved)
        missing = [p["name"] for p in info["params"] if p["name"] not in found]
        if missing:
            raise Failed(f"weights: the checkpoint lacks {missing[:4]}")
        return compare_tensors(
            found, recorded(model, "weights_after_adamw.safetensors"),
            info["params"], WEIGHTS, "weights", UPDATE)

    return harness.all_of(losses, gradients, *([weights] if saved else []))


def all_cases():
    for model in sorted(os.listdir(harness.MODELS)):
        if not os.path.isdir(os.path.join(harness.MODELS, model)):
            continue
        for mesh in matrix.MESHES + (["pp=4"] if model in DEEP else []):
            for optimizer in matrix.OPTIMIZERS:
                for microbatch in matrix.MICROBATCHES:
                    for schedule in matrix.SCHEDULES:
                        yield model, mesh, optimizer, microbatch, schedule


def main():
    args = harness.parser(__doc__).parse_args()
    chosen = list(all_cases())
    if not args.all:
        chosen = matrix.pairwise(chosen)
    cases = [Case(" ".join(c), functools.partial(body, *c)) for c in chosen]
    return harness.run_cases("oracle", cases, args)


if __name__ == "__main__":
    sys.exit(main())
