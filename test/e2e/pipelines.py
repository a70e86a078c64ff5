#!/usr/bin/env python3
"""Plans of several pipelines, each of which trains its share of the microbatches of
a step on stages of its own.

random   two or three pipelines on exact models: the losses, gradients and weights of
         one rank, bit for bit, whatever the meshes, cuts, shares, schedule,
         recomputation and way of values between stages (1000 with --all)
clip     the same under a bound of the gradient norm, which counts each element
         once wherever it is held
low      the same in bf16, where no sum is over summands that were rounded
tables   row-sparse gradients: the bits of dense ones on one rank, and no rows are sent
         but those that a pipeline looked up (sparse_pipelines.py)
infer    the same plans without training: the files of outputs of one rank, whichever
         pipeline has a sample; beside outputs of every sample sums over all of them,
         of data that every pipeline reads, and what an early stage makes; ranks as
         processes
sums     over pipelines, beside the backward pass where their order is one
recorded models of PyTorch: its losses, gradients and weights
change   a checkpoint of one is loaded by a plan of one mesh, and back
tools    strategies come back; every tool reads such plans; ranks as processes,
         over MPI and NCCL; what merak-plan rates plans is compiled
shares   replicas of which some are slow share the microbatches: faster than one mesh
         by the simulator, the bits of one rank, the same programs from its file
kinds    the same of pipelines by kind of device, faster than stages of both kinds too
measured these on devices that are slower than this machine, as in parts.py
refused  what does not fit, in sentences
"""
import json
import math
import os
import random
import re
import shutil
import statistics
import subprocess
import sys

import exact_models
import harness
import identity
import infer
import matrix
import oracle
import parts
from harness import Case, Failed
from sparse_pipelines import table_cases


def run(tools, name, pipelines, schedule, recompute, order=None, more=(),
        reshard=None):
    path = parts.write_strategy(tools, parts.several(pipelines, order))
    found = parts.exact_run(
        tools, name, [f"--strategy={path}", f"--schedule={schedule}",
                      f"--recompute={recompute}",
                      *([f"--reshard={reshard}"] if reshard else [])],
        parts.BATCH, "", more)
    identity.compare(found, parts.base_of(tools, name, parts.BATCH, more))
    shares = ", ".join(f"{m} on {len(stages)}" for m, stages, _ in pipelines)
    ranks = sum(parts.ranks_of(stages) for _, stages, _ in pipelines)
    return f"{ranks} ranks, {shares} stages"


# Statistics of batches and sums that gradients wait for have one pipeline.
KNOWN = [m.__name__ for m in exact_models.MODELS
         if m.__name__ not in exact_models.JOINS]


def random_body(name, seed, tools, more=(), allowed=parts.MESHES):
    r = random.Random(seed)
    pipelines, schedule, recompute, order = parts.drawn(
        r, parts.names_of(tools, name),
        [m for m in allowed if not (name in identity.NO_TP4 and m[1] == 4)])
    return run(tools, name, pipelines, schedule, recompute, order, more,
               r.choice([None, *parts.RESHARD]))


# A penalty on weights of two stages, summed once and not for each pipeline; a
# weight whose gradients each microbatch sums over replicas.
FOUND = [271, 727]


def random_cases(count):
    for seed in [*range(count), *(s for s in FOUND if s >= count)]:
        name = KNOWN[seed % len(KNOWN)]
        yield Case(f"random {seed} {name}",
                   lambda tools, name=name, seed=seed:
                   random_body(name, 20000 + seed, tools))


def bounded_cases(count):
    for seed in range(count):
        name = ["gemm", "tied", "residual", "linear"][seed % 4]
        yield Case(f"clip {seed} {name}",
                   lambda tools, name=name, seed=seed:
                   random_body(name, 25000 + seed, tools, ("--grad-clip=1",)))
    replicas = [mesh for mesh in parts.MESHES if mesh[1] == 1]
    for seed in range(count):
        name = ["gemm", "tied", "residual", "embedding"][seed % 4]
        yield Case(f"low {seed} {name}",
                   lambda tools, name=name, seed=seed:
                   random_body(name, 29000 + seed, tools,
                               ("--precision=bf16",), replicas))


# --------------------------------------------------------------------- infer

# Gradients alone need the sums of "joined" while microbatches are computed.
FORWARD = [*KNOWN, "joined"]
# Masks and what is made of them are not there.
OF_MASKS = ("Dropout", "Cast")
# Beside what the loss is made of: what the first stage makes.
EARLY = {"residual": [("MatMul_1_out", [16])], "gemm": [("Gemm_1_out", [16])]}


def forward_of_one(tools, name):
    """The model with outputs, its data and their shapes, files of one rank."""
    model, data, shapes = infer.with_outputs(name, tools, EARLY.get(name, ()))
    whole = infer.run_forward(model, data, [
        "--devices=1", "--mesh=pp=1,dp=1,tp=1", f"--global-batch={parts.BATCH}",
        f"--microbatch={parts.BATCH}"], "whole", tools)
    return model, data, shapes, whole


def forward_body(name, seed, tools):
    """A random plan of several pipelines without training."""
    r = random.Random(seed)
    pipelines, schedule, _, order = parts.drawn(
        r, [op for op in parts.names_of(tools, name)
            if op.split("_")[0] not in OF_MASKS],
        [m for m in parts.MESHES if not (name in identity.NO_TP4 and m[1] == 4)])
    path = parts.write_strategy(tools, parts.several(pipelines, order))
    model, data, shapes, whole = forward_of_one(tools, name)
    decided, way = tools.path("decided.json"), r.choice([None, *parts.RESHARD])
    options = [f"--global-batch={parts.BATCH}", f"--schedule={schedule}",
               *([f"--reshard={way}"] if way else [])]
    found = infer.run_forward(model, data, [
        *options, f"--strategy={path}", f"--emit-strategy={decided}"], "found", tools)
    infer.compare_outputs(found, whole, shapes, 2 * parts.BATCH)
    tools.run("merakc", model, "-o", tools.path("again.plan"), "--mode=infer",
              f"--global-batch={parts.BATCH}", f"--strategy={decided}")
    parts.expect_same_programs(tools.path("found.plan"), tools.path("again.plan"))
    return ", ".join(f"{m} on {len(stages)}" for m, stages, _ in pipelines)


# An interleaved schedule, whose strategy says that stages have one part each.
FORWARD_FOUND_SEEDS = [147]


def forward_cases(count):
    for seed in [*range(count), *(s for s in FORWARD_FOUND_SEEDS if s >= count)]:
        name = FORWARD[seed % len(FORWARD)]
        yield Case(f"infer {seed} {name}", lambda tools, name=name, seed=seed:
                   forward_body(name, 35000 + seed, tools))


def forward_processes_body(tools):
    """Five ranks as processes write the files of one."""
    if not shutil.which("mpirun"):
        return "skipped: no mpirun"
    model, data, shapes, whole = forward_of_one(tools, "residual")
    path = parts.write_strategy(tools, parts.several(PIPELINES))
    plan, out = tools.path("out.plan"), tools.path("out")
    tools.run("merakc", model, "-o", plan, "--mode=infer", f"--strategy={path}",
              f"--global-batch={parts.BATCH}")
    done = subprocess.run(
        ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "5",
         os.path.join(tools.bin_dir, "merak-run"), plan, "--ranks=env",
         f"--data={data}", "--steps=2", f"--out={out}"],
        capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise Failed(f"mpirun ended with {done.returncode}: "
                     f"{harness.last_lines(done.stderr)}")
    infer.compare_outputs(infer.files_of(out), whole, shapes, 2 * parts.BATCH)
    return "5 processes"


def forward_recorded_body(model, pipelines, tools):
    """Losses of a model of PyTorch with the weights as they are."""
    folder = os.path.join(harness.MODELS, model)
    info = oracle.expected(model)
    path = parts.write_strategy(tools, parts.several(pipelines))
    plan, log = tools.path("out.plan"), tools.path("log.jsonl")
    tools.run("merakc", os.path.join(folder, "model.onnx"), "-o", plan, "--mode=infer",
              f"--strategy={path}", f"--global-batch={matrix.GLOBAL_BATCH}")
    tools.run("merak-run", plan, "--data=" + os.path.join(folder, "data"),
              f"--steps={info['steps']}", f"--log={log}")
    found = [entry["loss"] for entry in harness.read_log(log)]
    differs = oracle.compare_losses(found, info["losses_without_update"])
    return f"loss {differs:.0e}"


def forward_tools_body(tools):
    """Whatever reads plans reads these."""
    model, _, _ = infer.with_outputs("residual", tools)
    path = parts.write_strategy(tools, parts.several(PIPELINES))
    plan = tools.path("out.plan")
    out, _ = tools.run("merakc", model, "-o", plan, "--mode=infer",
                       f"--strategy={path}", f"--global-batch={parts.BATCH}")
    if TOLD not in out:
        raise Failed(f"the summary says {out}")
    for command in (["verify"], ["print"], ["simulate"], ["draw"], ["account"],
                    ["reshard"], ["report", "-o", tools.path("report.html")]):
        tools.run("merak-plan", command[0], plan, *command[1:])
    return "7 tools"


# Slow devices of replicas, and nodes of two kinds.
FORWARD_FOUND = [("gemm", ["--mesh=dp=4", "--for-rates=2:3"], [("whole", 4)]),
                 ("linear", [], [("whole", 2), ("half", 2)]),
                 ("attention", ["--mesh=dp=4"], [("whole", 2), ("third", 2)])]


def forward_found_body(name, options, nodes, tools):
    """Replicas and kinds become pipelines by themselves, as in training."""
    model, data, shapes, whole = forward_of_one(tools, name)
    decided, again = tools.path("decided.json"), tools.path("again.plan")
    common = [model, "--mode=infer", f"--global-batch={parts.BATCH}",
              f"--cluster={parts.machine_file(tools, nodes)}"]
    out, _ = tools.run("merakc", *common, *options, f"--emit-strategy={decided}", "-o",
                       tools.path("found.plan"))
    with open(decided, encoding="utf-8") as file:
        shares = [each["microbatches"] for each in json.load(file).get("pipelines", [])]
    if len(set(shares)) < 2:
        raise Failed(f"shares {shares}: {out}")
    if parts.milliseconds(out, "with shares of the microbatches") >= \
            parts.milliseconds(out, "uniform"):
        raise Failed(f"no faster than one mesh: {out}")
    tools.run("merak-run", tools.path("found.plan"), f"--data={data}", "--steps=2",
              f"--out={tools.path('found')}")
    infer.compare_outputs(infer.files_of(tools.path("found")), whole, shapes,
                          2 * parts.BATCH)
    rates = [option for option in options if not option.startswith("--mesh")]
    tools.run("merakc", *common, *rates, f"--strategy={decided}", "-o", again)
    parts.expect_same_programs(tools.path("found.plan"), again)
    return " + ".join(map(str, shares))


# --------------------------------------------------------------------- tools

# Five and three microbatches, of one sample each.
PIPELINES = [(5, [(1, 2), (1, 1)], None), (3, [(1, 1), (1, 1)], None)]
# What summaries say of them.
TOLD = ("stages on devices 0-1 dp=1,tp=2; 2 dp=1,tp=1 x5 | "
        "3 dp=1,tp=1; 4 dp=1,tp=1 x3, 8 microbatches of 1 sample")
RECORDED = [("gpt2-tiny", [(3, [(1, 2), (2, 1)], None), (1, [(1, 1)], None)]),
            ("bert-tiny", [(1, [(2, 1)], None), (1, [(1, 1), (1, 2)], None),
                           (2, [(1, 1)], None)])]


def rates_body(tools):
    """What merak-plan rates plans around slow devices is compiled and has the
    bits of one rank."""
    description = tools.path("model.json")
    with open(description, "w", encoding="utf-8") as file:
        json.dump({"devices": 6, "devices_per_node": 3,
                   "mesh": {"pp": 3, "dp": 2, "tp": 1}, "layers": 12,
                   "microbatches": 8, "rho": [1],
                   "stragglers": {"1": 1000, "4": 3}}, file)
    path = tools.path("strategy.json")
    tools.run("merak-plan", "rates", description, f"--strategy={path}")
    with open(path, encoding="utf-8") as file:
        pipelines = json.load(file)["pipelines"]
    if sum(each["microbatches"] for each in pipelines) != 8 or \
            len(pipelines) < 2 or "1" not in pipelines[-1].get("spares", ""):
        raise Failed(f"plans {pipelines}")
    found = parts.exact_run(tools, "gemm", [f"--strategy={path}", "--for-rates=4:3"],
                      parts.BATCH)
    identity.compare(found, parts.base_of(tools, "gemm", parts.BATCH))
    return f"{[each['microbatches'] for each in pipelines]} microbatches"


# -------------------------------------------------------------------- shares

# Model, mesh and slow devices: what replicas train is shared out anew.
SHARES = [("gemm", "dp=4", "2:3"), ("tied", "pp=2,dp=2", "1:4"),
          ("residual", "dp=2,tp=2", "2:5,3:5"), ("embedding", "dp=3", "0:2,1:4")]


def shares_body(name, mesh, rates, tools):
    decided, again = tools.path("decided.json"), tools.path("again.plan")
    batch = parts.BATCH_OF_THREE if "3" in mesh else parts.BATCH
    machine = parts.machine_file(tools, [("whole", 4)])
    options = [f"--mesh={mesh}", f"--for-rates={rates}", f"--emit-strategy={decided}",
               f"--cluster={machine}", f"--devices={math.prod(map(int, re.findall('[0-9]+', mesh)))}"]
    common = [exact_models.path(name), f"--global-batch={batch}",
              f"--optimizer=sgd:lr={parts.rate_of(name)}"]
    out, _ = tools.run("merakc", *common, *options, "-o", tools.path("first.plan"))
    with open(decided, encoding="utf-8") as file:
        pipelines = json.load(file).get("pipelines", [])
    shares = [each["microbatches"] for each in pipelines]
    if len(set(shares)) < 2:
        raise Failed(f"shares {shares}: {out}")
    if parts.milliseconds(out, "with shares of the microbatches") >= \
            parts.milliseconds(out, "uniform"):
        raise Failed(f"no faster than one mesh: {out}")
    found = parts.exact_run(tools, name, options, batch)
    identity.compare(found, parts.base_of(tools, name, batch))
    tools.run("merakc", *common, f"--strategy={decided}", f"--for-rates={rates}",
              f"--cluster={machine}", "-o", again)
    parts.expect_same_programs(tools.path("out.plan"), again)
    return " + ".join(map(str, shares))


# Model, nodes of two kinds, more options: pipelines by kind are faster than one mesh
# and than stages of unlike kinds.
KINDS = [("linear", [("whole", 2), ("half", 2)], []),
         ("embedding", [("whole", 2), ("half", 2)], []),
         ("tied", [("whole", 2), ("third", 2)], []),
         # Two stages beside a single one.
         ("attention", [("whole", 2), ("third", 1)], ["--mesh=tp=1"]),
         # A slow device besides: replicas of two stages, of both kinds.
         ("linear", [("whole", 2), ("third", 2)], ["--for-rates=1:3"]),
         ("gemm", [("whole", 2), ("half", 2)], ["--mesh=dp=4"])]


def kinds_body(name, nodes, options, tools):
    decided, again = tools.path("decided.json"), tools.path("again.plan")
    options = [*options, f"--cluster={parts.machine_file(tools, nodes)}"]
    common = [exact_models.path(name), f"--global-batch={parts.BATCH}",
              f"--optimizer=sgd:lr={parts.rate_of(name)}", *options]
    out, _ = tools.run("merakc", *common, f"--emit-strategy={decided}", "-o",
                       tools.path("first.plan"))
    with open(decided, encoding="utf-8") as file:
        pipelines = json.load(file).get("pipelines", [])
    if len(pipelines) < 2:
        raise Failed(f"no pipelines by kind: {out}")
    for each in pipelines:
        devices = {device < nodes[0][1] for stage in each["stages"]
                   for device in parts.devices_of(stage["devices"])}
        if len(devices) != 1 and "--for-rates" not in "".join(options):
            raise Failed(f"a pipeline of two kinds: {each}")
    found = parts.milliseconds(out, "with shares of the microbatches")
    for other in ("uniform", "with parts"):
        if f"{other} " in out and found >= parts.milliseconds(out, other):
            raise Failed(f"no faster than {other}: {out}")
    off, _ = tools.run("merakc", *common, "--parts=off", "-o",
                       tools.path("off.plan"))
    if "with shares" in off or " | " in off:
        raise Failed(f"--parts=off says {off}")
    found = parts.exact_run(tools, name, options, parts.BATCH)
    identity.compare(found, parts.base_of(tools, name, parts.BATCH))
    fixed = [option for option in common if not option.startswith("--mesh")]
    tools.run("merakc", *fixed, f"--strategy={decided}", "-o", again)
    parts.expect_same_programs(tools.path("out.plan"), again)
    return " | ".join(f"{each['microbatches']} on " + "; ".join(
        f"{stage['devices']} {stage['mesh']}" for stage in each["stages"])
        for each in pipelines)


# What ranks of this machine do as they are, whatever they stand for.
AS_THEY_ARE = ("all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter",
               "transfer")


def slower(kind, times):
    """A device whose kernels take so many times as long."""

    def kernel_of(name, kernel):
        if name in AS_THEY_ARE:
            return kernel
        made = dict(kernel)
        if "flops" in made:
            made["flops"] /= times
        if "sizes" in made: # shapes have parts of the device's flops
            made["sizes"] = [[size, *(speed / times for speed in speeds)]
                             for size, *speeds in made["sizes"]]
        return made

    return {**kind,
            "flops": {of: speed / times for of, speed in kind["flops"].items()},
            "memory_bandwidth": kind["memory_bandwidth"] / times,
            "launch_seconds": kind["launch_seconds"] * times,
            "kernels": {name: kernel_of(name, kernel)
                        for name, kernel in kind["kernels"].items()}}


# Fast and slow devices, how many times as slow these are, samples of a step.
PACE = 50
MEASURED = [(2, 2, 3, 8), (1, 1, 3, 8)]


def measured_body(fast, slow, times, batch, tools):
    machine = parts.sample_machine()
    kind = machine["kinds"].pop("cpu")
    machine["kinds"] = {"fast": slower(kind, PACE), "slow": slower(kind, PACE * times)}
    machine["nodes"] = [{"count": 1, "kind": "fast", "devices": fast},
                        {"count": 1, "kind": "slow", "devices": slow}]
    # Without a mesh an interleaved pipeline is as fast (docs/Parts.md). A fast rank that
    # begins a step late, while the slow one is ahead, has a short one; all are not.
    return parts.measured(tools, machine, batch, " | ", [f"--mesh=dp={fast + slow}"],
                          least=statistics.fmean)


# What several pipelines cannot keeps one mesh, and is no error; so is what nobody
# asked of them.
ONE_MESH = [("gemm", ["--for-rates=1:4", "--zero=1"]),
            ("gemm", ["--for-rates=1:4", "--parts=off"]),
            ("gemm", ["--for-rates=1:1.1"]), ("gemm", []),
            ("spread", ["--for-rates=1:4", "--schedule=gpipe"])]


def one_mesh_body(tools):
    decided = tools.path("decided.json")
    batch_norm = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                              "../data/batch-norm/model.onnx")
    for model, options in [*((exact_models.path(name), options)
                             for name, options in ONE_MESH),
                           (batch_norm, ["--for-rates=1:4"])]:
        tools.run("merakc", model, "-o", tools.path("out.plan"), "--mesh=dp=2",
                  "--global-batch=8", f"--emit-strategy={decided}", *options)
        with open(decided, encoding="utf-8") as file:
            if "pipelines" in json.load(file):
                raise Failed(f"pipelines of {model}, {options}")
    return f"{len(ONE_MESH) + 1} of one mesh"


# ------------------------------------------------------------------- refused

REFUSED = [
    ("gemm", [(3, [(1, 1)], None), (1, [(2, 1)], None)],
     ["--global-batch=9", "--zero=1"],
     ["the global batch of 9 is no multiple of 4 microbatches x 2, the least "
      "common multiple of the stages' dp",
      "stages on meshes of their own are not made with parameters stored in "
      "parts (zero) yet"]),
    ("spread", [(1, [(1, 1)], None), (1, [(1, 1)], None)],
     ["--global-batch=8", "--schedule=gpipe"],
     ["op 'Sub_5' needs 'ReduceMean_4' summed over all microbatches before it "
      "can run, but 'ReduceMean_4' depends on parameter 'w2'; plans of several "
      "pipelines have no such sums yet"]),
]


# Stages of both pipelines that have the same parameters, and a pipeline whose first
# stage has one in common with either stage of the other.
ALIKE = [(3, [(1, 1), (1, 1)], ["Gemm_5"]), (1, [(1, 1), (1, 1)], ["Gemm_5"])]
UNLIKE = [(3, [(1, 1), (1, 1)], ["Gemm_3"]), (1, [(1, 1), (1, 1)], ["Gemm_7"])]


def sums_body(pipelines, beside, tools):
    """Sums over pipelines begin beside the last backward pass: with equal cuts all do,
    with unlike ones those that all their ranks have first. The bits are those of one
    rank."""
    path = parts.write_strategy(tools, parts.several(pipelines))
    for overlap in ("on", "off"):
        found = parts.exact_run(tools, "gemm",
                                [f"--strategy={path}", "--grad-bucket=1000",
                                 f"--grad-overlap={overlap}"], parts.BATCH)
        identity.compare(found, parts.base_of(tools, "gemm", parts.BATCH))
        printed, _ = tools.run("merak-plan", "print", tools.path("out.plan"))
        actions, action = set(), None
        for line in printed.splitlines():
            if start := re.match(r'program \d+ procedure ".*" \((\w)\)', line):
                action = start[1]
            elif "all_reduce sum over (holders." in line:
                actions.add(action)
        expected = beside if overlap == "on" else {False}
        if {action in ("B", "W") for action in actions} != expected or \
                not actions <= {"B", "W", "U"}:
            raise Failed(f"--grad-overlap={overlap} sums in {sorted(actions)}")
    return f"{len(pipelines)} pipelines"


def statistics_body(tools):
    """Batch norm that trains on other samples of a replica; what it can, batch_norm.py
    shows."""
    model = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                         "../data/batch-norm/model.onnx")
    for mesh, sentence in [((2, 1), "so that all stages need one dp, found 1 and 2"),
                           ((1, 2), "so that all need one tp, found 1 and 2")]:
        path = parts.write_strategy(
            tools, parts.several([(1, [(1, 1)], None), (1, [mesh], None)]))
        _, errors = tools.run("merakc", model, "-o", tools.path("out.plan"),
                              f"--strategy={path}", "--global-batch=8", expect=1)
        if sentence not in errors:
            raise Failed(f"says {errors}")
    return "2 sentences"


def other_cases():
    for model, pipelines in RECORDED:
        yield Case(f"recorded {model}",
                   lambda tools, model=model, pipelines=pipelines:
                   parts.recorded_body(model, parts.several(pipelines), tools))
        yield Case(f"infer recorded {model}",
                   lambda tools, model=model, pipelines=pipelines:
                   forward_recorded_body(model, pipelines, tools))
    yield Case("infer processes", forward_processes_body)
    yield Case("infer tools", forward_tools_body)
    for case in FORWARD_FOUND:
        yield Case(" ".join(["infer found", case[0], *case[1]]),
                   lambda tools, case=case: forward_found_body(*case, tools))
    for name in ("gemm", "tied"):
        yield Case(f"change {name}", lambda tools, name=name:
                   parts.change_body(name, parts.several([(3, [(1, 2), (1, 1)], None),
                                                    (1, [(1, 1)], None)]), tools))
    five = parts.several(PIPELINES)
    yield Case("tools", lambda tools: parts.emitted_body(five, TOLD, tools))
    yield Case("processes", lambda tools: parts.processes_body(five, tools))
    yield Case("nccl", lambda tools: parts.nccl_body(five, tools))
    yield Case("nccl, cut alike", lambda tools: parts.nccl_body(
        parts.several([(m, [(1, 1), (1, 1)], None) for m in (5, 3)]), tools,
        ranks=4))
    yield Case("rates", rates_body)
    for name, pipelines in (("alike", ALIKE), ("unlike", UNLIKE)):
        yield Case(f"sums {name}", lambda tools, name=name, pipelines=pipelines:
                   sums_body(pipelines, {True} if name == "alike" else {True, False},
                             tools))
    for name, mesh, rates in SHARES:
        yield Case(f"shares {name} {mesh} {rates}",
                   lambda tools, name=name, mesh=mesh, rates=rates:
                   shares_body(name, mesh, rates, tools))
    for name, nodes, options in KINDS:
        text = " ".join(f"{count} {kind}" for kind, count in nodes)
        yield Case(" ".join(["kinds", name, text, *options]),
                   lambda tools, name=name, nodes=nodes, options=options:
                   kinds_body(name, nodes, options, tools))
    for case in MEASURED:
        yield Case("measured {} and {} {} times as slow, {} samples".format(*case),
                   lambda tools, case=case: measured_body(*case, tools))
    yield Case("shares of one mesh", one_mesh_body)
    yield Case("refused statistics", statistics_body)
    for number, (name, pipelines, options, sentences) in enumerate(REFUSED):
        yield Case(f"refused {number}",
                   lambda tools, name=name, pipelines=pipelines, options=options,
                   sentences=sentences:
                   parts.refused_body(name, parts.several(pipelines), options, sentences,
                                      tools))


def main():
    args = harness.parser(__doc__).parse_args()
    cases = [*random_cases(1000 if args.all else 40),
             *bounded_cases(100 if args.all else 4),
             *table_cases(200 if args.all else 20),
             *forward_cases(240 if args.all else 24), *other_cases()]
    return harness.run_cases("pipelines", cases, args)


if __name__ == "__main__":
    sys.exit(main())
