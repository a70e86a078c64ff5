#!/usr/bin/env python3
"""Checkpoints. A model saved under one mesh continues under another with the
same losses: five steps of the recorded run, a checkpoint, and the other five. A
run that is killed at any time, in the middle of writing too, goes on from its
newest generation and ends with the bits of a run that nobody killed; and what
runs refuse to go on with, or to save.
"""
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import harness
import matrix
import oracle
from harness import Case, Failed

# From, to: every axis appears and disappears.
MOVES = [("none", "pp=2,dp=2,tp=2"), ("pp=2,dp=2,tp=2", "none"),
         ("tp=2", "pp=2"), ("pp=2", "dp=2"), ("dp=2", "tp=2"),
         ("dp=2,tp=2", "pp=2,tp=2"), ("none", "none")]
MODELS = ["gpt2-tiny", "gpt2-tiny-untied", "bert-tiny", "resnet-tiny",
          "vit-tiny", "mlp-ce"]
HALF = 5


def data_of(model):
    return "--data=" + os.path.join(harness.MODELS, model, "data")


def plan(tools, model, mesh, optimizer, tag, *options):
    path = tools.path(tag + ".plan")
    freeze = ([f"--freeze={oracle.FREEZE[model]}"]
              if model in oracle.FREEZE else [])
    tools.run("merakc", os.path.join(harness.MODELS, model, "model.onnx"), "-o",
              path, *matrix.compile_options(mesh, "half", "1f1b"), optimizer,
              *freeze, *options)
    return path


def body(model, source, target, optimizer, tools):
    info = oracle.expected(model)
    option = oracle.optimizer_option(model, optimizer)
    if optimizer == "sgd":
        # Momentum is state that must move too; the recorded run has none.
        option += ",momentum=0.9"
    before = plan(tools, model, source, option, "before")
    after = plan(tools, model, target, option, "after")
    saved = tools.path("saved")

    def losses(which, count, name, *options):
        log = tools.path(name)
        tools.run("merak-run", which, data_of(model), f"--steps={count}",
                  f"--log={log}", *options)
        entries = harness.read_log(log)
        if [e["step"] for e in entries] != list(range(1, len(entries) + 1)):
            raise Failed(f"the log has steps {[e['step'] for e in entries]}")
        return [e["loss"] for e in entries]

    losses(before, HALF, "log.jsonl", f"--save={saved}")
    # The log goes on.
    found = losses(after, HALF, "log.jsonl", f"--load={saved}")
    if optimizer == "adamw":
        wanted = info["optimizers"]["adamw"]["losses"]
    else:
        wanted = losses(before, 2 * HALF, "whole.jsonl")
    return f"loss {oracle.compare_losses(found, wanted):.0e}"


# --------------------------------------------------------------------- kills


def state_of(folder):
    """The bytes of all shards and the state of the newest generation."""
    folder = harness.generation(folder)
    with open(os.path.join(folder, "index.json"), encoding="utf-8") as file:
        index = json.load(file)
    shards = {}
    for name in index["shards"]:
        with open(os.path.join(folder, name), "rb") as file:
            shards[name] = file.read()
    return index["step"], index["samples"], index["state"], shards


def untimed(log):
    return [{k: v for k, v in entry.items() if k in ("step", "loss", "lr",
                                                     "grad_norm")}
            for entry in harness.read_log(log)]


def unfinished(saved):
    """What runs are writing, or were when they were killed."""
    try:
        return {n for n in os.listdir(saved)
                if n.startswith((".saving-", ".latest-", ".removing-"))}
    except FileNotFoundError:
        return set()


class OneProcess:
    """How a run is started and killed."""

    def command(self, tools, *arguments):
        return tools.start("merak-run", *arguments)

    def kill(self, process, chance):
        process.send_signal(signal.SIGKILL)

    def is_killed(self, code, errors):
        return code == -signal.SIGKILL


def kill_once(tools, chance, launch, command, saved, saving):
    """Starts the run and kills it; whether the kill came while it was saving.
    `saving`: waits for that; else for a step that the log does not have."""
    before = unfinished(saved)
    log = tools.path("log.jsonl")
    begun = os.stat(log).st_mtime_ns if os.path.exists(log) else 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True,
                               env={**os.environ, **tools.extra})
    deadline = time.monotonic() + 60
    try:
        if saving:
            while (not unfinished(saved) - before and
                   process.poll() is None):
                if time.monotonic() > deadline:
                    raise Failed("nothing was saved in 60 s")
            time.sleep(chance.choice([0, 0, 0.0003, 0.001, 0.002]))
        else:
            while (process.poll() is None and
                   (not os.path.exists(log) or os.path.getsize(log) == 0 or
                    os.stat(log).st_mtime_ns == begun)):
                if time.monotonic() > deadline:
                    raise Failed("no step in 60 s")
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.05))
        launch.kill(process, chance)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    if process.returncode == 0:
        return None
    if not launch.is_killed(process.returncode, errors):
        raise Failed(f"ended by itself: {harness.last_lines(errors)}")
    # What a kill leaves behind is under a name that is not a generation's.
    return bool(unfinished(saved) - before)


def killed(model, mesh, options, seed, kills, tools, launch=OneProcess()):
    """A run that goes on after every kill, at random times and while saving,
    until it is done, beside one in one process that nobody kills."""
    chance = random.Random(seed)
    steps = 40
    path = plan(tools, model, mesh, oracle.optimizer_option(model, "adamw"),
                "x")
    whole = tools.path("whole")
    tools.run("merak-run", path, data_of(model), f"--steps={steps}",
              f"--save={whole}", f"--log={tools.path('whole.jsonl')}")
    wanted = state_of(whole)
    expected = untimed(tools.path("whole.jsonl"))
    saved, log = tools.path("saved"), tools.path("log.jsonl")
    done, while_saving, rounds = 0, 0, 0
    while done < kills:
        rounds += 1
        for name in (saved, log):
            shutil.rmtree(name, ignore_errors=True)
        harness.fresh(log)
        while True:
            newest = harness.generation(saved)
            begun = newest != saved
            before = state_of(saved)[0] if begun else 0
            if before >= steps:
                break
            command = launch.command(
                tools, path, data_of(model),
                f"--steps={steps - before}", f"--save={saved}",
                "--save-every=1", f"--log={log}", *options,
                *([f"--load={saved}"] if begun else []))
            if done >= kills:
                subprocess.run(command, check=True, capture_output=True,
                               timeout=tools.timeout,
                               env={**os.environ, **tools.extra})
                break
            caught = kill_once(tools, chance, launch, command, saved,
                               chance.random() < 0.5)
            if caught is None:
                break  # it was done before
            done += 1
            while_saving += caught
        if state_of(saved) != wanted:
            raise Failed("the state differs from that of an undisturbed run "
                         f"after {done} kills")
        if untimed(log) != expected:
            raise Failed(f"the log differs after {done} kills")
    return f"{done} kills, {while_saving} while saving, {rounds} runs identical"


# --------------------------------------------------------- signals, refusals


def small(tools, *options, name="small"):
    return plan(tools, "mlp-ce", "none", "--optimizer=sgd:lr=0.05", name,
                *options)


def started(tools, *arguments):
    # Under nohup SIGHUP is ignored, and merak-run leaves it so.
    return subprocess.Popen(tools.start("merak-run", *arguments),
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                            text=True, preexec_fn=lambda: signal.signal(
                                signal.SIGHUP, signal.SIG_DFL))


def wait_for(process, what):
    deadline = time.monotonic() + 60
    while not what():
        if process.poll() is not None or time.monotonic() > deadline:
            raise Failed(f"it did not happen: {process.communicate()[1]}")
        time.sleep(0.002)


def signals(tools):
    """SIGUSR1 saves and goes on, SIGHUP saves and ends."""
    path, saved = small(tools), tools.path("saved")
    log = tools.path("log.jsonl")
    process = started(tools, path, data_of("mlp-ce"), "--steps=100000000",
                      f"--save={saved}", f"--log={log}")
    try:
        wait_for(process, lambda: os.path.exists(log) and
                 os.path.getsize(log) > 0)
        steps = []
        for _ in range(2):
            process.send_signal(signal.SIGUSR1)
            wait_for(process, lambda: os.path.exists(
                os.path.join(saved, "latest")) and
                state_of(saved)[0] not in steps)
            steps.append(state_of(saved)[0])
        process.send_signal(signal.SIGHUP)
        errors = process.communicate(timeout=60)[1]
    finally:
        process.kill()
        process.wait()
    last = state_of(saved)[0]
    if (process.returncode != 1 or not steps[0] < steps[1] < last or
            f"stopped by SIGHUP after step {last} of" not in errors):
        raise Failed(f"steps {steps}, {last}; {errors}")
    return f"saved after {steps[0]}, {steps[1]} and {last} steps"


def refused(tools, wanted, *arguments):
    _, errors = tools.run("merak-run", *arguments, expect=1)
    lines = [line for line in errors.splitlines() if "error:" in line]
    if len(lines) != 1 or wanted not in lines[0]:
        raise Failed(f"expected one sentence with {wanted!r}: {errors}")
    return lines[0]


def two_runs(tools):
    """The second one in a folder is refused, and the first is unharmed."""
    path, saved = small(tools), tools.path("saved")
    process = started(tools, path, data_of("mlp-ce"), "--steps=100000000",
                      f"--save={saved}", "--save-every=1000")
    try:
        wait_for(process, lambda: os.path.exists(
            os.path.join(saved, "latest")))
        with open(os.path.join(harness.generation(saved), "index.json"),
                  encoding="utf-8") as file:
            run = json.load(file)["run"]
        refused(tools, f"is being written by merak-run {run} (process "
                f"{process.pid} on host ", path, data_of("mlp-ce"),
                f"--save={saved}")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    tools.run("merak-run", path, data_of("mlp-ce"), f"--load={saved}",
              f"--save={saved}")
    return "refused by name"


def other_data_or_seed(tools):
    path, saved = small(tools), tools.path("saved")
    log = tools.path("log.jsonl")
    tools.run("merak-run", path, data_of("mlp-ce"), "--steps=2", "--seed=5",
              f"--save={saved}")
    tools.run("merak-run", path, data_of("mlp-ce"), f"--load={saved}",
              f"--log={log}", f"--save={tools.path('second')}")
    seed = state_of(tools.path("second"))[2]["seed"]
    if seed != 5:
        raise Failed(f"goes on with seed {seed}")
    refused(tools, "was trained with --seed=5, this run has --seed=6", path,
            data_of("mlp-ce"), f"--load={saved}", "--seed=6")
    refused(tools, "was trained on other data", path, "--data=synthetic",
            f"--load={saved}")
    tools.run("merak-run", path, "--data=synthetic", f"--load={saved}",
              "--seed=6", "--force-resume")
    # The same data elsewhere.
    shutil.copytree(os.path.join(harness.MODELS, "mlp-ce", "data"),
                    tools.path("moved"))
    tools.run("merak-run", path, "--data=" + tools.path("moved"),
              f"--load={saved}")
    with open(log, "a", encoding="utf-8") as file:
        file.write("Dear diary\n")
    refused(tools, "is not of the log of a run", path, data_of("mlp-ce"),
            f"--load={saved}", f"--log={log}")
    return "refused unless forced"


# ---------------------------------------------------------------- non-finite


def bad_data(tools, sample):
    """The data of mlp-mse with one value that is not finite."""
    folder = tools.path("bad")
    shutil.copytree(os.path.join(harness.MODELS, "mlp-mse", "data"), folder)
    path = next(os.path.join(folder, n) for n in sorted(os.listdir(folder))
                if n.startswith("x"))
    with open(path, "rb") as file:
        content = bytearray(file.read())
    begin = 10 + int.from_bytes(content[8:10], "little")
    header = content[10:begin].decode()
    shape = eval(header)["shape"]  # a literal that we wrote
    row = 4
    for size in shape[1:]:
        row *= size
    at = begin + sample % shape[0] * row
    content[at:at + 4] = b"\0\0\xc0\x7f"  # nan
    with open(path, "wb") as file:
        file.write(content)
    return "--data=" + folder, shape[0]


def non_finite(mesh, options, tools):
    """A sample that is not a number: the run stops there, says where, and the
    generation before it stays; or goes on."""
    path = tools.path("x.plan")
    tools.run("merakc", os.path.join(harness.MODELS, "mlp-mse", "model.onnx"),
              "-o", path, *matrix.compile_options(mesh, "half", "1f1b"),
              "--optimizer=sgd:lr=0.05", *options)
    batch = json.loads(tools.run("merak-run", path, "--data=synthetic",
                                 f"--save={tools.path('one')}") and
                       open(os.path.join(harness.generation(
                           tools.path("one")), "index.json"),
                           encoding="utf-8").read())["samples"]
    bad = 2 * batch + 1  # in the third step
    data, samples = bad_data(tools, bad)
    if samples <= bad:
        raise Failed(f"{samples} samples are too few")
    saved = tools.path("saved")
    _, errors = tools.run("merak-run", path, data, "--steps=5",
                          f"--save={saved}", "--save-every=1", expect=1)
    wanted = f"samples {2 * batch}..{3 * batch - 1}"
    if "step 3: " not in errors or wanted not in errors:
        raise Failed(f"expected step 3 and {wanted}: {errors}")
    if state_of(saved)[0] != 2 or os.path.exists(
            os.path.join(saved, "step-3")):
        raise Failed(f"the newest generation is {state_of(saved)[0]}")
    found = [line for line in errors.splitlines() if "first in" in line]
    if len(found) != 1:
        raise Failed(f"no word on where it began: {errors}")
    first, last = map(int, found[0].split("samples ")[1].split(
        " of rank")[0].split(".."))
    if not first <= bad <= last or last - first + 1 >= batch:
        raise Failed(f"sample {bad} is not {first}..{last} of a part")
    log = tools.path("log.jsonl")
    tools.run("merak-run", path, data, "--steps=5", "--on-nonfinite=ignore",
              f"--log={log}", f"--save={tools.path('any')}")
    if len(harness.read_log(log)) != 5:
        raise Failed("does not go on")
    skipped = tools.path("skip")
    for steps, load in ((4, []), (1, [f"--load={skipped}"])):
        tools.run("merak-run", path, data, f"--steps={steps}", *load,
                  "--on-nonfinite=skip", f"--save={skipped}")
        count = state_of(skipped)[2]["skipped"]
    if count != 1:
        raise Failed(f"{count} steps were counted as skipped")
    return harness.last_lines(errors)[:120]


def full_disk(tools):
    """A save beside the steps that fails ends the run, which says so; what was
    saved before loads."""
    path, saved = small(tools), tools.path("saved")
    tools.run("merak-run", path, data_of("mlp-ce"), f"--save={saved}")
    before = state_of(saved)
    limited = ["bash", "-c", 'ulimit -f 1; trap "" XFSZ; exec "$@"', "-",
               *tools.start("merak-run", path, data_of("mlp-ce"),
                            "--steps=100000", f"--load={saved}",
                            f"--save={saved}", "--save-every=5")]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=60)
    if done.returncode != 1 or "cannot write" not in done.stderr:
        raise Failed(f"{done.returncode}: {done.stderr}")
    if state_of(saved) != before or unfinished(saved):
        raise Failed("the checkpoint changed")
    return harness.last_lines(done.stderr, 1)[:120]


def main():
    args = harness.parser(__doc__).parse_args()
    chosen = [(model, *move, optimizer) for model in MODELS for move in MOVES
              for optimizer in matrix.OPTIMIZERS]
    if not args.all:
        chosen = [c for k, c in enumerate(chosen) if k % 5 == 0 or
                  (c[0] == "gpt2-tiny" and c[3] == "adamw")]
    cases = [Case(f"{m} {a} to {b} {o}", functools.partial(body, m, a, b, o))
             for m, a, b, o in chosen]
    runs = [("mlp-ce", "dp=2", []), ("gpt2-tiny", "pp=2,tp=2", []),
            ("gpt2-tiny", "none", ["--save-wait"])]
    cases += [Case(f"killed {model} {mesh} {''.join(options)}",
                   functools.partial(killed, model, mesh, options, k,
                                     100 if args.all else 4))
              for k, (model, mesh, options) in enumerate(runs)]
    cases += [Case(f.__name__, f) for f in (signals, two_runs,
                                            other_data_or_seed, full_disk)]
    cases += [Case(f"non_finite {mesh} {''.join(options)}",
                   functools.partial(non_finite, mesh, options))
              for mesh in ("dp=2", "pp=2") for options in
              ([], ["--grad-clip=1e3"], ["--precision=bf16"])]
    return harness.run_cases("checkpoint", cases, args)


if __name__ == "__main__":
    sys.exit(main())
