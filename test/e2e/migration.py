#!/usr/bin/env python3
"""State that is moved from one plan's memory into another's, between two steps, is
bit for bit what a checkpoint would have brought there; training goes on with the
same losses and state; bytes and messages are those that the transfer program says,
of each device, and memory beside the state stays within a bucket.

pair      plans of one model with layouts drawn at random: stages, replicas, tensor
          parallelism, levels of ZeRO, tokens over tp, schedules, recomputation,
          precision; ranks on devices and nodes drawn at random, buckets from a few
          numbers to everything at once; half of them with state in memory of its own, of
          which what is kept is not copied, and the first run ends before the second
          goes on
processes ranks as processes, of which each is a device; the messages go through MPI
          (skipped, with the reason, where that is missing)
replayed  rows of tables that are owed steps, or what the step before left, have them
          before they are moved, between plans with row-sparse and with dense gradients
forgotten a program that lost a piece behind the verifier's back is found out
"""
import functools
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

import delayed_gradients
import harness
import identity
import matrix
import mpi
import oracle
import sparse_models
from harness import Case, Failed

MODELS = ["gpt2-tiny", "bert-tiny", "vit-tiny", "resnet-tiny", "mlp-ce"]
MESHES = matrix.MESHES + ["dp=4", "tp=4", "pp=2,dp=2", "pp=2,tp=2", "dp=4,tp=2",
                          "pp=2,dp=4", "pp=4"]
# Of as many ranks: of the first plan, and of the second.
MESHES_OF_FOUR = [["tp=4", "pp=2,tp=2"], ["dp=4", "pp=2,dp=2", "dp=2,tp=2"]]
# Of `pairs`, in the check and with --all; layouts of a model and optimizer.
PAIRS, ALL_PAIRS = 40, 500
LAYOUTS, ALL_LAYOUTS = 5, 24
DELAYED = "--sparse=lazy --delayed-rows=on --mixed-layouts=off"
# What is drawn and refused is drawn again.
MOST_REFUSED = 30
MOVED = re.compile(r"kept (\d+) shared (\d+) copied (\d+) sent (\d+) "
                   r"messages (\d+) buckets (\d+) peak (\d+)\n$")


def drawn_options(pick, meshes):
    mesh, schedule = pick.choice(meshes), pick.choice(matrix.ALL_SCHEDULES)
    microbatch = pick.choice(matrix.MICROBATCHES)
    options = matrix.compile_options(mesh, microbatch, schedule,
                                     pick.choice(matrix.RECOMPUTE))
    options.append(f"--zero={pick.choice('00123')}")
    if "tp" in mesh:
        options.append("--sequence-parallel=" + pick.choice(["off", "auto"]))
    if pick.random() < 0.25:
        options.append("--precision=bf16")
    return options


def plan_of(folder, model, optimizer, number, tools, meshes=MESHES):
    """A plan that all cases share: the first layout of its number that is not
    refused."""
    path = os.path.join(folder, f"{model}-{optimizer}-{number}-{len(meshes)}.plan")

    def make():
        pick = random.Random(f"{model} {optimizer} {number}")
        for _ in range(MOST_REFUSED):
            tools.run("merakc", os.path.join(harness.MODELS, model, "model.onnx"),
                      "-o", path, "-q", oracle.optimizer_option(model, optimizer),
                      *drawn_options(pick, meshes), expect=None)
            if tools.returncode == 0:
                return path
            if tools.returncode != 1:
                raise Failed(f"merakc ends with {tools.returncode}")
        raise Failed(f"{MOST_REFUSED} layouts refused")

    return identity.BASES.get(("migration", path), make)


def data_of(model):
    return os.path.join(harness.MODELS, model, "data")


def migrate(source, target, data, options, tools, expect=0, launcher=()):
    command = [*launcher, os.path.join(tools.bin_dir, "merak-migrate-plans")]
    out, errors = tools.run(*command, source, target, tools.path("saved"),
                            f"--data={data}", *options, expect=expect)
    found = MOVED.match(out)
    if expect == 0 and not found:
        raise Failed(f"what was moved is not told: {out}")
    return errors if expect else [int(n) for n in found.groups()]


def pair(folder, model, optimizer, numbers, seed, bucket, apart, tools):
    plans = [plan_of(folder, model, optimizer, n, tools) for n in numbers]
    kept, shared, copied, sent, messages, buckets, peak = migrate(
        *plans, data_of(model), [f"--seed={seed}", f"--bucket={bucket}",
                        *(["--apart"] if apart else [])], tools)
    if peak > bucket:
        raise Failed(f"{peak} bytes of buffers, more than {bucket}")
    return (f"kept {kept}, {shared} of it in its place, copied {copied}, sent {sent} in {messages} messages "
            f"and {buckets} buckets")


def processes(folder, model, number, tools):
    plans = [plan_of(folder, model, "adamw", number, tools, meshes)
             for meshes in MESHES_OF_FOUR]
    options = ["--bucket=65536", *(["--apart"] if number % 2 else [])]
    tools.extra.update(mpi.ROOT_ALLOWED)
    found = migrate(*plans, data_of(model), [*options, "--ranks=env"], tools,
                    launcher=[shutil.which("mpirun"), "-np", "4", *mpi.MPIRUN])
    if found[3] == 0:
        raise Failed("nothing is sent")
    return f"sent {found[3]} in {found[4]} messages and {found[5]} buckets"


def replayed(options, apart, tools):
    model, data = sparse_models.write(tools, sparse_models.long_linear(
        20, sparse_models.come_and_go))
    plans = []
    for number, (mesh, option) in enumerate(zip(("dp=2", "tp=2"), options)):
        plans.append(tools.path(f"{number}.plan"))
        tools.run("merakc", model, "-o", plans[-1], "-q", *option.split(),
                  f"--optimizer={sparse_models.REPLAYED['adamw']}",
                  *matrix.compile_options(mesh, "half", "1f1b"))
    found = migrate(*plans, data, ["--steps=7", "--bucket=4096",
                                   *(["--apart"] if apart else [])], tools)
    return f"sent {found[3]}"


def delayed(option, apart, tools):
    """Gradients that the last step of the first plan left are applied before."""
    model, data = sparse_models.write(tools, delayed_gradients.straight())
    plans = [delayed_gradients.compile_plan(
        tools, model, (mesh, "half", "1f1b", "none"),
        [f"--optimizer={sparse_models.REPLAYED['adamw']}", *more], f"-{number}")
        for number, (mesh, more) in enumerate((
            ("dp=2", [delayed_gradients.ON]), ("pp=2,dp=2", option)))]
    found = migrate(*plans, data, ["--steps=5", "--bucket=4096",
                                   *(["--apart"] if apart else [])], tools)
    return f"sent {found[3]}"


def forgotten(folder, model, tools):
    plans = [plan_of(folder, model, "adamw", n, tools) for n in range(2)]
    errors = migrate(*plans, data_of(model), ["--forget"], tools, expect=1)
    if "is not what the checkpoint brings" not in errors:
        raise Failed(f"another sentence: {errors}")
    return "found"


def pairs(folder, count, layouts):
    pick = random.Random("migration")
    for number in range(count):
        model, optimizer = pick.choice(MODELS), pick.choice(matrix.OPTIMIZERS)
        numbers = [pick.randrange(layouts) for _ in range(2)]
        bucket = pick.choice([1000, 4096, 20000, 65536, 64 << 20])
        apart = number % 2 == 1
        yield Case(f"pair {model} {optimizer} {numbers[0]} to {numbers[1]} "
                   f"bucket {bucket} seed {number}{' apart' if apart else ''}",
                   functools.partial(pair, folder, model, optimizer, numbers,
                                     number, bucket, apart))


def mpi_is_built(bin_dir):
    said = subprocess.run([os.path.join(bin_dir, "merak-run"), "--version"],
                          capture_output=True, text=True).stdout
    return "MPI: not built in" not in said


def main():
    args = harness.parser(__doc__).parse_args()
    folder = tempfile.mkdtemp(prefix="merak-migration-")
    try:
        cases = list(pairs(folder, ALL_PAIRS if args.all else PAIRS,
                           ALL_LAYOUTS if args.all else LAYOUTS))
        cases += [Case(f"replayed {first} to {second}{' apart' if apart else ''}",
                       functools.partial(replayed, (first, second), apart))
                  for first, second in (("--sparse=exact", "--sparse=exact"),
                                        ("--sparse=exact", "--sparse=off"),
                                        ("--sparse=off", "--sparse=exact"),
                                        (DELAYED, DELAYED),
                                        (DELAYED, "--sparse=lazy"))
                  for apart in (False, True)]
        cases += [Case(f"delayed gradients{''.join(option)}"
                       f"{' apart' if apart else ''}",
                       functools.partial(delayed, option, apart))
                  for option in ([delayed_gradients.ON], [])
                  for apart in (False, True)]
        cases += [Case(f"forgotten {model}",
                       functools.partial(forgotten, folder, model))
                  for model in ("gpt2-tiny", "mlp-ce")]
        if shutil.which("mpirun") and mpi_is_built(args.bin_dir):
            cases += [Case(f"processes {model} {number}",
                           functools.partial(processes, folder, model, number))
                      for number, model in enumerate(MODELS[:4])]
        else:
            print("skipped: processes: there is no mpirun, or the tools were built "
                  "without MPI")
        return harness.run_cases("migration", cases, args)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
