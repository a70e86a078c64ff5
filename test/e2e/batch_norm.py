#!/usr/bin/env python3
"""Batch norm in training mode against PyTorch (test/data/batch-norm, recorded
by batch_norm_record.py).

train     losses and running statistics of four steps, for meshes, microbatches,
          schedules and recomputation; statistics are those of each microbatch of
          a replica, running ones the replicas' mean
infer     the same file with --mode=infer evaluates by the saved statistics
resume    two steps, a checkpoint under another mesh, two steps
export    the trained model as ONNX holds the statistics of the checkpoint
pipelines several of them, each with as many replicas: the losses and statistics of
          one with all microbatches, whatever the shares
halves    tensor-parallel overlap: the same bounds, with the statistics of whole
          microbatches; levels 1 to 3 give the same bits
"""
import array
import functools
import json
import os
import sys

import export_onnx
import harness
import matrix
import parts
from harness import Case, Failed

FOLDER = os.path.join(harness.ROOT, "test/data/batch-norm")
TOLERANCE = 1e-4
# Of the variance of two samples, f32 leaves fewer digits.
PAIRS = 1e-3
# Mesh, microbatch, schedule, recomputation.
LAYOUTS = [("none", "whole", "gpipe", "none"), ("none", "half", "1f1b", "none"),
           ("none", "half", "gpipe", "full"),
           ("none", "quarter", "gpipe", "none"),
           ("dp=2", "whole", "gpipe", "none"), ("dp=2", "half", "gpipe", "full"),
           ("tp=2", "half", "gpipe", "none"), ("pp=2", "half", "1f1b", "full"),
           ("pp=2", "quarter", "zb", "none"),
           ("pp=2", "half", "interleaved", "none"),
           ("pp=2,dp=2,tp=2", "half", "1f1b", "0.7")]
HALVED = [("tp=2", "half", "gpipe", "none"),
          ("dp=2,tp=2", "whole", "1f1b", "full"),
          ("dp=2,tp=2", "half", "gpipe", "none"),
          ("pp=2,dp=2,tp=2", "half", "1f1b", "0.7")]
MODEL = os.path.join(FOLDER, "model.onnx")
DATA = "--data=" + os.path.join(FOLDER, "data")


@functools.lru_cache(maxsize=None)
def expected():
    with open(os.path.join(FOLDER, "expected.json"), encoding="utf-8") as file:
        return json.load(file)


def run_of(mesh, microbatch):
    replicas = matrix.degrees(mesh)["dp"]
    count = matrix.GLOBAL_BATCH // replicas // matrix.samples(mesh, microbatch)
    for run in expected()["runs"]:
        if (run["replicas"], run["microbatches"]) == (replicas, count):
            return run
    raise Failed(f"no run of {replicas} replicas and {count} microbatches")


def close(what, found, wanted, tolerance=TOLERANCE):
    worst = 0.0
    for i, (x, y) in enumerate(zip(found, wanted, strict=True)):
        error = abs(x - y) / max(abs(y), 0.1)
        if not error <= tolerance:
            raise Failed(f"{what}[{i}] is {x:.7g}, expected {y:.7g} "
                         f"(error {error:.1e})")
        worst = max(worst, error)
    return worst


def tolerance_of(layout):
    return PAIRS if matrix.samples(*layout[:2]) == 2 else TOLERANCE


def build(tools, tag, layout, *options):
    plan = tools.path(tag + ".plan")
    info = expected()
    tools.run("merakc", MODEL, "-o", plan, *matrix.compile_options(*layout),
              *options,
              f"--optimizer=sgd:lr={info['lr']},momentum={info['momentum']}")
    return plan


def losses(tools, plan, *options):
    log = harness.fresh(tools.path("log.jsonl"))
    tools.run("merak-run", plan, DATA, f"--log={log}", *options)
    return [entry["loss"] for entry in harness.read_log(log)]


def statistics(checkpoint):
    """{name: values} of the running statistics in a checkpoint."""
    tensors, index = harness.read_checkpoint(checkpoint)
    found = {name: tensor for name, tensor in tensors.items()
             if index["tensors"][name]["role"] == "statistic"}
    if sorted(found) != sorted(expected()["runs"][0]["statistics"]):
        raise Failed(f"the checkpoint holds the statistics {sorted(found)}")
    return found


def train(layout, tools):
    run, saved = run_of(*layout[:2]), tools.path("saved")
    plan = build(tools, "out", layout)
    found = losses(tools, plan, f"--steps={expected()['steps']}",
                   f"--save={saved}")
    tolerance = tolerance_of(layout)
    loss = close("loss", found, run["losses"], tolerance)
    worst = max(close(name, tensor.data, run["statistics"][name], tolerance)
                for name, tensor in statistics(saved).items())
    return f"loss {loss:.0e}  statistics {worst:.0e}"


# Replicas and microbatches of a recorded run; microbatches and stages of pipelines;
# options.
SHARED = [(1, 2, [(1, [(1, 1)]), (1, [(1, 1)])], []),
          (1, 4, [(3, [(1, 1)]), (1, [(1, 1)])], ["--schedule=1f1b"]),
          (1, 4, [(1, [(1, 1)]), (3, [(1, 1)] * 2)], ["--recompute=full"]),
          (1, 4, [(1, [(1, 1)] * 2), (1, [(1, 1)] * 2), (2, [(1, 1)])], []),
          (1, 4, [(3, [(1, 2)]), (1, [(1, 2)])], ["--schedule=gpipe"]),
          (2, 2, [(1, [(2, 1)] * 2), (1, [(2, 1)])], ["--schedule=zb"])]


def shared(replicas, count, pipelines, options, tools):
    path = parts.write_strategy(
        tools, parts.several([(*each, None) for each in pipelines]))
    plan, saved, info = tools.path("out.plan"), tools.path("saved"), expected()
    tools.run("merakc", MODEL, "-o", plan, f"--strategy={path}",
              f"--global-batch={matrix.GLOBAL_BATCH}", *options,
              f"--optimizer=sgd:lr={info['lr']},momentum={info['momentum']}")
    run = next(each for each in info["runs"] if
               (each["replicas"], each["microbatches"]) == (replicas, count))
    found = losses(tools, plan, f"--steps={info['steps']}", f"--save={saved}")
    tolerance = PAIRS if matrix.GLOBAL_BATCH == 2 * count * replicas else TOLERANCE
    loss = close("loss", found, run["losses"], tolerance)
    worst = max(close(name, tensor.data, run["statistics"][name], tolerance)
                for name, tensor in statistics(saved).items())
    return f"loss {loss:.0e}  statistics {worst:.0e}"


def infer(mesh, tools):
    """Trained on one rank; evaluated on `mesh` in microbatches, whose number
    must not matter."""
    layout = ("none", "half", "gpipe", "none")
    saved, plan = tools.path("saved"), tools.path("infer.plan")
    losses(tools, build(tools, "out", layout), f"--steps={expected()['steps']}",
           f"--save={saved}")
    tools.run("merakc", MODEL, "-o", plan, "--mode=infer",
              *matrix.compile_options(mesh, "half", "gpipe"))
    found = losses(tools, plan, f"--load={saved}",
                   f"--steps={expected()['steps']}")
    # The run goes on in the data, which repeat there.
    worst = close("loss", found, run_of(*layout[:2])["evaluated"])
    return f"loss {worst:.0e}"


def resume(source, target, tools):
    """Both have the same replicas and microbatches."""
    run = run_of(*source[:2])
    half, saved, last = expected()["steps"] // 2, *map(tools.path, "ab")
    first = losses(tools, build(tools, "before", source), f"--steps={half}",
                   f"--save={saved}")
    second = losses(tools, build(tools, "after", target), f"--steps={half}",
                    f"--load={saved}", f"--save={last}")
    loss = close("loss", first + second, run["losses"])
    worst = max(close(name, tensor.data, run["statistics"][name])
                for name, tensor in statistics(last).items())
    return f"loss {loss:.0e}  statistics {worst:.0e}"


def export(tools):
    layout = ("dp=2", "half", "gpipe", "none")
    plan, saved = build(tools, "out", layout), tools.path("saved")
    losses(tools, plan, "--steps=2", f"--save={saved}")
    path = tools.path("trained.onnx")
    tools.run("merak-plan", "export-onnx", plan, f"--load={saved}",
              "-o", path)
    written, _ = export_onnx.initializers(path)
    before, _ = export_onnx.initializers(MODEL)
    for name, tensor in statistics(saved).items():
        values = array.array("f")
        values.frombytes(written[name][2])
        if values != tensor.data:
            raise Failed(f"'{name}' is not that of the checkpoint")
        if written[name][2] == before[name][2]:
            raise Failed(f"'{name}' was not trained")


def halves(layout, level, tools):
    """The halves of a microbatch share its statistics."""
    def run(level, tag):
        log, saved = tools.path(tag + ".jsonl"), tools.path(tag)
        plan = build(tools, tag, layout, f"--tp-overlap={level}")
        tools.run("merak-run", plan, DATA, f"--log={log}", f"--save={saved}",
                  f"--steps={expected()['steps']}")
        return ([entry["loss"] for entry in harness.read_log(log)],
                harness.read_checkpoint(saved)[0], statistics(saved))

    found, weights, own = run(level, "found")
    wanted, tolerance = run_of(*layout[:2]), tolerance_of(layout)
    loss = close("loss", found, wanted["losses"], tolerance)
    worst = max(close(name, tensor.data, wanted["statistics"][name], tolerance)
                for name, tensor in own.items())
    if level != "1":
        losses_1, weights_1, _ = run("1", "first")
        if found != losses_1 or any(
                weights[name].data != tensor.data
                for name, tensor in weights_1.items()):
            raise Failed("level 1 gives other bits")
    return f"loss {loss:.0e}  statistics {worst:.0e}"


def main():
    args = harness.parser(__doc__).parse_args()
    cases = [Case("train " + " ".join(layout), functools.partial(train, layout))
             for layout in LAYOUTS]
    cases += [Case(f"pipelines {number}", functools.partial(shared, *case))
              for number, case in enumerate(SHARED)]
    cases += [Case(f"infer {mesh}", functools.partial(infer, mesh))
              for mesh in ("none", "pp=2,dp=2,tp=2")]
    cases += [Case("resume", functools.partial(
        resume, ("none", "half", "gpipe", "none"),
        ("pp=2", "half", "1f1b", "full"))),
              Case("export", export)]
    cases += [Case(" ".join(("halves", *layout, "level", level)),
                   functools.partial(halves, layout, level))
              for layout in HALVED for level in ("1", "2", "3")]
    return harness.run_cases("batch-norm", cases, args)


if __name__ == "__main__":
    sys.exit(main())
