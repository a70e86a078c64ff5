#!/usr/bin/env python3
"""Runs that are lost and started again by their agent (merak-run --restarts, or
--elastic), on devices slower than this machine (MERAK_PACE), so that there is time for it.

lost       histories by seed: at random steps the run is killed, or stopped so that it
           does nothing more; it ends with the state and the losses of a run that nobody
           disturbed, each step in the log once, and each cause told
processes  the same of one of four ranks that mpirun started
hosts      three hosts (network namespaces, needs root): a cable is pulled, training goes
           on with a plan for those that are there, and with all of them when it is back;
           the bits of runs that are stopped at the logged steps under the logged plans
vain       a run that fails each time ends, and says so
limit      so does one that is lost more often than allowed
status     tells of it, and of copies in memory
first      lost before there is a checkpoint, beside one of another run: from the beginning
memory     the same with copies in memory (--copies): one process, and ranks of mpirun on
           what stands for three hosts, of which one loses its memory; in half of the
           cases without a disk; the steps done again are few; the same on emulated GPUs,
           whose processes have what stands for NCCL beside MPI, and one of them is lost
cut off    three hosts again, with state that each has alone (ZeRO): the one that is cut
           off loses its memory; a plan for the others goes on from copies, with the bits
           of runs by hand that go on from there; the same on emulated GPUs
two lost   with one copy that is one too many: from the checkpoint, and what was missing
newer      a checkpoint that is newer than the copies counts
damaged    copies of which a bit is wrong are not taken
full       a file system without room: before the first step, and later, which is told
           while training goes on
kept       copies go when the run is over, and stay where they are all that is left
signals    to the agent are for the run; without its agent a run saves and ends
elastic    --elastic --cluster=FILE and no other option: in one process, which is killed;
           on the hosts that the file names, of which one is cut off. Sums of whole
           numbers: the bits of a run that nobody disturbed, whatever was decided
refused    what cannot be, in sentences
"""
import contextlib
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import checkpoint
import harness
import mpi
from agents import (COPIES, EVERY, GPT, HOSTS, SILENCE, SMALL, STEP, STEPS, agent,
                    as_replayed, as_undisturbed, elastic_plan, folders, gpt_plan, has_gpus,
                    host_launcher, newest_copy, newest_saved, on_gpus, on_hosts, pace_for,
                    same, tiny, undisturbed, whole, with_copies, with_memory)
from harness import Case, Failed
from migration import mpi_is_built


# ------------------------------------------------------------------ histories


def disturb(run, chance, name="merak-run"):
    """One of the run's processes, at one of its next steps. What was done; nothing if
    the run was over before."""
    run.furthest = max([run.furthest, *run.steps()])
    step = run.furthest + chance.randint(1, 8)
    if step >= STEPS - 2:
        return None
    run.wait_for_step(step)
    time.sleep(chance.uniform(0, STEP))
    found = run.below(name)
    if not found:
        return None
    how = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
    before = run.told().count("goes on after step")
    with contextlib.suppress(ProcessLookupError):
        os.kill(chance.choice(found), how)
    with contextlib.suppress(Failed):
        run.wait_for(lambda: run.told().count("goes on after step") > before, 45)
        return how.name
    return None


def history(run, seed, wanted):
    chance = random.Random(seed)
    done = []
    for _ in range(chance.randint(1, 4)):
        if (what := disturb(run, chance)) is None:
            break
        done.append(what)
    said = run.end()
    same(run, wanted)
    if said.count("goes on after step") < len(done) or not done:
        raise Failed(f"{done} were done: {harness.last_lines(said)}")
    return f"{', '.join(done)}; after steps {[r['step'] for r in run.restarts()]}"


def lost_body(mesh, seed, tools):
    plan, pace = gpt_plan(tools, mesh, "x.plan")
    wanted = whole(tools, plan)
    tools.extra.update(MERAK_PACE=pace, MERAK_WATCHDOG_SECONDS=str(SILENCE))
    with agent(tools, plan) as run:
        return history(run, seed, wanted)


def processes_body(seed, tools):
    plan, pace = gpt_plan(tools, "pp=2,dp=2", "x.plan")
    wanted = whole(tools, plan)
    tools.extra.update(mpi.ROOT_ALLOWED, MERAK_PACE=pace,
                       MERAK_SILENCE_SECONDS="3")
    launcher = " ".join(["mpirun -np {ranks}", *mpi.MPIRUN])
    with agent(tools, plan, f"--launcher={launcher}") as run:
        return history(run, seed, wanted)


def gpus_body(seed, tools):
    """One of the ranks, which have NCCL and MPI; from copies in memory."""
    on_gpus(tools, processes=True)
    plan, pace = gpt_plan(tools, "pp=2,dp=2", "x.plan", "--zero=1", model=SMALL)
    wanted = whole(tools, plan)
    tools.extra["MERAK_PACE"] = pace
    with agent(tools, plan, *with_copies(tools), on_hosts(tools), "--graphs=off",
               every=0) as run:
        said = history(run, seed, wanted)
    if any(again["step"] and again["state"] != "copies" for again in run.restarts()):
        raise Failed(f"went on with {run.restarts()}")
    return said


# --------------------------------------------------------------------- memory


def stopped_agent(run, body):
    """Kills the run, and does something before the agent sees it."""
    run.process.send_signal(signal.SIGSTOP)
    for pid in run.below("merak-run"):
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.5)
    result = body()
    before = run.told().count("goes on after step")
    run.process.send_signal(signal.SIGCONT)
    run.wait_for(lambda: run.told().count("goes on after step") > before)
    return result


def memory_body(mesh, seed, processes, gpus, tools):
    if gpus:
        on_gpus(tools, processes)
    plan, pace = gpt_plan(tools, mesh, "x.plan", *(["--zero=1"] if processes else []),
                          model=SMALL if gpus else [GPT])
    wanted = whole(tools, plan)
    chance = random.Random(seed)
    tools.extra.update(MERAK_PACE=pace, MERAK_WATCHDOG_SECONDS=str(SILENCE))
    options, memories = with_copies(tools), HOSTS if processes else HOSTS[:1]
    if processes:
        options.append(on_hosts(tools))
    if gpus:  # a step that is one graph takes as long as it does
        options.append("--graphs=off")
    with agent(tools, plan, *options, every=0, save=seed % 2 == 0) as run:
        for number in range(chance.randint(1, 3)):
            run.wait_for_step((run.steps() or [0])[-1] + chance.randint(6, 12))
            if (reached := run.steps()[-1]) > STEPS - 8:
                break
            # Soon after, or, on a busy machine, later. Of what it went on from a host
            # may have nothing, whose memory was lost.
            went_on = run.restarts()[-1]["step"] if number else 0
            run.wait_for(lambda: newest_copy(tools, memories)
                         >= max(went_on + 1, reached - 2 * COPIES))
            copied = newest_copy(tools, memories)

            def lose():
                if processes:
                    shutil.rmtree(tools.path(f"h{chance.randint(0, 2)}"))

            stopped_agent(run, lose)
            run.wait_for(lambda: len(run.restarts()) > number)
            again = run.restarts()[number]
            if again["state"] != "copies" or again["step"] < copied:
                raise Failed(f"lost with copies of step {copied}: {again}")
        said = run.end()
    same(run, wanted)
    if not run.restarts() or "from copies in memory" not in said:
        raise Failed(f"it says {harness.last_lines(said)}")
    # A disk has the last state at most.
    if run.saves and os.listdir(run.saved) != ["latest", f"step-{STEPS}", ".lock"] and (
            sorted(os.listdir(run.saved)) != [".lock", "latest", f"step-{STEPS}"]):
        raise Failed(f"saved {os.listdir(run.saved)}")
    if left := [name for host in HOSTS for name in folders(tools, host)]:
        raise Failed(f"left {left}")
    return f"after steps {[r['step'] for r in run.restarts()]}"


def cut_off_body(gpus, tools):
    if gpus:
        on_gpus(tools, processes=True)
    plan, pace = gpt_plan(tools, "pp=2,dp=2", "x.plan", "--zero=1")
    os.makedirs(tools.path("others"))
    for mesh in ("pp=2", "dp=1"):
        gpt_plan(tools, mesh, f"others/{mesh}.plan")
    name = f"{'rg' if gpus else 'rc'}{os.getpid() % 10000}"
    tools.extra.update(mpi.ROOT_ALLOWED, MERAK_PACE=pace, MERAK_SILENCE_SECONDS="6",
                       MERAK_WATCHDOG_SECONDS="60", MERAK_LOOK_SECONDS="600")
    launcher = with_memory(tools, host_launcher(name))
    hosts, steps = mpi.HOSTS, 40 if gpus else 120
    try:
        subprocess.run([hosts, "up", name, "3"], check=True, capture_output=True)
        with agent(tools, plan, *with_copies(tools), f"--launcher={launcher}",
                   "--hosts=h0:2,h1:1,h2:1", f"--plans={tools.path('others')}",
                   steps=steps, every=0,
                   prefix=[hosts, "exec", name, "h0"]) as run:
            run.wait_for(lambda: newest_copy(tools) >= 2 * COPIES)
            before, copied = len(run.restarts()), newest_copy(tools)
            subprocess.run([hosts, "link", name, "h2", "down"], check=True)
            shutil.rmtree(tools.path("h2"), ignore_errors=True)
            run.wait_for(lambda: len(run.restarts()) > before)
            said = run.end()
    finally:
        subprocess.run([hosts, "down", name], check=False, capture_output=True)
    event = run.restarts()[before]
    if (event["lost"] != ["h2"] or not 0 < event["ranks"] < 4
            or event["state"] != "copies" or event["step"] < copied - COPIES):
        raise Failed(f"went on with {event}: {harness.last_lines(said)}")
    as_replayed(tools, run, plan, steps)
    return f"{event['ranks']} ranks after step {event['step']}"


def two_lost_body(tools):
    plan, pace = gpt_plan(tools, "pp=2,dp=2", "x.plan", "--zero=1")
    wanted = whole(tools, plan)
    tools.extra["MERAK_PACE"] = pace
    with agent(tools, plan, *with_copies(tools), on_hosts(tools), every=8) as run:
        run.wait_for(lambda: 0 < newest_saved(run) < newest_copy(tools))

        def lose():
            for host in ("h1", "h2"):
                shutil.rmtree(tools.path(host))

        stopped_agent(run, lose)
        said = run.end()
    same(run, wanted)
    event = run.restarts()[0]
    if event["state"] != "checkpoint" or event["step"] % 8 or not event["step"]:
        raise Failed(f"went on with {event}")
    for sentence in ("are not whole", "on no host", "from the checkpoint", ' of "'):
        if sentence not in said:
            raise Failed(f"no '{sentence}': {harness.last_lines(said)}")
    return f"from the checkpoint of step {event['step']}"


def newer_body(tools):
    plan, wanted = undisturbed(tools, "dp=2")
    with agent(tools, plan, *with_copies(tools)[:1], "--copies-every=10", every=7) as run:
        there = []
        for newer in (True, False):
            run.wait_for(lambda newer=newer: 0 < newest_copy(tools) and
                         (newest_saved(run) > newest_copy(tools)) == newer)
            there.append(stopped_agent(
                run, lambda: (newest_saved(run), newest_copy(tools))))
            run.wait_for(lambda: len(run.restarts()) == len(there))
        run.end()
    same(run, wanted)
    found = [(r["state"], r["step"]) for r in run.restarts()]
    expected = [("checkpoint", disk) if disk > memory else ("copies", memory)
                for disk, memory in there]
    if found != expected or found[0][0] != "checkpoint":
        raise Failed(f"went on from {found}, expected {expected}")
    return str(found)


def damaged_body(tools):
    plan, wanted = undisturbed(tools, "dp=2")
    with agent(tools, plan, *with_copies(tools), every=4) as run:
        run.wait_for(lambda: 0 < newest_saved(run) < newest_copy(tools))

        def damage():
            for step in os.listdir(folders(tools, "h0")[0]):
                folder = os.path.join(folders(tools, "h0")[0], step)
                if not step.startswith("step-"):
                    continue
                part = os.path.join(folder, sorted(os.listdir(folder))[-1])
                with open(part, "r+b") as file:
                    file.seek(os.path.getsize(part) // 2)
                    byte = file.read(1)
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([byte[0] ^ 4]))

        stopped_agent(run, damage)
        said = run.end()
    same(run, wanted)
    if run.restarts()[0]["state"] != "checkpoint" or "undamaged on no host" not in said:
        raise Failed(f"went on with {run.restarts()}: {harness.last_lines(said)}")
    return f"from the checkpoint of step {run.restarts()[0]['step']}"


def full_body(tools):
    plan, pace = gpt_plan(tools, "dp=2", "x.plan")
    wanted = whole(tools, plan)
    options = with_copies(tools)
    with tiny(tools, 1 << 20):
        said = tools.run("merak-run", plan, "--data=synthetic", "--steps=3",
                         "--restarts=2", *options, expect=2)[1]
        if "two copies" not in said or "free: give" not in said:
            raise Failed(f"it says {harness.last_lines(said)}")
    tools.extra["MERAK_PACE"] = pace
    with tiny(tools, 8 << 20) as path:
        with agent(tools, plan, *options, every=0) as run:
            run.wait_for_step(1)
            filler = os.path.join(path, "filler")
            with contextlib.suppress(OSError), open(filler, "wb") as file:
                while True:
                    file.write(bytes(4096))
                    file.flush()
            run.wait_for(lambda: "No space left" in run.told())
            at = run.steps()[-1]
            os.remove(filler)
            run.wait_for(lambda: newest_copy(tools) > at)
            stopped_agent(run, lambda: None)
            said = run.end()
    same(run, wanted)
    if said.count("No space left") != 1 or run.restarts()[0]["step"] <= at:
        raise Failed(f"went on with {run.restarts()}: {harness.last_lines(said)}")
    return f"no room until step {at}; went on after {run.restarts()[0]['step']}"


def kept_body(tools):
    plan, wanted = undisturbed(tools, "dp=2")
    with agent(tools, plan, *with_copies(tools), save=False) as run:
        run.wait_for_step(7)
        run.process.send_signal(signal.SIGTERM)
        said = run.end(1)
    step = newest_copy(tools)
    if "copies of the state stay in" not in said or step < 7:
        raise Failed(f"it says {harness.last_lines(said)}")
    # They are a checkpoint as any other.
    tools.run("merak-run", plan, "--data=synthetic", f"--steps={STEPS - step}",
              f"--load={folders(tools, 'h0')[0]}", f"--save={tools.path('on')}")
    if checkpoint.state_of(tools.path("on")) != wanted[0]:
        raise Failed("another state than that of a run that nobody disturbed")
    return f"stopped after step {step}"


# ---------------------------------------------------------------------- hosts


def hosts_body(tools):
    plan, pace = gpt_plan(tools, "pp=2,dp=2", "x.plan")
    os.makedirs(tools.path("others"))
    for mesh in ("pp=2", "dp=1"):
        gpt_plan(tools, mesh, f"others/{mesh}.plan")
    name = f"rs{os.getpid() % 10000}"
    # A launcher whose ranks are gone may wait for a host that is gone, too.
    tools.extra.update(mpi.ROOT_ALLOWED, MERAK_PACE=pace, MERAK_SILENCE_SECONDS="6",
                       MERAK_WATCHDOG_SECONDS="60", MERAK_LOOK_SECONDS="1")
    hosts, steps = mpi.HOSTS, 400
    try:
        subprocess.run([hosts, "up", name, "3"], check=True, capture_output=True)
        with agent(tools, plan, f"--launcher={host_launcher(name)}",
                   "--hosts=h0:2,h1:1,h2:1", f"--plans={tools.path('others')}",
                   steps=steps, prefix=[hosts, "exec", name, "h0"]) as run:
            run.wait_for_step(10)
            # A busy machine may have lost it already: on all hosts again.
            run.wait_for(lambda: not run.restarts() or run.restarts()[-1]["ranks"] == 4)
            before = len(run.restarts())
            subprocess.run([hosts, "link", name, "h2", "down"], check=True)
            run.wait_for(lambda: len(run.restarts()) > before)
            run.wait_for_step(run.restarts()[before]["step"] + 10)
            subprocess.run([hosts, "link", name, "h2", "up"], check=True)
            run.wait_for(lambda: len(run.restarts()) > before + 1)
            said = run.end()
    finally:
        subprocess.run([hosts, "down", name], check=False, capture_output=True)
    without, again = run.restarts()[before:before + 2]
    if (without["lost"] != ["h2"] or not 0 < without["ranks"] < 4
            or again["lost"] or again["ranks"] != 4 or "h2 is back" not in said):
        raise Failed(f"went on with {run.restarts()}: {harness.last_lines(said)}")
    as_replayed(tools, run, plan, steps)
    return (f"{without['ranks']} ranks after step {without['step']}, 4 after "
            f"{again['step']}")


# -------------------------------------------------------------------- elastic


def elastic_body(tools):
    plan, data, elastic = elastic_plan(tools, [{"devices": 4}])
    pace = pace_for(tools, plan, STEP)
    os.makedirs(tools.path("h0"))
    tools.extra.update(MERAK_PACE=pace, MERAK_COPIES=tools.path("h0"))
    steps = 100
    with agent(tools, plan, *elastic, restarts=0, every=0, steps=steps,
               data=data) as run:
        for number in range(2):
            run.wait_for(lambda: newest_copy(tools) > 10 * number)
            os.kill(run.wait_for(lambda: run.below("merak-run"))[0], signal.SIGKILL)
            run.wait_for(lambda number=number: len(run.restarts()) > number)
        said = run.end()
    for sentence in ("note: --elastic: at most 1000 restarts; --replan=",
                     "; --copies=1; ranks in one process", "(restart 2 of 1000)"):
        if sentence not in said:
            raise Failed(f"no '{sentence}': {harness.last_lines(said, 9)}")
    if any(event["state"] != "copies" for event in run.restarts()):
        raise Failed(f"went on with {run.restarts()}")
    tools.extra.pop("MERAK_PACE")
    as_undisturbed(tools, run, plan, data, steps)
    return f"after steps {[event['step'] for event in run.restarts()]}"


def elastic_hosts_body(tools):
    plan, data, elastic = elastic_plan(
        tools, [{"devices": 2, "host": "h0"}, {"devices": 1, "host": "h1"},
                {"devices": 1, "host": "h2"}])
    name, hosts, steps = f"re{os.getpid() % 10000}", mpi.HOSTS, 100
    os.makedirs(tools.path("h0"))
    # What mpirun has to know of these hosts it reads there, too.
    tools.extra.update(
        mpi.ROOT_ALLOWED, MERAK_PACE=pace_for(tools, plan, STEP),
        MERAK_COPIES=tools.path("h0"), MERAK_WATCHDOG_SECONDS="60",
        MERAK_LOOK_SECONDS="600",
        OMPI_MCA_plm_rsh_agent=f"{hosts} agent {name}", OMPI_MCA_btl="tcp,self,vader",
        OMPI_MCA_btl_tcp_if_include="veth0", OMPI_MCA_oob_tcp_if_include="veth0",
        OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_mpi_yield_when_idle="1")
    try:
        subprocess.run([hosts, "up", name, "3"], check=True, capture_output=True)
        with agent(tools, plan, *elastic, restarts=0, every=0, steps=steps, data=data,
                   log=tools.path("x.run.jsonl"),
                   prefix=[hosts, "exec", name, "h0"]) as run:
            run.wait_for(lambda: newest_copy(tools) >= 10)  # one folder for all
            # A busy machine may have lost it already.
            run.wait_for(lambda: not run.restarts() or run.restarts()[-1]["ranks"] == 4)
            before = len(run.restarts())
            subprocess.run([hosts, "link", name, "h2", "down"], check=True)
            run.wait_for(lambda: len(run.restarts()) > before)
            said = run.end()
    finally:
        subprocess.run([hosts, "down", name], check=False, capture_output=True)
    for sentence in (f'log "{run.log}"', "ranks on h0:2,h1:1,h2:1 by \"mpirun "):
        if sentence not in said:
            raise Failed(f"no '{sentence}': {harness.last_lines(said, 9)}")
    event = run.restarts()[before]
    if (event["lost"] != ["h2"] or event["state"] != "copies"
            or "/x.plans/hosts-3-ranks-nodes-0-1" not in event["plan"]):
        raise Failed(f"went on with {event}: {harness.last_lines(said)}")
    tools.extra.pop("MERAK_PACE")
    as_undisturbed(tools, run, plan, data, steps)
    return f"{event['ranks']} ranks after step {event['step']}"


# ------------------------------------------------------------------ what else


def vain_body(tools):
    plan, _ = gpt_plan(tools, "dp=2", "x.plan")
    tools.extra["MERAK_FAULT"] = "1:3:fail"
    with agent(tools, plan) as run:
        said = run.end(1)
    if "3 times in a row without getting further" not in said:
        raise Failed(f"it says {harness.last_lines(said)}")
    return f"after {said.count('(restart ')} restarts"


def limit_body(tools):
    plan, pace = gpt_plan(tools, "dp=2", "x.plan")
    tools.extra["MERAK_PACE"] = pace
    with agent(tools, plan, restarts=1) as run:
        for step in (EVERY + 2, 3 * EVERY):
            run.wait_for_step(step)
            os.kill(run.wait_for(lambda: run.below("merak-run"))[0], signal.SIGKILL)
        said = run.end(1)
    if "--restarts allows 1" not in said:
        raise Failed(f"it says {harness.last_lines(said)}")
    return "1"


def copies_status_body(tools):
    """What --status says of copies is what is there."""
    plan, pace = gpt_plan(tools, "pp=2,dp=2", "x.plan")
    tools.extra["MERAK_PACE"] = pace
    with agent(tools, plan, *with_copies(tools), on_hosts(tools)) as run:
        run.wait_for_step(COPIES + 1)
        run.wait_for(lambda: any(entry.get("copies", {}).get("step")
                                 for entry in run.lines()))
        os.kill(run.below("merak-run")[0], signal.SIGKILL)
        run.wait_for(run.restarts)
        after = run.restarts()[0]["step"]
        run.wait_for(lambda: newest_copy(tools) >= after + COPIES)
        folder = folders(tools, "h0")[0]
        newest = os.path.join(folder, max(
            (name for name in os.listdir(folder) if name.startswith("step-")),
            key=lambda name: int(name[5:])))
        with contextlib.suppress(OSError):  # another one takes its place meanwhile
            size = sum(os.path.getsize(os.path.join(newest, part))
                       for part in os.listdir(newest) if part.startswith("part-"))
        run.end()
    said = tools.run("merak-run", f"--status={run.log}")[0]
    last = [entry["copies"] for entry in run.lines() if "copies" in entry][-1]
    places = [entry["copies"] for entry in run.lines()
              if "hosts" in entry.get("copies", {})][-1]
    for sentence in (f"copies of step {last['step']} in memory", "started again 1 time",
                     f'in "{folder}" of each host'):
        if sentence not in said:
            raise Failed(f"no '{sentence}': {said}")
    if (last["step"] % COPIES or not STEPS - 3 * COPIES <= last["step"] < STEPS
            or len(places["bytes"]) != 3 or places["bytes"][0] != size):
        raise Failed(f"{last}, {places}, {size} bytes: {said}")
    return f"copies of step {last['step']}, {last['skipped']} left out"


def status_body(tools):
    plan, pace = gpt_plan(tools, "dp=2", "x.plan")
    tools.extra["MERAK_PACE"] = pace
    with agent(tools, plan, "--rates=1", "--shuffle", "--save-wait") as run:
        run.wait_for_step(EVERY + 2)
        os.kill(run.below("merak-run")[0], signal.SIGKILL)
        run.end()
    said = tools.run("merak-run", f"--status={run.log}")[0]
    if not said.startswith(f"step {STEPS}, ") or "started again 1 time, last" not in said:
        raise Failed(said)
    # A restart is no step.
    with open(run.log, "a", encoding="utf-8") as file:
        file.write(json.dumps({"step": STEPS, "restart": {"restarts": 2}}) + "\n")
    said = tools.run("merak-run", f"--status={run.log}")[0]
    if ", 0.00 ms" in said or "started again 2 times" not in said:
        raise Failed(said)
    return said.splitlines()[-1]


def first_body(tools):
    """What lies in the folder is of another run, and no place to go on from."""
    plan, pace = gpt_plan(tools, "dp=2", "x.plan")
    wanted = whole(tools, plan)
    tools.run("merak-run", plan, "--data=synthetic", "--steps=5", "--seed=9",
              f"--save={tools.path('run')}")
    tools.extra["MERAK_PACE"] = pace
    with agent(tools, plan, every=STEPS) as run:
        run.wait_for_step(3)
        os.kill(run.below("merak-run")[0], signal.SIGKILL)
        said = run.end()
    same(run, wanted)
    if "goes on after step 0" not in said:
        raise Failed(f"it says {harness.last_lines(said)}")
    return "from step 0"


def signals_body(tools):
    plan, pace = gpt_plan(tools, "dp=2", "x.plan")
    tools.extra["MERAK_PACE"] = pace
    with agent(tools, plan, name="usr1", every=STEPS) as run:
        run.wait_for_step(3)
        run.process.send_signal(signal.SIGUSR1)
        run.wait_for(lambda: os.path.exists(os.path.join(run.saved, "latest")))
        run.process.send_signal(signal.SIGTERM)
        if "stopped by SIGTERM" not in (said := run.end(1)):
            raise Failed(f"it says {harness.last_lines(said)}")
    with agent(tools, plan, name="gone", every=STEPS) as run:
        run.wait_for_step(3)
        child = run.below("merak-run")[0]
        run.process.kill()
        run.process.wait()
        until = time.monotonic() + 30
        while os.path.exists(f"/proc/{child}/exe") and time.monotonic() < until:
            time.sleep(0.02)
        if os.path.exists(f"/proc/{child}/exe"):
            raise Failed("the run outlives its agent")
    step = checkpoint.state_of(run.saved)[0]
    return f"saved after step {step}"


def refused_body(tools):
    plan, _ = gpt_plan(tools, "dp=2", "x.plan")
    save = f"--save={tools.path('saved')}"
    for options, sentence in [
            (["--restarts=2"], "give --save"),
            ([save, "--launcher=mpirun"], "are for --restarts"),
            (["--restarts=2", save, "--hosts=a:2"], "--hosts is for --launcher"),
            (["--restarts=2", save, "--launcher=x {hosts}"], "give --hosts"),
            (["--restarts=2", save, "--launcher=x", "--hosts=a:2"],
             "{hosts} in --launcher"),
            (["--restarts=2", save, "--ranks=env"], "give --launcher, not --ranks"),
            (["--restarts=2", save, "--trace=t.json"], "--trace is of one run"),
            ([save, "--plans=x"], "for --replan and --hosts"),
            ([save, "--copies=1"], "--copies is for --restarts"),
            ([save, "--restarts=2", "--copies-every=3"], "--copies-every is for"),
            (["--restarts=2", "--copies=0"], "give --save"),
            ([save, "--restarts=2", "--copies=65"],
             "--copies: expected a whole number from 0 to 64"),
            (["--cluster=c.json"], "--cluster is for --elastic"),
            (["--elastic", "--ranks=env"], "--elastic starts ranks itself"),
            (["--elastic", "--restarts=0"], "--restarts=0 does not"),
            (["--elastic", "--copies=0"], "or from checkpoints: give --save"),
            (["--elastic", "--trace=t.json"], "--trace is of one run, --elastic"),
            (["--elastic", "--launcher=x {hosts}"], "give --hosts"),
            (["--elastic", "--cluster=nowhere.json"],
             "cannot read the cluster file 'nowhere.json'"),
            ([save, "--restarts=2", "--copies=-1"], "--copies: expected a whole"),
            ([save, "--restarts=2", "--copies=x"], "--copies"),
            ([save, "--restarts=2", "--copies=1", "--copies-every=0"],
             "--copies-every: expected a whole number from 1"),
            (["--restarts=2", "--copies=1", "--launcher=x"], "needs --log"),
            ([save, "--copies=1", "--copies-of=1:2"], "expected ID:START:LAST")]:
        said = tools.run("merak-run", plan, "--data=synthetic", *options, expect=2)[1]
        if sentence.lower() not in said.lower() or (
                "copies" not in sentence and said.count("\n") != 1):
            raise Failed(f"{options}: {said}")
    tools.extra["MERAK_COPIES"] = tools.path("nowhere")
    said = tools.run("merak-run", plan, "--data=synthetic", "--restarts=2", save,
                     "--copies=1", expect=2)[1]
    if "nowhere\" is no folder (MERAK_COPIES names another)" not in said:
        raise Failed(said)
    said = tools.run("merak-run", plan, "--data=synthetic", "--restarts=2", save,
                     "--launcher=x {hosts}", "--hosts=a:0,b:two,a,:3", expect=2)[1]
    for sentence in ('behind "a:", found "0"', 'behind "b:", found "two"',
                     '"a" is there twice', 'found ":3"'):
        if sentence not in said:
            raise Failed(said)
    said = tools.run("merak-run", plan, "--data=synthetic", "--restarts=2", save,
                     "--launcher=false {hosts}", "--hosts=a:1", expect=1)[1]
    if "no plan has a place on 1 rank" not in said:
        raise Failed(said)
    said = tools.run("merak-run", plan, "--data=synthetic", "--restarts=2", save,
                     "--launcher=false {hosts}", "--hosts=a:2", expect=1)[1]
    if "starts a process on none of a" not in said:
        raise Failed(said)
    elastic = ["--data=synthetic", "--elastic"]
    tools.extra["PATH"] = "/nowhere"
    said = tools.run("merak-run", plan, *elastic, "--hosts=a:1,b:1", expect=2)[1]
    if "by mpirun, which is not there" not in said or said.count("\n") != 1:
        raise Failed(said)
    return "30 sentences"


def cases(everything, with_mpi, with_gpus, why_no_hosts):
    for seed in range(60 if everything else 3):
        mesh = ["pp=2,dp=2", "dp=2", "pp=2,tp=2"][seed % 3]
        yield Case(f"lost {mesh} {seed}", functools.partial(lost_body, mesh, seed))
    for seed in range(40 if everything else 2) if with_mpi else ():
        yield Case(f"processes {seed}", functools.partial(processes_body, seed))
    if with_mpi and not why_no_hosts:
        yield Case("hosts", hosts_body)
    for seed in range(20 if everything else 2):
        yield Case(f"memory {seed}", functools.partial(
            memory_body, ["dp=2", "pp=2,dp=2"][seed % 2], seed, False, False))
    for seed in range(20 if everything else 2) if with_mpi else ():
        yield Case(f"memory of hosts {seed}", functools.partial(
            memory_body, "pp=2,dp=2", seed, True, False))
    for seed in range(10 if everything else 1) if with_gpus else ():
        yield Case(f"memory of gpus {seed}", functools.partial(
            memory_body, "dp=2", seed, False, True))
        if with_mpi:
            yield Case(f"processes of gpus {seed}", functools.partial(gpus_body, seed))
            yield Case(f"memory of gpus on hosts {seed}", functools.partial(
                memory_body, "pp=2,dp=2", seed, True, True))
    if with_mpi:
        yield Case("two lost", two_lost_body)
    if with_mpi and not why_no_hosts:
        yield Case("cut off", functools.partial(cut_off_body, False))
        if with_gpus:
            yield Case("cut off gpus", functools.partial(cut_off_body, True))
    if os.geteuid() == 0:
        yield Case("full", full_body)
    for name, body in [("newer", newer_body), ("damaged", damaged_body),
                       ("kept", kept_body), ("vain", vain_body), ("limit", limit_body),
                       ("status", status_body),
                       *([("status copies", copies_status_body)] if with_mpi else []),
                       ("first", first_body), ("signals", signals_body),
                       ("elastic", elastic_body),
                       *([("elastic hosts", elastic_hosts_body)]
                         if with_mpi and not why_no_hosts else []),
                       ("refused", refused_body)]:
        yield Case(name, body)


def main():
    args = harness.parser(__doc__).parse_args()
    with_mpi = shutil.which("mpirun") and mpi_is_built(args.bin_dir)
    why = mpi.why_no_hosts() if with_mpi else "there is no MPI"
    if why:
        print(f"skipped what needs hosts: {why}")
    return harness.run_cases("restarts", list(cases(
        args.all, with_mpi, has_gpus(args.bin_dir), why)), args)


if __name__ == "__main__":
    sys.exit(main())
