#!/usr/bin/env python3
"""Rates of devices, measured while a run trains (merak-run --rates).

slow      a rank whose instructions last three times as long from one step on, and
          not so from another one on, is told and in the log; others are not severe
beside    measuring changes neither losses nor weights; with --trace too
mild      one that lasts 1.5 times as long is mild, not severe
processes ranks as processes, of which one is slow (skipped, with the reason, where
          MPI is missing)
device    on the emulated device, whose timeline it is
status    --status tells what the log says; of other files a sentence

The machine may be slow itself: what is asserted is the rank that was slowed, by a
factor that no machine of ours gets near.
"""
import functools
import json
import os
import re
import shutil
import sys

import harness
import matrix
import mpi
from harness import Case, Failed
from migration import mpi_is_built

MODEL = "gpt2-tiny"
SLOW, FROM, TO, STEPS = 2, 300, 900, 2000
# With two cores for four ranks others may seem a little slow, too.
FACTOR = 6
# Of the steps without it so many may be disturbed by what else the machine does.
DISTURBED = 50


def plan_of(tools, mesh="pp=2,dp=2"):
    return mpi.compile_plan(tools, MODEL, mesh, "out.plan")


def entries(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def train(tools, plan, steps=None, slow=None, more=(), runner=None, every=1,
          log="log.jsonl"):
    """The entries of the log, and what was told."""
    if slow:
        tools.extra["MERAK_SLOW"] = slow
    else:
        tools.extra.pop("MERAK_SLOW", None)
    options = [plan, mpi.data_of(MODEL), f"--steps={steps or STEPS}", f"--rates={every}",
               f"--log={tools.path(log)}", "--threads=1", *more]
    if runner == "mpi":
        said = mpi.mpi(tools, 4, *options)
    else:
        said = tools.run(runner or "merak-run", *options)
    return entries(tools.path(log)), "".join(said)


def spans(log, rank):
    """Steps in which the rank is slow, by pace."""
    found = {}
    for entry in log:
        if slow := entry.get("slow", {}).get(str(rank)):
            found.setdefault(slow["pace"], []).append(entry["step"])
    return found


def check(log, said, severe=True):
    found = spans(log, SLOW).get("severe" if severe else "mild")
    if not found:
        raise Failed(f"rank {SLOW} is not slow: {log[-1].get('rates')}, told: "
                     f"{re.findall('step .*', said)[-3:]}")
    during = [step for step in found if FROM <= step <= (TO + STEPS) / 2]
    others = len(found) - len(during)
    if not during or during[0] > TO:
        raise Failed(f"slow in steps {found[0]} to {found[-1]}, slowed from {FROM} on")
    if others > DISTURBED:
        raise Failed(f"slow in {others} steps far from {FROM} to {TO}")
    if not re.search(rf"note: step \d+: rank {SLOW} takes [\d.]+ times as long as "
                     r"it should", said):
        raise Failed("nobody is told")
    # It may seem a little slow for a while, as others may.
    if not re.search(rf"note: step \d+: rank {SLOW} (is no longer slow|takes .*: "
                     r"mild)", said.split("severe", 1)[1]):
        raise Failed("nobody is told that it is over")
    return f"steps {during[0]} to {during[-1]}"


def slow_body(mesh, tools):
    log, said = train(tools, plan_of(tools, mesh),
                      slow=f"{SLOW}:{FACTOR}:{FROM}:{TO}")
    return check(log, said)


def beside_body(tools):
    plan = plan_of(tools)
    results = []
    for name, every, more in (
            ("without", 0, []), ("with", 1, []),
            ("traced", 1, [f"--trace={tools.path('trace.json')}"])):
        log, _ = train(tools, plan, 6, every=every,
                       more=[f"--save={tools.path(name)}", *more])
        if ("rates" in log[-1]) != (name != "without"):
            raise Failed(f"{name}: rates in {sorted(log[-1])}")
        results.append(([entry["loss"] for entry in log],
                        harness.read_checkpoint(tools.path(name))[0]))
    with open(tools.path("trace.json"), encoding="utf-8") as file:
        steps = {event["args"]["step"] for event in json.load(file)["traceEvents"]
                 if event["ph"] == "X"}
    if len(steps) != 6:
        raise Failed(f"the trace has steps {sorted(steps)}")
    for losses, weights in results[1:]:
        if losses != results[0][0] or {
                k: v.data.tobytes() for k, v in weights.items()} != {
                k: v.data.tobytes() for k, v in results[0][1].items()}:
            raise Failed("another result")
    return "identical"


def every_body(tools):
    log, _ = train(tools, plan_of(tools, "dp=2"), 20, every=5)
    found = [entry["step"] for entry in log if "rates" in entry]
    if found != [5, 10, 15, 20]:
        raise Failed(f"rates in steps {found}")
    return "every fifth step"


def processes_body(tools):
    log, said = train(tools, plan_of(tools), slow=f"{SLOW}:{FACTOR}:{FROM}:{TO}",
                      runner="mpi")
    return check(log, said)


def device_body(tools):
    log, _ = train(tools, plan_of(tools), 8, runner="merak-run-emulated")
    rates = log[-1].get("rates")
    if not rates or len(rates) != 4 or log[-1].get("graph"):
        raise Failed(f"rates {rates}, graph {log[-1].get('graph')}")
    return str(rates)


LOG = [{"step": 1, "seconds": 0.5}, {"step": 2, "seconds": 0.25,
       "rates": [1, 3.14159], "slow": {"1": {"pace": "severe", "since": 2}}},
       {"step": 3, "seconds": 0.125}]


def status_body(tools):
    path = tools.path("log.jsonl")

    def write(lines):
        with open(path, "w", encoding="utf-8") as file:
            file.write("".join(lines))
    lines = [json.dumps(entry) + "\n" for entry in LOG]
    write(lines + ['{"step": 4, "sec'])  # as a run that writes
    said = tools.run("merak-run", f"--status={path}")[0]
    expected = ("step 3, 125.00 ms; rates of step 2:\n"
                "  rank    rate  pace\n"
                "     0    1.00  normal\n"
                "     1    3.14  severe since step 2\n")
    if said != expected:
        raise Failed(f"it says {said!r}")
    write(lines[:1])
    for content, says in ((lines[:1], "start the run with --rates"),
                          (["no log\n"], "no log of a run")):
        write(content)
        if says not in tools.run("merak-run", f"--status={path}", expect=1)[1]:
            raise Failed(f"not said: {says}")
    if "cannot read" not in tools.run(
            "merak-run", f"--status={tools.path('none')}", expect=1)[1]:
        raise Failed("a log that is not there")
    tools.run("merak-run", tools.path("x.plan"), f"--status={path}", expect=2)
    tools.run("merak-run", expect=2)
    return "said"


def main():
    global FROM, TO, STEPS
    args = harness.parser(__doc__).parse_args()
    if args.short:
        FROM, TO, STEPS = 100, 300, 600
    cases = [Case(f"slow {mesh}", functools.partial(slow_body, mesh))
             for mesh in ("pp=2,dp=2", "dp=4", "pp=2,tp=2")[:1 if args.short else 3]]
    cases += [Case("beside", beside_body), Case("every", every_body),
              Case("status", status_body)]
    if os.path.exists(os.path.join(args.bin_dir, "merak-run-emulated")):
        cases.append(Case("device", device_body))
    if shutil.which("mpirun") and mpi_is_built(args.bin_dir):
        cases.append(Case("processes", processes_body))
    else:
        print("skipped: processes: there is no mpirun, or the tools were built "
              "without MPI")
    return harness.run_cases("rates", cases, args)


if __name__ == "__main__":
    sys.exit(main())
