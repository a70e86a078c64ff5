#!/usr/bin/env python3
"""What plans hold and send, counted from their programs (`merak-plan account`),
is what docs/Seams.md says of each technique.

bytes     of parameters, gathered copies, gradients and optimizer state, for each
          level of ZeRO, number of replicas and precision: the formulas of the
          table, over the parameters that the replicas divide; what they do not
          divide lies whole and is named
arena     what merakc predicted for a stage, what the plan lays out, and what
          merak-run allocates, of the same plans, within 1 %
little    a model that no plan without parts of parameters fits within a limit
          trains there with the losses of one rank
links     bytes of each collective of a step, by action
tokens    sequence parallelism sends over tp what plain tp sends
columns   a table in columns over dp is reduced over nothing; its rows cross the
          links once a microbatch and direction
"""
import functools
import json
import math
import os
import re
import sys

import exact_models
import harness
import matrix
import seam_strategies
from harness import Case, Failed

NEAR = 0.01
CLIP = "--grad-clip=0.5"
ADAM = "--optimizer=adamw:lr=0.001"


class Account:
    """What `merak-plan account` says of one class of ranks."""

    HEAD = re.compile(r"^(\S.*): (\d+) parameters$")
    STORED = re.compile(r"^  (whole on every rank|over \S+): (\d+) parameters of "
                        r"(\d+) elements, (\d+) here(?:: (.*))?$")
    BYTES = re.compile(r"^  +(\S.*?) +(\d+) bytes(?:  .*)?$")
    SENT = re.compile(r"^  (\w) (\w+) over (\S*): (\d+) times, (\d+) bytes, (\d+) "
                      r"sent$")

    def __init__(self, parameters):
        self.parameters = parameters
        self.stored = {}  # axes: (elements, held, names)
        self.bytes, self.within, self.exchanges = {}, {}, []

    def take(self, line):
        if found := self.STORED.match(line):
            axes = () if found[1][:5] == "whole" else tuple(
                found[1].split()[1].split(","))
            self.stored[axes] = (int(found[3]), int(found[4]),
                                 set((found[5] or "").split(", ")))
        elif found := self.SENT.match(line):
            self.exchanges.append((found[1], found[2], found[3], int(found[4]),
                                   int(found[5]), int(found[6])))
        elif re.match(r"^  within \S+ at most:$", line):
            self.within["action"] = line.split()[1]
        elif found := self.BYTES.match(line):
            inside = line.startswith("    ")
            (self.within if inside else self.bytes)[found[1]] = int(found[2])
        else:
            raise Failed(f"'{line}' is no line of an account")

    def of(self, what):
        return self.bytes.get(what, 0)

    def total(self, actions="", kind="", over="", column=4):
        """Message bytes (column 4) or bytes sent (5) of the collectives that are
        named; empty names mean all."""
        return sum(e[column] for e in self.exchanges
                   if (not actions or e[0] in actions)
                   and (not kind or e[1] == kind) and (not over or e[2] == over))


def accounts(tools, plan):
    text, _ = tools.run("merak-plan", "account", plan)
    found = []
    for line in text.splitlines():
        if head := Account.HEAD.match(line):
            found.append(Account(int(head[2])))
        else:
            found[-1].take(line)
    return found


def near(what, found, expected, allowed=NEAR):
    if abs(found - expected) > allowed * max(abs(expected), 1):
        raise Failed(f"{what}: {found:.0f} bytes, expected {expected:.0f}")


# ------------------------------------------------------------ models


WIDTH = 192


def stack(width=WIDTH, layers=4):
    """Equal layers between a narrow input and output, and one number that nothing
    divides."""
    g = exact_models.Graph("stack")
    h = g.op("MatMul", g.input("x", [8]), g.weight("in", [8, width]))
    for k in range(layers):
        up = g.op("Relu", g.op("MatMul", h, g.weight(f"up{k}", [width, width])))
        h = g.op("Add", h, g.op("MatMul", up, g.weight(f"down{k}",
                                                       [width, width])))
    h = g.op("Mul", h, g.weight("odd", [1], 1, 1, 0))
    g.target_loss(g.op("MatMul", h, g.weight("out", [width, 8])), [8])
    return g


def write(tools, graph):
    """The model's file; its data beside it."""
    path, data = tools.path(graph.name + ".textproto"), tools.path("data")
    os.makedirs(data, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(graph.text())
    for key, (descr, shape, values) in graph.data.items():
        harness.write_npy(os.path.join(data, key + ".npy"), descr, shape, values)
    return path


def compiled(tools, model, mesh, microbatch, *options, leaf="out.plan"):
    plan = tools.path(leaf)
    text = "".join(tools.run("merakc", model, "-v", "-o", plan,
                             *matrix.compile_options(mesh, microbatch, "1f1b"),
                             *options))
    return plan, text


# ------------------------------------------------------------ bytes


def elements(graph):
    return {name: len(values) for name, values in graph.weights.items()}


def expected_bytes(account, level, used):
    """By line of an account, from where it says that parameters lie. `used`: bytes
    of an element in the type of its uses. Parameters whose axes of use are not dp
    lie there over these, too."""
    held = sum(here for _, here, _ in account.stored.values())
    whole = sum(here * degree_of(axes, account) for axes, (_, here, _)
                in account.stored.items())
    parts = sum(here * degree_of(axes, account) for axes, (_, here, _)
                in account.stored.items() if "dp" in axes)
    return {"parameters as stored": 4 * held,
            "parameters gathered for the step": used * parts if level in (1, 2)
            else 0,
            "gradients": 4 * (whole if level < 2 else held),
            # A rank's own part of a scattered gradient lies elsewhere in it on each
            # rank, and --save-grads reads it: it has bytes of its own.
            "gradients summed for the update": 4 * parts // account.replicas
            if level == 1 else 0,
            "optimizer state": 8 * held}


def degree_of(axes, account):
    return account.replicas if "dp" in axes else 1


def bytes_body(mesh, microbatch, level, precision, clip, tools):
    graph = stack()
    plan, _ = compiled(tools, write(tools, graph), mesh, microbatch, ADAM,
                       f"--zero={level}", f"--precision={precision}",
                       *([CLIP] if clip == "clipped" else []))
    d = matrix.degrees(mesh)["dp"]
    used = 2 if precision == "bf16" else 4
    notes = []
    for account in accounts(tools, plan):
        account.replicas = d
        check_stored(account, graph, d, level)
        for what, expected in expected_bytes(account, level, used).items():
            near(what, account.of(what), expected)
        notes.append(account_note(account))
        check_gathered(account, level, used)
    return "; ".join(dict.fromkeys(notes))


def check_stored(account, graph, d, level):
    """Exactly the number that nothing divides lies whole, and is named."""
    over = {axes: group for axes, group in account.stored.items() if "dp" in axes}
    if level == 0 or d == 1:
        if over:
            raise Failed(f"in parts over {sorted(over)} without being asked")
        return
    rest = [names for axes, (*_, names) in account.stored.items()
            if "dp" not in axes]
    if any(names - {"odd"} for names in rest):
        raise Failed(f"whole over dp: {rest}")
    for axes, (total, here, _) in over.items():
        if total % here or (total // here) % d:
            raise Failed(f"{here} of {total} elements here, over {axes}")


def account_note(account):
    """Bytes a parameter of what lasts."""
    lasting = sum(account.of(what) for what in (
        "parameters as stored", "parameters gathered for the step", "gradients",
        "gradients summed for the update", "optimizer state"))
    return (f"{lasting / account.parameters:.2f} bytes a parameter, within actions "
            f"{account.of('values within one action') / account.parameters:.2f}")


def check_gathered(account, level, used):
    """Level 3 never has more at once than one layer's weight in use, the next one on
    its way, and a narrow weight, which is a bucket of its own."""
    most = account.of("gathered for a use at most")
    limit = used * (2 * WIDTH * WIDTH + 8 * WIDTH)
    if level == 3 and not 0 < most <= limit:
        raise Failed(f"{most} bytes are gathered at once, of {limit:.0f}")
    if level == 0 and most:
        raise Failed(f"{most} bytes are gathered")


# ------------------------------------------------------------ links


def once(account, level, used, microbatches):
    """Bytes of the collectives over dp that carry parameters and gradients."""
    parts = sum(here * account.replicas for axes, (_, here, _)
                in account.stored.items() if "dp" in axes)
    rest = sum(here for axes, (_, here, _) in account.stored.items()
               if "dp" not in axes)
    times = {0: 0, 1: 1}.get(level, microbatches)
    return parts, rest, 4 * parts * times


SMALL = 256  # bytes of losses, norms and counts that are summed besides


def links_body(mesh, microbatch, level, precision, tools):
    graph = stack()
    plan, _ = compiled(tools, write(tools, graph), mesh, microbatch, ADAM, CLIP,
                       f"--zero={level}", f"--precision={precision}")
    sizes = matrix.degrees(mesh)
    used = 2 if precision == "bf16" else 4
    m = (matrix.GLOBAL_BATCH // sizes["dp"] // matrix.samples(mesh, microbatch))
    for account in accounts(tools, plan):
        account.replicas = sizes["dp"]
        parts, rest, scattered = once(account, level, used, m)
        near("gradients reduce-scattered",
             account.total(kind="reduce_scatter", over="dp"), scattered)
        reduced = account.total(kind="all_reduce", over="dp")
        near("gradients all-reduced", max(0, reduced - 4 * rest - SMALL), 0)
        check_gathers(account, level, used * parts, m)
    return f"{m} microbatches, {scattered} bytes of gradients scattered"


def check_gathers(account, level, parts, m):
    gathers = {e[0] for e in account.exchanges if e[1] == "all_gather"
               and e[2] == "dp"}
    total = account.total(kind="all_gather", over="dp")
    if level == 0:
        near("gathered", total, 0)
    elif level < 3:
        # By the first microbatch's F, for the whole step.
        near("gathered once", account.total("F", "all_gather", "dp"), parts)
        near("gathered in other actions", total - parts, 0)
    else:
        near("gathered in F", account.total("F", "all_gather", "dp"), m * parts)
        backward = total - account.total("F", "all_gather", "dp")
        if "G" in gathers or not 0 < backward <= m * parts * (1 + NEAR):
            raise Failed(f"{backward} bytes are gathered in {sorted(gathers)} "
                         f"besides F, at most {m * parts} are used there")


def main():
    args = harness.parser(__doc__).parse_args()
    cases = []
    for mesh, microbatch, level, precision, clip in matrix.pairwise([
            (mesh, microbatch, level, precision, clip)
            for mesh in ("dp=2", "dp=4", "dp=8", "dp=2,tp=2", "pp=2,dp=2")
            for microbatch in ("whole", "half")
            for level in (0, 1, 2, 3)
            for precision in ("fp32", "bf16")
            for clip in ("clipped", "free")
            if not (mesh == "dp=8" and microbatch == "half")]):
        cases.append(Case(
            f"bytes {mesh} {microbatch} zero={level} {precision} {clip}",
            functools.partial(bytes_body, mesh, microbatch, level, precision,
                              clip)))
    for mesh, microbatch, level, precision in matrix.pairwise([
            (mesh, microbatch, level, precision)
            for mesh in ("dp=2", "dp=4", "dp=2,tp=2", "pp=2,dp=2")
            for microbatch in ("whole", "half")
            for level in (0, 1, 2, 3)
            for precision in ("fp32", "bf16")]):
        cases.append(Case(
            f"links {mesh} {microbatch} zero={level} {precision}",
            functools.partial(links_body, mesh, microbatch, level, precision)))
    return harness.run_cases("accounts", cases, args)


if __name__ == "__main__":
    sys.exit(main())
