"""Cases of sparse.py with --delayed-rows: rows that no lookup of the next step needs
are exchanged and updated beside it."""
import functools
import itertools
import math
import os
import re

import harness
import identity
import matrix
import seam_strategies
from bad_input import refuse
from harness import Case, Failed
from sparse_models import (BATCH, CLIP, COLUMNS, MODELS, ROWS, Rough, SCHEDULES, SGD,
                           come_and_go, long_linear, lookup, train, write)

STEPS = 12
GPUS = os.path.join(harness.ROOT, "samples/clusters/rtx3090-16x4.json")
ONE = ("none", "whole", "gpipe", "none")
OPTIMIZERS = {
    "sgd": "sgd:lr=0.5", "momentum": "sgd:lr=0.1,momentum=0.9",
    "adamw": "adamw:lr=0.1,betas=0.9/0.99,weight_decay=0.1,schedule=cosine,"
             "warmup=3,total=12",
    "adagrad": "adagrad:lr=0.1,lr_decay=0.1,weight_decay=0.1"}
MESHES = ["dp=2", "dp=4", "dp=2,tp=2", "pp=2,dp=2", "pp=2,dp=2,tp=2"]
# As seam_strategies.ROWS, of the linear model.
ACROSS = {f"across {n}": (
    lookup, {"dp": n}, {}, [("MatMul_2", 0)],
    [("table", 1, COLUMNS, ["dp"]), ("", 0, 8, ["mb"], "Gather_1", 1)])
    for n in (2, 4)}


def delays(tools, tag=""):
    """Updates of what the step before left, in a plan."""
    said = tools.run("merak-plan", "print", tools.path(f"out{tag}.plan"))[0]
    return len(re.findall(r"\bstep_before\b", said))


def need_delays(tools, tag=""):
    if not delays(tools, tag):
        raise Failed("nothing is delayed")


def need_prior_first(tools):
    """The exchange of prior rows is in a call of its own, which waits neither for
    other gradients nor for delayed rows."""
    said = tools.run("merak-plan", "print", tools.path("out.plan"))[0]
    late = set(re.findall(r'^  stream (\d+) "(?:gradients|delayed rows)"', said, re.M))
    names = [block[0] for block in re.findall(
        r'procedure "([^"]*)" \(U\)\n((?: .*\n)*)', said)
        if "trim=" in block[1] and not block[0].startswith("entry:")]
    calls = [call for name in names for call in re.findall(
        rf"^ +\d+ {re.escape(name)}(?=[ ;]|$).*$", said, re.M)]
    if not calls or any(re.search(rf"waits for s({'|'.join(late)}) ", call)
                        for call in calls):
        raise Failed(f"prior rows wait: {calls}")


def lazy_base(name, steps, tools, optimizer=SGD[0]):
    return identity.BASES.get(
        ("lazy", name, steps, optimizer), lambda: train(
            tools, MODELS[name](), ONE, [optimizer, "--sparse=lazy"], steps,
            tag="-base"))


def delayed_body(name, mesh, microbatch, schedule, options, tools):
    """Sums are exact for two steps; what the last one delays is in the checkpoint."""
    exact = [] if "--sparse=exact" in options else ["--sparse=lazy"]
    found = train(tools, MODELS[name](), (mesh, microbatch, schedule, "none"),
                  [*SGD, "--mixed-layouts=off", "--delayed-rows=on", *exact,
                   *options])
    need_delays(tools)
    identity.compare(found, lazy_base(name, 2, tools))
    return "identical"


def linear_run(optimizer, layout, options, tools, tag="", steps=STEPS, **more):
    return train(tools, long_linear(steps, come_and_go), layout,
                 [f"--optimizer={OPTIMIZERS[optimizer]}", "--sparse=lazy",
                  "--mixed-layouts=off", *options], steps, tag, **more)


def linear_base(optimizer, tools):
    return identity.BASES.get(("delayed", optimizer), lambda: linear_run(
        optimizer, ONE, [], tools, "-base"))


def linear_body(optimizer, mesh, microbatch, options, tools, **more):
    """Gradients of integers are exact however they are summed; what follows is done
    element by element. Under SGD losses are exact, too, so they say of each lookup
    whether it found all that was due."""
    found = linear_run(optimizer, (mesh, microbatch, "1f1b", "none"),
                       ["--delayed-rows=on", *options], tools, **more)
    need_delays(tools)
    need_prior_first(tools)
    base = linear_base(optimizer, tools)
    if optimizer != "sgd":
        found.losses = base.losses  # sums of other numbers
    identity.compare(found, base)
    return "identical"


def rough_body(name, optimizer, mesh, tools):
    """Other numbers, and gradients that depend on the table."""
    results = [train(tools, MODELS[name](Rough), layout,
                     [f"--optimizer={OPTIMIZERS[optimizer]}", "--sparse=lazy",
                      "--mixed-layouts=off", *options], 6, tag)
               for layout, options, tag in (
                   ((mesh, "half", "1f1b", "none"), ["--delayed-rows=on"], ""),
                   (ONE, [], "-base"))]
    need_delays(tools)
    for loss, expected in zip(*(r.losses for r in results)):
        if abs(loss - expected) > 1e-4 * max(1, abs(expected)):
            raise Failed(f"loss {loss}, expected {expected}")
    return "close"


def columns_body(row, pipeline, microbatch, tools):
    path = tools.path("row.json")
    seam_strategies.write(path, row, pipeline, ACROSS)
    mesh = seam_strategies.mesh_of(row, pipeline, ACROSS)
    found = train(tools, lookup(), (mesh, microbatch, "1f1b", "none"),
                  [*SGD, "--sparse=lazy", "--delayed-rows=on",
                   f"--strategy={path}"])
    need_delays(tools)
    need_prior_first(tools)
    identity.compare(found, lazy_base("lookup", 2, tools))
    # Behind the exchange of the lookups.
    said = tools.run("merak-plan", "print", tools.path("out.plan"))[0]
    if not re.search(r"all_to_all.*\n.* record e\d+.*\n.* s\d+ wait e\d+.*\n"
                     r".*%table.delayed.arrived\[.* all_to_all", said):
        raise Failed("the exchange of delayed rows is elsewhere")
    return "identical"


def saved_body(optimizer, mesh, every, tools):
    """Checkpoints in between, and a run that goes on from one."""
    plan, saved = tools.path("out.plan"), tools.path("saved")
    model, data = write(tools, long_linear(STEPS, come_and_go))
    tools.run("merakc", model, "-o", plan,
              *matrix.compile_options(mesh, "half", "1f1b"),
              f"--optimizer={OPTIMIZERS[optimizer]}", "--sparse=lazy",
              "--mixed-layouts=off", "--delayed-rows=on")
    need_delays(tools)
    for begin in range(0, STEPS, every):
        load = [f"--load={tools.path(f'at{begin}')}"] if begin else []
        saved = tools.path(f"at{begin + every}")
        tools.run("merak-run", plan, f"--data={data}", *load,
                  f"--steps={every}", "--save-every=2", f"--save={saved}")
    base = linear_base(optimizer, tools)
    identity.compare_saved(saved, base)
    return f"{STEPS // every} runs"


def skipped_body(optimizer, mesh, tools):
    """Gradients of some steps are not finite, of rows that are delayed or not."""
    graph = long_linear(STEPS, come_and_go, "skipping")
    values = graph.data["target"][2]
    each = BATCH * 3 * COLUMNS
    for step in (3, 4, 8):
        for at in range(step * each, step * each + 3 * COLUMNS, 3):
            values[at] = math.inf
    found = []
    for option, tag in ((["--delayed-rows=on"], ""), ([], "-base")):
        model, data = write(tools, graph)
        plan, saved = tools.path(f"out{tag}.plan"), tools.path(f"saved{tag}")
        layout = ONE if tag else (mesh, "half", "1f1b", "none")
        tools.run("merakc", model, "-o", plan, *matrix.compile_options(*layout),
                  f"--optimizer={OPTIMIZERS[optimizer]}", "--sparse=lazy",
                  "--mixed-layouts=off", *option)
        said = "".join(tools.run(
            "merak-run", plan, f"--data={data}", f"--steps={STEPS}",
            "--on-nonfinite=skip", f"--save={saved}"))
        if f"3 of {STEPS} steps skipped" not in said:
            raise Failed("not three steps were skipped")
        found.append(identity.Result([], {}, harness.read_checkpoint(saved)[0]))
    need_delays(tools)
    identity.compare(*found)
    return "identical"


# ------------------------------------------------------ what must be found out

def changed(tools, phase, change, layout, optimizer, plan):
    """The command that compiles IR behind a phase, changed."""
    model, _ = write(tools, long_linear(STEPS, come_and_go))
    options = [*matrix.compile_options(*layout),
               f"--optimizer={OPTIMIZERS[optimizer]}"]
    path = tools.changed_ir(model, phase, change,
                            [*options, "--sparse=lazy", "--mixed-layouts=off",
                             "--delayed-rows=on"])
    return ["merakc", path, f"--from={phase}", "-o", plan, *options]


def later_ids(text):
    """By the ids of the step after the next one."""
    return text.replace("pipe.ahead = 1", "pipe.ahead = 2")


def part_of_ids(text):
    """By the next ids of the first worker, on all of them."""
    return re.sub(
        r"(%\w+) = pipe.load @ids.next : tensor<8x3xi64>",
        r"%whole = pipe.load @ids.next : tensor<8x3xi64>\n      "
        r"%some = train.slice %whole starts [0, 0] sizes [4, 3] steps [1, 1] : "
        r"tensor<8x3xi64>\n      "
        r"\1 = train.concat %some, %some axis 0 : tensor<4x3xi64>, "
        r"tensor<4x3xi64>", text)


def one_lookup_late(text):
    """What is delayed waits for another step before it is exchanged."""
    names = ("rows", "ids", "factor")
    for name in names:
        value = re.search(
            rf"pipe.value carried @table.delayed.{name} : (\S+) .*\n", text)
        text = text.replace(value[0], value[0] + "    " + value[0].replace(
            f"delayed.{name}", f"later.{name}"))
        # At the end of the step the one goes on to the other, which G and the
        # update read.
        text = text.replace(f"pipe.load @table.delayed.{name} ",
                            f"pipe.load @table.later.{name} ")
        first = f"%early_{name} = pipe.load @table.delayed.{name} : {value[1]}"
        text = re.sub(
            rf"(\n *)(pipe.store %\S+ to @table.delayed.{name} )",
            rf"\1{first}\1pipe.store %early_{name} to @table.later.{name} : "
            rf"{value[1]}\1\2", text)
    return text


def own_ids(text):
    """By the rank's own next ids."""
    text = text.replace(
        'pipe.value input @ids.next : tensor<8x3xi64> tensor "ids" layout <[8, 3]>',
        'pipe.value input @ids.next : tensor<4x3xi64> tensor "ids" layout '
        "<[8 over (dp), 3]>")
    text = text.replace("pipe.load @ids.next : tensor<8x3xi64>",
                        "pipe.load @ids.next : tensor<4x3xi64>")
    return re.sub(r"(train.split_ids .* : tensor<8x3xi64>), tensor<8x3xi64>",
                  r"\1, tensor<4x3xi64>", text)


def own_delayed(text):
    """What is delayed goes by another list of ids than the slices, on each rank by
    one of its own."""
    return re.sub(
        r"(\n *)pipe.store (%\S+) to @table.delayed.ids ",
        r"\1%mine = pipe.load @ids : tensor<4x3xi64>"
        r"\1%ours, %theirs = train.split_ids \2 by %mine size 40 : "
        r"tensor<8x3xi64>, tensor<4x3xi64>"
        r"\1pipe.store %theirs to @table.delayed.ids ", text)


WRONG = {"of the step after": later_ids, "of one worker": part_of_ids}


def wrong_body(which, mesh, tools):
    """A run of it is another one; without the change it is not."""
    change, optimizer = WRONG[which], "sgd"
    layout = (mesh, "whole", "1f1b", "none")
    base = linear_base(optimizer, tools)
    results = []
    for how in (change, lambda text: text + "\n// the same\n"):
        plan = tools.path("out.plan")
        tools.run(*changed(tools, "shard", how, layout, optimizer, plan))
        need_delays(tools)
        _, data = write(tools, long_linear(STEPS, come_and_go))
        log, saved = tools.path("log.jsonl"), tools.path("saved")
        tools.run("merak-run", plan, f"--data={data}", f"--steps={STEPS}",
                  f"--log={log}", f"--save={saved}")
        results.append(identity.Result(
            [entry["loss"] for entry in harness.read_log(log)], {},
            harness.read_checkpoint(saved)[0]))
    identity.compare(results[1], base)
    wrong = max(abs(a - b) for a, b in zip(results[0].losses, base.losses))
    if wrong == 0:
        raise Failed("nobody sees it")
    return f"losses differ by {wrong:g}"


def refused_body(phase, change, says, tools):
    """What the check of plans finds without running them."""
    command = changed(tools, phase, change, ("dp=2", "whole", "1f1b", "none"),
                      "adamw", tools.path("x.plan"))
    return refuse(tools, *command, says=says, code=70)


def option_body(options, says, tools):
    return refuse(tools, "merakc", write(tools, lookup())[0], "--global-batch=8",
                  "--mesh=dp=2", "--delayed-rows=on", *options, "-o",
                  tools.path("x.plan"), says=says, code=2)


def kept_body(options, why, tools):
    """Nothing is delayed, and a remark says why."""
    model, _ = write(tools, lookup())
    said = "".join(tools.run(
        "merakc", model, "--global-batch=8", "--delayed-rows=on",
        "--remarks=sparse", *options, "-o", tools.path("out.plan")))
    if delays(tools) or "no rows are delayed" not in said or why not in said:
        raise Failed(said)
    return why


def delayed_cases(args):
    cases = [case for case in itertools.product(
        MODELS, MESHES, ("whole", "half", "one"), SCHEDULES,
        ([], ["--sparse=exact"], ["--zero=1"], ["--zero=3"],
         ["--grad-overlap=off"], ["--grad-bucket=0"]))
        if matrix.defined(case[1], case[2], case[3]) and
        not (case[3] == "interleaved" and "pp" not in case[1])]
    if not args.all:
        cases = matrix.pairwise([(*c[:4], tuple(c[4])) for c in cases])
    for *layout, options in cases:
        yield Case(" ".join(["delayed", *layout, *options]), functools.partial(
            delayed_body, *layout, list(options)))
    for optimizer, mesh, microbatch in itertools.product(
            OPTIMIZERS, MESHES[:2] + ["pp=2,dp=2"], ("whole", "half")):
        yield Case(f"delayed linear {optimizer} {mesh} {microbatch}",
                   functools.partial(linear_body, optimizer, mesh, microbatch, []))
    for name, optimizer, mesh in (("lookup", "adamw", "dp=2"),
                                  ("twice", "momentum", "dp=4"),
                                  ("lookup", "adagrad", "pp=2,dp=2")):
        yield Case(f"delayed rough {name} {optimizer} {mesh}",
                   functools.partial(rough_body, name, optimizer, mesh))
    for row, pipeline, microbatch in itertools.product(
            ACROSS, (1, 2), ("whole", "one")):
        yield Case(f"delayed {row} pp={pipeline} {microbatch}", functools.partial(
            columns_body, row, pipeline, microbatch))
    for optimizer, mesh, every in (("sgd", "dp=2", 4), ("adamw", "dp=4", 3),
                                   ("adagrad", "pp=2,dp=2", 6)):
        yield Case(f"delayed saved {optimizer} {mesh}", functools.partial(
            saved_body, optimizer, mesh, every))
    for optimizer, mesh in (("sgd", "dp=2"), ("adamw", "dp=4")):
        yield Case(f"delayed skipped {optimizer} {mesh}",
                   functools.partial(skipped_body, optimizer, mesh))
    for which in WRONG:
        yield Case(f"delayed wrong {which}",
                   functools.partial(wrong_body, which, "dp=2"))
    yield from refused_cases()


def refused_cases():
    for name, phase, change, says in (
            ("one lookup late", "shard", one_lookup_late, ["applied twice"]),
            ("own ids", "shard", own_ids, ["equal on all ranks along dp"]),
            ("own delayed", "shard", own_delayed, ["equal on all ranks along dp"]),
            ("step", "memory", lambda text: text.replace("step_before", "step"),
             ["rate of one step and the number of another"]),
            ("step and rate", "memory", lambda text: text.replace(
                "step_before", "step").replace("lr_before", "lr"),
             ["takes the number of this step"]),
            ("never", "memory", lambda text: re.sub(
                r"\n.*@\"entry:flush.*(scalars|step_before).*", "", text),
             ["not applied between steps"])):
        yield Case(f"delayed refused {name}",
                   functools.partial(refused_body, phase, change, says))
    for name, options, says in (
            ("clip", ["--sparse=lazy", CLIP], ["--delayed-rows", "--grad-clip"]),
            ("dense", [], ["--delayed-rows", "--sparse"])):
        yield Case(f"delayed refused {name}",
                   functools.partial(option_body, options, says))
    for name, options, why in (
            ("owed", ["--sparse=exact", "--mesh=dp=2",
                      "--optimizer=adamw:lr=0.1"], "owed"),
            ("one rank", ["--sparse=lazy", "--devices=1"], "not exchanged"),
            ("on GPUs", ["--sparse=lazy", f"--cluster={GPUS}", "--devices=2",
                         "--mesh=dp=2"], "send all")):
        yield Case(f"delayed not {name}",
                   functools.partial(kept_body, options, why))
