"""Cases of pipelines.py with row-sparse gradients: each pipeline looks up the rows of
its own share of a step's microbatches; all update the table by the rows of all."""
import functools
import itertools
import random
import re

import identity
import parts
import seam_models
from harness import Case, Failed
from sparse_models import (BATCH, CLIP, DYADIC, MODELS, REPLAYED, SGD,
                           come_and_go, long_linear, train, train_with, write)

ONE = ("none", "whole", "gpipe", "none")
# Options, and those of dense gradients on one rank with the same bits. Clipped, sums
# are exact for one step.
KINDS = {
    "lazy": ([*SGD, "--sparse=lazy"], SGD, 2),
    "clipped": ([*SGD, CLIP, "--sparse=lazy"], [*SGD, CLIP], 1),
    "replayed": ([*DYADIC, "--sparse=exact"], DYADIC, 2),
    "touched": ([*SGD, "--sparse=lazy", "--touched=table=0.2"], SGD, 2),
}


def options_of(tools, made, order, more):
    path = parts.write_strategy(tools, parts.several(made, order))
    return [f"--strategy={path}", f"--global-batch={BATCH}", *more]


def random_body(name, kind, seed, tools):
    graph, r = MODELS[name](), random.Random(seed)
    options, dense, steps = KINDS[kind]
    # Text, which write() may have encoded.
    names = parts.names_of(tools, "sparse " + name,
                           seam_models.write(tools, MODELS[name]())[0])
    made, schedule, recompute, order = parts.drawn(r, names)
    base = identity.BASES.get(
        ("pipelines", name, *dense),
        lambda: train(tools, MODELS[name](), ONE, dense, steps, tag="-base"))
    found = train_with(tools, graph, options_of(tools, made, order, [
        f"--schedule={schedule}", f"--recompute={recompute}", *options]), steps)
    identity.compare(found, base)
    said = tools.run("merak-plan", "print", tools.path("out.plan"))[0]
    if "library coalesce" not in said:
        raise Failed("no gradient is of rows")
    return ", ".join(f"{share} on {stages}" for share, stages, _ in made)


TWO = [(5, [(1, 2), (1, 1)], None), (3, [(1, 1)], None)]


def sent_body(tools):
    """Each pipeline sends the ids and rows of its own samples and no more."""
    model, _ = write(tools, MODELS["lookup"]())
    plan = tools.path("out.plan")
    tools.run("merakc", model, "-o", plan, "--sparse=lazy", *options_of(
        tools, [(6, [(1, 1)], None), (2, [(1, 1)], None)], None, SGD))
    sent = set(re.findall(r"%send_sum\d+ (f32|i64)\[(\d+),",
                          tools.run("merak-plan", "print", plan)[0]))
    if sent != set(itertools.product(("f32", "i64"), ("6", "2"))):
        raise Failed(f"sends {sent}")
    return "of 6 and 2 samples"


def exact_body(optimizer, tools):
    """Rows that are owed steps, by optimizers that change every row."""
    graph = long_linear(12, come_and_go)
    option = [f"--optimizer={REPLAYED[optimizer]}"]
    base = identity.BASES.get(("pipelines", optimizer), lambda: train(
        tools, graph, ONE, option, 12, tag="-base"))
    found = train_with(tools, graph, options_of(tools, TWO, None, [
        *option, "--sparse=exact"]), 12)
    found.losses = base.losses  # sums of other numbers
    identity.compare(found, base)
    return "identical"


def table_cases(count):
    for seed in range(count):
        name = list(MODELS)[seed % len(MODELS)]
        kinds = list(KINDS) if name == "lookup" else list(KINDS)[:3]
        kind = kinds[seed // len(MODELS) % len(kinds)]
        yield Case(f"tables {kind} {name} {seed}",
                   functools.partial(random_body, name, kind, 31000 + seed))
    for optimizer in ("adamw", "nesterov", "adagrad"):
        yield Case(f"tables exact {optimizer}",
                   functools.partial(exact_body, optimizer))
    yield Case("tables sent", sent_body)
