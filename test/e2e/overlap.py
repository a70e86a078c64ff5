#!/usr/bin/env python3
"""Tensor-parallel overlap: a microbatch as two halves must not change answers.

halves  recorded models: levels 1 to 3 give, bit for bit, what half the
        microbatch gives without overlap
exact   models whose sums are exact in any order: every level and layout gives
        the losses, gradients and weights of one rank
oracle  recorded runs of PyTorch, with the bounds of oracle.py
tokens  one sample a microbatch, halved along its tokens: the same two
        comparisons, and all levels give the same bits
tight   halves under a memory limit that makes auto recompute
filled  links so slow that recomputation and gradients of weights fill the waits
        of the backward pass: the bits of halves
default a cluster is given and no level: halves where links are slow, none where
        they take no time; the bits of the level chosen
counts  four all-reduces a transformer layer, none of them in recomputation
reduced gradients reduced beside the backward pass, and several at once, are,
        bit for bit, those reduced one by one in the update
buckets one collective takes the gradients that fit into a bucket, in the order
        of the backward pass, the tied weight's among them
"""
import collections
import functools
import itertools
import json
import math
import os
import re
import sys

import exact_models
import harness
import identity
import matrix
import oracle
from harness import Case, Failed, WithOption

LEVELS = ["1", "2", "3"]
MESHES = ["tp=2", "dp=2,tp=2", "pp=2,tp=2", "pp=2,dp=2,tp=2"]
HALF = {"whole": "half", "half": "quarter"}
# Schedules with recomputation, chunks and lists, for two stages.
PIPELINES = [("interleaved", "none", "3"), ("zb", "none", "2"),
             ("scp", "full", "3"), ("auto", "0.7", "1"), ("1f1b", "full", "3")]


# Models with a dimension of tokens in the collectives over tp.
TOKENS_EXACT = ["attention_block", "tied", "biased"]
TOKENS_ORACLE = ["gpt2-tiny", "gpt2-tiny-untied", "bert-tiny"]
# Where there is something to recompute in two stages at every level.
TIGHT = ["gpt2-tiny", "vit-tiny"]
TIGHT_SCHEDULES = ["gpipe", "1f1b", "early", "eager", "last", "scp"]
REPLICAS = ["dp=2", "dp=4", "dp=2,tp=2", "pp=2,dp=2"]
# Where gradients are reduced, and the bytes of a bucket.
REDUCTIONS = ["on,0", "on,2000", "on,50000", "on,auto", "on,1000000000",
              "off,2000", "off,auto", "off,1000000000"]


def Overlapping(tools, level):
    return WithOption(tools, f"--tp-overlap={level}")


def halves_base(model, mesh, microbatch, tools):
    """(results without overlap, the layouts they were had with). Which tensors
    are split over tp is searched for by time, and a whole microbatch may want
    other layouts, so other sums, than half of one."""
    def make():
        strategy = tools.path("base.json")
        result = identity.order_run(
            WithOption(Overlapping(tools, 0), f"--emit-strategy={strategy}"),
            model, mesh, microbatch, "gpipe", "none", "-base")
        with open(strategy, encoding="utf-8") as file:
            decided = json.load(file)
        return result, {key: decided[key]
                        for key in ("version", "mesh", "classes")}

    return identity.BASES.get(("halves", model, mesh, microbatch), make)


def SameLayouts(tools, layouts):
    path = tools.path("layouts.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(layouts, file)
    return WithOption(tools, f"--strategy={path}")


def halves_body(model, mesh, microbatch, schedule, recompute, level, tools):
    base, layouts = halves_base(model, mesh, HALF[microbatch], tools)
    pinned = SameLayouts(Overlapping(tools, level), layouts)
    identity.compare(identity.order_run(pinned, model, mesh, microbatch,
                                        schedule, recompute), base)
    return "identical"


def tight_body(model, mesh, microbatch, schedule, level, tools):
    base, layouts = halves_base(model, mesh, HALF[microbatch], tools)
    pinned = SameLayouts(Overlapping(tools, level), layouts)
    return identity.tight(pinned, model, mesh, microbatch, schedule, base)


LINKS = {"slow": {"bandwidth": 5e6, "latency": 2e-5},
         "free": {"bandwidth": 1e15, "latency": 1e-12}}


def cluster_file(tools, mesh, links):
    """With slow links a rank waits long for every collective."""
    ranks = math.prod(matrix.degrees(mesh).values())
    link = LINKS[links]
    path = tools.path(f"{links}.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"devices": ranks, "devices_per_node": ranks,
                   "device": {"kind": "cpu", "flops": 2e10,
                              "memory_bandwidth": 1e10,
                              "launch_seconds": 1e-7},
                   "links": {"intra": link, "inter": link}}, file)
    return path


def filled_body(model, mesh, microbatch, schedule, recompute, level, tools):
    slow = WithOption(tools, f"--cluster={cluster_file(tools, mesh, 'slow')}")
    return halves_body(model, mesh, microbatch, schedule, recompute, level,
                       slow)


def filled_exact_body(name, mesh, microbatch, schedule, recompute, level, tools):
    slow = WithOption(tools, f"--cluster={cluster_file(tools, mesh, 'slow')}")
    return exact_body(name, mesh, microbatch, schedule, recompute, level, slow)


def default_body(model, mesh, microbatch, schedule, recompute, links, tools):
    strategy = tools.path("strategy.json")
    own = WithOption(
        WithOption(tools, f"--cluster={cluster_file(tools, mesh, links)}"),
        f"--emit-strategy={strategy}")
    run = identity.order_run(own, model, mesh, microbatch, schedule, recompute)
    with open(strategy, encoding="utf-8") as file:
        chosen = json.load(file)["tp_overlap"]
    # Cuts of several stages are searched for anew with halves, and may be luckier.
    if links != "slow" and chosen != "0" and "pp" not in mesh:
        raise Failed(f"links that are {links}: level {chosen}")
    # Where links are busy all the time there is nothing to hide behind.
    if links == "slow" and chosen != "3":
        def step(tag):
            text, _ = tools.run("merak-plan", "simulate",
                                tools.path(f"out{tag}.plan"))
            return float(re.search(r"^step ([\d.]+) ", text, re.M)[1])
        identity.order_run(WithOption(own, "--tp-overlap=3"), model, mesh,
                           microbatch, schedule, recompute, "-3")
        if step("-3") < step(""):
            raise Failed(f"level {chosen} takes {step('')}, 3 {step('-3')}")
    size = HALF[microbatch] if chosen == "3" else microbatch
    identity.compare(run, halves_base(model, mesh, size, tools)[0])
    return f"identical, level {chosen}"


def counts_body(recompute, level, links, tools):
    plan = tools.path("out.plan")
    extra = ([f"--cluster={cluster_file(tools, 'tp=2', 'slow')}"] if links == "slow"
             else [])
    tools.run("merakc", os.path.join(harness.MODELS, "gpt2-tiny", "model.onnx"),
              "-o", plan, f"--tp-overlap={level}", "--grad-overlap=off", *extra,
              *matrix.compile_options("tp=2", "half", "1f1b", recompute))
    counts, procedure = collections.defaultdict(collections.Counter), ""
    recomputed, actions, microbatches = 0, {}, collections.defaultdict(list)
    for line in tools.run("merak-plan", "print", plan)[0].splitlines():
        if found := re.match(r'program 0 procedure "(\S+)" \((\w+)\)', line):
            procedure = found[1]
            actions[procedure] = found[2]
        elif re.match(r" *\d+ s\d ", line):
            recomputed += actions[procedure] == "R"
            counts[procedure]["collective all_reduce" in line and
                              "/h.1/" in line] += 1
        elif found := re.match(r" *\d+ (\S+) mb (\d+) ", line):
            microbatches[found[2]].append(found[1])
    parts = 1 if level == "0" else 2
    expected = {"F": 2 * parts, "B": 2 * parts}
    # What a microbatch runs: the first has procedures of its own.
    for microbatch, called in microbatches.items():
        reduced = collections.Counter()
        for name in called:
            reduced[actions[name]] += counts[name][True]
        if +reduced != expected:
            raise Failed(f"all-reduces of a layer in microbatch {microbatch}: "
                         f"{dict(+reduced)}, expected {expected}")
    if len(microbatches) < 2:
        raise Failed(f"found calls of {len(microbatches)} microbatches")
    if (recompute == "full") != (recomputed > 0):
        raise Failed(f"{recomputed} instructions of recomputation")
    return f"{recomputed} instructions of recomputation"


def exact_body(name, mesh, microbatch, schedule, recompute, level, tools):
    return identity.exact_body(name, mesh, microbatch, schedule, recompute,
                               Overlapping(tools, level))


def oracle_body(model, mesh, optimizer, microbatch, schedule, level, tools):
    return oracle.body(model, mesh, optimizer, microbatch, schedule,
                       Overlapping(tools, level))


def levels_body(model, mesh, microbatch, schedule, recompute, level, tools):
    base = identity.BASES.get(
        ("levels", model, mesh, microbatch),
        lambda: identity.order_run(Overlapping(tools, 1), model, mesh,
                                   microbatch, "gpipe", "none", "-base"))
    identity.compare(
        identity.order_run(Overlapping(tools, level), model, mesh, microbatch,
                           schedule, recompute), base)
    return "identical"


def Reducing(tools, reduction):
    overlap, bucket = reduction.split(",")
    return WithOption(WithOption(tools, f"--grad-overlap={overlap}"),
                      f"--grad-bucket={bucket}")


def reduced_body(model, mesh, microbatch, schedule, recompute, reduction,
                 tools):
    base = identity.BASES.get(
        ("reduced", model, mesh, microbatch, schedule, recompute),
        lambda: identity.order_run(Reducing(tools, "off,0"), model, mesh,
                                   microbatch, schedule, recompute, "-base"))
    identity.compare(
        identity.order_run(Reducing(tools, reduction), model, mesh, microbatch,
                           schedule, recompute), base)
    return "identical"


def reductions(tools, bucket):
    """Of gpt2-tiny over dp=2: the action and the bytes of its gradients, for
    each collective of gradients in the order of the plan."""
    plan = tools.path(f"bucket-{bucket}.plan")
    tools.run("merakc", os.path.join(harness.MODELS, "gpt2-tiny", "model.onnx"),
              "-o", plan, f"--grad-bucket={bucket}",
              *matrix.compile_options("dp=2", "half", "1f1b", "none"))
    sizes, action, found = {}, "", []
    for line in tools.run("merak-plan", "print", plan)[0].splitlines():
        if buffer := re.match(r"  %(\S+) \S+ gradients @(\d+)\+(\d+)", line):
            sizes[buffer[1]] = int(buffer[3])
        elif procedure := re.match(r"program 0 procedure .* \((\w)\)", line):
            action = procedure[1]
        elif collective := re.match(
                r" *\d+ s\d+ (.*) = collective all_reduce sum over \(dp\)",
                line):
            names = [name[1:] for name in collective[1].split(", ")]
            if names[0] in sizes:
                found.append((action, [sizes[name] for name in names]))
    return found


def buckets_body(bucket, tools):
    each = reductions(tools, "0")
    if any(len(sizes) > 1 for _, sizes in each):
        raise Failed("several gradients at once without buckets")
    if any(action == "U" for action, _ in each):
        raise Failed("the update reduces a gradient")
    # What fills a bucket by itself leaves the open one open; each stands where its
    # last member does.
    made, opened = [], None
    for place, (_, (size,)) in enumerate(each):
        if size >= int(bucket):
            made.append([place, [size]])
        elif opened and sum(opened[1]) + size <= int(bucket):
            opened[0] = place
            opened[1].append(size)
        else:
            opened = [place, [size]]
            made.append(opened)
    expected = [sizes for _, sizes in sorted(made)]
    found = [sizes for _, sizes in reductions(tools, bucket)]
    if found != expected:
        raise Failed(f"bytes reduced at once: {found}, expected {expected}")
    return f"{len(each)} gradients in {len(found)} collectives"


def models():
    return sorted(name for name in os.listdir(harness.MODELS)
                  if os.path.isdir(os.path.join(harness.MODELS, name)))


def fits(mesh, microbatch):
    """Two halves of whole samples."""
    return matrix.samples(mesh, microbatch) % 2 == 0


def layouts():
    """(mesh, microbatch, schedule): one stage has no use for many schedules."""
    for mesh, microbatch in itertools.product(MESHES, HALF):
        for schedule in (matrix.ALL_SCHEDULES if "pp" in mesh else
                         matrix.SCHEDULES):
            if fits(mesh, microbatch) and matrix.defined(mesh, microbatch,
                                                         schedule):
                yield mesh, microbatch, schedule


def all_cases():
    for layout, recompute, level in itertools.product(
            list(layouts()), matrix.RECOMPUTE, LEVELS):
        for model in exact_models.MODELS:
            if exact_models.runs(model.__name__, *layout[1:]):
                yield "exact", exact_body, (model.__name__, *layout, recompute,
                                            level)
        for name in models():
            yield "halves", halves_body, (name, *layout, recompute, level)
    for name, (mesh, microbatch), schedule, level, optimizer in (
            itertools.product(models(), itertools.product(MESHES, HALF),
                              matrix.SCHEDULES, LEVELS, matrix.OPTIMIZERS)):
        if fits(mesh, microbatch):
            yield "oracle", oracle_body, (name, mesh, optimizer, microbatch,
                                          schedule, level)


def token_cases():
    """Pairs of what there is, by kind."""
    for kind, body, names in (("tokens exact", exact_body, TOKENS_EXACT),
                              ("tokens levels", levels_body, TOKENS_ORACLE)):
        yield kind, body, itertools.product(
            names, MESHES, ["one"], matrix.ALL_SCHEDULES, matrix.RECOMPUTE,
            LEVELS)
    yield "tokens oracle", oracle_body, itertools.product(
        TOKENS_ORACLE, MESHES, matrix.OPTIMIZERS, ["one"], matrix.SCHEDULES,
        LEVELS)


def reduced_cases():
    for case in itertools.product(models(), REPLICAS, ["whole", "half", "one"],
                                  matrix.ALL_SCHEDULES, matrix.RECOMPUTE):
        if matrix.defined(case[1], case[2], case[3]):
            yield case


def main():
    args = harness.parser(__doc__).parse_args()
    chosen = list(all_cases())
    more = [(kind, body, list(cases)) for kind, body, cases in token_cases()]
    reduced = list(reduced_cases())
    if not args.all:
        reduced = matrix.pairwise(reduced)
    if not args.all:
        more = [(kind, body, matrix.pairwise(cases))
                for kind, body, cases in more]
        by_kind = {}
        for kind, body, case in chosen:
            # Of the recorded models the smallest and the largest mesh.
            if kind == "exact" or case[1] in (MESHES[0], MESHES[-1]):
                by_kind.setdefault((kind, body), []).append(case)
        chosen = [(kind, body, case) for (kind, body), cases in by_kind.items()
                  for case in matrix.pairwise(cases)]
    chosen += [(kind, body, case) for kind, body, cases in more
               for case in cases]
    # The ways to reduce take turns.
    chosen += [("reduced", reduced_body, (*case, how)) for case, how in
               zip(reduced, itertools.cycle(REDUCTIONS))]
    chosen += [("halves", halves_body, (name, "pp=2,tp=2", "half", *pipeline))
               for name in ("gpt2-tiny", "bert-tiny", "resnet-tiny")
               for pipeline in PIPELINES]
    tight = list(itertools.product(TIGHT, ["pp=2,tp=2"], ["half"],
                                   TIGHT_SCHEDULES, LEVELS))
    chosen += [("tight", tight_body, case) for case in
               (tight if args.all else matrix.pairwise(tight))]
    chosen += [("filled", filled_body, (name, mesh, "half", *pipeline))
               for name in ("gpt2-tiny", "bert-tiny", "resnet-tiny")
               for mesh in ("pp=2,tp=2", "tp=2")
               for pipeline in PIPELINES]
    # Sums over the stages' gradients of weights are not for those waits.
    chosen += [("filled exact", filled_exact_body, (
        "recurrent", mesh, "quarter", *pipeline))
               for mesh in ("pp=2,tp=2", "pp=4,tp=2")
               for pipeline in PIPELINES]
    chosen += [("default", default_body, (name, mesh, "half", schedule,
                                          recompute, links))
               for name in ("gpt2-tiny", "bert-tiny")
               for mesh, schedule, recompute in (
                   ("tp=2", "1f1b", "none"), ("pp=2,tp=2", "auto", "auto"),
                   ("dp=2,tp=2", "auto", "full"))
               for links in LINKS]
    chosen += [("counts", counts_body, case) for case in itertools.product(
        ["none", "full"], ["0", "3"], ["default", "slow"])]
    chosen += [("buckets", buckets_body, (size,))
               for size in ("1", "20000", "100000", "1000000000")]
    cases = [Case(" ".join((kind, *case)), functools.partial(body, *case))
             for kind, body, case in chosen]
    return harness.run_cases("overlap", cases, args)


if __name__ == "__main__":
    sys.exit(main())
