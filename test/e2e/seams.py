#!/usr/bin/env python3
"""Layouts that change at seams must not change a single bit.

exact     models whose sums are exact in any order, with parameters, gradients
          and optimizer state in parts over the replicas, tokens over tp or not
          (sequence parallelism, or context parallelism, with weights whole),
          against one rank; with AdamW, clipped, for one step (after it sums are
          exact no longer)
row       each row of docs/Seams.md that is a strategy file (seam_strategies.py)
found     layouts that the search finds to differ between parts of the model
          (mixed_layouts.py), on slow links; rows of docs/Seams.md among them
random    strategies with seams at random uses; what the compiler refuses, it
          refuses in words, and another one is drawn
same      recorded models: level 1 only moves the sums that plain replicas form
recorded  the same, all levels, clipped by nothing: PyTorch's losses, gradients
          and weights
saved     a checkpoint of each level goes on under each other, and alone, clipped from
          there on; one of each row goes on alone, and each row from one
reduced   levels of ZeRO with and without overlap, in buckets of all sizes: the bits
          of the plainest
beside    where gathers of parameters and reduce-scatters of gradients stand in a plan
kept      with tokens split over tp, what the blocks keep for their gradients is
          divided by tp; inputs of products are gathered once more
"""
import collections
import functools
import itertools
import os
import random
import re
import sys

import exact_models
import harness
import identity
import matrix
import mixed_layouts
import oracle
import seam_strategies
from harness import Case, Failed, WithOption

MESHES = ["tp=2", "dp=2", "dp=4", "dp=2,tp=2", "pp=2,dp=2", "pp=2,tp=2",
          "pp=2,dp=2,tp=2"]
LEVELS = ["0", "1", "2", "3"]
# Exact models that tp divides in between what has tokens.
SEQUENCE = {"gemm", "pool", "dropout", "attention_block", "biased", "nhwc",
            "spread"}
# Exact models with a dimension of tokens that tp divides.
CONTEXT = {"embedding", "tied", "dropout", "attention", "attention_dropout",
           "attention_block", "biased", "bidirectional", "broadcast"}
# How tp divides tokens.
TOKENS = {"off": [], "sequence": ["--sequence-parallel=on"],
          "context": ["--context-parallel=on"]}
# Its norm of gradients is not exact.
UNCLIPPED = {"spread"}
OPTIMIZERS = ["sgd", "adamw"]
CLIP = "--grad-clip=0.5"
# Of which the norm is exact in the second step, too.
SAVED = ["linear", "tied"]
# Random strategies in the check, and how many may be refused before one is not.
RANDOM, MOST_REFUSED = 60, 100
# Without a dimension of tokens that two divides.
NO_TOKENS = {"mlp-ce", "mlp-mse", "vit-tiny"}
# Convolutions see space whole.
NO_CONTEXT = {"off": set(), "sequence": set(),
              "context": {"resnet-tiny", "resnet-plain-tiny"}}
# Layouts and levels between which checkpoints move.
MOVES = [(("dp=2", "1"), ("none", "0")), (("none", "0"), ("dp=2", "3")),
         (("dp=2,tp=2", "3"), ("dp=2", "2")), (("dp=4", "2"), ("pp=2,dp=2", "1")),
         (("pp=2,dp=2,tp=2", "3"), ("tp=2", "0")),
         (("dp=2,tp=2", "1", "whole"), ("dp=2", "3", "whole"))]


def exact_options(name, optimizer):
    """Options and steps: with SGD as many as sums stay exact for, unclipped."""
    info = (identity.dropout_reference.MODELS.get(name))
    lr = info.lr if info else identity.recorded()[name]["lr"]
    steps = info.steps if info else identity.recorded()[name]["steps"]
    if optimizer == "adamw":
        clip = [] if name in UNCLIPPED else [CLIP]
        return ["--optimizer=adamw:lr=0.125", *clip], 1
    return [f"--optimizer=sgd:lr={lr}"], steps


def write_data(tools, name):
    graph = next(m for m in exact_models.MODELS if m.__name__ == name)()
    data = tools.path("data")
    os.makedirs(data, exist_ok=True)
    for key, (descr, shape, values) in graph.data.items():
        harness.write_npy(os.path.join(data, key + ".npy"), descr, shape, values)
    return data


def exact_run(tools, name, layout, optimizer, extra=(), tag=""):
    data = write_data(tools, name)
    options, steps = exact_options(name, optimizer)
    return identity.train(tools, exact_models.path(name), data,
                          matrix.compile_options(*layout) + options + list(extra),
                          steps, tag)


def exact_body(name, mesh, microbatch, schedule, recompute, level, tokens,
               optimizer, tools):
    found = exact_run(tools, name, (mesh, microbatch, schedule, recompute),
                      optimizer, [f"--zero={level}", *TOKENS[tokens]])
    identity.compare(found, base_of(name, optimizer, tools))
    return "identical"


def exact_cases(every):
    found = []
    for model in exact_models.MODELS:
        name = model.__name__
        for case in itertools.product(MESHES, matrix.MICROBATCHES,
                                      matrix.ALL_SCHEDULES, matrix.RECOMPUTE,
                                      LEVELS, TOKENS, OPTIMIZERS):
            mesh, microbatch, schedule, _, level, tokens, _ = case
            divided = {"off": {name}, "sequence": SEQUENCE, "context": CONTEXT}
            # Without either it is a case of identity.py.
            if (name not in divided[tokens] or
                    tokens != "off" and "tp" not in mesh or
                    tokens == "off" and level == "0"):
                continue
            if (exact_models.runs(name, microbatch, schedule) and
                    matrix.defined(mesh, microbatch, schedule)):
                found.append((name, *case))
    return found if every else matrix.pairwise(found)


def base_of(name, optimizer, tools):
    return identity.BASES.get(
        ("seams", name, optimizer),
        lambda: exact_run(tools, name, ("none", "whole", "gpipe", "none"),
                          optimizer, tag="-base"))


def row_body(row, pipeline, microbatch, schedule, recompute, optimizer, tools):
    path = tools.path("row.json")
    seam_strategies.write(path, row, int(pipeline))
    name, mesh = seam_strategies.ROWS[row][0], seam_strategies.mesh_of(row, pipeline)
    found = exact_run(tools, name, (mesh, microbatch, schedule, recompute),
                      optimizer, [f"--strategy={path}"])
    identity.compare(found, base_of(name, optimizer, tools))
    return "identical"


def row_cases(every):
    found = []
    for row, pipeline, microbatch, schedule, recompute, optimizer in (
            itertools.product(seam_strategies.ROWS, "12", matrix.MICROBATCHES,
                              matrix.ALL_SCHEDULES, matrix.RECOMPUTE, OPTIMIZERS)):
        name, mesh = seam_strategies.ROWS[row][0], seam_strategies.mesh_of(row, pipeline)
        if (exact_models.runs(name, microbatch, schedule) and
                matrix.defined(mesh, microbatch, schedule)):
            found.append((row, pipeline, microbatch, schedule, recompute, optimizer))
    return found if every else matrix.pairwise(found)


def found_body(name, mesh, microbatch, schedule, recompute, optimizer, tools):
    options, strategy = mixed_layouts.options(tools, mesh)
    found = exact_run(tools, name, (mesh, microbatch, schedule, recompute),
                      optimizer, options)
    identity.compare(found, base_of(name, optimizer, tools))
    return f"identical, {len(mixed_layouts.seams_of(strategy))} seams"


def found_cases(every):
    found = [(m.__name__, mesh, microbatch, schedule, recompute, optimizer)
             for m, mesh, microbatch, schedule, recompute, optimizer in
             itertools.product(exact_models.MODELS, MESHES, matrix.MICROBATCHES,
                               matrix.ALL_SCHEDULES, matrix.RECOMPUTE, OPTIMIZERS)
             if exact_models.runs(m.__name__, microbatch, schedule) and
             matrix.defined(mesh, microbatch, schedule)]
    return found if every else matrix.pairwise(found)


# What the compiler may say of a random strategy.
REFUSALS = ("separates nothing", "which the model lacks", "do not divide",
            "only values that ops make", "a seam is at operand",
            "in different orders")


def random_body(name, mesh, microbatch, seed, tools):
    """The first of the seed's strategies that is not refused."""
    graph = next(m for m in exact_models.MODELS if m.__name__ == name)()
    path, pick = tools.path("random.json"), random.Random(f"{name} {mesh} {seed}")
    layout = (mesh, microbatch, "gpipe", "none")
    for refused in range(MOST_REFUSED):
        seam_strategies.write_random(path, graph, matrix.degrees(mesh), pick)
        _, errors = tools.run(
            "merakc", exact_models.path(name), "-q", "-o", tools.path("try.plan"),
            *matrix.compile_options(*layout), f"--strategy={path}", expect=None)
        if tools.returncode == 0:
            found = exact_run(tools, name, layout, "sgd", [f"--strategy={path}"])
            identity.compare(found, base_of(name, "sgd", tools))
            return f"identical, {refused} refused before"
        if tools.returncode != 1 or not any(why in errors for why in REFUSALS):
            raise Failed(f"ends with {tools.returncode}: "
                         f"{harness.last_lines(errors)}")
    raise Failed(f"{MOST_REFUSED} strategies refused")


def random_cases(every):
    """A thousand of all models and meshes; a part of them in the check."""
    names = [m.__name__ for m in exact_models.MODELS
             if m.__name__ not in exact_models.JOINS]
    pick = random.Random("seams")
    return [(pick.choice(names), pick.choice(MESHES), pick.choice(["whole", "half"]),
             str(seed)) for seed in range(1000 if every else RANDOM)]


def same_body(model, mesh, microbatch, tools):
    layout = (mesh, microbatch, "1f1b", "none")
    identity.compare(
        identity.order_run(WithOption(tools, "--zero=1"), model, *layout),
        identity.order_run(tools, model, *layout, "-base"))
    return "identical"


def recorded_body(model, mesh, level, tokens, tools):
    """PyTorch's losses, gradients and weights."""
    options = [f"--zero={level}", *TOKENS[tokens]]
    return oracle.body(model, mesh, "adamw", "half", "1f1b",
                       functools.reduce(WithOption, options, tools))


# A layout is options of the compiler, for a plan of its own.
ALONE = ("none", "whole", [])


def level_layout(mesh, level, microbatch="half"):
    return mesh, microbatch if mesh != "none" else "whole", [f"--zero={level}"]


def row_layout(row, pipeline, tools):
    path = tools.path("row.json")
    seam_strategies.write(path, row, int(pipeline))
    return seam_strategies.mesh_of(row, pipeline), "half", [f"--strategy={path}"]


def move(model, source, target, tools):
    """One step each under two layouts, the second one clipped (after it sums are
    exact no longer), leave what one rank leaves, momentum among it."""
    data = "--data=" + write_data(tools, model)

    def stored(layout, tag, more=(), *options):
        mesh, microbatch, extra = layout
        plan, saved = tools.path(tag + ".plan"), tools.path(tag)
        tools.run("merakc", exact_models.path(model), "-o", plan,
                  *matrix.compile_options(mesh, microbatch, "gpipe"),
                  "--optimizer=sgd:lr=0.125,momentum=0.5", *extra, *more)
        tools.run("merak-run", plan, data, "--steps=1", f"--save={saved}",
                  *options)
        return harness.read_checkpoint(saved)

    def both(source, target, tag):
        stored(source, tag + "1")
        return stored(target, tag + "2", [CLIP], f"--load={tools.path(tag + '1')}")

    found, expected = both(source, target, "moved"), both(ALONE, ALONE, "alone")
    for part, tensors in zip(found, expected):
        if isinstance(tensors, dict):
            compare_tensors(part, tensors)
    return "identical"


def saved_body(model, source, target, tools):
    return move(model, level_layout(*source), level_layout(*target), tools)


def row_saved_body(row, pipeline, way, tools):
    layouts = [row_layout(row, pipeline, tools), ALONE]
    return move(seam_strategies.ROWS[row][0],
                *(layouts if way == "from" else layouts[::-1]), tools)


def compare_tensors(found, expected):
    if set(found) != set(expected):
        raise Failed(f"other tensors: {sorted(set(found) ^ set(expected))[:4]}")
    for name, tensor in expected.items():
        if hasattr(tensor, "data") and found[name].data != tensor.data:
            raise Failed(f"{name} differs")


def reduced_body(model, mesh, level, reduction, tools):
    overlap, bucket = reduction.split(",")

    def run(overlap, bucket, tag=""):
        options = [f"--zero={level}", f"--grad-overlap={overlap}",
                   f"--grad-bucket={bucket}"]
        return identity.order_run(functools.reduce(WithOption, options, tools),
                                  model, mesh, "half", "1f1b", "none", tag)

    base = identity.BASES.get(("zero reduced", model, mesh, level),
                              lambda: run("off", "0", "-base"))
    identity.compare(run(overlap, bucket), base)
    return "identical"


# ------------------------------------------------------------ places in plans

Line = collections.namedtuple("Line", "kind outputs inputs")
BUCKET = 65536


def operands_of(text):
    """Name and elements of each operand; %b#2[1,64,1]~(dp) is b#2 with 64."""
    found = re.findall(r"%([^\[\s,~]+)(?:\[([\d,]*)\])?", text)
    return [(name, functools.reduce(lambda a, b: a * int(b),
                                    filter(None, shape.split(",")), 1))
            for name, shape in found]


def procedures_of(tools, plan):
    """The instructions of the first program by procedure, and its buffers: name,
    category and bytes."""
    procedures, buffers, lines = {}, {}, []
    for text in tools.run("merak-plan", "print", plan)[0].splitlines():
        if start := re.match(r'program (\d+) procedure "([^"]+)" \((\w)\)', text):
            if start[1] != "0":
                break
            lines = procedures.setdefault((start[3], start[2]), [])
        elif buffer := re.match(r"  %(\S+) \S+ (\w+) @(\d+)\+(\d+)", text):
            if not procedures:
                buffers[buffer[1]] = (buffer[2], int(buffer[4]), text)
        elif made := re.match(r" *\d+ s\d+ (.*?) \+?= (\w+ \w+)(.*)", text):
            lines.append(Line(made[2], operands_of(made[1]), operands_of(made[3])))
    return procedures, buffers


def first_use(lines, at):
    names = {name for name, _ in lines[at].outputs}
    return next((i for i in range(at + 1, len(lines))
                 if names & {name for name, _ in lines[i].inputs}), len(lines))


def check_gathers(lines):
    """Each one is issued before the one in front of it is used, and no more than
    a bucket lies ready when it is, or the one that does not fit."""
    places = [i for i, line in enumerate(lines)
              if line.kind == "collective all_gather"]
    sizes = {i: 4 * sum(size for _, size in lines[i].outputs) for i in places}
    for before, at in zip(places, places[1:]):
        if at > first_use(lines, before):
            raise Failed(f"instruction {at} gathers behind the use of {before}")
        ready = [i for i in places if i < at and first_use(lines, i) > at]
        if sum(sizes[i] for i in ready) > BUCKET and len(ready) > 1:
            raise Failed(f"{sum(sizes[i] for i in ready)} bytes lie ready at {at}")
        if sizes[at] > BUCKET and len(lines[at].outputs) > 1:
            raise Failed(f"{sizes[at]} bytes are gathered at once")
    return sum(len(lines[i].outputs) for i in places)


def check_scatters(lines):
    """What is scattered is added up behind the next scatter's operands."""
    places = [i for i, line in enumerate(lines)
              if line.kind == "collective reduce_scatter"]
    for at, following in zip(places, places[1:] + [len(lines)]):
        made = {name for name, _ in lines[following].inputs} if following < len(
            lines) else set()
        ready = [i for i in range(at, following)
                 if made & {name for name, _ in lines[i].outputs}]
        if ready and first_use(lines, at) < max(ready):
            raise Failed(f"instruction {at} is waited for at {first_use(lines, at)},"
                         f" the next bucket is ready at {max(ready)}")
    return sum(len(lines[i].outputs) for i in places)


def beside_body(level, mesh, tools):
    plan = tools.path("beside.plan")
    tools.run("merakc", os.path.join(harness.MODELS, "gpt2-tiny", "model.onnx"),
              "-o", plan, f"--zero={level}", f"--grad-bucket={BUCKET}",
              *matrix.compile_options(mesh, "half", "1f1b", "none"))
    procedures, _ = procedures_of(tools, plan)
    gathers = {key: check_gathers(lines) for key, lines in procedures.items()}
    scatters = {key: check_scatters(lines) if key[0] == "W" else
                sum(len(line.outputs) for line in lines
                    if line.kind == "collective reduce_scatter")
                for key, lines in procedures.items()}
    if any(action == "G" for action, _ in procedures):
        raise Failed("G is apart from what needs it")
    where = sorted({key for key, count in gathers.items() if count})
    if level == "3":
        if {action for action, _ in where} < {"F", "B"}:
            raise Failed(f"gathers are in {where}")
    elif len(where) != 1 or where[0][0] != "F" or len(
            [key for key in procedures if key[0] == "F"]) != 2:
        raise Failed(f"gathers once a step are in {where}")
    if any(scatters[key] for key in procedures if key[0] == "U"):
        raise Failed("the update scatters gradients")
    counts = {sum(count for key, count in scatters.items() if key[0] in "BW")}
    if 0 in counts:
        raise Failed("nothing is scattered")
    return f"{sum(gathers.values())} gathers, {counts.pop()} scatters"


def kept_by(tools, mesh, extra):
    """Bytes that the forward pass of gpt2-tiny keeps for its gradients, the names of
    what it keeps, and the instructions by action, B and W apart."""
    plan = tools.path(f"kept-{mesh}.plan")
    tools.run("merakc", os.path.join(harness.MODELS, "gpt2-tiny", "model.onnx"),
              "-o", plan, "--grad-overlap=off", *extra,
              *matrix.compile_options(mesh, "whole", "1f1b", "none"))
    procedures, buffers = procedures_of(tools, plan)
    made = {name for (action, _), lines in procedures.items() if action == "F"
            for line in lines for name, _ in line.outputs}
    kept = {name: size for name, (category, size, _) in buffers.items()
            if name in made and category == "activations" and
            re.fullmatch(r"act\d+", name)}
    actions = {action: lines for (action, _), lines in procedures.items()}
    return sum(kept.values()), set(kept), actions


# Of the row maximum of the logits, which all ranks have: 8 samples of 31 tokens.
KEPT_WHOLE = 8 * 31 * 4


def kept_body(tools):
    alone, _, _ = kept_by(tools, "none", [])
    plain, _, _ = kept_by(tools, "tp=2", [])
    parts, kept, actions = kept_by(tools, "tp=2", ["--sequence-parallel=on"])
    if 2 * parts != alone + KEPT_WHOLE:
        raise Failed(f"{parts} bytes are kept over tp=2, {alone} alone")
    if plain <= parts:
        raise Failed(f"as much is kept without: {plain} bytes")
    forward = [line for line in actions["F"]
               if line.kind == "collective all_gather"]
    again = [i for i, line in enumerate(actions["W"])
             if line.kind == "collective all_gather" and
             {name for name, _ in line.inputs} & kept]
    # Two products a block, and the one of the logits.
    if len(forward) != 5 or len(again) != len(forward):
        raise Failed(f"{len(forward)} inputs are gathered, {len(again)} again")
    for at in again:
        if first_use(actions["W"], at) > at + 1:
            raise Failed(f"what W gathers at {at} lies ready until "
                         f"{first_use(actions['W'], at)}")
    return f"{parts} bytes, {plain} with whole tokens; {len(again)} gathers again"


def main():
    args = harness.parser(__doc__).parse_args()
    cases = [Case("exact " + " ".join(c), functools.partial(exact_body, *c))
             for c in exact_cases(args.all)]
    cases += [Case("row " + " ".join(c), functools.partial(row_body, *c))
              for c in row_cases(args.all)]
    cases += [Case("found " + " ".join(c), functools.partial(found_body, *c))
              for c in found_cases(args.all)]
    cases += [Case(f"found row {row} pp={pipeline}",
                   functools.partial(mixed_layouts.row_body, row, pipeline))
              for row, pipeline in itertools.product(mixed_layouts.ROWS, "12")]
    cases.append(Case("found real", mixed_layouts.real_body))
    cases += [Case("random " + " ".join(c), functools.partial(random_body, *c))
              for c in random_cases(args.all)]
    models = sorted(m for m in os.listdir(harness.MODELS)
                    if os.path.isdir(os.path.join(harness.MODELS, m)))
    same = list(itertools.product(
        models, ("dp=2", "pp=2,dp=2"), ("whole", "half")))
    if not args.all:
        same = matrix.pairwise(same)
    cases += [Case("same " + " ".join(c), functools.partial(same_body, *c))
              for c in same]
    recorded = [(m, mesh, level, tokens) for m, mesh, level, tokens in
                itertools.product(models, ("dp=2", "dp=2,tp=2", "pp=2,dp=2,tp=2"),
                                  LEVELS, TOKENS)
                if (tokens == "off" and level != "0" or tokens != "off" and
                    "tp" in mesh and m not in NO_TOKENS | NO_CONTEXT[tokens])]
    if not args.all:
        recorded = matrix.pairwise(recorded)
    cases += [Case("recorded " + " ".join(c),
                   functools.partial(recorded_body, *c)) for c in recorded]
    cases += [Case(f"saved {model} {a[0]} zero {' '.join(a[1:])} to {b[0]} zero "
                   f"{' '.join(b[1:])}", functools.partial(saved_body, model, a, b))
              for model in SAVED for a, b in MOVES]
    cases += [Case(f"saved {way} row {row} pp={pipeline}",
                   functools.partial(row_saved_body, row, pipeline, way))
              for row, pipeline, way in itertools.product(
                  seam_strategies.ROWS, "12", ("from", "to"))]
    reduced = list(itertools.product(
        ("gpt2-tiny", "resnet-tiny", "mlp-ce"), ("dp=2", "pp=2,dp=2", "dp=2,tp=2"),
        ("1", "2", "3"), ("on,0", "on,20000", "on,auto", "off,auto")))
    if not args.all:
        reduced = matrix.pairwise(reduced)
    cases += [Case("reduced " + " ".join(c), functools.partial(reduced_body, *c))
              for c in reduced]
    cases += [Case(f"beside {level} {mesh}",
                   functools.partial(beside_body, level, mesh))
              for level, mesh in itertools.product("123", ("dp=2", "dp=2,tp=2"))]
    cases.append(Case("kept", kept_body))
    return harness.run_cases("seams", cases, args)


if __name__ == "__main__":
    sys.exit(main())
