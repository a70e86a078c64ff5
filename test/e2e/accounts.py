#!/usr/bin/env python3
"""What plans hold and send, counted from their programs (`merak-plan account`),
is what docs/Seams.md says of each technique.

bytes     of parameters, gathered copies, gradients and optimizer state, for each
          level of ZeRO, number of replicas and precision: the formulas of the
          table, over the parameters that the replicas divide; what they do not
          divide lies whole and is named
tied      the same of a table with two uses, whose gradients are apart until the
          update
arena     what merak-plan predicts and what merak-run allocates, within 1 %
little    a model that no plan of replicas and stages fits within a limit trains
          there under ZeRO-3, with the losses of one rank
links     bytes of each collective of a step, by action
tokens    sequence parallelism sends over tp what plain tp sends
ranks     a searched plan has the mesh that the search chose
columns   a table in columns over dp is reduced over nothing; its rows cross the
          links once a microbatch and direction
"""
import functools
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../../bench"))
import exact_models
import harness
import matrix
import seam_models
import seam_plans
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


def tied(rows=256, width=64):
    """A table that is looked up, and whose rows are the columns of the last layer."""
    g = exact_models.Graph("tied")
    table = g.weight("table", [rows, width])
    h = g.op("Gather", table, g.input("ids", [4], 0, rows - 1, exact_models.INT64),
             axis=0)
    h = g.op("Relu", g.op("MatMul", h, g.weight("w", [width, width])))
    g.target_loss(g.op("MatMul", h, g.op("Transpose", table, perm=[1, 0])),
                  [4, rows])
    return g


def compiled(tools, model, mesh, microbatch, *options, leaf="out.plan"):
    plan = tools.path(leaf)
    text = "".join(tools.run("merakc", model, "-v", "-o", plan,
                             *matrix.compile_options(mesh, microbatch, "1f1b"),
                             *options))
    return plan, text


# ------------------------------------------------------------ bytes


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
    plan, _ = compiled(tools, seam_models.write(tools, graph)[0], mesh, microbatch, ADAM,
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


def tied_body(mesh, microbatch, level, precision, tools):
    """A table with two uses has a gradient of each until the update: whole, or in
    parts where each microbatch scatters them, which then is two messages. In bf16
    the lookup reads f32, so that two copies of it are gathered."""
    graph, rows, width = tied(), 256, 64
    plan, _ = compiled(tools, seam_models.write(tools, graph)[0], mesh, microbatch, ADAM,
                       CLIP, f"--zero={level}", f"--precision={precision}")
    sizes = matrix.degrees(mesh)
    d, table, rest = sizes["dp"], 4 * rows * width, 4 * width * width
    m = matrix.GLOBAL_BATCH // d // matrix.samples(mesh, microbatch)
    all_gradients = 2 * table + rest
    narrow = precision == "bf16"
    gathered = (1.5 * table + rest / 2) if narrow else table + rest
    for account in accounts(tools, plan):
        near("gradients", account.of("gradients"),
             all_gradients // (d if level > 1 else 1))
        near("gradients summed for the update",
             account.of("gradients summed for the update"),
             (table + rest) // d if level == 1 else 0)
        near("parameters gathered for the step",
             account.of("parameters gathered for the step"),
             gathered if level in (1, 2) else 0)
        near("gradients reduce-scattered",
             account.total(kind="reduce_scatter", over="dp"),
             {0: 0, 1: table + rest}.get(level, m * all_gradients))
    return account_note(account)


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
    plan, _ = compiled(tools, seam_models.write(tools, graph)[0], mesh, microbatch, ADAM, CLIP,
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


# ------------------------------------------------------------ tokens, columns

GPT = os.path.join(harness.ROOT, "samples/01-train-gpt/model.onnx")


def tokens_body(recompute, tools):
    """The bytes that plain tp sends, and those of one gather more of each input that
    is gathered in front of a product: its weight gradient gathers it again, so that
    a part of the tokens is kept. The logits' loss and masks stay whole."""
    found = {}
    for leaf, options in (("plain", []), ("tokens", ["--sequence-parallel=on"])):
        plan = tools.path(leaf)
        tools.run("merakc", GPT, "-q", "-o", plan, "--devices=2",
                  "--mesh=pp=1,dp=1,tp=2", "--global-batch=8", "--microbatch=8",
                  f"--recompute={recompute}", "--tp-overlap=0", ADAM, *options)
        found[leaf] = accounts(tools, plan)[0]
    plain, tokens = found["plain"], found["tokens"]
    sent = [a.total("FB", over="tp", column=5) for a in (plain, tokens)]
    kept = tokens.of("activations") / plain.of("activations")
    if not tokens.total(kind="reduce_scatter", over="tp"):
        raise Failed("nothing is scattered over tp")
    again = tokens.total("F", "all_gather", "tp", column=5)
    if abs(sent[1] - sent[0] - again) > NEAR * sent[0]:
        raise Failed(f"{sent[1]} bytes are sent over tp, {sent[0]} without, {again} "
                     "in gathers in front of products")
    if not 0.5 <= kept < 1:
        raise Failed(f"activations are {kept:.2f} of those without")
    return f"{sent[1]} bytes sent, {sent[0]} without; activations {kept:.2f}"


def columns_body(microbatch, tools):
    """EmbRace's hybrid with dense columns: of N ranks each sends (N - 1) / N of its
    rows, forward and backward, once a microbatch; ids of all are gathered; nothing
    of the table is reduced."""
    graph = seam_plans.embedding(rows=512, width=64, tokens=16, layers=1)
    path, strategy = tools.path("m.textproto"), tools.path("s.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write(graph.text())
    with open(strategy, "w", encoding="utf-8") as file:
        json.dump({"version": 2, "mesh": {"pp": 1, "dp": 2, "tp": 1},
                   **seam_plans.columns(graph)}, file)
    account = None
    for option in ([], [f"--strategy={strategy}"]):
        plan, _ = compiled(tools, path, "dp=2", microbatch, ADAM, *option)
        plain, account = account, accounts(tools, plan)[0]
    rows, width = matrix.GLOBAL_BATCH * 16, 64
    near("rows exchanged", account.total(kind="all_to_all", over="dp", column=5),
         2 * rows * width // 2 * 4 // 2)
    table = 512 * width * 4
    near("bytes that are not reduced", plain.total(kind="all_reduce", over="dp") -
         account.total(kind="all_reduce", over="dp"), table)
    if account.stored.get(("dp",), (0,))[0] * 4 != table:
        raise Failed("the table does not lie in columns over dp")
    return (f"{account.total(over='dp', column=5)} bytes sent, "
            f"{plain.total(over='dp', column=5)} by replicas")


# ------------------------------------------------------------ arenas


def arena_body(mesh, level, precision, tools):
    """What merak-plan says and what merak-run allocates."""
    plan, log = tools.path("out.plan"), tools.path("log.jsonl")
    model, data = seam_models.write(tools, stack(layers=2))
    compiled(tools, model, mesh, "half", ADAM, CLIP, f"--zero={level}",
             f"--precision={precision}")
    text, _ = tools.run("merak-plan", "simulate", plan)
    predicted = int(re.search(r"^allocated: (\d+) bytes", text, re.M)[1])
    tools.run("merak-run", plan, f"--data={data}", "--steps=2", "--threads=1",
              f"--log={log}")
    allocated = max(e["memory_bytes"] for e in harness.read_log(log))
    near("allocated", allocated, predicted)
    return f"{allocated} bytes, predicted {predicted / allocated - 1:+.2%}"


# ------------------------------------------------------------ little memory


def little(tools):
    """Of plans without tensor parallelism, which stores in parts as well."""
    g = exact_models.Graph("one")
    h = g.op("MatMul", g.input("x", [64], 0, 1), g.weight("w", [64, 2048]))
    g.target_loss(g.op("MatMul", g.op("Relu", h),
                       g.weight("out", [2048, 4])), [4])
    model, data = seam_models.write(tools, g)
    options = ["--global-batch=8", "--optimizer=adamw:lr=0.001", CLIP]
    four = "--devices=4"

    def arena(*more):
        plan = tools.path("try.plan")
        tools.run("merakc", model, "-q", "-o", plan, *options, four, *more)
        return max(a.of("in all") for a in accounts(tools, plan))

    least = arena("--objective=memory", "--forbid=zero,tensor")
    parts = arena("--mesh=pp=1,dp=4,tp=1", "--zero=3")
    limit = (least + parts) // 2
    _, errors = tools.run("merakc", model, "-o", tools.path("no.plan"), *options,
                          four, "--forbid=zero,tensor", f"--memory-limit={limit}", expect=1)
    if "no plan fits" not in errors or parts > 0.9 * least:
        raise Failed(f"{parts} bytes with ZeRO-3, {least} without: "
                     f"{harness.last_lines(errors)}")
    _, errors = tools.run("merakc", model, "-o", tools.path("no.plan"), *options,
                          four, "--forbid=tensor", f"--memory-limit={limit}", expect=1)
    if not re.search(r"it fits with .*, zero [123] \(--allow=zero\): ", errors):
        raise Failed(f"does not say that ZeRO would do: {harness.last_lines(errors)}")
    losses = []
    for plan, more in (("fits", [four, "--mesh=pp=1,dp=4,tp=1", "--zero=3",
                             f"--memory-limit={limit}"]),
                       ("alone", ["--devices=1"])):
        log = tools.path(plan + ".jsonl")
        tools.run("merakc", model, "-q", "-o", tools.path(plan), *options, *more)
        tools.run("merak-run", tools.path(plan), f"--data={data}", "--steps=2",
                  f"--log={log}")
        losses.append([e["loss"] for e in harness.read_log(log)])
    for found, wanted in zip(*losses):
        if not abs(found - wanted) <= 1e-4 * abs(wanted):
            raise Failed(f"losses {losses[0]}, of one rank {losses[1]}")
    return f"{parts} bytes, {least} without; losses {losses[0]}"


# ------------------------------------------------------------ ranks


def ranks_body(name, devices, tools):
    """A plan that the search chose has the mesh that it chose, whichever number of
    replicas was priced first."""
    make, batch, _ = seam_plans.CASES[name]
    path, cluster = tools.path("m.textproto"), tools.path("c.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write(make().text())
    with open(seam_plans.XEON, encoding="utf-8") as file:
        data = json.load(file)
    data["links"] = {"intra": {"bandwidth": 1e8, "latency": 5e-5}}
    data["nodes"][0]["devices"] = data["host"]["cores"] = devices
    with open(cluster, "w", encoding="utf-8") as file:
        json.dump(data, file)
    plan, strategy = tools.path("out.plan"), tools.path("s.json")
    tools.run("merakc", path, "-q", "-o", plan, f"--devices={devices}",
              f"--cluster={cluster}", f"--global-batch={batch}",
              f"--emit-strategy={strategy}")
    with open(strategy, encoding="utf-8") as file:
        mesh = json.load(file)["mesh"]
    text, _ = tools.run("merak-plan", "print", plan)
    found = dict(re.findall(r"(\w+)=(\d+)", re.search(r"^  mesh (.*)", text,
                                                      re.M)[1]))
    if {k: int(v) for k, v in found.items()} != mesh:
        raise Failed(f"the plan's mesh is {found}, {mesh} was chosen")
    return str(mesh)


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
    cases += [Case(f"tied {mesh} {microbatch} zero={level} {precision}",
                   functools.partial(tied_body, mesh, microbatch, level,
                                     precision))
              for mesh, microbatch in (("dp=2", "half"), ("dp=4", "half"),
                                       ("dp=2", "whole"))
              for level in (0, 1, 2, 3) for precision in ("fp32", "bf16")]
    for mesh, microbatch, level, precision in matrix.pairwise([
            (mesh, microbatch, level, precision)
            for mesh in ("dp=2", "dp=4", "dp=2,tp=2", "pp=2,dp=2")
            for microbatch in ("whole", "half")
            for level in (0, 1, 2, 3)
            for precision in ("fp32", "bf16")]):
        cases.append(Case(
            f"links {mesh} {microbatch} zero={level} {precision}",
            functools.partial(links_body, mesh, microbatch, level, precision)))
    cases += [Case(f"arena {mesh} zero={level} {precision}",
                   functools.partial(arena_body, mesh, level, precision))
              for mesh in ("dp=2", "dp=2,tp=2") for level in (1, 2, 3)
              for precision in ("fp32", "bf16")]
    cases += [Case(f"tokens {recompute}", functools.partial(tokens_body,
                                                            recompute))
              for recompute in ("none", "full")]
    cases += [Case(f"columns {microbatch}", functools.partial(columns_body,
                                                              microbatch))
              for microbatch in ("whole", "half")]
    cases.append(Case("little memory", little))
    cases += [Case(f"ranks {name} {devices}", functools.partial(
        ranks_body, name, devices))
              for name in seam_plans.CASES for devices in (2, 4)]
    return harness.run_cases("accounts", cases, args)


if __name__ == "__main__":
    sys.exit(main())
