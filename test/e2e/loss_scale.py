#!/usr/bin/env python3
"""Training in f16 (--precision=fp16): how the loss is scaled.

overflow   gradients that the scale made infinite: the steps change nothing on any
           rank and are no error, the scale halves until they are finite, in all
           layouts after the same steps
processes  ranks that are processes do as ranks that are threads, to the bit
doubles    after so many finite steps in a row, up to a bound
resume     from a checkpoint, in another layout too, with every bit of the scale
unscaled   norms, gradients and updates are those of another scale, and near those
           in f32
stored     the same with parameters in parts, gradients exchanged late or at once, and
           tables of which rows are updated
least      where it falls no further, or does not move, the run ends
refused    what cannot be meant
"""
import functools
import os
import re
import sys

import harness
import matrix
import mpi
import oracle
from harness import Case, Failed

MOST = 1 << 24
MESHES = ["none", "pp=2", "dp=2", "tp=2", "pp=2,dp=2,tp=2"]
# What is told of a step.
TOLD = ("step", "loss", "grad_norm", "loss_scale", "skipped")


def data_of(model):
    return "--data=" + os.path.join(harness.MODELS, model, "data")


def compile_plan(tools, model, mesh, *options, precision="fp16",
                 optimizer="adamw", name="out"):
    plan = tools.path(name + ".plan")
    given = {option.split("=")[0]: option for option in [
        *matrix.compile_options(mesh, "quarter", "1f1b"), *options]}
    tools.run("merakc", os.path.join(harness.MODELS, model, "model.onnx"), "-o",
              plan, "-q", f"--precision={precision}",
              oracle.optimizer_option(model, optimizer), *given.values())
    return plan


def told(log):
    return [{key: entry.get(key) for key in TOLD}
            for entry in harness.read_log(log)]


def train(tools, plan, model, steps, scale, *options, tag="run"):
    """What the log tells of each step, and the saved state."""
    log, saved = tools.path(tag + ".jsonl"), tools.path(tag)
    tools.run("merak-run", plan, data_of(model), f"--steps={steps}",
              f"--loss-scale={scale}", f"--log={log}", f"--save={saved}",
              *options)
    tensors, _ = harness.read_checkpoint(saved)
    return told(log), {n: t.data.tobytes() for n, t in tensors.items()}


def falls(entries, first=MOST):
    """How many steps were skipped; fails unless the scale halves after each."""
    skipped = [bool(entry["skipped"]) for entry in entries]
    count = sum(skipped)
    if not 0 < count < len(entries) or not all(skipped[:count]):
        raise Failed(f"skipped steps: {skipped}")
    wanted = [first / 2 ** min(i, count) for i in range(len(entries))]
    found = [entry["loss_scale"] for entry in entries]
    if found != wanted:
        raise Failed(f"scales {found}, expected {wanted}")
    return count


def overflow(model, mesh, tools):
    plan = compile_plan(tools, model, mesh)
    scale = f"auto:start={MOST}"
    entries, _ = train(tools, plan, model, 10, scale)
    count = falls(entries)
    _, one = train(tools, plan, model, 1, scale, tag="one")
    _, all_skipped = train(tools, plan, model, count, scale, tag="skipped")
    changed = [name for name in one if one[name] != all_skipped[name]]
    moved = [name for name in one if name.endswith((".exp_avg", ".exp_avg_sq"))
             and any(one[name])]
    if changed or moved:
        raise Failed(f"skipped steps changed {(changed + moved)[:3]}")
    _, more = train(tools, plan, model, count + 1, scale, tag="more")
    if more == one:
        raise Failed("training did not go on")
    if mesh == "none":
        return f"{count} steps"
    alone = compile_plan(tools, model, "none", name="alone")
    single, state = train(tools, alone, model, 10, scale, tag="alone")
    if [e["loss_scale"] for e in single] != [e["loss_scale"] for e in entries]:
        raise Failed("another layout scales in another way")
    if mesh == "pp=2":
        _, found = train(tools, plan, model, 10, scale, tag="again")
        if single != entries or found != state:
            raise Failed("pipeline stages change the numbers")
    return f"{count} steps"


def of_processes(model, mesh, tools):
    plan = compile_plan(tools, model, mesh)
    options = [data_of(model), "--steps=12",
               f"--loss-scale=auto:start={MOST},every=2"]
    tools.run("merak-run", plan, *options, f"--log={tools.path('in.jsonl')}",
              f"--save={tools.path('in')}")
    sizes = matrix.degrees(mesh)
    ranks = sizes["pp"] * sizes["dp"] * sizes["tp"]
    mpi.mpi(tools, ranks, plan, *options, f"--log={tools.path('apart.jsonl')}",
            f"--save={tools.path('apart')}")
    together, apart = (told(tools.path(n + ".jsonl")) for n in ("in", "apart"))
    if together != apart:
        raise Failed(f"told {apart}, with threads {together}")
    mpi.same_files(tools.path("in"), tools.path("apart"))
    if not any(e["skipped"] for e in apart) or \
            len({e["loss_scale"] for e in apart}) < 3:
        raise Failed("the scale did not move")


def doubles(tools):
    plan = compile_plan(tools, "mlp-ce", "none")
    entries, _ = train(tools, plan, "mlp-ce", 10,
                       "auto:start=256,every=3,most=1024")
    found = [entry["loss_scale"] for entry in entries]
    if found != [256] * 3 + [512] * 3 + [1024] * 4 or \
            any(entry["skipped"] for entry in entries):
        raise Failed(f"scales {found}")


def resume(model, before, after, tools):
    """Split where the scale has moved and steps are counted towards doubling."""
    scale = f"auto:start={MOST},every=3"
    first = compile_plan(tools, model, before, name="first")
    second = compile_plan(tools, model, after, name="second")
    whole, state = train(tools, first, model, 16, scale, tag="whole")
    falls(whole[:next(i for i, e in enumerate(whole) if not e["skipped"]) + 1])
    for split in (3, 11):
        train(tools, first, model, split, scale, tag=f"half{split}")
        rest, found = train(tools, second, model, 16 - split, scale,
                            f"--load={tools.path(f'half{split}')}",
                            tag=f"rest{split}")
        if rest != whole[split:] or found != state:
            raise Failed(f"after {split} steps: {rest[:2]}, expected "
                         f"{whole[split:split + 2]}")
    # Nothing that is saved is scaled: a plan in f32 goes on, and back.
    full = compile_plan(tools, model, before, precision="fp32", name="full")
    tools.run("merak-run", full, data_of(model), "--steps=1",
              f"--load={tools.path('half3')}", f"--save={tools.path('full')}")
    entries, _ = train(tools, first, model, 1, "auto:start=512",
                       f"--load={tools.path('full')}", tag="back")
    if entries[0]["loss_scale"] != 512:
        raise Failed(f"begins again with {entries[0]['loss_scale']}")


def close(found, wanted, bound, what):
    error = max(abs(x - y) / max(abs(y), 1e-3) for x, y in zip(found, wanted))
    if not error <= bound:
        raise Failed(f"{what} differ by {error:.1e} > {bound:.0e}")
    return error


def unscaled(model, mesh, optimizer, tools):
    """A factor of 1/16 to 4096 on gradients that are not unscaled is no small
    difference to SGD, and clipping tells any optimizer's."""
    clip = ["--grad-clip=0.05"] if optimizer == "adamw" else []
    plan = compile_plan(tools, model, mesh, *clip, optimizer=optimizer)
    full = compile_plan(tools, model, mesh, *clip, optimizer=optimizer,
                        precision="fp32", name="full")
    log = tools.path("full.jsonl")
    tools.run("merak-run", full, data_of(model), "--steps=6", f"--log={log}")
    wanted = told(log)
    errors = []
    for scale in ("64", "4096", "auto:start=1024,every=2"):
        found, _ = train(tools, plan, model, 6, scale, tag=scale[:4])
        for key, bound in (("loss", 1e-2), ("grad_norm", 3e-2)):
            errors.append(close([e[key] for e in found],
                                [e[key] for e in wanted], bound,
                                f"{key} with a scale of {scale}"))
    gradients = {}
    for name, which, options in (("full", full, []),
                                 ("half", plan, ["--loss-scale=1024"])):
        path = tools.path(name + ".safetensors")
        tools.run("merak-run", which, data_of(model), "--steps=1", *options,
                  f"--save-grads={path}")
        gradients[name] = [
            x for _, tensor in sorted(harness.read_safetensors(path).items())
            for x in tensor.data]
    error, _ = harness.relative_l2(gradients["half"], gradients["full"])
    if not error <= 3e-2:
        raise Failed(f"gradients differ by {error:.1e}")
    return f"{max(errors):.0e}, gradients {error:.0e}"


# Degrees, and options of merakc.
STORED = {
    "zero 1": ("dp=2", ["--zero=1"]),
    "zero 2": ("dp=2,tp=2", ["--zero=2"]),
    "zero 3": ("pp=2,dp=2", ["--zero=3"]),
    "late": ("dp=2", ["--grad-overlap=off"]),
    "each": ("dp=2", ["--grad-bucket=0"]),
    "sequence": ("tp=2", ["--sequence-parallel=on"]),
    "again": ("pp=2", ["--recompute=full"]),
    "halves": ("tp=2", ["--tp-overlap=3"]),
    "lazy": ("dp=2", ["--sparse=lazy"]),
    "exact": ("dp=2", ["--sparse=exact"]),
    "delayed": ("dp=2", ["--sparse=lazy", "--delayed-rows=on",
                         "--mixed-layouts=off"]),
}


def stored(how, tools):
    """The scale moves as without the options, and so does the loss, but for the
    order of sums and what lazy updates mean."""
    mesh, options = STORED[how]
    model, scale = "gpt2-tiny-untied", f"auto:start={MOST},every=4"
    plan = compile_plan(tools, model, mesh, *options)
    plain = compile_plan(tools, model, mesh, name="plain")
    found, _ = train(tools, plan, model, 14, scale)
    wanted, _ = train(tools, plain, model, 14, scale, tag="plain")
    count = falls(found[:next(i for i, e in enumerate(found)
                              if not e["skipped"]) + 1])
    for key in ("loss_scale", "skipped"):
        if [e[key] for e in found] != [e[key] for e in wanted]:
            raise Failed(f"{key} {[e[key] for e in found]}, expected "
                         f"{[e[key] for e in wanted]}")
    error = close([e["loss"] for e in found], [e["loss"] for e in wanted], 5e-3,
                  "losses")
    return f"{count} skipped, loss {error:.0e}"


def least(tools):
    plan = compile_plan(tools, "mlp-ce", "dp=2")
    for scale in (str(MOST), f"auto:start={MOST},least={MOST}"):
        _, errors = tools.run("merak-run", plan, data_of("mlp-ce"), "--steps=3",
                              f"--loss-scale={scale}",
                              f"--save={tools.path('none')}", expect=1)
        if not re.search(r"step 1: gradients are not finite with a loss scale of "
                         r"16777216, which falls no further \(samples 0\.\.7\)",
                         errors) or "step 1: first in samples" not in errors:
            raise Failed(errors.strip())
    if os.path.exists(tools.path("none/latest")):
        raise Failed("a step that was not finite was saved")
    entries, _ = train(tools, plan, "mlp-ce", 2, str(MOST), "--on-nonfinite=skip")
    if [e["skipped"] for e in entries] != [True, True] or \
            [e["loss_scale"] for e in entries] != [MOST, MOST]:
        raise Failed(f"with --on-nonfinite=skip: {entries}")
    # It falls to the least one, and no further.
    _, errors = tools.run("merak-run", plan, data_of("mlp-ce"), "--steps=9",
                          f"--loss-scale=auto:start={MOST},least={MOST // 2}",
                          expect=1)
    if "step 2: gradients are not finite with a loss scale of 8388608," \
            not in errors:
        raise Failed(errors.strip())


def refused(tools):
    plan = compile_plan(tools, "mlp-ce", "none")
    for given in ("0", "-1", "two", "auto:", "auto:start", "auto:every=0",
                  "auto:begin=2", "auto:start=4,least=8", "1e30", "nan"):
        _, errors = tools.run("merak-run", plan, data_of("mlp-ce"), "--steps=1",
                              f"--loss-scale={given}", expect=2)
        if "--loss-scale: expected" not in errors:
            raise Failed(f"{given}: {errors.strip()}")
    for precision, mode in (("bf16", "train"), ("fp16", "infer")):
        other = compile_plan(tools, "mlp-ce", "none", f"--mode={mode}",
                             precision=precision, name=precision)
        _, errors = tools.run("merak-run", other, data_of("mlp-ce"), "--steps=1",
                              "--loss-scale=auto", expect=1)
        if "scales no loss; plans that are compiled for training with " \
                "--precision=fp16 do" not in errors:
            raise Failed(f"{precision}: {errors.strip()}")
    _, errors = tools.run(
        "merakc", os.path.join(harness.MODELS, "mlp-ce", "model.onnx"), "-o",
        tools.path("old.plan"), "--global-batch=8", "--precision=fp16",
        "--target=x86-64", expect=1)
    if "cannot convert f16; expected x86-64-v3" not in errors:
        raise Failed(errors.strip())
    # A plan whose gradients keep the scale is none.
    text = tools.path("plan.mlir")
    tools.run("merakc", os.path.join(harness.MODELS, "mlp-ce", "model.onnx"), "-o",
              text, "--to=plan", "-q", "--global-batch=8", "--precision=fp16")
    with open(text, encoding="utf-8") as file:
        lines = file.read().splitlines(keepends=True)
    at = [i for i, line in enumerate(lines) if "clip_factor" in line]
    if not at or '<"grad_scale">' not in lines[at[0]]:
        raise Failed("no factor takes the scale out")
    lines[at[0]] = lines[at[0]].replace('<"grad_scale">', "<1.0>")
    with open(text, "w", encoding="utf-8") as file:
        file.writelines(lines)
    _, errors = tools.run("merakc", text, "--from=plan", "-q", "-o",
                          tools.path("broken.plan"), expect=70)
    if "leaves the scale of the loss in the gradients" not in errors:
        raise Failed(errors.strip())


def main():
    args = harness.parser(__doc__).parse_args()
    cases = [Case(f"overflow {model} {mesh}",
                  functools.partial(overflow, model, mesh))
             for model in ("mlp-ce", "gpt2-tiny") for mesh in MESHES
             if args.all or (model == "mlp-ce") == (mesh in ("none", "dp=2"))]
    apart = [Case(f"processes {model} {mesh}",
                  functools.partial(of_processes, model, mesh))
             for model, mesh in (("gpt2-tiny", "pp=2"), ("mlp-ce", "dp=2"),
                                 ("gpt2-tiny", "tp=2"),
                                 ("gpt2-tiny", "pp=2,dp=2"))]
    if reason := mpi.why_no_processes(args.bin_dir):
        print(f"skipped {len(apart)} cases: {reason}")
    else:
        cases += apart
    cases += [Case("doubles", doubles)]
    cases += [Case(f"resume {model} {before} {after}",
                   functools.partial(resume, model, before, after))
              for model, before, after in (("gpt2-tiny", "pp=2", "none"),
                                           ("mlp-ce", "none", "pp=2"))]
    cases += [Case(f"unscaled {model} {mesh} {optimizer}",
                   functools.partial(unscaled, model, mesh, optimizer))
              for model, mesh, optimizer in (
                  ("gpt2-tiny", "none", "sgd"), ("gpt2-tiny", "dp=2,tp=2", "adamw"),
                  ("mlp-mse", "pp=2", "sgd"), ("vit-tiny", "none", "adamw"))]
    cases += [Case("stored " + how, functools.partial(stored, how))
              for how in STORED]
    cases += [Case("least", least), Case("refused", refused)]
    return harness.run_cases("loss-scale", cases, args)


if __name__ == "__main__":
    sys.exit(main())
