#!/usr/bin/env python3
"""Ranks as processes that communicate through NCCL, without a GPU: the CUDA
backend over the emulated device, the communicators of runtime/comm/nccl, and a
stand-in for libnccl (test/unit/cuda/nccl/StandIn.h) that is stricter than NCCL.

equal   plans of every kind of mesh give the bits of ranks in one process on the
        emulated device, and the losses of the CPU backend: in steps of single
        instructions and in captured ones, with a device in each rank that works
        in an order of its own; no communicator is opened that is not used, none
        twice
form    the same of plans in the form of GPUs (cuda_emulated.py)
exact   models whose sums are exact give the bits of the CPU
plain   NCCL_LOCAL_REGISTER=0: the same bits where communicators know no memory
separate  --arena=separate: they know none either
late    a rank that comes late holds nobody up for good
lost    a rank that fails, hangs or is killed, and a communicator that fails: the
        others end with its name
wrong   ranks that do not issue in one order, or ask for different things, are
        told apart by the stand-in
alone   what sends host memory is refused where NCCL is all there is
memory  what opening communicators took is counted before the first step
"""
import functools
import json
import os
import re
import sys

import cuda_emulated
import exact_models
import harness
import matrix
import oracle
import precision
import processes
import seam_strategies
import seams
import sparse
import sparse_models
from harness import Case, Failed

TOOL = "merak-run-emulated"
LIBRARY = "libmerak-nccl-stand-in.so"
PROCESSORS = "132"  # of an H100
LIMIT = 30  # seconds between the ends of ranks of which one is lost
STEPS = 4  # the last two are launched as graphs, if any
EQUAL = [  # model, mesh, microbatch, schedule, options
    ("gpt2-tiny", "dp=2", "half", "1f1b", []),
    ("gpt2-tiny", "tp=2", "half", "1f1b", []),
    ("gpt2-tiny", "pp=2", "one", "1f1b", []),
    ("gpt2-tiny", "dp=2,tp=2", "half", "1f1b", ["--grad-bucket=0"]),
    ("gpt2-tiny", "pp=2,dp=2,tp=2", "half", "1f1b", []),
    ("gpt2-tiny", "pp=2,dp=2", "half", "zb", ["--zero=1"]),
    ("gpt2-tiny", "dp=2,tp=2", "half", "1f1b", ["--zero=2"]),
    ("gpt2-tiny", "pp=2,dp=2", "half", "interleaved", ["--zero=3"]),
    ("gpt2-tiny", "tp=2", "half", "1f1b", ["--sequence-parallel=on"]),
    ("gpt2-tiny", "pp=2,tp=2", "half", "1f1b", ["--tp-overlap=3"]),
    ("gpt2-tiny", "pp=2,tp=2", "one", "gpipe", []),
    ("vit-tiny", "tp=2", "half", "gpipe", ["--tp-overlap=3"]),
    ("resnet-plain-tiny", "pp=2", "half", "early", []),
    ("mlp-ce", "dp=2", "half", "1f1b", ["--precision=bf16"]),
    ("gpt2-tiny-untied", "dp=2", "half", "1f1b", ["--sparse=lazy"]),
    ("gpt2-tiny-untied", "pp=2,dp=2", "one", "zb",
     ["--sparse=lazy", "--zero=1", "--grad-clip=0.5"]),
]

OTHERS = [
    ("form", "dp=2,tp=2", "bf16", []), ("form", "pp=2,tp=2", "fp32", []),
    ("form", "pp=2,dp=2", "bf16", ["--zero=2"]),
    ("exact", "columns"), ("exact", "experts"), ("exact", "tokens and heads"),
    ("exact", "half stored"),
    ("table", "columns of 2", "off"), ("table", "columns of 4", "off"),
    ("table", "columns of 2", "auto"),
    ("plain", "pp=2,tp=2"), ("separate", "dp=2"),
    ("late", "dp=2"), ("late", "pp=2,dp=2"),
    ("lost", "1:2:fail", "dp=2,tp=2", "rank 1 on host HOST · step 2", (1,), "off"),
    ("lost", "1:4:fail", "dp=2,tp=2", "rank 1 on host HOST · step 4", (1,), "auto"),
    ("lost", "1:2:kill", "pp=2", "rank 1 on host HOST is gone", (1, -9), "off"),
    ("lost", "0:4:kill", "tp=2", "rank 0 on host HOST is gone", (1, -9), "auto"),
    ("lost", "1:2:hang", "dp=2", "has not moved for 5 seconds", (1,), "off"),
    ("broken", "dp=2,tp=2"), ("broken", "pp=2"),
    ("wrong", "swap:1.5", "dp=2", ["--grad-bucket=0"]),
    ("wrong", "count:0.3", "tp=2", []),
    ("wrong", "count:1.2", "pp=2", []),
    ("silent",), ("ordered",), ("crowded",), ("memory",),
    ("alone", "--replan=auto"), ("alone", "--copies=1"),
]


def library(tools):
    return os.path.join(tools.bin_dir, LIBRARY)


def count(mesh):
    sizes = matrix.degrees(mesh)
    return sizes["pp"] * sizes["dp"] * sizes["tp"]


def compile_case(tools, model, mesh, microbatch, schedule, options):
    plan = tools.path("out.plan")
    tools.extra["MERAK_EMULATED_PROCESSORS"] = PROCESSORS
    tools.run("merakc", os.path.join(harness.MODELS, model, "model.onnx"), "-o",
              plan, "-q", *matrix.compile_options(mesh, microbatch, schedule),
              oracle.optimizer_option(model, "adamw"), *options)
    return plan, "--data=" + os.path.join(harness.MODELS, model, "data")


def entries_of(log):
    return [{key: entry.get(key) for key in ("loss", "grad_norm")}
            for entry in harness.read_log(log)]


def together(tools, plan, data, tool=TOOL, steps=STEPS):
    """Losses and weights of ranks in one process."""
    log, saved = harness.fresh(tools.path("one.jsonl")), tools.path(tool + "-saved")
    tools.run(tool, plan, data, f"--steps={steps}", f"--log={log}",
              f"--save={saved}")
    return entries_of(log), precision.state(saved)


def apart(tools, ranks, plan, data, *options, seed=1, extra=lambda rank: {}):
    """How ranks in processes of their own end."""
    return processes.launch(
        tools, ranks, TOOL, plan, data, "--ranks=env", "--threads=1", *options,
        extra=lambda rank: {
            "MERAK_NCCL_LIBRARY": library(tools), "MERAK_CONNECT_SECONDS": "120",
            "MERAK_EMULATED_SEED": str(seed * 16 + rank + 1),
            "MERAK_NCCL_REPORT": tools.path(f"report-{rank}"), **extra(rank)})


def trained(tools, ranks, plan, data, graphs, steps=STEPS, **how):
    """Losses and weights of ranks in processes of their own."""
    log = harness.fresh(tools.path("apart.jsonl"))
    saved = tools.path(f"apart-{graphs}-{how.get('seed', 1)}")
    ended = apart(tools, ranks, plan, data, f"--steps={steps}", f"--log={log}",
                  f"--save={saved}", f"--graphs={graphs}", **how)
    for rank, end in enumerate(ended):
        if end.code != 0 or "libnccl" in end.errors:
            raise Failed(f"rank {rank} ended with {end.code}: "
                         f"{harness.last_lines(end.errors)}")
    if graphs == "auto" and "as one graph of" not in ended[0].errors:
        raise Failed(f"nothing is captured: {harness.last_lines(ended[0].errors)}")
    return entries_of(log), precision.state(saved)


class Needed:
    """How many communicators each rank of a plan needs: one for each stream and
    group of ranks of its collectives, and for each stream and peer of its
    transfers. From the plan as it is printed."""

    RANKS = re.compile(r"^  ranks? (\S+)$")
    COLLECTIVE = re.compile(r"^ +\d+ (s\d+) .* = collective .* over \(([^)]*)\)")
    TRANSFER = re.compile(r"^ +\d+ (s\d+) (?:.* = )?(?:send|recv) \"[^\"]*\" "
                          r"(?:to|from) (\S+)")

    def __init__(self, text, sizes):
        self.program_of, self.programs = {}, {}
        for line in text.splitlines():
            if found := re.match(r"program (\d+)", line):
                program = self.programs.setdefault(found[1], set())
                number = found[1]
            elif not self.programs:
                continue
            elif found := self.RANKS.match(line):
                for part in found[1].split(","):
                    first, _, last = part.partition("-")
                    for rank in range(int(first), int(last or first) + 1):
                        self.program_of[rank] = number
            elif found := self.COLLECTIVE.match(line):
                program.add((found[1], *sorted(
                    a for a in found[2].split(",") if sizes.get(a, 2) > 1)))
            elif found := self.TRANSFER.match(line):
                program.add(found.groups())

    def __getitem__(self, rank):
        return len(self.programs[self.program_of[rank]])


def opened(tools, plan, sizes, registered=True):
    """Communicators of each rank: as many as its plan needs, each of which was
    used and came to its end; all their operands, also those packed on the way,
    lay in memory that they were told of, or none did."""
    text, _ = tools.run("merak-plan", "print", plan)
    needed, found = Needed(text, sizes), []
    for rank in sorted(needed.program_of):
        with open(tools.path(f"report-{rank}"), encoding="utf-8") as file:
            report = json.load(file)
        if not (report["opened"] == report["used"] == report["ended"] > 0 and
                report["aborted"] == 0 and report["opened"] == needed[rank]):
            raise Failed(f"rank {rank}: {report}, {needed[rank]} are needed")
        known = report["calls"] if registered else 0
        if report["registered"] != known or report["calls"] == 0:
            raise Failed(f"rank {rank}: {report}")
        found.append(report["opened"])
    return found


def compare(found, expected):
    if found[0] != expected[0]:
        raise Failed(f"{found[0]}, expected {expected[0]}")
    if found[1] != expected[1]:
        raise Failed("the weights differ")


def equal(case, tools):
    plan, data = compile_case(tools, *case)
    ranks = count(case[1])
    expected = together(tools, plan, data)
    compare(trained(tools, ranks, plan, data, "off"), expected)
    compare(trained(tools, ranks, plan, data, "auto", seed=2), expected)
    cpu, _ = together(tools, plan, data, "merak-run")
    worst = max(abs(x["loss"] - y["loss"]) / abs(y["loss"])
                for x, y in zip(cpu, expected[0]))
    if not worst < (1e-2 if "--precision=bf16" in case[-1] else 1e-5):
        raise Failed(f"losses differ from those of the CPU by {worst:.1e}")
    return f"{worst:.0e}, communicators {opened(tools, plan, matrix.degrees(case[1]))}"


def form(mesh, precision, options, tools):
    folder = os.path.join(harness.MODELS, "gpt2-tiny")
    tools.extra["MERAK_EMULATED_PROCESSORS"] = PROCESSORS
    plan = cuda_emulated.compile_form(
        tools, os.path.join(folder, "model.onnx"), "--optimizer=adamw:lr=1e-3",
        *matrix.compile_options(mesh, "half", "1f1b"),
        f"--precision={precision}", *options)
    data = f"--data={folder}/data"
    compare(trained(tools, count(mesh), plan, data, "auto"),
            together(tools, plan, data))
    return f"communicators {opened(tools, plan, matrix.degrees(mesh))}"


def exact(row, tools):
    """A row of docs/Seams.md: what the CPU's ranks compute in one process."""
    path = tools.path("row.json")
    seam_strategies.write(path, row, 1)
    name, mesh = seam_strategies.ROWS[row][0], seam_strategies.mesh_of(row, 1)
    data = seams.write_data(tools, name)
    options, steps = seams.exact_options(name, "sgd")
    plan = tools.path("out.plan")
    tools.extra["MERAK_EMULATED_PROCESSORS"] = PROCESSORS
    tools.run("merakc", exact_models.path(name), "-o", plan, "-q", *options,
              *matrix.compile_options(mesh, "half", "gpipe"),
              f"--strategy={path}")
    data = f"--data={data}"
    found = trained(tools, count(mesh), plan, data, "off", steps)
    compare(found, together(tools, plan, data, "merak-run", steps))
    return f"identical, communicators {opened(tools, plan, matrix.degrees(mesh))}"


def table(row, graphs, tools):
    """A row-sparse table in columns over replicas: ids are gathered, rows and slices
    go by all-to-all; what the CPU's ranks compute in one process. With steps as
    graphs, under an optimizer that changes all rows: they take steps later."""
    path = tools.path("row.json")
    seam_strategies.write(path, row, 1, sparse.COLUMN_ROWS)
    mesh = seam_strategies.mesh_of(row, 1, sparse.COLUMN_ROWS)
    model, data = sparse_models.write(tools, sparse_models.lookup())
    plan = tools.path("out.plan")
    tools.extra["MERAK_EMULATED_PROCESSORS"] = PROCESSORS
    optimizer = sparse_models.SGD if graphs == "off" else sparse_models.DYADIC
    tools.run("merakc", model, "-o", plan, "-q", *optimizer, "--sparse=exact",
              *matrix.compile_options(mesh, "half", "1f1b"), f"--strategy={path}")
    data = f"--data={data}"
    found = trained(tools, count(mesh), plan, data, graphs, 2)
    compare(found, together(tools, plan, data, "merak-run", 2))
    return f"identical, communicators {opened(tools, plan, matrix.degrees(mesh))}"


def plain(mesh, tools):
    """Operands in memory that communicators were not told of."""
    plan, data = compile_case(tools, "gpt2-tiny", mesh, "half", "1f1b",
                              ["--sequence-parallel=on"])
    expected = together(tools, plan, data)
    compare(trained(tools, count(mesh), plan, data, "auto", extra=lambda rank: {
        "NCCL_LOCAL_REGISTER": "0"}), expected)
    found = opened(tools, plan, matrix.degrees(mesh), registered=False)
    return f"communicators {found}"


def separate(mesh, tools):
    """Neither buffers between red zones nor what is packed beside them."""
    plan, data = compile_case(tools, "mlp-ce", mesh, "half", "1f1b", [])
    for rank, end in enumerate(apart(tools, count(mesh), plan, data, "--steps=1",
                                     "--arena=separate")):
        if end.code != 0 or "libnccl" in end.errors:
            raise Failed(f"rank {rank}: {harness.last_lines(end.errors)}")
    found = opened(tools, plan, matrix.degrees(mesh), registered=False)
    return f"communicators {found}"


def late(mesh, tools):
    """The last rank joins each communicator seconds after the others."""
    plan, data = compile_case(tools, "mlp-ce", mesh, "half", "1f1b", [])
    ranks = count(mesh)
    found = trained(tools, ranks, plan, data, "auto", extra=lambda rank: {
        "MERAK_NCCL_LATE": "3" if rank == ranks - 1 else "0"})
    compare(found, together(tools, plan, data))
    return f"communicators {opened(tools, plan, matrix.degrees(mesh))}"


def ends(tools, mesh, model, wanted, planted, options=(), codes=(1,),
         within=LIMIT, compiled=()):
    """All ranks end with one of `codes`, at most `within` seconds apart, and some
    with each of the sentences `wanted`. `planted`: the environment of a rank, or of
    all (-1)."""
    plan, data = compile_case(tools, model, mesh, "half", "1f1b",
                              list(compiled))
    culprit, environment = planted
    ended = apart(tools, count(mesh), plan, data, f"--steps={STEPS}", *options,
                  extra=lambda rank:
                  environment if rank == culprit or culprit < 0 else {})
    for rank, end in enumerate(ended):
        if end.code not in codes:
            raise Failed(f"rank {rank} ended with {end.code}: "
                         f"{harness.last_lines(end.errors)}")
    first, last = min(e.seconds for e in ended), max(e.seconds for e in ended)
    if last - first > within:
        raise Failed(f"the last rank ended {last - first:.1f} s after the first")
    sentences = [line for end in ended for line in end.errors.splitlines()
                 if "merak-run: error: " in line]
    for text in wanted:
        text = text.replace("HOST", os.uname().nodename)
        if not any(text in line for line in sentences):
            raise Failed(f"expected \"{text}\", found {sentences}")
    return sentences[0].split("error: ", 1)[1][:70]


def lost(fault, mesh, wanted, codes, graphs, tools):
    return ends(tools, mesh, "gpt2-tiny", [wanted],
                (-1, {"MERAK_FAULT": fault, **(
                    {"MERAK_WATCHDOG_SECONDS": "5"} if "hang" in fault else {})}),
                [f"--graphs={graphs}"], codes)


def broken(mesh, tools):
    """A communicator fails by itself, as NCCL's do when a link is lost."""
    return ends(tools, mesh, "gpt2-tiny", ["a remote process exited"],
                (1, {"MERAK_NCCL_FAULT": "async:1.1"}))


def wrong(fault, mesh, options, tools):
    return ends(tools, mesh, "gpt2-tiny", ["asks for"],
                (1, {"MERAK_NCCL_FAULT": fault}), compiled=options)


def silent(tools):
    """Two operations of one shape out of order, which no library could tell: the
    results are not those that are compared with."""
    plan, data = compile_case(tools, "gpt2-tiny", "dp=2", "half", "1f1b",
                              ["--grad-bucket=0"])
    found = trained(tools, 2, plan, data, "off", extra=lambda rank: {
        "MERAK_NCCL_FAULT": "swap:1.1" if rank == 1 else ""})
    if found == together(tools, plan, data):
        raise Failed("gradients that were added to others change nothing")


def ordered(tools):
    """NCCL's own order of launches would make ranks wait for each other."""
    return ends(tools, "dp=2", "mlp-ce",
                ["NCCL_LAUNCH_ORDER_IMPLICIT is 1, but ranks launch in different "
                 "orders: unset it"],
                (-1, {"NCCL_LAUNCH_ORDER_IMPLICIT": "1"}))


def crowded(tools):
    """Kernels of all communicators have to fit beside each other."""
    return ends(tools, "pp=2,dp=2,tp=2", "gpt2-tiny",
                ["communicators are more than fit on 12 multiprocessors at once"],
                (-1, {"MERAK_EMULATED_PROCESSORS": "12"}))


def memory(tools):
    """A device on which the arena fits, and not what communicators take."""
    plan, data = compile_case(tools, "mlp-ce", "dp=2", "half", "1f1b", [])
    ended = apart(tools, 2, plan, data, "--steps=1", extra=lambda rank: {
        "NCCL_BUFFSIZE": "1", "MERAK_EMULATED_BYTES": str(40 << 20)})
    for rank, end in enumerate(ended):  # rank 0 speaks for both
        if end.code != 1 or (f"rank {rank}: buffers of communication 12.0 MiB"
                             not in ended[0].errors):
            raise Failed(f"rank {rank} ended with {end.code}: {ended[0].errors}")
    return "12 MiB"


def alone(option, tools):
    """Started without MPI. Copies are between hosts: folders of each rank's own."""
    plan, data = compile_case(tools, "mlp-ce", "dp=2", "half", "1f1b", [])
    options = [option]
    if option == "--copies=1":
        options.append("--copies-of=0123456789abcdef:0:4")
    for rank in range(2):
        os.makedirs(tools.path(f"host{rank}"))
    ended = apart(tools, 2, plan, data, f"--steps={STEPS}", *options,
                  extra=lambda rank: {"MERAK_COPIES": tools.path(f"host{rank}")})
    wanted = (f"merak-run: error: {option.removesuffix('=1')} of GPUs' ranks that are "
              "processes needs MPI for host memory: start them with mpirun")
    said = "".join(end.errors for end in ended)
    if [end.code for end in ended] != [2, 2] or said.count(wanted) != 1:
        raise Failed(f"ended with {[end.code for end in ended]}: {said}")
    return "exit code 2"


def main():
    args = harness.parser(__doc__).parse_args()
    if not os.path.exists(os.path.join(args.bin_dir, LIBRARY)):
        return harness.nothing_to_test(
            "cuda-nccl", "built without NCCL's headers, nothing to test")
    kinds = globals()

    def name(kind, case):
        return " ".join([kind, *(" ".join(c) if isinstance(c, list) else str(c)
                                 for c in case)]).strip()

    return harness.run_cases(
        "cuda-nccl",
        [Case(name("equal", case), functools.partial(equal, case))
         for case in EQUAL] +
        [Case(name(kind, case), functools.partial(kinds[kind], *case))
         for kind, *case in OTHERS], args)


if __name__ == "__main__":
    sys.exit(main())
