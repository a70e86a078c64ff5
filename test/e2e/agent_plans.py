#!/usr/bin/env python3
"""The agent of a run makes plans for the hosts that are left (merak-run --restarts
--hosts). Hosts are names that a launcher knows: one that is lost loses its processes, its
memory and its answer.

made      no plan has a place: one is made, kept and found again by the next run; the bits
          of runs that are stopped at the logged steps under the logged plans
beside    a plan has a place: the run starts at once, a faster one is made beside it and
          taken; the host comes back
copies    the same without a disk, from copies in memory
cluster   unlike nodes: the plan is for those that are left
rates     so it is for those of them that are slow
given     --plans: what is there is chosen, and made if nothing has a place
none      without a compiler, and with one that fails
signals   while a plan is made, before the run and beside it
dropped   of all hosts a device is so slow that a plan without it is better: the run asks
          for that and is started again on the others; so it is after a rank was killed;
          when the device is normal, with all of them; the bits of the logged plans
alone     the same of the only device of a host, from copies in memory
stays     a plan that needs no restart is as good: nothing is started again
"""
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import time

import agents
import elastic
import harness
import mpi
from harness import Case, Failed
from migration import mpi_is_built

STEPS = 200
SLOW = 2  # times as long
HOPELESS = 20  # the same: a plan without the device is the fastest
SLOWED = 140  # the last step in which it is
HOSTS = "h0:2,h1:1,h2:1"

LAUNCH = """#!/bin/sh
# HOSTS RANKS COMMAND...
here={here}
export LAUNCHED_ON="$1" ranks="$2"
shift 2
for host in $(echo "$LAUNCHED_ON" | tr , ' '); do
  [ ! -e "$here/${{host%%:*}}.down" ] || exit 1
done
[ "$1" != true ] || exit 0
exec mpirun -np "$ranks" {mpirun} sh "$here/rank" "$@"
"""
RANK = """# COMMAND...: which host the rank is on
rank=$OMPI_COMM_WORLD_RANK
for host in $(echo "$LAUNCHED_ON" | tr , ' '); do
  name=${{host%%:*}} slots=${{host##*:}}
  [ "$rank" -ge "$slots" ] || break
  rank=$((rank - slots))
done
export MERAK_COPIES="{here}/$name"
mkdir -p "$MERAK_COPIES"
echo $$ >>"{here}/$name.pids"
exec "$@"
"""


def on_hosts(tools, hosts=HOSTS):
    """Options of a run on three hosts."""
    for name, text in (("launch", LAUNCH), ("rank", RANK)):
        with open(tools.path(name), "w", encoding="utf-8") as file:
            file.write(text.format(here=tools.folder, mpirun=" ".join(mpi.MPIRUN)))
    tools.extra.update(mpi.ROOT_ALLOWED, MERAK_SILENCE_SECONDS="3",
                       MERAK_LOOK_SECONDS="0.5", MERAK_WATCHDOG_SECONDS="60")
    return [f"--launcher=sh {tools.path('launch')} {{hosts}} {{ranks}}",
            f"--hosts={hosts}"]


def lose(tools, host):
    with open(tools.path(host + ".down"), "w", encoding="utf-8"):
        pass
    with open(tools.path(host + ".pids"), encoding="utf-8") as file:
        pids = [int(line) for line in file]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os.remove(tools.path(host + ".pids"))
    shutil.rmtree(tools.path(host), ignore_errors=True)


def bring_back(tools, host):
    os.remove(tools.path(host + ".down"))


def four_ranks(tools, *options, mesh="pp=2,dp=2"):
    plan, pace = agents.gpt_plan(tools, mesh, "x.plan", *options)
    tools.extra["MERAK_PACE"] = pace
    return plan


def one_rank(tools, folder="x.plans"):
    os.makedirs(tools.path(folder), exist_ok=True)
    agents.gpt_plan(tools, "dp=1", folder + "/one.plan")


def lost(run, tools, host="h2", step=10):
    """Loses a host. How the log tells of the run that is started without it."""
    run.wait_for_step(step)
    before = len(run.restarts())
    lose(tools, host)
    run.wait_for(lambda: len(run.restarts()) > before)
    return run.restarts()[before]


def check(run, event, plan, host="h2", made=True):
    """That it goes on without the host, with this plan."""
    if (event["lost"] != [host] or not 0 < event["ranks"] <= 3
            or not event["plan"].endswith(plan)
            or (event.get("planned_seconds", 0) > 0) != made
            or ("was made in" in event["why"]) != made):
        raise Failed(f"went on with {event}: {harness.last_lines(run.told())}")


def made_body(tools):
    options = on_hosts(tools)
    plan = four_ranks(tools)
    with agents.agent(tools, plan, *options, steps=STEPS) as run:
        event = lost(run, tools)
        check(run, event, "/x.plans/hosts-3-ranks.plan")
        if "no plan has a place on 3 ranks" not in run.told():
            raise Failed(f"it says {harness.last_lines(run.told())}")
        run.end()
    agents.as_replayed(tools, run, plan, STEPS)
    bring_back(tools, "h2")
    with agents.agent(tools, plan, *options, steps=40, name="again") as again:
        check(again, lost(again, tools), "/x.plans/hosts-3-ranks.plan", made=False)
        again.end()
    return (f"{event['ranks']} ranks after step {event['step']}, made in "
            f"{event['planned_seconds']:.1f} s")


def beside_body(tools):
    options = on_hosts(tools)
    plan = four_ranks(tools)
    one_rank(tools)
    with agents.agent(tools, plan, *options, steps=2 * STEPS) as run:
        check(run, lost(run, tools), "/x.plans/one.plan", made=False)
        run.wait_for(lambda: len(run.restarts()) > 1)
        better = run.restarts()[1]
        check(run, better, "/x.plans/hosts-3-ranks.plan")
        if "ms are predicted" not in better["why"]:
            raise Failed(f"why: {better['why']}")
        run.wait_for_step(better["step"] + 5)
        bring_back(tools, "h2")
        run.wait_for(lambda: len(run.restarts()) > 2)
        back = run.restarts()[2]
        if back["why"] != "h2 is back" or back["ranks"] != 4 or back["lost"]:
            raise Failed(f"went on with {back}")
        run.end()
    agents.as_replayed(tools, run, plan, 2 * STEPS)
    steps = [event["step"] for event in run.restarts()]
    return (f"1, {better['ranks']} and 4 ranks after steps {steps}, made in "
            f"{better['planned_seconds']:.1f} s")


def copies_body(tools):
    options = on_hosts(tools) + ["--copies=1", f"--copies-every={agents.COPIES}"]
    plan = four_ranks(tools, "--zero=1")
    with agents.agent(tools, plan, *options, steps=STEPS, every=0) as run:
        run.wait_for(lambda: agents.newest_copy(tools) >= 2 * agents.COPIES)
        copied = agents.newest_copy(tools)
        event = lost(run, tools)
        check(run, event, "/x.plans/hosts-3-ranks.plan")
        run.end()
    if event["state"] != "copies" or event["step"] < copied - agents.COPIES:
        raise Failed(f"copies of step {copied}, went on with {event}")
    agents.as_replayed(tools, run, plan, STEPS)
    return f"{event['ranks']} ranks after step {event['step']}"


def cluster_body(tools):
    options = on_hosts(tools)
    kinds = {name: {"backend": "cpu", "flops": flops, "memory_bandwidth": 1e10}
             for name, flops in (("fast", 5e10), ("slow", 2e10))}
    link = {"bandwidth": 5e9, "latency": 5e-6}
    with open(tools.path("c.json"), "w", encoding="utf-8") as file:
        json.dump({"kinds": kinds, "links": {"intra": link, "inter": link},
                   "nodes": [{"kind": "slow", "devices": 2},
                             {"kind": "fast", "devices": 1},
                             {"kind": "slow", "devices": 1}]}, file)
    plan = four_ranks(tools, f"--cluster={tools.path('c.json')}")
    with agents.agent(tools, plan, *options, steps=60) as run:
        event = lost(run, tools, "h1")
        check(run, event, "/x.plans/hosts-3-ranks-nodes-0-2.plan", "h1")
        run.end()
    with open(event["plan"] + ".cluster.json", encoding="utf-8") as file:
        nodes = json.load(file)["nodes"]
    if [(node["kind"], node["devices"]) for node in nodes] != [("slow", 2), ("slow", 1)]:
        raise Failed(f"made for {nodes}")
    return f"{event['ranks']} ranks"


def rates_body(tools):
    options = on_hosts(tools)
    plan = four_ranks(tools)
    # The second device of the first host, from then on.
    tools.extra["MERAK_SLOW"] = f"1:{SLOW}:10:100000"
    with agents.agent(tools, plan, *options, "--replan=suggest",
                        steps=STEPS) as run:
        run.wait_for(lambda: any("1" in entry.get("slow", {})
                                 and entry["rates"][1] > 0.8 * SLOW
                                 for entry in run.lines()[-3:]))
        event = lost(run, tools, step=run.steps()[-1])
        if event["lost"] != ["h2"] or not 0 < event["ranks"] <= 3:
            raise Failed(f"went on with {event}: {harness.last_lines(run.told())}")
        # Others may be slow besides, on this machine.
        found = re.search(r"/x\.plans/hosts-3-ranks-rates-.*\b1x(\d+\.?\d*).*\.plan$",
                          event["plan"])
        if not found or float(found.group(1)) < 0.6 * SLOW:
            raise Failed(f"went on with {event}: {harness.last_lines(run.told())}")
        run.end()
    agents.as_replayed(tools, run, plan, STEPS)
    return os.path.basename(event["plan"])


def given_body(tools):
    options = on_hosts(tools)
    plan = four_ranks(tools)
    one_rank(tools, "others")
    with agents.agent(tools, plan, *options, f"--plans={tools.path('others')}",
                        steps=60) as run:
        check(run, lost(run, tools), "/others/one.plan", made=False)
        run.end()
    if os.path.exists(tools.path("x.plans")):
        raise Failed("plans were made")
    bring_back(tools, "h2")
    shutil.rmtree(tools.path("others"))
    with agents.agent(tools, plan, *options, f"--plans={tools.path('others')}",
                        steps=60, name="nothing") as run:
        check(run, lost(run, tools), "/x.plans/hosts-3-ranks.plan")
        run.end()


def none_body(tools):
    options = on_hosts(tools)
    plan = four_ranks(tools)
    for name, compiler, sentence in (
            ("off", "off", "--compiler who makes them"),
            ("missing", "/nowhere/merakc", "cannot start \"/nowhere/merakc\""),
            ("failing", "/bin/false", "\"/bin/false\" ended with exit code 1")):
        with agents.agent(tools, plan, *options, f"--compiler={compiler}",
                            name=name) as run:
            run.wait_for_step(10)
            lose(tools, "h2")
            said = run.end(1)
        if "no plan has a place on 3 ranks" not in said or sentence not in said:
            raise Failed(f"{compiler}: {harness.last_lines(said)}")
        bring_back(tools, "h2")
    one_rank(tools)
    with agents.agent(tools, plan, *options, "--compiler=/nowhere/merakc") as run:
        check(run, lost(run, tools), "/x.plans/one.plan", made=False)
        said = run.end()
    if said.count("no plan for 3 ranks could be made: cannot start") != 1:
        raise Failed(f"it says {harness.last_lines(said)}")


def compiler_of(tools):
    """The process that makes a plan."""
    with contextlib.suppress(OSError), open(tools.path("compiler.pid"),
                                            encoding="utf-8") as file:
        return int(file.read() or 0)
    return 0


def signals_body(tools):
    options = on_hosts(tools)
    plan = four_ranks(tools)
    with open(tools.path("merakc"), "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\necho $$ >{tools.path('compiler.pid')}\nexec sleep 300\n")
    os.chmod(tools.path("merakc"), 0o755)
    for name in ("stands", "beside"):
        with agents.agent(tools, plan, *options, f"--compiler={tools.path('merakc')}",
                            name=name, steps=STEPS) as run:
            run.wait_for_step(10)
            lose(tools, "h2")
            compiler = run.wait_for(lambda: compiler_of(tools))
            if name == "beside":
                run.wait_for(run.restarts)
                run.wait_for_step(run.restarts()[0]["step"] + 2)
            begin = time.monotonic()
            run.process.send_signal(signal.SIGTERM)
            code = run.process.wait(timeout=60)
            said = run.told()
            seconds = time.monotonic() - begin
        if code == 0 or os.path.exists(f"/proc/{compiler}"):
            raise Failed(f"ended with {code}, or the compiler did not")
        if name == "stands" and "stopped by SIGTERM while a plan was made" not in said:
            raise Failed(f"it says {harness.last_lines(said)}")
        if not agents.newest_saved(run):
            raise Failed("nothing is saved")
        bring_back(tools, "h2")
        os.remove(tools.path("compiler.pid"))
        one_rank(tools)
    return f"{seconds:.1f} s"


def dropped(run, device, host, ranks=3):
    """How the log tells of the run that is started without the device."""
    run.wait_for(run.restarts)
    event = run.restarts()[0]
    asked = [entry for entry in run.lines() if "replan" in entry
             and entry["replan"]["what"] == "restart"]
    found = event.get("left_out", [])
    if (event["lost"] or event["ranks"] != ranks
            or [(each["device"], each["host"]) for each in found] != [(device, host)]
            or not asked or asked[0]["step"] != event["step"]
            or asked[0]["replan"]["left_out"] != [device]
            or not asked[0]["replan"]["predicted_step_seconds"]
            < asked[0]["replan"]["step_seconds"]
            or not re.search(rf"slow devices: .*\b{device}:", event["why"])):
        raise Failed(f"went on with {event}, asked {asked}: "
                     f"{harness.last_lines(run.told())}")
    return event


def check_back(run, device, host, number):
    """That the device is used again, and stays."""
    run.wait_for(lambda: len(run.restarts()) > number)
    event = run.restarts()[number]
    if (event["why"] != f"device {device} on host {host} is back"
            or event["ranks"] != 4 or "left_out" in event):
        raise Failed(f"went on with {event}: {harness.last_lines(run.told())}")
    run.end()
    if any(each["device"] == device for later in run.restarts()[number:]
           for each in later.get("left_out", [])):
        raise Failed(f"it is left out again: {run.restarts()}")
    return event


def dropped_body(tools):
    options = on_hosts(tools)
    plan = four_ranks(tools)
    tools.extra["MERAK_SLOW"] = f"1:{HOPELESS}:10:{SLOWED}"
    with agents.agent(tools, plan, *options, "--replan=auto", steps=2 * STEPS) as run:
        event = dropped(run, 1, "h0")
        run.wait_for_step(event["step"] + 3)
        idle = run.lines()[-1].get("idle")
        status = tools.run("merak-run", f"--status={run.log}")[0]
        if idle != [1] or "left out: device 1 on host h0, which took" not in status:
            raise Failed(f"idle {idle}, --status says {status}")
        with open(tools.path("h1.pids"), encoding="utf-8") as file:
            os.kill(int(file.read().split()[-1]), signal.SIGKILL)
        run.wait_for(lambda: len(run.restarts()) > 1)
        again = run.restarts()[1]
        if (again["plan"], again.get("left_out")) != (event["plan"], event["left_out"]):
            raise Failed(f"after a rank was killed it went on with {again}")
        back = check_back(run, 1, "h0", 2)
    tools.extra.pop("MERAK_SLOW")
    agents.as_replayed(tools, run, plan, 2 * STEPS)
    times = elastic.medians([entry for entry in run.lines() if "loss" in entry], (
        (2, 9), (10, event["step"]), (event["step"] + 3, SLOWED),
        (back["step"] + 2, 2 * STEPS)))
    return (f"without it after step {event['step']}, with it after {back['step']}; "
            + " ".join(f"{ms:.0f}" for ms in times) + " ms")


def alone_body(tools):
    options = [*on_hosts(tools, "h0:1,h1:1,h2:2"), "--copies=1",
               f"--copies-every={agents.COPIES}"]
    plan = four_ranks(tools)
    tools.extra["MERAK_SLOW"] = f"1:{HOPELESS}:10:{SLOWED}"
    with agents.agent(tools, plan, *options, "--replan=auto", steps=2 * STEPS,
                      save=False) as run:
        event = dropped(run, 1, "h1")
        back = check_back(run, 1, "h1", 1)
    for each in (event, back):
        if each["state"] != "copies":
            raise Failed(f"went on with {each}")
    tools.extra.pop("MERAK_SLOW")
    agents.as_replayed(tools, run, plan, 2 * STEPS)
    return f"without it after step {event['step']}, with it after {back['step']}"


def stays_body(tools):
    options = on_hosts(tools)
    plan = four_ranks(tools, "--microbatch=1", mesh="pp=4")
    os.makedirs(tools.path("others"))
    for name, more in (("out", ["--devices=4", "--for-rates=1:30"]),
                       ("layers", ["--mesh=pp=4", "--microbatch=1",
                                   "--for-rates=1:4"])):
        tools.run("merakc", agents.GPT, "-o", tools.path(f"others/{name}.plan"), *more)
    tools.extra["MERAK_SLOW"] = "1:4:10:100000"
    with agents.agent(tools, plan, *options, "--replan=auto",
                      f"--plans={tools.path('others')}", steps=STEPS) as run:
        run.end()
    tools.extra.pop("MERAK_SLOW")
    if run.restarts() or not any(to.endswith("/layers.plan") for _, to in run.plans()):
        raise Failed(f"went on with {run.plans()}: {harness.last_lines(run.told())}")
    agents.as_replayed(tools, run, plan, STEPS)


def main():
    args = harness.parser(__doc__).parse_args()
    if not shutil.which("mpirun") or not mpi_is_built(args.bin_dir):
        return harness.nothing_to_test("agent-plans", "there is no MPI")
    names = ["made", "beside", "copies", "cluster", "rates", "given", "none", "signals",
             "dropped", "alone", "stays"]
    return harness.run_cases(
        "agent-plans", [Case(name, globals()[name + "_body"]) for name in names], args)


if __name__ == "__main__":
    sys.exit(main())
