#!/usr/bin/env python3
"""Agents that stand by for the one that leads a run (merak-run --standbys, --standby), on
three hosts (network namespaces, needs root) and, where there are none, on one. Sums are of
whole numbers: whatever was decided, a run has the bits of one that nobody disturbed.

killed     the agent that leads is killed: the first that stands by goes on, with copies in
           memory and with checkpoints, the second follows it; ranks are where they were
           planned, though launchers begin with their own host
passed     what another host than that of the launcher lacks of the copies comes to it
cut off    its host is: it ends its run and itself, and the others go on without that host;
           when the cable is back it disturbs nobody
two        it and the first that stands by: the second goes on
standby    a host that stands by is cut off: the run goes on, and it comes back
stopped    a leader that says nothing while its ranks train: nobody takes over
over       those that stand by end with the code of the run
missing    what is not on the host of one that stands by, when it comes
strangers  who does not know the secret neither leads nor stands by
refused    options that do not go together
"""
import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import harness
import mpi
from agents import (HOSTS, agent, as_undisturbed, elastic_plan, folders, host_launcher,
                    left_behind, newest_copy, newest_saved, pace_for, with_memory)
from harness import Case, Failed
from migration import mpi_is_built

PORT = 29777
SECONDS = 3  # of silence of an agent
STEP = 0.15  # seconds; by far not all of it is computed


class Standby:
    def __init__(self, tools, name, at=f"h0:{PORT}", prefix=()):
        self.error = tools.path(name + ".err")
        with open(self.error, "w", encoding="utf-8") as file:
            self.process = subprocess.Popen(
                [*prefix, *tools.start("merak-run", f"--standby={at}")],
                stdout=subprocess.DEVNULL, stderr=file,
                env={**os.environ, **tools.extra})

    def told(self):
        with open(self.error, encoding="utf-8", errors="replace") as file:
            return file.read()

    def end(self, code, seconds=240):
        try:
            if self.process.wait(timeout=seconds) != code:
                raise Failed(f"ended with {self.process.returncode}, expected {code}: "
                             f"{harness.last_lines(self.told(), 6)}")
        except subprocess.TimeoutExpired:
            raise Failed(f"still there: {harness.last_lines(self.told(), 6)}") from None
        return self.told()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def wait_for(what, why, seconds=120):
    """Whoever has ended by then; `why`: what is said besides if it does not happen."""
    until = time.monotonic() + seconds
    while not (found := what()):
        if time.monotonic() > until:
            raise Failed(f"it did not happen: {why()}")
        time.sleep(0.02)
    return found


def command_on(tools, launcher, ranks, hosts, command):
    """As an agent starts it."""
    line = launcher.replace("{ranks}", str(ranks)).replace("{hosts}", hosts)
    return ["sh", "-c", " ".join([line, *map(shlex.quote, tools.start(*command))])]


class Run:
    """A run on three hosts with two agents that stand by."""

    def __init__(self, tools, name, launcher, leader, standbys, launched):
        self.tools, self.name, self.leader = tools, name, leader
        self.launcher = launcher
        self.standbys, self.launched = standbys, launched

    def __getattr__(self, what):
        return getattr(self.leader, what)

    def told(self):
        return "\n".join([self.leader.told(), *(s.told() for s in self.standbys)])

    def wait(self, what, seconds=120):
        return wait_for(what, lambda: harness.last_lines(self.told(), 12), seconds)

    def wait_for_steps(self, count):
        """So many more than there are."""
        step = (self.steps() or [0])[-1] + count
        self.wait(lambda: (self.steps() or [0])[-1] >= step)

    def hosts_of_ranks(self):
        """In the order of ranks, since the last start."""
        return [entry["copies"]["hosts"] for entry in self.lines()
                if "hosts" in entry.get("copies", {})][-1]

    def link(self, host, how):
        subprocess.run([mpi.HOSTS, "link", self.name, host, how], check=True)

    def ended(self, standby):
        """Ends with all steps, under the agent that stands by as this number."""
        said = self.standbys[standby].end(0)
        self.tools.extra.pop("MERAK_PACE")
        as_undisturbed(self.tools, self.leader, *self.launched)
        if left := [name for host in HOSTS
                    for name in folders(self.tools, host)]:
            # A host that was cut off to the end is not reached.
            if "without h0" not in said or any("/h0/" not in path for path in left):
                raise Failed(f"left {left}")
        return said


@contextlib.contextmanager
def run_on_hosts(tools, *options, steps=200, standbys=("h1", "h2"), **more):
    plan, data, elastic = elastic_plan(
        tools, [{"devices": 2, "host": "h0"}, {"devices": 1, "host": "h1"},
                {"devices": 1, "host": "h2"}])
    # Cases run beside each other.
    name = f"s{int(os.path.basename(tools.folder)) % 100}{os.getpid() % 1000}"
    hosts = mpi.HOSTS
    tools.extra.update(
        mpi.ROOT_ALLOWED, MERAK_PACE=pace_for(tools, plan, STEP),
        MERAK_WATCHDOG_SECONDS="60", MERAK_LOOK_SECONDS="1",
        MERAK_SILENCE_SECONDS="6", MERAK_AGENT_SECONDS=str(SECONDS))
    os.makedirs(tools.path("h0"), exist_ok=True)
    tools.extra["MERAK_COPIES"] = tools.path("h0")
    launcher = with_memory(tools, host_launcher(name))
    started = []
    try:
        subprocess.run([hosts, "up", name, "3"], check=True, capture_output=True)
        with agent(tools, plan, *elastic, f"--launcher={launcher}",
                   f"--standbys={PORT}", *options, restarts=0, steps=steps, data=data,
                   prefix=[hosts, "exec", name, "h0"], **more) as leader:
            leader.wait_for(lambda: "agents of other hosts stand by" in leader.told())
            run = Run(tools, name, launcher, leader, started, (plan, data, steps))
            for number, host in enumerate(standbys):
                started.append(Standby(tools, f"s{number}",
                                       prefix=[hosts, "exec", name, host]))
                run.wait(lambda: "stands by for the run" in started[-1].told())
            run.wait_for_steps(5)
            yield run
    finally:
        for standby in started:
            standby.close()
        subprocess.run([hosts, "down", name], check=False, capture_output=True)


def kill(run, launcher=False):
    """The agent that leads; `launcher`: with it, so that ranks do not save."""
    below = run.below("mpirun") if launcher else []
    run.process.send_signal(signal.SIGKILL)
    for pid in below:
        os.kill(pid, signal.SIGKILL)
    run.process.wait()


def stop(run):
    """As somebody does who wants the run to end; its exit code."""
    run.process.send_signal(signal.SIGTERM)
    if (code := run.process.wait(timeout=60)) == 0:
        raise Failed(f"ended as if it were over: {harness.last_lines(run.told())}")
    return code


def take_over(run, before, lost, agent_host, states):
    """The first restart of those that were not there before; a busy machine may lose
    the run once more."""
    event = run.restarts()[before]
    if (event["lost"] != lost or event.get("agent") != agent_host
            or event.get("state", "checkpoint") not in states
            or "has taken over after" not in event["why"]):
        raise Failed(f"went on with {event}: {harness.last_lines(run.told(), 60)}")
    return event


def killed_body(copies, tools):
    options = {"every": 0} if copies else {"every": 10}
    with run_on_hosts(tools, *([] if copies else ["--copies=0"]), **options) as run:
        run.wait(lambda: (newest_copy(tools, HOSTS) if copies else newest_saved(run)) >= 10)
        before = len(run.restarts())
        kill(run, launcher=copies)
        begin = time.monotonic()
        run.wait(lambda: len(run.restarts()) > before)
        seconds = time.monotonic() - begin
        event = take_over(run, before, [], "h1", ["copies"] if copies else ["checkpoint"])
        run.wait(lambda: "stands by for the agent on host h1" in run.standbys[1].told())
        said = tools.run("merak-run", f"--status={run.log}")[0]
        if "by the agent on host h1" not in said:
            raise Failed(said)
        run.ended(0)
        if copies and (on := run.hosts_of_ranks()) != sorted(on):
            raise Failed(f"ranks are on {on}")
        if "led is over: exit code 0" not in run.standbys[1].end(0):
            raise Failed(run.standbys[1].told())
    return f"after step {event['step']}, {seconds:.1f} s"


def parts_of(tools, host):
    folder, = folders(tools, host)
    step = max((name for name in os.listdir(folder) if name.startswith("step-")),
               key=lambda name: int(name[5:]))
    return step, set(os.listdir(os.path.join(folder, step)))


def passed_body(tools):
    with run_on_hosts(tools, every=0, standbys=()) as run:
        run.wait(lambda: newest_copy(tools, HOSTS) >= 10)
        kill(run, launcher=True)
        run.wait(lambda: not left_behind(tools))
        (step, has), (other, lacks) = parts_of(tools, "h1"), parts_of(tools, "h2")
        if step != other or has <= lacks:
            raise Failed(f"h1 has {step} {has}, h2 {other} {lacks}")
        run_id = os.path.basename(folders(tools, "h1")[0]).removeprefix("merak-")
        # h2 is first, h1 starts both.
        subprocess.run(
            [mpi.HOSTS, "exec", run.name, "h1", *command_on(
                tools, run.launcher, 2, "h2:1,h1:1",
                ["merak-run", f"--pass-copies={run_id}:99:1:-1",
                 "--places=0:0:0@h2,1:0:1@h1", "--ranks=env"])],
            check=True, env={**os.environ, **tools.extra})
    if parts_of(tools, "h2") != (step, has | lacks):
        raise Failed(f"h2 has {parts_of(tools, 'h2')}, expected {has | lacks}")
    return f"{len(has - lacks)} of {len(has | lacks) - 1} parts"


def cut_off_body(copies, back, tools):
    options = {"every": 0} if copies else {"every": 10}
    with run_on_hosts(tools, *([] if copies else ["--copies=0"]),
                      steps=600 if back else 150, **options) as run:
        run.wait(lambda: (newest_copy(tools, HOSTS) if copies else newest_saved(run)) >= 10)
        before = len(run.restarts())
        run.link("h0", "down")
        begin = time.monotonic()
        run.wait(lambda: len(run.restarts()) > before)
        seconds = time.monotonic() - begin
        event = take_over(run, before, ["h0"], "h1",
                          ["copies"] if copies else ["checkpoint"])
        if not 0 < event["ranks"] < 4:
            raise Failed(f"went on with {event}")
        if back:
            run.wait_for_steps(5)
            run.link("h0", "up")
        said = run.leader.end(1)
        ended = time.monotonic() - begin
        why = ["may be the one that is cut off, and leaves the run to them",
               *(["the agent on host h1 leads this run by now"] if back else [])]
        if not any(sentence in said for sentence in why):
            raise Failed(harness.last_lines(said, 6))
        if back:
            run.wait_for_steps(20)
        run.ended(0)
        run.standbys[1].end(0)
    return (f"after step {event['step']} on {event['ranks']} ranks, leader ended after "
            f"{ended:.1f} s, next one led after {seconds:.1f} s")


def two_body(tools):
    with run_on_hosts(tools, every=10) as run:
        run.wait(lambda: newest_copy(tools, HOSTS) >= 10)
        before = len(run.restarts())
        run.standbys[0].process.send_signal(signal.SIGSTOP)  # it knows nothing yet
        kill(run)
        run.standbys[0].process.kill()
        begin = time.monotonic()
        run.wait(lambda: len(run.restarts()) > before)
        seconds = time.monotonic() - begin
        event = take_over(run, before, [], "h2", ["copies", "checkpoint"])
        run.ended(1)
    if seconds < 3 * SECONDS:
        raise Failed(f"the second did not wait for the first: {seconds:.1f} s")
    return f"after step {event['step']}, {seconds:.1f} s"


def standby_body(tools):
    """One that is killed is no danger; one that is cut off might lead."""
    with run_on_hosts(tools, steps=5000, save=False) as run:
        run.standbys[0].process.kill()
        run.wait(lambda: "the agent on host h1 is gone" in run.leader.told())
        before = len(run.restarts())
        run.link("h2", "down")
        run.wait(lambda: len(run.restarts()) > before)
        if run.restarts()[-1]["lost"] != ["h2"]:
            raise Failed(f"went on with {run.restarts()[-1]}")
        run.wait(lambda: "2 of 3 hosts grant this agent to go on" in run.leader.told())
        time.sleep(4 * SECONDS)  # it sees that the run gets on, and may not
        run.link("h2", "up")
        run.wait(lambda: any(sentence in run.standbys[1].told() for sentence in (
            "stands by for the agent on host h0", "answers again")))
        run.standbys[1].end(stop(run.leader))
        if "has taken over" in run.told():
            raise Failed(harness.last_lines(run.told(), 12))
    return "2 of 3 hosts"


def stopped_body(tools):
    # A busy machine's slow devices would have the run end for another plan, which it is
    # the agent's to start.
    with run_on_hosts(tools, "--replan=off", steps=400, every=0) as run:
        run.process.send_signal(signal.SIGSTOP)
        run.wait(lambda: "has not answered for" in run.standbys[0].told())
        time.sleep(3 * SECONDS)
        run.wait_for_steps(3)
        run.process.send_signal(signal.SIGCONT)
        run.wait(lambda: any(sentence in run.standbys[0].told() for sentence in (
            "stands by for the agent on host h0", "answers again")))
        run.leader.end(0)
        run.ended(0)
        if "has taken over" in run.told():
            raise Failed(harness.last_lines(run.told(), 12))
    return "nobody took over"


# -------------------------------------------------------------------- one host


@contextlib.contextmanager
def run_here(tools, *options, steps=100, **more):
    """Ranks of mpirun on this machine alone."""
    plan, data, elastic = elastic_plan(tools, [{"devices": 4, "host": "localhost"}])
    os.makedirs(tools.path("h0"), exist_ok=True)
    tools.extra.update(mpi.ROOT_ALLOWED, MERAK_PACE=pace_for(tools, plan, STEP),
                       MERAK_COPIES=tools.path("h0"), MERAK_SILENCE_SECONDS="3",
                       MERAK_AGENT_SECONDS=str(SECONDS))
    launcher = " ".join(["mpirun -np {ranks} --host {hosts}", *mpi.MPIRUN])
    with agent(tools, plan, *elastic, f"--launcher={launcher}", "--hosts=localhost:4",
               "--standbys=0", *options, restarts=0, steps=steps, data=data,
               **more) as leader:
        leader.wait_for(lambda: "--standby=" in leader.told())
        port = leader.told().split("--standby=")[1].split()[0].rsplit(":", 1)[1]
        yield leader, f"127.0.0.1:{port}", (plan, data, steps)


def here_body(tools):
    with run_here(tools, every=0) as (run, at, launched):
        standby = Standby(tools, "s0", at)
        try:
            run.wait_for(lambda: "stands by for the run" in standby.told())
            run.wait_for(lambda: newest_copy(tools) >= 10)
            kill(run)
            said = standby.end(0)
        finally:
            standby.close()
        tools.extra.pop("MERAK_PACE")
        as_undisturbed(tools, run, *launched)
    if "has taken over after" not in said or folders(tools, "h0"):
        raise Failed(f"{harness.last_lines(said)}, left {folders(tools, 'h0')}")
    return f"after step {run.restarts()[-1]['step']}"


def over_body(tools):
    """The run ends because somebody wants it to."""
    with run_here(tools, save=False, steps=2000) as (run, at, _):
        standby = Standby(tools, "s0", at)
        try:
            run.wait_for(lambda: "stands by for the run" in standby.told())
            run.wait_for_step(3)
            code = stop(run)
            said = standby.end(code)
        finally:
            standby.close()
    if f"led is over: exit code {code}" not in said or "taken over" in said:
        raise Failed(said)
    return harness.last_lines(said, 1)


def missing_body(tools):
    with run_here(tools, save=False, steps=2000) as (run, at, launched):
        plan = launched[0]
        run.wait_for_step(2)
        os.rename(plan, plan + ".away")
        said = tools.run("merak-run", f"--standby={at}", expect=2)[1]
        if f"{plan}: no such plan" not in said or said.count("\n") != 1:
            raise Failed(said)
        tools.run("merakc", harness.MODELS + "/gpt2-tiny/model.onnx", "-o", plan,
                  "--mesh=dp=2")
        said = tools.run("merak-run", f"--standby={at}", expect=2)[1]
        if "is another plan here" not in said or said.count("\n") != 1:
            raise Failed(said)
        (shutil.rmtree if os.path.isdir(plan) else os.remove)(plan)
        os.rename(plan + ".away", plan)
        os.rename(tools.path("c.json"), tools.path("away.json"))
        said = tools.run("merak-run", f"--standby={at}", expect=2)[1]
        if "--cluster: cannot read" not in said or said.count("\n") != 1:
            raise Failed(said)
        os.rename(tools.path("away.json"), tools.path("c.json"))
        # It has left each time, and taken nothing.
        if run.process.poll() is not None or "is gone" in run.told():
            raise Failed(run.told())
        stop(run)
    return "3 sentences"


def strangers_body(tools):
    with run_here(tools, save=False, steps=2000) as (run, at, _):
        run.wait_for_step(2)
        other = {**tools.extra, "MERAK_TOKEN": "ab" * 20}
        done = subprocess.run(tools.start("merak-run", f"--standby={at}"),
                              capture_output=True, text=True, check=False,
                              env={**os.environ, **other})
        if done.returncode != 1 or "know different secrets" not in done.stderr:
            raise Failed(done.stderr)
        # Somebody who says that the run is theirs.
        host, port = at.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(b"leads" * 100)
            stranger.settimeout(10)
            with contextlib.suppress(ConnectionError):
                while stranger.recv(4096):
                    pass
        if "stands by" in run.told().replace("of other hosts stand by", ""):
            raise Failed(run.told())
        stop(run)
    # What answers there is no agent.
    with socket.create_server(("127.0.0.1", 0)) as server:
        def speak():
            client, _ = server.accept()
            with client:
                client.sendall(b"x" * 4096)
                time.sleep(1)
        thread = threading.Thread(target=speak)
        thread.start()
        said = tools.run("merak-run",
                         f"--standby=127.0.0.1:{server.getsockname()[1]}", expect=1)[1]
        thread.join()
    if "something else than an agent that leads a run" not in said:
        raise Failed(said)
    return "3 of them"


def refused_body(tools):
    plan, data, elastic = elastic_plan(tools, [{"devices": 4, "host": "localhost"}])
    for options, code, sentence in [
            (["--standby=a"], 2, 'expected HOST:PORT, found "a"'),
            (["--standby=a:0,b:99999"], 2, 'expected HOST:PORT, found "b:99999"'),
            (["--standby=a:1", "--steps=3"], 2, "--steps is not for it"),
            (["--standby=a:1", plan], 2, "plan is not for it"),
            ([plan, "--standbys=70000"], 2,
             "--standbys: expected a whole number from 0 to 65535"),
            ([plan, f"--data={data}", "--standbys=0"], 2, "--standbys is for runs on"),
            ([plan, f"--data={data}", *elastic, "--standbys=0"], 2,
             "--standbys is for runs on"),
            (["--grant=x"], 1, "expected ID:NUMBER:AGENT")]:
        said = tools.run("merak-run", *options, expect=code)[1]
        if sentence.lower() not in said.lower():
            raise Failed(f"{options}: {said}")
    tools.extra["MERAK_TOKEN"] = "x"
    said = tools.run("merak-run", "--standby=a:1", expect=2)[1]
    if "hexadecimal digits" not in said or said.count("\n") != 1:
        raise Failed(said)
    tools.extra.pop("MERAK_TOKEN")
    tools.extra["MERAK_AGENT_SECONDS"] = "1"
    said = tools.run("merak-run", "--standby=a:1", expect=2)[1]
    if "MERAK_AGENT_SECONDS: expected at least 2" not in said:
        raise Failed(said)
    return "10 sentences"


def cases(with_mpi, why_no_hosts):
    if with_mpi and not why_no_hosts:
        for name, body in [
                ("killed copies", lambda tools: killed_body(True, tools)),
                ("killed checkpoints", lambda tools: killed_body(False, tools)),
                ("passed", passed_body),
                ("cut off copies", lambda tools: cut_off_body(True, False, tools)),
                ("cut off checkpoints", lambda tools: cut_off_body(False, False, tools)),
                ("cut off and back", lambda tools: cut_off_body(True, True, tools)),
                ("two killed", two_body), ("standby cut off", standby_body),
                ("stopped", stopped_body)]:
            yield Case(name, body)
    if with_mpi:
        for name, body in [("here", here_body), ("over", over_body),
                           ("missing", missing_body), ("strangers", strangers_body)]:
            yield Case(name, body)
    yield Case("refused", refused_body)


def main():
    args = harness.parser(__doc__).parse_args()
    with_mpi = shutil.which("mpirun") and mpi_is_built(args.bin_dir)
    why = mpi.why_no_hosts() if with_mpi else "there is no MPI"
    if why:
        print(f"skipped what needs hosts: {why}")
    return harness.run_cases("standbys", list(cases(with_mpi, why)), args)


if __name__ == "__main__":
    sys.exit(main())
