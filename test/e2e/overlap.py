#!/usr/bin/env python3
"""Tensor-parallel overlap: a microbatch as two halves must not change answers.

halves  recorded models: levels 1 to 3 give, bit for bit, what half the
        microbatch gives without overlap
exact   models whose sums are exact in any order: every level and layout gives
        the losses, gradients and weights of one rank
oracle  recorded runs of PyTorch, with the bounds of oracle.py
"""
import functools
import itertools
import os
import sys

import exact_models
import harness
import identity
import matrix
import oracle
from harness import Case

LEVELS = ["1", "2", "3"]
MESHES = ["tp=2", "dp=2,tp=2", "pp=2,tp=2", "pp=2,dp=2,tp=2"]
HALF = {"whole": "half", "half": "quarter"}
# Schedules with recomputation, chunks and lists, for two stages.
PIPELINES = [("interleaved", "none", "3"), ("zb", "none", "2"),
             ("scp", "full", "3"), ("auto", "0.7", "1")]


class Overlapping:
    """Tools that give merakc an overlap level."""

    def __init__(self, tools, level):
        self.tools, self.level = tools, level

    def __getattr__(self, name):
        return getattr(self.tools, name)

    def run(self, tool, *arguments, **options):
        extra = [f"--tp-overlap={self.level}"] if tool == "merakc" else []
        return self.tools.run(tool, *arguments, *extra, **options)


def halves_body(model, mesh, microbatch, schedule, recompute, level, tools):
    base = identity.BASES.get(
        ("halves", model, mesh, microbatch),
        lambda: identity.order_run(Overlapping(tools, 0), model, mesh,
                                   HALF[microbatch], "gpipe", "none",
                                   "-base"))
    identity.compare(
        identity.order_run(Overlapping(tools, level), model, mesh, microbatch,
                           schedule, recompute), base)
    return "identical"


def exact_body(name, mesh, microbatch, schedule, recompute, level, tools):
    return identity.exact_body(name, mesh, microbatch, schedule, recompute,
                               Overlapping(tools, level))


def oracle_body(model, mesh, optimizer, microbatch, schedule, level, tools):
    return oracle.body(model, mesh, optimizer, microbatch, schedule,
                       Overlapping(tools, level))


def models():
    return sorted(name for name in os.listdir(harness.MODELS)
                  if os.path.isdir(os.path.join(harness.MODELS, name)))


def fits(mesh, microbatch):
    """Two halves of whole samples."""
    return matrix.samples(mesh, microbatch) % 2 == 0


def all_cases():
    layouts = [(m, b) for m in MESHES for b in HALF if fits(m, b)]
    for name, (mesh, microbatch), schedule, recompute, level in (
            itertools.product([m.__name__ for m in exact_models.MODELS],
                              layouts, matrix.SCHEDULES, matrix.RECOMPUTE,
                              LEVELS)):
        yield "exact", exact_body, (name, mesh, microbatch, schedule,
                                    recompute, level)
    for name, (mesh, microbatch), schedule, level in itertools.product(
            models(), layouts, matrix.SCHEDULES, LEVELS):
        for recompute in matrix.RECOMPUTE:
            yield "halves", halves_body, (name, mesh, microbatch, schedule,
                                          recompute, level)
        for optimizer in matrix.OPTIMIZERS:
            yield "oracle", oracle_body, (name, mesh, optimizer, microbatch,
                                          schedule, level)


def main():
    args = harness.parser(__doc__).parse_args()
    chosen = list(all_cases())
    if not args.all:
        by_kind = {}
        for kind, body, case in chosen:
            # Of the recorded models the smallest and the largest mesh.
            if kind == "exact" or case[1] in (MESHES[0], MESHES[-1]):
                by_kind.setdefault((kind, body), []).append(case)
        chosen = [(kind, body, case) for (kind, body), cases in by_kind.items()
                  for case in matrix.pairwise(cases)]
    chosen += [("halves", halves_body, (name, "pp=2,tp=2", "half", *pipeline))
               for name in ("gpt2-tiny", "bert-tiny", "resnet-tiny")
               for pipeline in PIPELINES]
    cases = [Case(" ".join((kind, *case)), functools.partial(body, *case))
             for kind, body, case in chosen]
    return harness.run_cases("overlap", cases, args)


if __name__ == "__main__":
    sys.exit(main())
