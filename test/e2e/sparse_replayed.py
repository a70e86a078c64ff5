"""Cases of sparse.py whose optimizers change every row in each step: rows take the
steps that they were left out of before they are looked up."""
import functools
import itertools
import math
import os
import re

import harness
import identity
import matrix
from harness import Case, Failed
from sparse_models import (BATCH, CLIP, COLUMNS, DYADIC, EMULATED, MESHES, MODELS,
                           REPLAYED, Rough, SCHEDULES, close, come_and_go,
                           long_linear, train, twice, write)


def replayed_base(name, clip, tools):
    return identity.BASES.get(
        ("replayed", name, *clip), lambda: train(
            tools, MODELS[name](), ("none", "whole", "gpipe", "none"),
            DYADIC + clip, 1 if clip else 2, tag="-base"))


def replayed_body(name, mesh, microbatch, schedule, options, tools):
    clip = [CLIP] if options == [CLIP] else []
    recompute = "full" if options == ["full"] else "none"
    found = train(tools, MODELS[name](), (mesh, microbatch, schedule, recompute),
                  [*DYADIC, *(o for o in options if o != "full"),
                   "--sparse=exact"], 1 if clip else 2)
    identity.compare(found, replayed_base(name, clip, tools))
    return "identical"


def has_replays(tools, tag=""):
    said = tools.run("merak-plan", "print", tools.path(f"out{tag}.plan"))[0]
    return len(re.findall(r"_replay\b", said))


def linear_run(optimizer, layout, options, graph, steps, tag, tools, **more):
    return train(tools, graph, layout, [f"--optimizer={REPLAYED[optimizer]}",
                                        *options], steps, tag, **more)


ONE = ("none", "whole", "gpipe", "none")


def sums_body(optimizer, mesh, microbatch, options, runner, tools):
    """Gradients of integers are exact however they are summed, and what follows is
    done element by element."""
    graph = long_linear(12, come_and_go)
    base = identity.BASES.get(("sums", optimizer), lambda: linear_run(
        optimizer, ONE, [], graph, 12, "-dense", tools))
    found = linear_run(optimizer, (mesh, microbatch, "1f1b", "none"),
                       ["--sparse=exact", *options], graph, 12, "", tools,
                       runner=runner)
    if not has_replays(tools):
        raise Failed("nothing is replayed")
    found.losses = base.losses  # sums of other numbers
    if runner == EMULATED:
        for name, tensor in base.weights.items():
            close(name, found.weights[name].data, tensor.data)
        return "close"
    identity.compare(found, base)
    return "identical"


def long_body(optimizer, steps, tools):
    graph = long_linear(steps, come_and_go)
    rate = f",schedule=cosine,warmup=5,total={steps}" \
        if optimizer in ("adamw", "momentum") else ""
    results = [train(tools, graph, ONE, [
        f"--optimizer={REPLAYED[optimizer]}{rate}", *option], steps, tag)
        for option, tag in ((["--sparse=exact"], ""), ([], "-dense"))]
    if not has_replays(tools):
        raise Failed("nothing is replayed")
    identity.compare(*results)
    return f"{steps} steps"


def rough_body(name, optimizer, options, tools):
    graph = MODELS[name](Rough)
    options = [f"--optimizer={REPLAYED[optimizer]}", *options]
    identity.compare(
        train(tools, graph, ONE, [*options, "--sparse=exact"], 4),
        train(tools, graph, ONE, options, 4, tag="-dense"))
    if not has_replays(tools):
        raise Failed("nothing is replayed")
    return "identical"


def skipped_body(optimizer, mesh, tools):
    """Gradients of some steps are not finite."""
    steps = 12
    graph = long_linear(steps, come_and_go, "skipping")
    values = graph.data["target"][2]
    each = BATCH * 3 * COLUMNS
    for step in (3, 4, 8):
        values[step * each] = math.inf
    found = []
    for option, tag in ((["--sparse=exact"], ""), ([], "-dense")):
        model, data = write(tools, graph)
        plan, saved = tools.path(f"out{tag}.plan"), tools.path(f"saved{tag}")
        layout = (mesh, "half", "1f1b", "none") if not tag else ONE
        tools.run("merakc", model, "-o", plan, *matrix.compile_options(*layout),
                  f"--optimizer={REPLAYED[optimizer]}", *option)
        said = "".join(tools.run(
            "merak-run", plan, f"--data={data}", f"--steps={steps}",
            "--on-nonfinite=skip", f"--save={saved}"))
        if "3 of 12 steps skipped" not in said:
            raise Failed("not three steps were skipped")
        found.append(identity.Result([], {}, harness.read_checkpoint(saved)[0]))
    identity.compare(*found)
    return "identical"


def handed_body(optimizer, first, second, tools):
    """Steps of one plan, more than are remembered, a checkpoint, steps of another
    one: all are dense."""
    before, steps = 140, 150
    graph = long_linear(steps, come_and_go)
    model, data = write(tools, graph)
    whole = linear_run(optimizer, ONE, [], graph, steps, "-dense", tools)
    load = []
    for at, options in enumerate((first, second)):
        plan = tools.path(f"part{at}.plan")
        tools.run("merakc", model, "-o", plan,
                  *matrix.compile_options("dp=2" if at else "none", "half",
                                          "1f1b"),
                  f"--optimizer={REPLAYED[optimizer]}", *options)
        saved = tools.path(f"after{at}")
        tools.run("merak-run", plan, f"--data={data}", *load,
                  f"--steps={steps - before if at else before}",
                  f"--save={saved}")
        load = [f"--load={saved}"]
        others = set(harness.read_checkpoint(saved)[0]) ^ set(whole.weights)
        if others:
            raise Failed(f"the checkpoint has, or lacks, {sorted(others)}")
    found = identity.Result(whole.losses, {}, harness.read_checkpoint(saved)[0])
    identity.compare(found, whole)
    return "identical"


def two_places_body(optimizer, mesh, tools):
    """A table at two places: sums of other order, so to rounding."""
    graph = twice(Rough)
    options = [f"--optimizer={REPLAYED[optimizer]}"]
    found = train(tools, graph, (mesh, "half", "1f1b", "none"),
                  [*options, "--sparse=exact"], 6)
    base = train(tools, graph, ONE, options, 6, tag="-dense")
    for name, tensor in base.weights.items():
        close(name, found.weights[name].data, tensor.data)
    return "close"


def differs_body(optimizer, tools):
    """Lazy updates in place of dense ones are no rounding."""
    graph = long_linear(12, come_and_go)
    dense, lazy = (linear_run(optimizer, ONE, option, graph, 12, tag, tools)
                   for option, tag in (([], "-dense"), (["--sparse=lazy"], "")))
    most = max(abs(x - y) for x, y in zip(lazy.weights["table"].data,
                                          dense.weights["table"].data))
    if most < 0.01:
        raise Failed(f"differ by {most} at most")
    return f"by {most:.2g}"


def replayed_cases(args):
    cases = [(*case, options) for case in itertools.product(
        MODELS, MESHES, ("whole", "half", "one"), SCHEDULES)
        if matrix.defined(case[1], case[2], case[3]) and
        not (case[3] == "interleaved" and matrix.degrees(case[1])["pp"] == 1)
        for options in range(5)
        if options != 4 or case[1] != "none"]
    options = [[], [CLIP], ["full"], ["--grad-overlap=off"],
               ["--zero=1"]]
    if not args.all:
        cases = matrix.pairwise(cases)
    for *layout, at in cases:
        yield Case(" ".join(["replayed", *layout, *options[at]]),
                   functools.partial(replayed_body, *layout, options[at]))
    for optimizer, (mesh, microbatch, more) in itertools.product(
            REPLAYED, [("none", "half", []), ("dp=2", "whole", []),
                       ("dp=4", "half", []), ("tp=2", "one", []),
                       ("dp=2,tp=2", "half", []), ("dp=2", "half", ["--zero=2"]),
                       ("dp=2", "half", ["--zero=3"])]):
        yield Case(" ".join(["replayed sums", optimizer, mesh, microbatch, *more]),
                   functools.partial(sums_body, optimizer, mesh, microbatch, more,
                                     "merak-run"))
    if os.path.exists(os.path.join(args.bin_dir, EMULATED)):
        for optimizer, (mesh, microbatch) in itertools.product(
                REPLAYED, [("none", "half"), ("dp=2", "half"), ("tp=2", "one")]):
            yield Case(f"replayed device {optimizer} {mesh}", functools.partial(
                sums_body, optimizer, mesh, microbatch, [], EMULATED))
    for optimizer in REPLAYED:
        yield Case(f"replayed long {optimizer}",
                   functools.partial(long_body, optimizer, 500))
    # A table at two places has other sums with dense gradients.
    for name, optimizer, clip in itertools.product(
            ("lookup", "tables", "padded"), REPLAYED, ([], [CLIP])):
        yield Case(" ".join(["replayed rough", name, optimizer, *clip]),
                   functools.partial(rough_body, name, optimizer, clip))
    for optimizer, mesh in itertools.product(
            ("adamw", "momentum"), ("none", "pp=2", "pp=2,dp=2")):
        yield Case(f"replayed two places {optimizer} {mesh}",
                   functools.partial(two_places_body, optimizer, mesh))
    for optimizer in ("adamw", "adam", "momentum", "decay"):
        yield Case(f"replayed differs {optimizer}",
                   functools.partial(differs_body, optimizer))
    for optimizer, mesh in itertools.product(
            ("adamw", "momentum", "decay"), ("none", "dp=2", "tp=2")):
        yield Case(f"replayed skipped {optimizer} {mesh}",
                   functools.partial(skipped_body, optimizer, mesh))
    for optimizer, order in itertools.product(
            ("adamw", "momentum"),
            itertools.product(([], ["--sparse=exact"]), repeat=2)):
        if any(order):
            yield Case(" ".join(["replayed handed", optimizer, *(
                "exact" if o else "dense" for o in order)]),
                functools.partial(handed_body, optimizer, *order))
