#!/usr/bin/env python3
"""A run that takes another plan when its devices get slower or faster (merak-run
--replan), on devices that are slower than this machine (MERAK_PACE), of which some
are slowed down from one step to another one (MERAK_SLOW).

one       a device slows down in the middle of training, and is normal again: a
          switch for each, told and in the log, with what was predicted and measured
two       a second one slows down after the first
replay    the same bits as a run that was stopped at the logged steps and went on from
          a checkpoint under the logged plans
exact     sums of whole numbers: the bits of a run that nobody disturbed
shares    the same of two replicas, of which the slow one trains fewer microbatches:
          no state moves
alike     from one state the old and the new plan's next losses agree within 1e-5
noise     short disturbances and rates below the threshold: no other plan
out       a device that is hardly worth its place is left out
family    plans that were compiled together (merakc, several --for-rates), and their
          table; those of another model are not considered
compiled  the plans that the run makes itself, beside the training
suggest   says what auto would do, and does nothing
saves     checkpoints and the timeline go on; a run that goes on from one of them
broken    no compiler, and one that fails: training goes on and one line says so
processes ranks as processes take another plan together, with the bits of threads
          (skipped, with the reason, where MPI is missing)
gpus      the same as exact on emulated GPUs, whose memory the host reaches by copies
          alone, of one process and of several; of devices that hold no two plans the
          plan stays
refused   what cannot be, in sentences

Times are printed. The machine may be slow itself, and a run may see that: what is
asserted is what happens for the device that was slowed, by a factor that no machine of
ours gets near, and bits, which hold whatever was decided. How often a change is asked
about is a matter of elastic_test.
"""
import functools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time

import exact_models
import harness
import mpi
import parts
import seams
from agents import has_gpus, on_gpus
from harness import Case, Failed
from migration import mpi_is_built

GPT = os.path.join(harness.MODELS, "gpt2-tiny/model.onnx")
OTHER = os.path.join(harness.ROOT, "samples/01-train-gpt/model.onnx")
# Seconds of a step of the plan that a run begins with: so long that a rate is known
# from one step on, and that planning beside it takes few of them; in builds that
# compute slowly SLOWER times as long.
STEP, SLOWER = 0.12, 4
# A run: normal until FROM, disturbed until TO.
FROM, TO, STEPS = 15, 60, 110
SWITCH = "switch"
GPUS = (("residual", "pp=4", ["--mesh=pp=4"]), ("wide", "pp=2,dp=2", []))
GPUS_APART = GPUS[:1]  # no process is left without a rank


def compile_plan(tools, path, *options, model=GPT):
    tools.run("merakc", model, "-o", path, *options)
    said = tools.run("merak-plan", "simulate", path)[0]
    for line in said.splitlines():
        words = line.split()
        if words[:1] == ["step"]:
            scale = {"us": 1e-6, "ms": 1e-3, "s": 1}[words[2]]
            return float(words[1]) * scale
    raise Failed(f"no time of a step in {said}")


def gpt_plan(tools, *options, mesh="pp=4", name="gpt.plan"):
    """The plan, on devices so slow that a step takes STEP."""
    path = tools.path(name)
    seconds = compile_plan(tools, path, "--microbatch=1", f"--mesh={mesh}", *options)
    tools.extra["MERAK_PACE"] = str(STEP / seconds)
    return path


def family(tools, *situations, model=GPT, options=("--mesh=pp=4", "--microbatch=1")):
    """Plans that were compiled before: while a run trains, a machine with other work
    takes its time for that."""
    folder = tools.path("family")
    os.makedirs(folder, exist_ok=True)
    for number, rates in enumerate(situations):
        tools.run("merakc", model, "-o", f"{folder}/{number}.plan",
                  f"--for-rates={rates}", *options)
    return f"--plans={folder}"


def train(tools, plan, *options, slow=None, steps=STEPS, name="run",
          data="synthetic", replan="auto", ranks=None):
    """The log's steps and what it says of plans, and what was told."""
    tools.extra.pop("MERAK_SLOW", None)
    if slow:
        tools.extra["MERAK_SLOW"] = slow
    log = harness.fresh(tools.path(name + ".jsonl"))
    arguments = [plan, f"--data={data}", f"--steps={steps}", f"--log={log}",
                 "--threads=1", f"--save={tools.path(name)}",
                 *([f"--replan={replan}"] if replan else []), *options]
    said = (mpi.mpi(tools, ranks, *arguments) if ranks
            else tools.run("merak-run", *arguments))[1]
    entries = harness.read_log(log)
    return ([e for e in entries if "replan" not in e],
            [{"step": e["step"], **e["replan"]} for e in entries if "replan" in e],
            said)


def of(events, what):
    return [event for event in events if event["what"] == what]


def check_switches(events):
    for event in of(events, SWITCH):
        if not (event["predicted_step_seconds"] < event["step_seconds"]
                and event["moved_bytes"] >= 0 and event["stall_seconds"] >= 0):
            raise Failed(f"switched for {event}")


def there(events, device, said):
    """The switch for the device, which the machine may disturb by itself."""
    check_switches(events)
    for event in of(events, SWITCH):
        if event["step"] > FROM and f"{device}:" in event["rates"]:
            return event
    raise Failed(f"no switch for device {device}: {events}; {said}")


def some(events, said):
    """Of a case that asks only what a switch does, whatever it was for."""
    check_switches(events)
    if not of(events, SWITCH):
        raise Failed(f"no switch: {events}; {said}")
    return of(events, SWITCH)[0]


def back(events, device, said):
    """The last switch, which is for devices of which this one is normal."""
    event = of(events, SWITCH)[-1]
    if event["step"] < TO or f"{device}:" in event["rates"]:
        raise Failed(f"no switch back: {events}; {said}")
    return event


def medians(steps, bounds):
    """Milliseconds of a step between two steps each."""
    result = []
    for begin, end in bounds:
        seconds = [s["seconds"] for s in steps if begin < s["step"] <= end]
        result.append(1e3 * statistics.median(seconds) if seconds else 0)
    return result


def known(steps, device):
    """The step from which the slowed device is slow in the log. The machine may have
    disturbed it before."""
    return next((s["step"] for s in steps
                 if s["step"] >= FROM and str(device) in s.get("slow", {})), None)


def one_body(mesh, device, factor, tools):
    plan = gpt_plan(tools, mesh=mesh)
    plans = family(tools, f"{device}:{factor}", options=[
        "--microbatch=1", "--mesh=pp=3" if mesh == "pp=3" else "--mesh=pp=4"])
    steps, events, said = train(tools, plan, plans,
                                slow=f"{device}:{factor}:{FROM}:{TO}")
    first, last = there(events, device, said), back(events, device, said)
    found = known(steps, device)
    if found is None:
        raise Failed(f"not known, slowed from {FROM} on")
    if "goes on with" not in said or not of(events, "measured"):
        raise Failed(f"it is not told: {said}")
    before, during, after, again = medians(
        steps, [(2, FROM - 1), (FROM, first["step"]),
                (first["step"] + 2, TO), (last["step"] + 2, STEPS)])
    if not after < during:
        raise Failed(f"{during:.0f} ms before the switch, {after:.0f} after it")
    return (f"known in step {found - FROM + 1}, switched in {first['step'] - FROM + 1}"
            f"; {before:.0f}, slow {during:.0f}, new plan {after:.0f} "
            f"({1e3 * first['predicted_step_seconds']:.0f} predicted), "
            f"then {again:.0f} ms; stall {1e3 * first['stall_seconds']:.1f} ms")


def two_body(tools):
    plan = gpt_plan(tools)
    slow = f"1:6:{FROM}:1000,3:5:{TO}:1000"
    steps, events, said = train(tools, plan, family(tools, "1:6", "1:6,3:5"),
                                slow=slow)
    first, second = there(events, 1, said), there(events, 3, said)
    if not FROM < first["step"] < TO < second["step"]:
        raise Failed(f"switched after {first['step']} and {second['step']}")
    if "1:" not in second["rates"]:
        raise Failed(f"the second time for {second['rates']}")
    times = medians(steps, [(2, FROM - 1), (FROM, first["step"]),
                            (first["step"] + 2, TO), (TO, second["step"]),
                            (second["step"] + 2, STEPS)])
    return " ".join(f"{ms:.0f}" for ms in times) + " ms"


def weights(tools, name):
    return {key: tensor.data.tobytes() for key, tensor
            in harness.read_checkpoint(tools.path(name))[0].items()}


def replayed(tools, plan, events, steps, done=0, load=None):
    """Losses and state of runs that are stopped where the plan was changed; from a
    step on, which a checkpoint is of."""
    losses, load = [], [f"--load={load}"] if load else []
    stops = [(event["step"], event["to"]) for event in of(events, SWITCH)]
    for until, following in stops:
        if until <= done:
            plan = following
    stops = [stop for stop in stops if stop[0] > done]
    for number, (until, following) in enumerate([*stops, (steps, None)]):
        name = f"part{number}"
        part, _, _ = train(tools, plan, *load, steps=until - done, name=name,
                           replan=None)
        losses += [step["loss"] for step in part]
        load, plan, done = [f"--load={tools.path(name)}"], following, until
    return losses, weights(tools, name)


def same(found, wanted, losses, state):
    if [step["loss"] for step in found] != losses:
        first = next(k for k, (a, b) in enumerate(zip(found, losses), 1)
                     if a["loss"] != b)
        raise Failed(f"another loss in step {first}")
    if state != wanted:
        raise Failed("another state: " + ", ".join(
            key for key in wanted if wanted[key] != state.get(key)))


def replay_body(mesh, options, tools):
    plan = gpt_plan(tools, *options, mesh=mesh)
    plans = family(tools, "2:6", options=["--mesh=pp=4", "--microbatch=1", *options])
    steps, events, said = train(tools, plan, plans, slow=f"2:6:{FROM}:{TO}")
    some(events, said)
    del tools.extra["MERAK_PACE"]
    losses, state = replayed(tools, plan, events, STEPS)
    same(steps, weights(tools, "run"), losses, state)
    return f"{len(losses)} steps, {len(of(events, SWITCH))} switches"


def exact_body(name, mesh, searched, tools, ranks=None, moves=False):
    """Weights stay, and the momentum sums whole numbers."""
    data, path = seams.write_data(tools, name), tools.path("exact.plan")
    options = ["--global-batch=8", "--optimizer=sgd:lr=0,momentum=1"]
    seconds = compile_plan(tools, path, *options, f"--mesh={mesh}",
                           "--microbatch=1", model=exact_models.path(name))
    plans = family(tools, "1:6", model=exact_models.path(name),
                   options=[*options, "--devices=4", *searched])
    tools.extra["MERAK_PACE"] = str(STEP / seconds)
    wanted, _, _ = train(tools, path, data=data, replan=None, name="wanted")
    found, events, said = train(tools, path, plans, data=data,
                                slow=f"1:6:{FROM}:{TO}", ranks=ranks)
    moved = some(events, said)["moved_bytes"]
    if moves and not moved:
        raise Failed(f"no state moved: {events}")
    same(found, weights(tools, "run"), [step["loss"] for step in wanted],
         weights(tools, "wanted"))
    return (f"switched after {[event['step'] for event in of(events, SWITCH)]}, "
            f"{moved} bytes moved")


def shares_body(name, mesh, devices, tools):
    """Replicas become pipelines with shares of the microbatches."""
    data, path = seams.write_data(tools, name), tools.path("exact.plan")
    machine = parts.machine_file(tools, [("whole", 2 if mesh == "dp=2" else 4)])
    rates = [f"{device}:6" for device in devices]
    options = ["--global-batch=8", "--optimizer=sgd:lr=0,momentum=1",
               f"--mesh={mesh}", "--microbatch=1", f"--cluster={machine}"]
    seconds = compile_plan(tools, path, *options, model=exact_models.path(name))
    decided = tools.path("decided.json")
    plans = family(tools, ",".join(rates), model=exact_models.path(name),
                   options=[*options, f"--emit-strategy={decided}"])
    with open(decided, encoding="utf-8") as file:
        shares = [each["microbatches"] for each in json.load(file)["pipelines"]]
    tools.extra["MERAK_PACE"] = str(STEP / seconds)
    wanted, _, _ = train(tools, path, data=data, replan=None, name="wanted")
    found, events, said = train(tools, path, plans, data=data,
                                slow=",".join(f"{rate}:{FROM}:{TO}" for rate in rates))
    first, last = there(events, devices[0], said), of(events, SWITCH)[-1]
    if first["moved_bytes"] + last["moved_bytes"] != 0:
        raise Failed(f"state moved: {events}")
    same(found, weights(tools, "run"), [step["loss"] for step in wanted],
         weights(tools, "wanted"))
    times = medians(found, [(2, FROM - 1), (FROM, first["step"]),
                            (first["step"] + 2, TO), (last["step"] + 2, STEPS)])
    return (f"shares {shares}, " + " ".join(f"{ms:.0f}" for ms in times) +
            f" ms, {1e3 * first['predicted_step_seconds']:.0f} predicted")


def alike_body(tools):
    plan = gpt_plan(tools, mesh="pp=2,dp=2")
    _, events, said = train(tools, plan, family(tools, "2:6"),
                            slow=f"2:6:{FROM}:1000", steps=TO)
    switch = some(events, said)
    del tools.extra["MERAK_PACE"]
    train(tools, plan, steps=switch["step"], replan=None, name="state")
    losses = [train(tools, each, f"--load={tools.path('state')}", steps=1,
                    replan=None, name=f"next{number}")[0][0]["loss"]
              for number, each in enumerate((plan, switch["to"]))]
    if abs(losses[0] - losses[1]) > 1e-5 * abs(losses[0]):
        raise Failed(f"next losses {losses}")
    return f"{abs(losses[0] - losses[1]):.1e}"


def noise_body(slow, devices, tools):
    plan = gpt_plan(tools)
    _, events, said = train(tools, plan, family(tools, "1:6", "2:6"), slow=slow,
                            steps=60)
    for event in of(events, SWITCH):
        if any(f"{device}:" in event["rates"] for device in devices):
            raise Failed(f"another plan for {event}; {said}")
    return "none"


def out_body(tools):
    """Of three devices, one takes thirty times as long. Nothing trains on it then."""
    plan = gpt_plan(tools, mesh="pp=3")
    plans = family(tools, "2:30", options=["--devices=3"])
    steps, events, said = train(tools, plan, plans, slow=f"2:30:{FROM}:{TO}")
    switch = there(events, 2, said)
    idle = [step["step"] for step in steps if step.get("idle") == [2]]
    if not idle or idle[-1] < TO:
        raise Failed(f"idle in steps {idle}; {switch}")
    if any("2" not in step["slow"] for step in steps if idle[0] < step["step"] < TO):
        raise Failed("its recovery is told while it is slow")
    with open(tools.path("first.jsonl"), "w", encoding="utf-8") as file:
        for entry in (steps[idle[0] - 1], {"step": switch["step"], "replan": switch}):
            file.write(json.dumps(entry) + "\n")
    status = tools.run("merak-run", f"--status={tools.path('first.jsonl')}")[0]
    if "without a rank" not in status or "0.plan\" since step" not in status:
        raise Failed(f"--status says {status}")
    during, after = medians(steps, [(FROM, switch["step"]),
                                    (switch["step"] + 2, TO)])
    return f"{during:.0f} to {after:.0f} ms, without a rank until step {idle[-1]}"


def family_body(tools):
    """A table and a plan for each of several rates; plans of other models."""
    folder = tools.path("family")
    tools.run("merakc", GPT, "-o", folder, "--microbatch=1", "--mesh=pp=4",
              "--for-rates=none", *(f"--for-rates={d}:6" for d in range(4)))
    with open(f"{folder}/family.json", encoding="utf-8") as file:
        table = {row["plan"]: row for row in json.load(file)["plans"]}
    if sorted(table) != ["healthy.plan", *(f"rates-{d}x6.plan" for d in range(4))]:
        raise Failed(f"the family has {sorted(table)}")
    if table["rates-1x6.plan"]["rates"] != {"1": 6} or not (
            0 < table["healthy.plan"]["step_seconds"]
            < table["rates-1x6.plan"]["step_seconds"]):
        raise Failed(f"the table says {table}")
    tools.run("merakc", OTHER, "-o", f"{folder}/other.plan", "--mesh=pp=2",
              "--global-batch=8")
    tools.extra["MERAK_PACE"] = str(STEP / table["healthy.plan"]["step_seconds"])
    _, events, said = train(tools, f"{folder}/healthy.plan", f"--plans={folder}",
                            slow=f"1:6:{FROM}:1000", steps=60)
    switch = there(events, 1, said)
    if said.count("not considered") != 1 or "other.plan" not in said:
        raise Failed(f"the other model's plan: {said}")
    if len(os.listdir(folder)) != 7:
        raise Failed(f"the family is {os.listdir(folder)}")
    return f"{1e3 * switch['planning_seconds']:.0f} ms of planning"


def compiled_body(tools):
    """With a compiler beside it, however long that takes: until the switch."""
    plan = gpt_plan(tools)
    tools.extra["MERAK_SLOW"] = f"1:3:{FROM}:100000"
    log = tools.path("run.jsonl")
    process = subprocess.Popen(
        tools.start("merak-run", plan, "--data=synthetic", "--steps=100000",
                    "--threads=1", "--replan=auto", f"--log={log}"),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **tools.extra})
    try:
        for _ in range(600):
            time.sleep(0.2)
            found = os.path.exists(log) and [
                line for line in open(log, encoding="utf-8")
                if '"what":"switch"' in line and line.endswith("\n")]
            if found or process.poll() is not None:
                break
    finally:
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    if not found:
        raise Failed(f"no switch: {said}")
    names = sorted(os.listdir(tools.path("gpt.plans")))
    if os.path.basename(json.loads(found[0])["replan"]["to"]) not in names or not all(
            name.startswith("rates-") for name in names):
        raise Failed(f"compiled {names}, {found[0]}")
    return f"{json.loads(found[0])['replan']['planning_seconds']:.1f} s of planning"


def suggest_body(tools):
    plan = gpt_plan(tools)
    _, events, said = train(tools, plan, family(tools, "1:6"),
                            slow=f"1:6:{FROM}:1000", steps=50, replan="suggest")
    found = of(events, "suggest")
    if of(events, SWITCH) or not found or "1:" not in found[-1]["rates"]:
        raise Failed(f"{events}")
    if "would be faster" not in said:
        raise Failed(f"it is not told: {said}")
    return found[-1]["why"]


def saves_body(tools):
    plan = gpt_plan(tools)
    trace = tools.path("trace.json")
    steps, events, said = train(
        tools, plan, family(tools, "1:6"), "--save-every=7", "--keep=100",
        f"--trace={trace}", slow=f"1:6:{FROM}:1000", steps=60)
    switch = some(events, said)
    with open(trace, encoding="utf-8") as file:
        traced = {event["args"]["step"] for event in json.load(file)["traceEvents"]
                  if event["ph"] == "X"}
    if traced != set(range(1, 61)):
        raise Failed(f"the timeline has {len(traced)} of 60 steps")
    saved = sorted(int(name[5:]) for name in os.listdir(tools.path("run"))
                   if name.startswith("step-"))
    if saved != [*range(7, 60, 7), 60]:
        raise Failed(f"generations {saved}")
    del tools.extra["MERAK_PACE"]
    # On from the one after the switch, under the plan that wrote it.
    step = next(s for s in saved if s > switch["step"])
    losses, state = replayed(tools, plan, events, 60, step,
                             f"{tools.path('run')}/step-{step}")
    same(steps[step:], weights(tools, "run"), losses, state)
    return f"{len(saved)} generations"


def broken_body(compiler, says, tools):
    plan = gpt_plan(tools)
    steps, events, said = train(tools, plan, f"--compiler={compiler}",
                                slow=f"1:6:{FROM}:1000", steps=40)
    if len(steps) != 40 or of(events, SWITCH):
        raise Failed(f"{len(steps)} steps, {events}")
    if not events or said.count("planning again:") != len(events) or says not in said:
        raise Failed(f"it says {said}, {events}")
    return "one line"


def processes_body(tools):
    plan = gpt_plan(tools)
    steps, events, said = train(tools, plan, family(tools, "1:6"), "--save-every=20",
                                slow=f"1:6:{FROM}:{TO}", ranks=4)
    first = some(events, said)
    del tools.extra["MERAK_PACE"]
    losses, state = replayed(tools, plan, events, STEPS)
    same(steps, weights(tools, "run"), losses, state)
    return (f"switched after {[e['step'] for e in of(events, SWITCH)]}; stall "
            f"{1e3 * first['stall_seconds']:.0f} ms")


def gpus_body(name, mesh, searched, ranks, tools):
    """State of devices moves through the host's memory: between ranks that share one,
    or between processes with one each, by MPI."""
    on_gpus(tools, processes=bool(ranks))
    return exact_body(name, mesh, searched, tools, ranks, moves=True)


def crowded_body(ranks, tools):
    """Of devices that hold one plan and not two the plan stays, and training goes on."""
    on_gpus(tools, processes=bool(ranks))
    data, path = seams.write_data(tools, "residual"), tools.path("exact.plan")
    options = ["--global-batch=8", "--optimizer=sgd:lr=0,momentum=1", "--mesh=pp=4"]
    seconds = compile_plan(tools, path, *options, "--microbatch=1",
                           model=exact_models.path("residual"))
    plans = family(tools, "1:6", model=exact_models.path("residual"),
                   options=[*options, "--devices=4"])
    wanted, _, _ = train(tools, path, data=data, replan=None, name="wanted", steps=50)
    low, high = 1 << 20, 1 << 30
    while low + (1 << 20) < high:  # hardly more than one plan needs
        tools.extra["MERAK_EMULATED_BYTES"] = str(middle := (low + high) // 2)
        arguments = [path, f"--data={data}", "--steps=1", "--threads=1"]
        if ranks:
            mpi.mpi(tools, ranks, *arguments, expect=None)
        else:
            tools.run("merak-run", *arguments, expect=None)
        low, high = (low, middle) if tools.returncode == 0 else (middle, high)
    tools.extra["MERAK_EMULATED_BYTES"] = str(high)
    tools.extra["MERAK_PACE"] = str(STEP / seconds)
    found, events, said = train(tools, path, plans, data=data, steps=50, ranks=ranks,
                                slow=f"1:6:{FROM}:1000")
    if of(events, SWITCH) or not of(events, "keep"):
        raise Failed(f"{events}: {said}")
    why = "not all ranks can take" if ranks else "session could not be made"
    if why not in of(events, "keep")[-1]["why"] or "on a device with" not in said:
        raise Failed(f"{events}: {said}")
    same(found, weights(tools, "run"), [step["loss"] for step in wanted],
         weights(tools, "wanted"))
    return f"{high >> 20} MiB"


def refused_body(tools):
    plan, infer = tools.path("gpt.plan"), tools.path("infer.plan")
    tools.run("merakc", GPT, "-o", plan, "--mesh=pp=2")
    tools.run("merakc", GPT, "-o", infer, "--mesh=pp=2", "--mode=infer")
    for options, code, says in (
            ([plan, "--replan=maybe"], 2, "--replan"),
            ([plan, "--plans=x"], 2, "--plans is for --replan and --hosts"),
            ([plan, "--compiler=x"], 2, "--compiler is for --replan"),
            ([plan, "--replan=auto", "--plans=x", "--compiler=y"], 2,
             "--plans chooses from plans that are there"),
            ([plan, "--replan=auto", "--arena=separate"], 1,
             "--replan=auto needs --arena=packed"),
            ([infer, "--replan=auto"], 1, "does not train")):
        said = tools.run("merak-run", *options, "--data=synthetic", expect=code)[1]
        if says not in said:
            raise Failed(f"{options}: {said}")
    return "said"


def main():
    global STEP
    args = harness.parser(__doc__).parse_args()
    if args.short:
        STEP *= SLOWER
    cases = [Case(f"one {mesh} {device} x{factor}",
                  functools.partial(one_body, mesh, device, factor))
             for mesh, device, factor in (("pp=4", 1, 6), ("pp=2,dp=2", 2, 6),
                                          ("pp=3", 0, 6))]
    cases += [Case("two", two_body)]
    cases += [Case(" ".join(["replay", mesh, *options]),
                   functools.partial(replay_body, mesh, options))
              for mesh, options in (("pp=2,dp=2", []),
                                    ("pp=4", ["--precision=bf16"]))]
    cases += [Case(f"exact {name} {mesh}",
                   functools.partial(exact_body, name, mesh, searched))
              for name, mesh, searched in (("residual", "pp=4", ["--mesh=pp=4"]),
                                           ("wide", "pp=2,dp=2", []))]
    cases += [Case(f"shares {name} {mesh}",
                   functools.partial(shares_body, name, mesh, devices))
              for name, mesh, devices in (("wide", "dp=2", [1]),
                                          ("linear", "pp=2,dp=2", [1, 3]))]
    cases += [Case("alike", alike_body)]
    cases += [Case(f"noise {what}", functools.partial(noise_body, slow, devices))
              for what, slow, devices in (
                  ("short", "1:8:20:21,2:8:30:31", (1, 2)),
                  ("mild", "1:1.05:10:1000", (1,)))]
    cases += [Case("out", out_body), Case("family", family_body),
              Case("compiled", compiled_body),
              Case("suggest", suggest_body), Case("saves", saves_body),
              Case("broken missing", functools.partial(
                  broken_body, "/nowhere/merakc", "cannot start")),
              Case("broken failing", functools.partial(
                  broken_body, "/bin/false", "ended with exit code 1")),
              Case("refused", refused_body)]
    with_gpus = has_gpus(args.bin_dir)
    if with_gpus:
        cases += [Case(f"gpus {name} {mesh}",
                       functools.partial(gpus_body, name, mesh, searched, None))
                  for name, mesh, searched in GPUS]
        cases.append(Case("gpus crowded", functools.partial(crowded_body, None)))
    if shutil.which("mpirun") and mpi_is_built(args.bin_dir):
        cases.append(Case("processes", processes_body))
        if with_gpus:
            cases += [Case(f"gpus processes {name} {mesh}",
                           functools.partial(gpus_body, name, mesh, searched, 4))
                      for name, mesh, searched in GPUS_APART]
            cases.append(Case("gpus processes crowded",
                              functools.partial(crowded_body, 4)))
    else:
        print("skipped: processes: there is no mpirun, or the tools were built "
              "without MPI")
    return harness.run_cases("elastic", cases, args)


if __name__ == "__main__":
    sys.exit(main())
