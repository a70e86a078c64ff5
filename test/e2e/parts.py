#!/usr/bin/env python3
"""Pipelines whose stages lie on meshes of their own.

shape    fixed pairs of meshes (2 to 3 devices, 1 to 4, 4 to 1, ...) and models
         that send something special over the boundary
random   random pipelines on exact models: the losses, gradients and weights of
         one rank, bit for bit, whatever the meshes, cuts, microbatches, schedule,
         recomputation and way of values between stages (1000 with --all)
clip     the same under a bound of the gradient norm, which counts each element
         once wherever it is held
low      the same in bf16, where no sum is over summands that were rounded
recorded models of PyTorch: its losses, gradients and weights
found    what the search finds for numbers of devices that no mesh uses well, for
         two kinds of devices and for slow ones: faster than one mesh by the
         simulator, the bits of one rank, and the same programs from its file
measured the same of devices that are slower than this machine: no step takes less
         than predicted, whatever else the machine does; how much faster than one
         mesh it was is printed
change   a checkpoint of one is loaded by a plan of one mesh, and back
ways     each strategy of resharding is in the plan that asks for it, with the
         bytes that it is said to send
tools    strategies come back; every tool reads such plans; ranks as processes,
         over MPI and NCCL; outputs without training
refused  what does not fit, in sentences
shared   stages with equal meshes are a plan of one mesh: the same files
"""
import itertools
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys

import cuda_nccl
import dropout_reference
import exact_models
import harness
import identity
import oracle
import seams
from harness import Case, Failed

sys.path.insert(0, os.path.join(harness.ROOT, "python"))
from merakc import _wire as wire  # noqa: E402

SCHEDULES = ["gpipe", "1f1b", "early", "eager", "last", "scp", "zb", "auto",
             "interleaved"]
# dp, tp of a stage.
MESHES = [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4)]
# Sizes that three replicas divide as well; one step of it is exact.
BATCH, BATCH_OF_THREE = 8, 12


def strategy(stages, microbatches=None, begins=None, order=None):
    """The JSON of one pipeline; `stages` are pairs (dp, tp), `order` renames
    devices."""
    return {"pipelines": [pipeline(stages, microbatches, begins, order)]}


def pipeline(stages, microbatches=None, begins=None, order=None, first=0):
    entries = []
    for number, (dp, tp) in enumerate(stages):
        devices = list(range(first, first + dp * tp))
        first += dp * tp
        if order:
            devices = [order[device] for device in devices]
        entry = {"devices": ",".join(map(str, devices)), "mesh": f"dp={dp},tp={tp}"}
        if begins and number:
            entry["begin"] = begins[number - 1]
        entries.append(entry)
    made = {"stages": entries}
    if microbatches:
        made["microbatches"] = microbatches
    return made


def ranks_of(stages):
    return sum(dp * tp for dp, tp in stages)


def several(pipelines, order=None):
    """The JSON of pipelines: microbatches, stages and begins of each."""
    first, made = 0, []
    for microbatches, stages, begins in pipelines:
        made.append(pipeline(stages, microbatches, begins, order, first))
        first += ranks_of(stages)
    return {"pipelines": made}


def batch_of(stages):
    return BATCH_OF_THREE if any(dp == 3 for dp, _ in stages) else BATCH


def rate_of(name):
    info = dropout_reference.MODELS.get(name)
    return info.lr if info else identity.recorded()[name]["lr"]


def steps_of(name, batch):
    if batch == BATCH_OF_THREE:
        return 1
    info = dropout_reference.MODELS.get(name)
    return info.steps if info else identity.recorded()[name]["steps"]


def exact_run(tools, name, options, batch, tag="", more=()):
    return identity.train(
        tools, exact_models.path(name), seams.write_data(tools, name),
        [f"--global-batch={batch}", f"--optimizer=sgd:lr={rate_of(name)}",
         *options, *more], 1 if more else steps_of(name, batch), tag)


def write_strategy(tools, value, name="strategy.json"):
    path = tools.path(name)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)
    return path


def base_of(tools, name, batch, more=()):
    return identity.BASES.get(
        ("parts", name, batch, tuple(more)),
        lambda: exact_run(tools, name, ["--mesh=pp=1,dp=1,tp=1", "--devices=1",
                                        f"--microbatch={batch}"],
                          batch, "-base", more))


def names_of(tools, name, path=None):
    """Ops of the forward pass at which uniform plans begin a stage; `path` of a model
    that is none of exact_models."""
    path = path or exact_models.path(name)

    def find():
        found = set()
        for stages in range(2, 6):
            out = tools.path(f"cut{stages}.json")
            _, _ = tools.run(
                "merakc", path, "-o", tools.path("cut.ir"),
                "--to=stage", f"--global-batch={BATCH}", "--microbatch=1",
                f"--devices={stages}", f"--mesh=pp={stages},dp=1,tp=1",
                f"--emit-strategy={out}", expect=None)
            if tools.returncode == 0:
                with open(out, encoding="utf-8") as file:
                    found |= set(json.load(file).get("stage_begins", []))
        with open(path, encoding="utf-8") as file:
            order = re.findall(r'name: "([^"]*)"\n\s+op_type', file.read())
        return [each for each in order if each in found]
    return identity.BASES.get(("names", name), find)


def drawn(r, names, allowed=MESHES):
    """Two or three pipelines of stages that begin at some of these ops: what `several`
    takes, and options."""
    # Shares of four or eight microbatches; BATCH is a multiple of them and dp.
    of_step = r.choice([4, 4, 8])
    meshes = [m for m in allowed if m[0] <= BATCH // of_step]
    while True:
        count = r.choice([2, 2, 3])
        shares = [r.randint(1, of_step) for _ in range(count)]
        stages = [[r.choice(meshes) for _ in range(r.randint(1, 3))]
                  for _ in range(count)]
        if sum(shares) == of_step and sum(map(ranks_of, stages)) <= 9 and \
                all(len(of) <= len(names) + 1 for of in stages):
            break
    pipelines = []
    for share, of in zip(shares, stages):
        begins = sorted(r.sample(range(len(names)), len(of) - 1))
        pipelines.append((share, of, [names[k] for k in begins]))
    order = list(range(sum(map(ranks_of, stages))))
    if r.random() < 0.3:
        r.shuffle(order)
    schedule = r.choice(SCHEDULES)
    if schedule == "interleaved":
        # Two parts a stage, cut by the planner.
        if any(share % len(of) or 2 * len(of) > len(names) + 1
               for share, of in zip(shares, stages)):
            schedule = "1f1b"
        else:
            pipelines = [(share, of, None) for share, of in zip(shares, stages)]
    return pipelines, schedule, r.choice(["none", "full", "0.7"]), order


RESHARD = ["send-recv", "local-gather", "scatter-gather", "broadcast", "convert",
           "alpa"]


def run_parts(tools, name, stages, microbatches, schedule, recompute,
              begins=None, order=None, more=(), reshard=None):
    batch = batch_of(stages)
    path = write_strategy(tools,
                          strategy(stages, microbatches, begins, order))
    found = exact_run(tools, name,
                      [f"--strategy={path}", f"--schedule={schedule}",
                       f"--recompute={recompute}",
                       *([f"--reshard={reshard}"] if reshard else [])],
                      batch, "", more)
    identity.compare(found, base_of(tools, name, batch, more))
    count = sum(dp * tp for dp, tp in stages)
    return f"{count} ranks by {reshard or 'the fastest way'}"


# --------------------------------------------------------------------- shape

# 2 to 3 devices and back, 1 to 4, 4 to 1, replicated on both sides, three
# stages with the largest in the middle, stages as "pp" has them but one.
PAIRS = [[(2, 1), (3, 1)], [(3, 1), (2, 1)], [(1, 1), (4, 1)], [(4, 1), (1, 1)],
         [(1, 2), (2, 1)], [(2, 2), (2, 1)], [(1, 4), (1, 1)], [(1, 1), (1, 4)],
         [(1, 1), (2, 2), (1, 2)], [(2, 1), (1, 2), (1, 1)],
         [(1, 3), (1, 2)]]
WHAT = ["gemm", "residual", "tied", "embedding", "attention", "conv", "dropout",
        "penalty", "deviation", "joined"]


def microbatches_of(name, stages, wanted):
    """As many as the batch has samples for."""
    batch = batch_of(stages)
    largest = 1
    for dp, _ in stages:
        largest = largest * dp // gcd(largest, dp)
    most = batch // largest
    while most % wanted and wanted > 1:
        wanted -= 1
    return max(1, min(wanted, most))


def gcd(a, b):
    return a if b == 0 else gcd(b, a % b)


# A mean over twelve samples is no sum of whole numbers.
NO_THREE = {"deviation", "spread"}


def possible(name, stages):
    if any(dp == 3 for dp, _ in stages) and name in NO_THREE:
        return False
    if any(tp > 1 for _, tp in stages) and name == "attention":
        return all(tp < 4 for _, tp in stages)
    if any(tp == 3 for _, tp in stages):
        return name == "wide"
    return True


def shape_cases():
    # Every pair in every way, with one model or another.
    ways = itertools.cycle([None, *RESHARD])
    for name, stages in itertools.product(WHAT, PAIRS):
        if not possible(name, stages):
            continue
        text = " ".join(f"{dp}x{tp}" for dp, tp in stages)

        def body(tools, name=name, stages=stages, reshard=next(ways)):
            return run_parts(tools, name, stages,
                             microbatches_of(name, stages, 2),
                             "gpipe" if name in exact_models.JOINS else "1f1b",
                             "none", reshard=reshard)
        yield Case(f"shape {name} {text}", body)


# -------------------------------------------------------------------- random


def random_body(name, seed, tools, more=(), meshes=MESHES):
    r = random.Random(seed)
    names = names_of(tools, name)
    most = min(4, len(names) + 1)
    if most < 2:
        return "one stage only"
    while True:
        count = r.randint(2, most)
        stages = [r.choice([*meshes, (3, 1)]) for _ in range(count)]
        if len(set(stages)) > 1 and sum(a * b for a, b in stages) <= 9 and \
                not (any(dp == 3 for dp, _ in stages) and
                     (name in NO_THREE or
                      any(dp == 4 for dp, _ in stages))) and \
                not (name in identity.NO_TP4 and
                     any(tp == 4 for _, tp in stages)):
            break
    begins = sorted(r.sample(range(len(names)), count - 1))
    order = list(range(sum(a * b for a, b in stages)))
    if r.random() < 0.3:
        r.shuffle(order)
    microbatches = microbatches_of(name, stages, r.choice([1, 2, 4]))
    schedule = r.choice(SCHEDULES)
    if not exact_models.runs(name, "one" if microbatches > 1 else "whole",
                             schedule):
        schedule, microbatches = "gpipe", 1
    recompute = r.choice(["none", "full", "0.7"])
    if schedule == "interleaved":
        # Two parts a stage, cut by the planner.
        if 2 * count > len(names) + 1 or microbatches % count:
            schedule = "1f1b"
        else:
            begins = []
    return run_parts(tools, name, stages, microbatches, schedule, recompute,
                     [names[k] for k in begins], order, more,
                     r.choice([None, *RESHARD]))


def random_cases(count):
    models = [m.__name__ for m in exact_models.MODELS]
    for seed in range(count):
        name = models[seed % len(models)]
        yield Case(f"random {seed} {name}",
                   lambda tools, name=name, seed=seed:
                   random_body(name, seed, tools))


def clip_cases(count):
    # One step: what is scaled by the factor is no whole number any more.
    for seed in range(count):
        name = ["gemm", "tied", "residual", "linear"][seed % 4]
        yield Case(f"clip {seed} {name}",
                   lambda tools, name=name, seed=seed:
                   random_body(name, 5000 + seed, tools, ("--grad-clip=1",)))


def low_cases(count):
    # Sums over tp are of rounded summands, sums over dp are in f32.
    replicas = [mesh for mesh in MESHES if mesh[1] == 1]
    for seed in range(count):
        name = ["gemm", "tied", "residual", "embedding"][seed % 4]
        yield Case(f"low {seed} {name}",
                   lambda tools, name=name, seed=seed:
                   random_body(name, 9000 + seed, tools, ("--precision=bf16",),
                               replicas))


# ------------------------------------------------------------------ recorded


def recorded_body(model, value, tools):
    path = write_strategy(tools, value)
    return oracle.check(model, [f"--strategy={path}", "--schedule=1f1b",
                                f"--global-batch={BATCH}"], "adamw", tools)


def recorded_cases():
    for model, stages in [("gpt2-tiny", [(2, 2), (2, 1)]),
                          ("gpt2-tiny", [(1, 1), (1, 2), (4, 1)]),
                          ("bert-tiny", [(1, 2), (2, 2)]),
                          ("vit-tiny", [(4, 1), (1, 2)])]:
        text = " ".join(f"{dp}x{tp}" for dp, tp in stages)
        yield Case(f"recorded {model} {text}",
                   lambda tools, model=model, stages=stages:
                   recorded_body(model, strategy(stages, 2), tools))


# --------------------------------------------------------------------- found

# Devices so slow that a kernel is worth a message; `half` and `third` are other kinds.
KIND = {"backend": "cpu", "flops": {"f32": 1e6}, "memory_bandwidth": 1e7,
        "launch_seconds": 1e-7}
HALF = {**KIND, "flops": {"f32": 5e5}, "memory_bandwidth": 5e6}
THIRD = {**KIND, "flops": {"f32": 1e6 / 3}, "memory_bandwidth": 1e7 / 3}
LINK = {"bandwidth": 1e9, "latency": 1e-7}
# The model, devices by node, rates, and what is left out.
FOUND = [("gemm", [("whole", 3)], None, ""),
         ("tied", [("whole", 3)], None, ""),
         ("residual", [("whole", 5)], None, ""),
         ("tied", [("whole", 7)], None, "6"),
         ("gemm", [("whole", 7)], None, ""),
         ("attention", [("whole", 3)], None, ""),
         ("gemm", [("whole", 2), ("half", 3)], None, ""),
         ("residual", [("whole", 4)], {"1": 1e-4}, "1"),
         # No mesh has eleven places for five ops.
         ("linear", [("whole", 6), ("whole", 5)], None, "4-5,10")]


def machine_file(tools, nodes, rates=None):
    path = tools.path("machine.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"kinds": {"whole": KIND, "half": HALF, "third": THIRD},
                   "nodes": [{"count": 1, "kind": kind, "devices": devices}
                             for kind, devices in nodes],
                   "links": {"intra": LINK, "inter": LINK},
                   **({"rates": rates} if rates else {})}, file)
    return path


def devices_of(text):
    """Of "0-3,5"."""
    ends = [part.split("-") for part in text.split(",")]
    return [device for end in ends
            for device in range(int(end[0]), int(end[-1]) + 1)]


def expect_same_programs(plan, again):
    for name in sorted(os.listdir(plan)):
        if name.startswith("program"):
            with open(os.path.join(plan, name), "rb") as a, \
                    open(os.path.join(again, name), "rb") as b:
                if a.read() != b.read():
                    raise Failed(f"{name} is another one from the strategy")


def milliseconds(text, what):
    units = {"us": 1e-3, "ms": 1, "s": 1e3}
    found = re.search(rf"{what} ([0-9.e+]+) (us|ms|s)\b", text)
    if not found:
        raise Failed(f"no '{what}' in: {text}")
    return float(found[1]) * units[found[2]]


# What is found: whether it is to be faster than one mesh, devices left out.
def found_body(name, nodes, rates, spares, tools):
    decided = tools.path("decided.json")
    machine = machine_file(tools, nodes, rates)
    options = [f"--cluster={machine}", f"--emit-strategy={decided}"]
    plan, again = tools.path("out.plan"), tools.path("again.plan")
    common = [exact_models.path(name), f"--global-batch={BATCH}",
              f"--optimizer=sgd:lr={rate_of(name)}", f"--cluster={machine}"]
    out, _ = tools.run("merakc", *common, f"--emit-strategy={decided}", "-o",
                       tools.path("first.plan"))
    with open(decided, encoding="utf-8") as file:
        pipelines = json.load(file).get("pipelines")
    if not pipelines:
        raise Failed(f"one mesh was taken: {out}")
    if pipelines[0].get("spares", "") != spares:
        raise Failed(f"spare devices {pipelines[0].get('spares')}")
    if spares and f"spare devices {spares}" not in out:
        raise Failed(f"the summary does not name the spares: {out}")
    better = milliseconds(out, "with parts")
    if "uniform none" not in out and \
            better >= milliseconds(out, "uniform"):
        raise Failed(f"no faster than one mesh: {out}")
    found = exact_run(tools, name, options, BATCH)
    identity.compare(found, base_of(tools, name, BATCH))
    tools.run("merakc", *common, f"--strategy={decided}", "-o", again)
    expect_same_programs(plan, again)
    tools.run("merak-plan", "draw", plan)
    return "; ".join(f"{stage['devices']} {stage['mesh']}"
                     for stage in pipelines[0]["stages"])


# Devices of the sample's kind, so much slower that five or seven of them fit two
# cores; how many times as slow as these some are.
PACE = 100
MEASURED = [[1] * 7, [1, 1, 1, 1, 4, 4, 4], [1] * 5]


def sample_machine():
    with open(os.path.join(harness.ROOT, "samples/clusters/xeon-2.json"),
              encoding="utf-8") as file:
        machine = json.load(file)
    del machine["host"]
    return machine


def third(seconds):
    return sorted(seconds)[2]


def measured(tools, machine, batch, told, options=("--parts=auto",), least=third):
    """How much faster the best plan of these options is than the best of one mesh,
    `told` in its summary. `least`: of the steps, what is no less than predicted."""
    path = tools.path("machine.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(machine, file)
    tools.extra["MERAK_PACE"] = "1"
    found = {}
    rest = [option for option in options if not option.startswith("--parts")]
    for parts, more in (("off", [*rest, "--parts=off"]), ("auto", options)):
        plan, log = tools.path(f"{parts}.plan"), tools.path(f"{parts}.jsonl")
        out, _ = tools.run(
            "merakc", os.path.join(harness.ROOT, "samples/01-train-gpt/model.onnx"),
            "-o", plan, f"--global-batch={batch}", f"--cluster={path}",
            *more)
        tools.run("merak-run", plan, "--data=synthetic", "--steps=9",
                  "--threads=1", f"--log={log}")
        seconds = [entry["seconds"] for entry in harness.read_log(log)]
        found[parts] = 1e3 * third(seconds), milliseconds(out, "step       ")
        # Instructions wait until their time is over: other work on the machine
        # makes steps longer, nothing shorter.
        if 1e3 * least(seconds) < 0.9 * found[parts][1]:
            raise Failed(f"{1e3 * least(seconds):.1f} ms, predicted "
                         f"{found[parts][1]:.1f}")
    if told not in out:
        raise Failed(f"another plan was taken: {out}")
    gains = [found["off"][k] / found["auto"][k] for k in (0, 1)]
    if gains[1] <= 1:
        raise Failed(f"predicted {gains[1]:.2f} times as fast as one mesh")
    return (f"{gains[0]:.2f} times as fast, predicted {gains[1]:.2f} "
            f"({found['off'][0]:.1f} and {found['auto'][0]:.1f} ms)")


def measured_body(slow, tools):
    machine = sample_machine()
    machine["nodes"][0]["devices"] = len(slow)
    machine["rates"] = {str(device): 1 / (PACE * rate)
                        for device, rate in enumerate(slow)}
    return measured(tools, machine, 4, "stages on devices")


def measured_cases():
    for slow in MEASURED:
        yield Case(f"measured {' '.join(map(str, slow))}",
                   lambda tools, slow=slow: measured_body(slow, tools))


def found_cases():
    for name, nodes, rates, spares in FOUND:
        text = " ".join([name, *(f"{count} {kind}" for kind, count in nodes),
                         *(f"{device} at {rate}" for device, rate
                           in (rates or {}).items())])
        yield Case(f"found {text}",
                   lambda tools, name=name, nodes=nodes, rates=rates,
                   spares=spares: found_body(name, nodes, rates, spares, tools))


# -------------------------------------------------------------------- change


def change_body(name, value, tools):
    """Two steps are one step, a checkpoint, and one step of another plan."""
    data = seams.write_data(tools, name)
    model, batch = exact_models.path(name), 4
    common = [f"--global-batch={batch}",
              f"--optimizer=sgd:lr={rate_of(name)},momentum=0.5"]
    path = write_strategy(tools, value)
    uneven, even = tools.path("uneven.plan"), tools.path("even.plan")
    tools.run("merakc", model, "-o", uneven, f"--strategy={path}", *common)
    tools.run("merakc", model, "-o", even, "--devices=2",
              "--mesh=pp=2,dp=1,tp=1", "--microbatch=2", *common)

    def train(plan, steps, save, load=None):
        tools.run("merak-run", plan, f"--data={data}", f"--steps={steps}",
                  f"--save={tools.path(save)}",
                  *([f"--load={tools.path(load)}"] if load else []))
        return harness.read_checkpoint(tools.path(save))[0]

    wanted = train(even, 2, "all")
    train(even, 1, "even1")
    train(uneven, 1, "uneven1")
    for found, what in [(train(uneven, 1, "a", "even1"), "even to uneven"),
                        (train(even, 1, "b", "uneven1"), "uneven to even"),
                        (train(uneven, 1, "c", "uneven1"), "uneven to itself")]:
        if set(found) != set(wanted):
            raise Failed(f"{what}: other tensors")
        for key in wanted:
            if found[key].data != wanted[key].data:
                raise Failed(f"{what}: {key} differs")
    return "3 changes"


def change_cases():
    for name, stages in [("gemm", [(2, 2), (2, 1)]), ("tied", [(1, 2), (2, 1)]),
                         ("tied", [(4, 1), (1, 2)])]:
        text = " ".join(f"{dp}x{tp}" for dp, tp in stages)
        yield Case(f"change {name} {text}",
                   lambda tools, name=name, stages=stages:
                   change_body(name, strategy(stages, 1), tools))


# --------------------------------------------------------------------- tools

STAGES = [(2, 2), (2, 1)]
# What summaries say of them.
TOLD = "stages on devices 0-3 dp=2,tp=2; 4-5 dp=2,tp=1"


def emitted_body(value, told, tools):
    """What was decided comes back from its file; every tool reads the plan."""
    model, data = exact_models.path("tied"), seams.write_data(tools, "tied")
    common = [f"--global-batch={BATCH}", "--optimizer=sgd:lr=0.5"]
    first, again = tools.path("first.plan"), tools.path("again.plan")
    decided, page = tools.path("decided.json"), tools.path("page.html")
    path = write_strategy(tools, value)
    out, _ = tools.run("merakc", model, "-o", first, f"--strategy={path}",
                       f"--emit-strategy={decided}", f"--report={page}",
                       *common)
    if told not in out:
        raise Failed(f"the summary says: {out}")
    tools.run("merakc", model, "-o", again, f"--strategy={decided}", *common)
    expect_same_programs(first, again)
    for tool in ("verify", "print", "draw", "simulate", "account", "reshard"):
        text, _ = tools.run("merak-plan", tool, first)
        if not text:
            raise Failed(f"merak-plan {tool} prints nothing")
    even = tools.path("even.plan")
    tools.run("merakc", model, "-o", even, "--devices=2",
              "--mesh=pp=2,dp=1,tp=1", *common)
    for plans in ((first, even), (even, first)):
        tools.run("merak-plan", "migrate", *plans)
    traced = tools.path("trace.json")
    tools.run("merak-run", first, f"--data={data}", "--steps=2",
              f"--trace={traced}")
    return "same programs"


def sent_bytes(plan):
    """{value: bytes of all its messages in a microbatch}, of tensors in f32."""
    def read(name):
        with open(os.path.join(plan, name), "rb") as file:
            return wire.by_number(file.read())
    found = {}
    for rank in read("plan.pb")[7]:
        program = wire.by_number(rank).get(1, [0])[-1]
        for procedure in read(f"program-{program}.pb")[8]:
            for each in wire.by_number(procedure).get(3, []):
                instruction = wire.by_number(each)
                if instruction.get(1, [0])[-1] != 4:  # a SEND
                    continue
                shape = wire.numbers(
                    wire.by_number(instruction[4][0]).get(3, []))
                value = wire.text(instruction[13]).split(".")[0]
                found[value] = found.get(value, 0) + 4 * math.prod(shape)
    return found


# Two nodes; a value of one device goes to four, of which one is in its node.
WAYS = [("whole", 2), ("whole", 3)], [(1, 1), (1, 4)]


def ways_body(reshard, tools):
    """The strategy that was asked for is in the plan, with the bytes that it is
    said to send, and comes back from the strategy file."""
    nodes, stages = WAYS
    machine, decided = machine_file(tools, nodes), tools.path("decided.json")
    plan, again = tools.path("out.plan"), tools.path("again.plan")
    common = [exact_models.path("gemm"), f"--global-batch={BATCH}",
              f"--optimizer=sgd:lr={rate_of('gemm')}", f"--cluster={machine}"]
    path = write_strategy(tools, strategy(stages, 2))
    tools.run("merakc", *common, f"--strategy={path}", f"--reshard={reshard}",
              f"--emit-strategy={decided}", "-o", plan)
    with open(decided, encoding="utf-8") as file:
        if json.load(file).get("reshard") != reshard:
            raise Failed("the strategy file does not say it")
    tools.run("merakc", *common, f"--strategy={decided}", "-o", again)
    expect_same_programs(plan, again)
    text, _ = tools.run("merak-plan", "reshard", plan, "--json")
    sent, chosen = sent_bytes(plan), set()
    for boundary in json.loads(text):
        planned = 0
        for leg in boundary["legs"]:
            chosen |= {task["strategy"] for task in leg["tasks"]
                       if "strategy" in task}
            for transfer in leg["transfers"]:
                begin, end = transfer["elements"]
                planned += (end - begin) * boundary["element_bytes"] * \
                    (len(transfer["participants"]) - 1)
        value = boundary["name"].split(" ")[-1]
        if sent.pop(value) != planned:
            raise Failed(f"{boundary['name']}: {planned} bytes are planned")
    if sent:
        raise Failed(f"no boundary is told of {sent}")
    if reshard not in ("convert", "alpa") and chosen != {reshard}:
        raise Failed(f"tasks have {chosen}")
    tools.run("merak-plan", "simulate", plan)
    run_parts(tools, "gemm", stages, 2, "1f1b", "none", None, None, (), reshard)
    return f"{', '.join(sorted(chosen))}"


def no_way_body(tools):
    """A strategy that there is not."""
    model, known = exact_models.path("gemm"), ", ".join(RESHARD)
    _, errors = tools.run("merakc", model, "-o", tools.path("out.plan"),
                          "--reshard=gossip", expect=2)
    if len(errors.splitlines()) != 1 or "--reshard" not in errors or \
            "gossip" not in errors:
        raise Failed(f"says {errors}")
    path = write_strategy(tools, {**strategy(STAGES), "reshard": "gossip"})
    _, errors = tools.run("merakc", model, "-o", tools.path("out.plan"),
                          f"--strategy={path}", f"--global-batch={BATCH}",
                          expect=1)
    if f"'reshard' is \"gossip\", expected one of {known}" not in errors:
        raise Failed(f"says {errors}")
    return "2 sentences"


def infer_body(tools):
    """Outputs without training are those of one rank."""
    model, data = exact_models.path("gemm"), seams.write_data(tools, "gemm")
    path = write_strategy(tools, strategy([(1, 2), (4, 1)], 2))
    found = []
    for name, options in [("parts", [f"--strategy={path}"]),
                          ("one", ["--devices=1", "--microbatch=8"])]:
        plan, out = tools.path(name + ".plan"), tools.path(name + ".out")
        tools.run("merakc", model, "-o", plan, "--mode=infer",
                  f"--global-batch={BATCH}", *options)
        tools.run("merak-run", plan, f"--data={data}", f"--out={out}")
        with open(os.path.join(out, "loss.npy"), "rb") as file:
            found.append(file.read())
    if found[0] != found[1]:
        raise Failed("other outputs")
    return f"{len(found[0])} bytes"


def processes_body(value, tools):
    """Five ranks as processes over MPI are ranks of one process."""
    if not shutil.which("mpirun"):
        return "skipped: no mpirun"
    data = seams.write_data(tools, "tied")
    path = write_strategy(tools, value)
    plan = tools.path("out.plan")
    tools.run("merakc", exact_models.path("tied"), "-o", plan,
              f"--strategy={path}", f"--global-batch={BATCH}",
              "--optimizer=sgd:lr=0.5", "--grad-clip=1", "--reshard=broadcast")
    logs = [tools.path("threads.jsonl"), tools.path("processes.jsonl")]
    options = [f"--data={data}", "--steps=2"]
    tools.run("merak-run", plan, *options, f"--log={logs[0]}")
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "5",
               os.path.join(tools.bin_dir, "merak-run"), plan, "--ranks=env",
               *options, f"--log={logs[1]}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise Failed(f"mpirun ended with {done.returncode}: "
                     f"{harness.last_lines(done.stderr)}")
    losses = [[entry["loss"] for entry in harness.read_log(log)]
              for log in logs]
    if losses[0] != losses[1]:
        raise Failed(f"losses {losses}")
    return "5 processes"


def nccl_body(value, tools, ranks=5):
    """On the CUDA backend, over the emulated device, ranks as processes through
    NCCL's communicators are ranks of one process."""
    tool = os.path.join(tools.bin_dir, cuda_nccl.TOOL)
    if not os.path.exists(tool) or not os.path.exists(cuda_nccl.library(tools)):
        return "skipped: built without CUDA or NCCL"
    data = "--data=" + seams.write_data(tools, "gemm")
    path = write_strategy(tools, value)
    plan = tools.path("out.plan")
    tools.run("merakc", exact_models.path("gemm"), "-o", plan,
              f"--strategy={path}", f"--global-batch={BATCH}",
              f"--optimizer=sgd:lr={rate_of('gemm')}",
              "--reshard=scatter-gather")
    steps = steps_of("gemm", BATCH)
    tools.extra["MERAK_EMULATED_PROCESSORS"] = cuda_nccl.PROCESSORS
    wanted = cuda_nccl.together(tools, plan, data, steps=steps)
    cuda_nccl.compare(cuda_nccl.trained(tools, ranks, plan, data, "off",
                                        steps=steps), wanted)
    return f"{ranks} processes"


# ------------------------------------------------------------------- refused

REFUSED = [
    ("gemm", [(2, 1), (1, 1)], ["--global-batch=7"],
     ["the global batch of 7 is no multiple of 1 microbatch x 2, the least "
      "common multiple of the stages' dp"]),
    ("gemm", STAGES,
     ["--global-batch=8", "--devices=3", "--mesh=pp=2", "--microbatch=2",
      "--zero=1", "--tp-overlap=1", "--sequence-parallel=on",
      "--context-parallel=on", "--mixed-layouts=auto"],
     ["--devices is 3, the stages of the strategy have 6",
      "--mesh cannot stand beside the stages of the strategy, which have meshes "
      "of their own",
      "--microbatch cannot stand beside the stages of the strategy: replicas of "
      "different stages have different samples; give 'microbatches'",
      *[f"stages on meshes of their own are not made with {what} yet" for what
        in ("parameters stored in parts (zero)", "sequence parallelism",
            "context parallelism", "mixed layouts",
            "tensor-parallel overlap")]]),
]


def refused_body(name, value, options, sentences, tools):
    path = write_strategy(tools, value)
    out = tools.path("out.plan")
    _, errors = tools.run("merakc", exact_models.path(name), "-o", out,
                          f"--strategy={path}", *options, expect=1)
    found = [line.split("error: ", 1)[-1] for line in errors.splitlines()
             if "error: " in line]
    if found != sentences:
        raise Failed(f"says {found}")
    if os.path.exists(out):
        raise Failed("something was written")
    return f"{len(found)} sentences"


# What stages with meshes of their own cannot stand beside, asked for by name.
AGAINST = [(["--mesh=dp=2"], "degrees are given"),
           (["--mesh=pp=2"], "degrees are given"),
           (["--microbatch=2"], "replicas of different stages have different "
            "samples, and the microbatch is given"),
           (["--zero=2"], "they are not made with parameters stored in parts "
            "(zero) yet"),
           (["--sequence-parallel=on"], "they are not made with sequence "
            "parallelism yet"),
           (["--context-parallel=on"], "they are not made with context "
            "parallelism yet"),
           (["--tp-overlap=2"], "they are not made with tensor-parallel overlap "
            "yet")]


def against_body(tools):
    for options, why in AGAINST:
        _, errors = tools.run("merakc", exact_models.path("gemm"), "-o",
                              tools.path("out.plan"), "--parts=auto",
                              "--devices=4", "--global-batch=8", *options,
                              expect=1)
        if errors != f"merakc: error: --parts=auto: {why}\n":
            raise Failed(f"{options} says {errors}")
    return f"{len(AGAINST)} sentences"


def statistics_body(tools):
    """Batch norm that trains, with other replicas on another stage."""
    model = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                         "../data/batch-norm/model.onnx")
    path = write_strategy(tools, strategy([(2, 1), (1, 1)]))
    _, errors = tools.run("merakc", model, "-o", tools.path("out.plan"),
                          f"--strategy={path}", "--global-batch=8", expect=1)
    if "all stages need one dp, found 2 and 1" not in errors:
        raise Failed(f"says {errors}")
    return "one sentence"


def other_cases():
    yield Case("tools", lambda tools:
               emitted_body(strategy(STAGES), TOLD, tools))
    for reshard in RESHARD:
        yield Case(f"ways {reshard}",
                   lambda tools, reshard=reshard: ways_body(reshard, tools))
    yield Case("refused way", no_way_body)
    yield Case("infer", infer_body)
    five = strategy([(2, 1), (1, 2), (1, 1)], 2)
    yield Case("processes", lambda tools: processes_body(five, tools))
    yield Case("nccl", lambda tools: nccl_body(five, tools))
    yield Case("refused statistics", statistics_body)
    yield Case("refused beside", against_body)
    for number, (name, stages, options, sentences) in enumerate(REFUSED):
        yield Case(f"refused {number}",
                   lambda tools, name=name, stages=stages, options=options,
                   sentences=sentences:
                   refused_body(name, strategy(stages), options, sentences,
                                tools))


# -------------------------------------------------------------------- shared


def shared_body(tools):
    """Equal meshes make today's plan, byte for byte."""
    model = exact_models.path("gemm")
    path = write_strategy(tools, strategy([(2, 1), (2, 1)], 2, ["Gemm_5"]))
    plans = []
    for name, options in [
            ("parts", [f"--strategy={path}"]),
            ("plain", ["--devices=4", "--mesh=pp=2,dp=2,tp=1", "--microbatch=2",
                       f"--strategy={write_strategy(tools, {'version': 1, 'mesh': {'pp': 2, 'dp': 2, 'tp': 1}, 'stage_begins': ['Gemm_5']}, 'plain.json')}"])]:
        out = tools.path(name + ".plan")
        tools.run("merakc", model, "-o", out, f"--global-batch={BATCH}",
                  *options)
        plans.append({file: open(os.path.join(out, file), "rb").read()
                      for file in sorted(os.listdir(out))
                      if file.startswith("program")})
    if plans[0] != plans[1]:
        raise Failed("equal meshes make other programs")
    return f"{len(plans[0])} programs"


def main():
    parser = harness.parser(__doc__)
    args = parser.parse_args()
    cases = [*shape_cases(), *random_cases(1000 if args.all else 40),
             *clip_cases(40 if args.all else 8),
             *low_cases(40 if args.all else 8), *recorded_cases(),
             *found_cases(), *measured_cases(),
             *change_cases(),
             *other_cases(), Case("shared", shared_body)]
    return harness.run_cases("parts", cases, args)


if __name__ == "__main__":
    sys.exit(main())
