#!/usr/bin/env python3
"""Gradients that are summed over replicas beside the next step's forward pass
(--delayed-gradients).

linear   models whose gradients do not depend on parameters: losses tell of each
         step whether all that was due had been done; the bits of one rank, under
         every optimizer, over many steps, in all layouts
exact    models of integers, all layouts and schedules, with recomputation, stored
         parts, overlap and 16 bits: the bits of one rank, or of the plan without
rough    any numbers on two replicas: the bits of the plan without
rows     with --delayed-rows: both wait, and looked-up rows go first
device   the kernels of GPUs, on the emulated device
saved    checkpoints in between and runs that go on from them, in plans with and
         without
skipped  steps whose gradients are not finite: the bits of the plan without; where
         they began is told
refused  what would be wrong is found out, without running it; options that do not
         go together
kept     nothing waits where that gains nothing, and a remark says so
real     a weight-less GPT-2 of 124M parameters: compiled, verified, faster
"""
import functools
import itertools
import json
import math
import os
import random
import re
import sys

import exact_models
import harness
import identity
import matrix
import prices
import real_models
import sparse_models
from bad_input import refuse
from harness import Case, Failed
from sparse_delayed import OPTIMIZERS

STEPS, BATCH, WIDTH = 12, matrix.GLOBAL_BATCH, 8
ONE = ("none", "whole", "gpipe", "none")
ON = "--delayed-gradients=on"
MESHES = ["dp=2", "dp=4", "dp=2,tp=2", "pp=2,dp=2", "pp=2,dp=2,tp=2"]
LAYERS = 6
LINKS = (1.0, 0.3, 3.0, 10.0)
CLUSTERS = os.path.join(harness.ROOT, "samples/clusters")


def straight(steps=STEPS, name="straight"):
    """A loss that is linear in all parameters: the gradient of each is a product of
    its own input and the target."""
    g = exact_models.Graph(name)
    h = None
    for k in range(LAYERS):
        y = g.op("MatMul", g.input(f"x{k}", [3, WIDTH]),
                 g.weight(f"w{k}", [WIDTH, WIDTH]))
        h = g.op("Add", h, y) if h else y
    g.target_loss(h, [3, WIDTH])
    pick = random.Random(name)
    for key, (descr, shape, values) in g.data.items():
        shape = [steps * BATCH, *shape[1:]]
        g.data[key] = descr, shape, [pick.randint(-1, 1)
                                     for _ in range(math.prod(shape))]
    return g


def deep(graph=exact_models.Graph):
    g = graph("deep")
    h = g.input("x", [3, WIDTH])
    for k in range(LAYERS):
        h = g.op("Relu", g.op("Add", g.op("MatMul", h, g.weight(
            f"w{k}", [WIDTH, WIDTH], zeros=0.8)), g.weight(f"b{k}", [WIDTH])))
    g.target_loss(g.op("MatMul", h, g.weight("out", [WIDTH, 4], zeros=0.7)), [3, 4])
    return g


def machine(tools, mesh, links=1.0):
    """Devices that compute about as long as the slow links between nodes carry
    gradients; ranks of one replica and stage are on one node."""
    with open(os.path.join(CLUSTERS, "xeon-2.json"), encoding="utf-8") as file:
        data = json.load(file)
    degrees = matrix.degrees(mesh)
    ranks = math.prod(degrees.values())
    data.pop("host", None)
    data["kinds"] = {"cpu": {
        "backend": "cpu", "flops": {"f32": 1e9, "bf16": 1e9},
        "memory_bandwidth": 1e9, "launch_seconds": 1e-5, "memory_bytes": 1e9}}
    data["nodes"] = [{"count": ranks // degrees["tp"], "kind": "cpu",
                      "devices": degrees["tp"]}]
    data["links"] = {kind: {"bandwidth": speed, "latency": 1e-6} for kind, speed
                     in (("intra", 1e9), ("inter", links * 3e6))}
    path = tools.path(f"machine-{ranks}-{degrees['tp']}-{links}.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file)
    return path


def options_of(tools, layout, options=(), links=1.0):
    """Buckets of some gradients, of which several may wait."""
    given = {o.split("=")[0] for o in options}
    defaults = [o for o in ("--grad-bucket=512", "--mixed-layouts=off")
                if o.split("=")[0] not in given]
    return [*matrix.compile_options(*layout), *defaults,
            f"--cluster={machine(tools, layout[0], links)}", *options]


def delayed(tools, tag=""):
    """Steps by gradients of the step before, in a plan."""
    said = tools.run("merak-plan", "print", tools.path(f"out{tag}.plan"))[0]
    return len(re.findall(r"_update .*\bstep_before\b", said))


def compile_plan(tools, model, layout, options, tag=""):
    """If gradients are to wait, over the first links over which some do: parts of
    them in other layouts are smaller."""
    plan = tools.path(f"out{tag}.plan")
    for links in LINKS:
        tools.run("merakc", model, "-o", plan,
                  *options_of(tools, layout, options, links))
        if ON not in options or delayed(tools, tag):
            return plan
    raise Failed("no gradient is delayed")


def train(tools, graph, layout, options, steps, tag="", runner="merak-run",
          more=()):
    model, data = sparse_models.write(tools, graph)
    saved, log = tools.path(f"saved{tag}"), tools.path(f"log{tag}.jsonl")
    plan = compile_plan(tools, model, layout, options, tag)
    tools.run(runner, plan, f"--data={data}", f"--steps={steps}",
              "--on-nonfinite=ignore", f"--log={log}", f"--save={saved}", *more)
    return identity.Result([entry["loss"] for entry in harness.read_log(log)],
                           {}, harness.read_checkpoint(saved)[0])


def linear_base(optimizer, tools):
    return identity.BASES.get(("delayed linear", optimizer), lambda: train(
        tools, straight(), ONE, [f"--optimizer={OPTIMIZERS[optimizer]}"], STEPS,
        "-base"))


def linear_body(optimizer, layout, options, tools):
    found = train(tools, straight(), layout,
                  [f"--optimizer={OPTIMIZERS[optimizer]}", ON, *options], STEPS)
    base = linear_base(optimizer, tools)
    if optimizer != "sgd":
        found.losses = base.losses  # sums of other numbers
    identity.compare(found, base)
    return f"{delayed(tools)} delayed"


def device_body(optimizer, layout, tools):
    """The kernels of GPUs, on the emulated device."""
    options = [f"--optimizer={OPTIMIZERS[optimizer]}", ON]
    found, base = (train(tools, straight(), layout, options, 4, tag, runner)
                   for tag, runner in (("", sparse_models.EMULATED),
                                       ("-cpu", "merak-run")))
    for name, tensor in base.weights.items():
        sparse_models.close(name, found.weights[name].data, tensor.data)
    return "close"


def exact_base(tools):
    return identity.BASES.get(("delayed exact",), lambda: train(
        tools, deep(), ONE, ["--optimizer=sgd:lr=0.5"], 2, "-base"))


def exact_body(mesh, microbatch, schedule, recompute, options, tools):
    found = train(tools, deep(), (mesh, microbatch, schedule, recompute),
                  ["--optimizer=sgd:lr=0.5", ON, *options], 2)
    identity.compare(found, exact_base(tools))
    return f"{delayed(tools)} delayed"


def same_body(layout, options, graph, tools):
    """As without, bit for bit: sums over two replicas have one order."""
    found, base = (train(tools, graph(), layout, [*options, *more], 6, tag)
                   for more, tag in (([ON], ""), ([], "-base")))
    if delayed(tools, "-base"):
        raise Failed("gradients are delayed though nobody asked for it")
    identity.compare(found, base)
    return f"{delayed(tools)} delayed"


def scaled_body(tools):
    """The scale of the loss falls where gradients of f16 overflow, and doubles: each
    step takes out its own."""
    found, base = (train(tools, deep(sparse_models.Rough), (
        "dp=2", "half", "1f1b", "none"),
        ["--optimizer=adamw:lr=0.01", "--precision=fp16", *option], 14, tag,
        more=["--loss-scale=auto:start=16777216,every=3"])
        for option, tag in (([ON], ""), ([], "-base")))
    identity.compare(found, base)
    logs = [[(e["loss_scale"], e["skipped"]) for e in (
        {"loss_scale": 1, "skipped": False, **entry} for entry in
        harness.read_log(tools.path(f"log{tag}.jsonl")))] for tag in ("", "-base")]
    skipped = sum(wrong for _, wrong in logs[0])
    if logs[0] != logs[1] or not 0 < skipped < 14:
        raise Failed(f"scales {logs[0]}, without {logs[1]}")
    return f"{skipped} skipped"


# --------------------------------------------------------------------- rows

def rows_body(mesh, microbatch, columns, tools):
    """Both wait. What lookups exchange goes in front, delayed rows are the last."""
    options = ["--optimizer=sgd:lr=0.5", "--sparse=lazy", ON]
    layout = (mesh, microbatch, "1f1b", "none")
    if columns:
        ranks = matrix.degrees(mesh)["dp"]
        path = tools.path("columns.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"version": 2, "mesh": {"pp": 1, "dp": ranks, "tp": 1},
                       "seams": [{"op": "MatMul_2", "operand": 0}],
                       "classes": [
                           {"tensor": "table", "dim": 1, "axes": ["dp"]},
                           {"op": "Gather_1", "operand": 1, "dim": 0,
                            "axes": ["mb"]}]}, file)
        options += [f"--strategy={path}", "--mixed-layouts=auto"]
    found = train(tools, sparse_models.lookup(), layout,
                  [*options, "--delayed-rows=on"], 2)
    base = train(tools, sparse_models.lookup(), ONE,
                 ["--optimizer=sgd:lr=0.5", "--sparse=lazy"], 2, "-base")
    identity.compare(found, base)
    said = tools.run("merak-plan", "print", tools.path("out.plan"))[0]
    streams = {name: number for number, name in re.findall(
        r'^  stream (\d+) "([^"]*)"', said, re.M)}
    if not {"delayed rows", "delayed gradients"} <= set(streams):
        raise Failed(f"streams {streams}")
    block = next(b for b in said.split("procedure ") if "(F)" in b and
                 f" s{streams['delayed rows']} " in b)
    order = [what for line in block.splitlines() for what, found in (
        ("lookups", "all_to_all" in line and "arrived" not in line),
        ("gradients", "all_reduce" in line and
         f" s{streams['delayed gradients']} " in line),
        ("rows", f" s{streams['delayed rows']} " in line and
         re.search(r"all_gather|all_to_all", line))) if found]
    wanted = (["lookups"] if columns else []) + ["gradients", "rows"]
    if [key for key, _ in itertools.groupby(order)] != wanted:
        raise Failed(f"exchanges in the order {order}")
    return " ".join(wanted)


# ------------------------------------------------------------- between steps

def saved_body(optimizer, mesh, every, tools):
    """Checkpoints in between, and runs that go on from them, every other one in the
    plan without."""
    model, data = sparse_models.write(tools, straight())
    layout = (mesh, "half", "1f1b", "none")
    common = [f"--optimizer={OPTIMIZERS[optimizer]}"]
    plans = [tools.path("out.plan"), tools.path("out-plain.plan")]
    for tag, more in (("", [ON]), ("-plain", [])):
        compile_plan(tools, model, layout, [*common, *more], tag)
    for number, begin in enumerate(range(0, STEPS, every)):
        load = [f"--load={tools.path(f'at{begin}')}"] if begin else []
        saved = tools.path(f"at{begin + every}")
        tools.run("merak-run", plans[number % 2], f"--data={data}", *load,
                  f"--steps={every}", "--save-every=1", f"--save={saved}")
    base = linear_base(optimizer, tools)
    identity.compare_saved(saved, base)
    return f"{STEPS // every} runs"


def skipping(steps):
    """Gradients of these steps are not finite, of the last layers."""
    graph = straight(name="skipping")
    _, shape, values = graph.data[f"x{LAYERS - 1}"]
    each = math.prod(shape[1:]) * BATCH
    for step in steps:
        values[step * each + 1] = math.inf
    return graph


def skipped_body(optimizer, mesh, tools):
    steps, found = (0, 3, 4, 8), []
    for option, tag in (([ON], ""), ([], "-base")):
        model, data = sparse_models.write(tools, skipping(steps))
        saved = tools.path(f"saved{tag}")
        plan = compile_plan(tools, model, (mesh, "half", "1f1b", "none"),
                            [f"--optimizer={OPTIMIZERS[optimizer]}", *option], tag)
        said = "".join(tools.run(
            "merak-run", plan, f"--data={data}", f"--steps={STEPS}",
            "--on-nonfinite=skip", f"--save={saved}"))
        if f"{len(steps)} of {STEPS} steps skipped" not in said:
            raise Failed(f"not {len(steps)} steps were skipped")
        found.append(identity.Result([], {}, harness.read_checkpoint(saved)[0]))
    identity.compare(*found)
    return "identical"


def located_body(tools):
    """The run stops, and says where that began; numbers are checked, though the
    factor before the first step is none."""
    model, data = sparse_models.write(tools, skipping((3,)))
    plan = compile_plan(tools, model, ("dp=2", "half", "1f1b", "none"),
                        ["--optimizer=adamw:lr=0.1", ON])
    for more, says in (([], "step 4: first in samples 24..25 of rank 0: rank 0"),
                       (["--check-numerics"], "step 4 · stage0.forward.first")):
        _, errors = tools.run("merak-run", plan, f"--data={data}", "--steps=6",
                              *more, expect=1)
        if says not in errors or "wrote inf to \"stage0.forward:x5" not in errors:
            raise Failed(errors.strip())
    tools.run("merak-run", plan, f"--data={data}", "--steps=3", "--check-numerics")
    return "step 4"


# ------------------------------------------------------ what must be found out

def changed(tools, phase, change):
    """The command that compiles IR behind a phase, changed."""
    layout = ("dp=2", "half", "1f1b", "none")
    options = options_of(tools, layout, ["--optimizer=adamw:lr=0.1", ON])
    model, _ = sparse_models.write(tools, straight())
    path = tools.changed_ir(model, phase, change, options)
    return ["merakc", path, f"--from={phase}", "-o", tools.path("x.plan"),
            *options]


UPDATE = r'\n *plan\.library "adamw_update".*step_before.*'


def behind_the_reader(text):
    """The last step of the first call goes to its end."""
    begin, end = next(
        m.span() for m in re.finditer(
            r"\n *plan\.procedure .*action F? ?\"?F?.*\{\n(?:.*\n)*?    \}", text)
        if "step_before" in m[0])
    block = text[begin:end]
    update = re.findall(UPDATE, block)[-1]
    at = block.rindex("\n")
    return text[:begin] + block[:at].replace(update, "") + update + \
        block[at:] + text[end:]


def twice(text):
    return re.sub(f"({UPDATE})", r"\1\1", text, count=1)


def never(text):
    """Between steps nothing is taken."""
    head, tail = text.split('"entry:flush"', 1)
    return head + '"entry:flush"' + re.sub(UPDATE, "", tail)


def at_once(text):
    """Before the first step there is a factor."""
    return re.sub(r"(@delayed\.factor .*pipe\.initial = )[^}]*", r"\g<1>1.0 : f64",
                  text)


def not_overwritten(text):
    """The factor of the first step stays."""
    return re.sub(r"\n *pipe\.store .* to @delayed\.factor .*", "", text)


def refused_body(phase, change, says, tools):
    return refuse(tools, *changed(tools, phase, change), says=says, code=70)


def option_body(options, says, tools):
    model, _ = sparse_models.write(tools, straight())
    return refuse(tools, "merakc", model, "--global-batch=8", "--mesh=dp=2", ON,
                  *options, "-o", tools.path("x.plan"), says=says, code=2)


def kept_body(mesh, options, links, why, tools):
    model, _ = sparse_models.write(tools, deep())
    said = "".join(tools.run(
        "merakc", model, "-o", tools.path("out.plan"), "--remarks=overlap",
        *options_of(tools, (mesh, "half", "1f1b", "none"), [ON, *options], links)))
    if delayed(tools) or "no gradients are delayed" not in said or why not in said:
        raise Failed(said)
    return why


def real_body(cluster, mesh, batch, tools):
    """A step of the plan is shorter, by what the remark says is hidden."""
    seconds, model = [], tools.path("gpt2-124m.textproto")
    with open(model, "w", encoding="utf-8") as file:
        file.write(real_models.MODELS["gpt2-124m"]())
    for tag, more in (("", [ON]), ("-base", [])):
        said = "".join(tools.run(
            "merakc", model, "-o", tools.path(f"out{tag}.plan"),
            f"--cluster={cluster}",
            f"--devices={batch}", f"--mesh={mesh}", f"--global-batch={batch}",
            "--microbatch=1",
            "--remarks=overlap", *more))
        if more and "are summed beside the next step's forward" not in said:
            raise Failed(said)
        tools.run("merak-plan", "verify", tools.path(f"out{tag}.plan"))
        seconds.append(prices.simulated(tools, tools.path(f"out{tag}.plan")))
    if seconds[0] >= seconds[1]:
        raise Failed(f"{seconds[0]} s, without {seconds[1]} s")
    return f"{delayed(tools)} delayed, {seconds[0] / seconds[1] - 1:+.1%}"


def cases_of(args):
    for optimizer, mesh, microbatch in itertools.product(
            OPTIMIZERS, MESHES, ("whole", "half", "one")):
        if args.all or (mesh in ("dp=2", "pp=2,dp=2")) != (microbatch == "whole"):
            yield Case(f"linear {optimizer} {mesh} {microbatch}", functools.partial(
                linear_body, optimizer, (mesh, microbatch, "1f1b", "none"), []))
    layouts = [case for case in itertools.product(
        MESHES, ("whole", "half", "one"), sparse_models.SCHEDULES,
        ("none", "full"),
        ((), ("--grad-overlap=off",), ("--grad-bucket=0",),
         ("--grad-bucket=1000000",))) if matrix.defined(*case[:3]) and
        not (case[2] == "interleaved" and "pp" not in case[0])]
    for *layout, options in layouts if args.all else matrix.pairwise(layouts):
        yield Case(" ".join(["exact", *layout, *options]), functools.partial(
            exact_body, *layout, list(options)))
    if os.path.exists(os.path.join(args.bin_dir, sparse_models.EMULATED)):
        for optimizer, mesh in (("adamw", "dp=2"), ("momentum", "dp=4"),
                                ("adagrad", "pp=2,dp=2")):
            yield Case(f"device {optimizer} {mesh}", functools.partial(
                device_body, optimizer, (mesh, "half", "1f1b", "none")))
    yield Case("exact halves", functools.partial(
        exact_body, "dp=2,tp=2", "half", "1f1b", "none", ["--tp-overlap=3"]))
    for optimizer, microbatch in itertools.product(
            ("momentum", "adamw"), ("whole", "half")):
        yield Case(f"rough {optimizer} {microbatch}", functools.partial(
            same_body, ("dp=2", microbatch, "1f1b", "none"),
            [f"--optimizer={OPTIMIZERS[optimizer]}"],
            lambda: deep(sparse_models.Rough)))
    for name, layout, options in (
            ("bf16 step", ("dp=2", "half", "1f1b", "none"),
             ["--precision=bf16", "--cast-weights=step"]),
            ("bf16 use", ("dp=2", "half", "1f1b", "full"),
             ["--precision=bf16", "--cast-weights=use"]),
            ("pipeline", ("pp=2,dp=2", "one", "1f1b", "none"), []),
            ("fp16", ("dp=2", "half", "1f1b", "none"), ["--precision=fp16"])):
        yield Case(f"rough {name}", functools.partial(
            same_body, layout, ["--optimizer=adamw:lr=0.01", *options],
            lambda: deep(sparse_models.Rough)))
    yield Case("rough fp16 scaled", scaled_body)
    for mesh, microbatch, columns in itertools.product(
            ("dp=2", "dp=4"), ("whole", "one"), (False, True)):
        yield Case(f"rows {'columns ' if columns else ''}{mesh} {microbatch}",
                   functools.partial(rows_body, mesh, microbatch, columns))
    for optimizer, mesh, every in (("sgd", "dp=2", 4), ("adamw", "dp=4", 3),
                                   ("momentum", "pp=2,dp=2", 6)):
        yield Case(f"saved {optimizer} {mesh}", functools.partial(
            saved_body, optimizer, mesh, every))
    for optimizer, mesh in (("sgd", "dp=2"), ("adamw", "dp=4"),
                            ("adamw", "pp=2,dp=2")):
        yield Case(f"skipped {optimizer} {mesh}",
                   functools.partial(skipped_body, optimizer, mesh))
    yield Case("skipped located", located_body)
    yield from refused_cases()
    for ranks in (8, 16):
        yield Case(f"real rtx3090-16x4 dp={ranks}", functools.partial(
            real_body, os.path.join(CLUSTERS, "rtx3090-16x4.json"),
            f"pp=1,dp={ranks},tp=1", ranks))


def refused_cases():
    for name, phase, change, says in (
            ("behind the reader", "memory", behind_the_reader,
             ["without what the step before left"]),
            ("step", "memory", lambda text: text.replace("step_before", "step"),
             ["rate of one step and the number of another"]),
            ("step and rate", "memory", lambda text: text.replace(
                "step_before", "step").replace("lr_before", "lr"),
             ["takes the number of this step"]),
            ("twice", "memory", twice, ["again"]),
            ("not overwritten", "shard", not_overwritten, ["applied twice"]),
            ("never", "memory", never, ["not applied between steps"]),
            ("at once", "shard", at_once, ["but the factor is a number"])):
        yield Case(f"refused {name}",
                   functools.partial(refused_body, phase, change, says))
    for name, options, says in (
            ("clip", ["--grad-clip=1"], ["--delayed-gradients", "--grad-clip"]),
            ("infer", ["--mode=infer"], ["--delayed-gradients", "--mode"])):
        yield Case(f"refused {name}",
                   functools.partial(option_body, options, says))
    for name, mesh, options, links, why in (
            ("fast", "dp=2", [], 100, "would hide too little"),
            ("one rank", "none", [], 1, "plain sum"),
            ("parts", "dp=2", ["--zero=1"], 1, "plain sum"),
            ("slow", "dp=2", [], 1e-4, "would hide too little")):
        yield Case(f"kept {name}",
                   functools.partial(kept_body, mesh, options, links, why))


def main():
    args = harness.parser(__doc__).parse_args()
    return harness.run_cases("delayed-gradients", list(cases_of(args)), args)


if __name__ == "__main__":
    sys.exit(main())
