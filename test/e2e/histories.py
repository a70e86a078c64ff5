#!/usr/bin/env python3
"""Runs with an agent (merak-run --restarts) to which a seed does what may happen to one, at
random steps and twice at once: in one process, in ranks of mpirun, on three hosts (network
namespaces); with checkpoints, copies in memory or both; with --replan=auto and without.

kill, stop  a rank, or the process of all of them
slow        a device, for some steps
cut, back   a host's cable; with it again
full        no room where checkpoints are saved

Whatever happened, the run ends with all its steps; each cause is named within NAMED
seconds; few steps are done again; a model whose sums are exact has the state and losses
of a run that nobody disturbed, others those of runs under the logged plans, one after the
other; and nothing is left behind.
"""
import contextlib
import functools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import agents
import exact_models
import harness
import mpi
import seams
from harness import Case, Failed
from migration import mpi_is_built

STEP = 0.05
NAMED = 10
LOST = r"rank \d+ on host \S+ (is gone|has not answered)|the run was lost"
SILENCE = {"one": 7, "processes": 3, "hosts": 5}  # seconds
# They have every kind of event and of run.
FEW = [12, 37, 62, 79, 98]


class History:
    """What happens to a run, as its seed says."""

    def __init__(self, seed):
        chance = self.chance = random.Random(seed)
        self.where = chance.choice(["one", "processes", "hosts"])
        self.keeps = chance.choice(["save", "copies", "both"])
        self.model = chance.choice(["gpt", "residual", "wide"])
        self.replans = self.where != "hosts" and chance.random() < 0.4
        kinds = ["kill", "stop"]
        if self.keeps != "copies":
            kinds.append("full")
        if self.where == "hosts":
            kinds += ["cut", "cut"]
        self.groups = []  # steps until then, and what happens at once
        for _ in range(chance.randint(1, 3)):
            at_once = 2 if chance.random() < 0.3 else 1
            group = {chance.choice(kinds) for _ in range(at_once)}
            back = "cut" in group and chance.random() < 0.6
            # One copy besides is one too few when two hosts are lost.
            if back or ("cut" in group and self.keeps == "copies"):
                kinds = [kind for kind in kinds if kind != "cut"]
            if back:
                self.groups.append((chance.randint(3, 20), sorted(group)))
                group = {"back"}
            self.groups.append((chance.randint(3, 20), sorted(group)))
        # Until a host answers again: who asked it before gives up after 20 s.
        self.steps = 700 if "back" in self.kinds_of_events() else 150
        self.slow = ""
        if self.replans or chance.random() < 0.3:
            begin = chance.randint(10, 40)
            self.slow = (f"{chance.randint(0, 3)}:{6 if self.replans else 3}:{begin}:"
                         f"{begin + chance.randint(15, 50)}")

    def kinds_of_events(self):
        return {kind for _, group in self.groups for kind in group}

    def kinds(self):
        """Of events and of runs."""
        found = {self.where, self.keeps, self.model} | self.kinds_of_events()
        if any(len(group) > 1 for _, group in self.groups):
            found.add("two")
        return found | ({"slow"} if self.slow else set()) | (
            {"replan"} if self.replans else set())

    def name(self):
        events = " ".join("+".join(group) for _, group in self.groups)
        return " ".join([self.where, self.keeps, self.model,
                         *(["replan"] if self.replans else []),
                         *(["slow"] if self.slow else []), events])


# --------------------------------------------------------------------- running


def compiled(tools, history):
    """The plan, and its data; devices are so slow that its steps take STEP."""
    path = tools.path("x.plan")
    options, data = ["--mesh=pp=2,dp=2"], "synthetic"
    if history.model == "gpt":
        model = agents.GPT
        if history.keeps != "save" and not history.replans:
            options.append("--zero=1")
    else:
        model = exact_models.path(history.model)
        data = seams.write_data(tools, history.model)
        # Weights stay, and the momentum sums whole numbers.
        options += ["--global-batch=8", "--optimizer=sgd:lr=0,momentum=1"]
    tools.run("merakc", model, "-o", path, *options)
    return path, data, agents.pace_for(tools, path, STEP)


def options_of(tools, history, name):
    tools.extra.update(mpi.ROOT_ALLOWED, MERAK_LOOK_SECONDS="1",
                       MERAK_SILENCE_SECONDS=str(SILENCE[history.where]),
                       MERAK_WATCHDOG_SECONDS=str(SILENCE["one"] if history.where == "one"
                                                  else 60))
    if history.slow:
        tools.extra["MERAK_SLOW"] = history.slow
    options = []
    if history.keeps != "save":
        options += agents.with_copies(tools)
    if history.replans:
        options.append("--replan=auto")
    if history.where == "processes":
        options.append(agents.on_hosts(tools))
    if history.where == "hosts":
        launcher = agents.host_launcher(name)
        if history.slow:
            launcher += " -x MERAK_SLOW"
        options += [f"--launcher={agents.with_memory(tools, launcher)}",
                    "--hosts=h0:2,h1:1,h2:1"]
    return options


class Disturbance:
    """Does it, and sees to what follows."""

    def __init__(self, tools, history, run, name):
        self.tools, self.history, self.run, self.name = tools, history, run, name
        self.chance, self.cut, self.filler = history.chance, [], None
        self.slowest = 0  # seconds until a cause was named

    def signal(self, number):
        found = self.run.wait_for(lambda: self.run.below("merak-run"))
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.chance.choice(found), number)

    def kill(self):
        self.signal(signal.SIGKILL)

    def stop(self):
        self.signal(signal.SIGSTOP)

    def link(self, host, state):
        subprocess.run([mpi.HOSTS, "link", self.name, host, state], check=True)

    def cut_one(self):
        host = self.chance.choice([h for h in ("h1", "h2") if h not in self.cut])
        self.cut.append(host)
        self.link(host, "down")

    def fill(self):
        """As long as a save may find room: older checkpoints go."""
        path = os.path.join(self.run.saved, "filler")
        with contextlib.suppress(OSError), open(path, "ab") as file:
            while True:
                file.write(bytes(4096))
                file.flush()

    def happen(self, steps, group):
        """False: the run was over before."""
        run = self.run
        run.furthest = max([run.furthest, *run.steps()])
        step = run.furthest + steps
        if step > self.history.steps - 15:
            return False
        run.wait_for_step(step)
        time.sleep(self.chance.uniform(0, STEP))
        begin, before = time.monotonic(), len(run.told())
        copied, losses_before = agents.newest_copy(self.tools), len(run.restarts())
        for kind in group:
            if kind == "back":
                for host in self.cut:
                    self.link(host, "up")
                self.cut.clear()
            elif kind == "full":
                self.fill()
            elif kind == "cut":
                self.cut_one()
            else:
                getattr(self, kind)()
        self.wait(group, begin, before)
        # Another host may not have had the newest yet, but the one before.
        for event in run.restarts()[losses_before:][:1]:
            if event["step"] < copied - agents.COPIES:
                raise Failed(f"with copies of step {copied} it went on with {event}")
        return True

    def wait(self, group, begin, before):
        run = self.run
        wanted = {"back": "back;", "full": "o space left|annot write"}
        seconds = {"back": 60, "full": 30}
        for kind in sorted(group, key=lambda kind: kind in seconds):
            what = re.compile(wanted.get(kind, LOST))

            def named(kind=kind, what=what):
                if kind == "full":
                    self.fill()
                return what.search(run.told()[before:])

            try:
                run.wait_for(named, seconds.get(kind, 30))
            except Failed:
                if run.process.poll() is None and kind != "back":
                    raise
            # The next save, and whether a host answers, is looked for now and then.
            if kind not in ("back", "full"):
                self.slowest = max(self.slowest, time.monotonic() - begin)
        if "full" in group:
            os.remove(os.path.join(run.saved, "filler"))
        with contextlib.suppress(Failed):
            run.wait_for(lambda: "(restart " in run.told()[before:], 90)


# -------------------------------------------------------------------- checking


def done_again(run):
    """Steps that were done again after each loss, as the run printed them."""
    with open(run.output, encoding="utf-8", errors="replace") as file:
        steps = [int(found.group(1)) for found in
                 re.finditer(r"^step +(\d+)/", file.read(), re.M)]
    return [last + 1 - step for last, step in zip(steps, steps[1:]) if step <= last]


def check_again(run, history):
    # And those of a checkpoint that was under way, or had no room. Copies may be left
    # out, and are looked at by themselves.
    most = agents.EVERY * (4 if "full" in history.kinds() else 2)
    if history.keeps == "save" and any(steps > most for steps in done_again(run)):
        raise Failed(f"{done_again(run)} steps were done again, {most} at most expected")
    return sum(done_again(run))


def plans_of(run, plan):
    """From which step on which plan: [(0, plan), ...]."""
    plans = [(0, plan)]
    for entry in run.lines():
        to = entry.get("restart", {}).get("plan")
        if entry.get("replan", {}).get("what") == "switch":
            to = entry["replan"]["to"]
        if to and to != plans[-1][1]:
            plans.append((entry["step"], to))
    return plans


def by_hand(tools, plans, steps, data):
    """State and losses of the plans one after the other."""
    load, log = [], tools.path("hand.jsonl")
    ends = [step for step, _ in plans[1:]] + [steps]
    done = 0
    for number, ((_, plan), end) in enumerate(zip(plans, ends)):
        if end == done:
            continue
        saved = tools.path(f"hand{number}")
        tools.run("merak-run", plan, f"--data={data}", f"--steps={end - done}", *load,
                  f"--save={saved}", f"--log={log}")
        load, done = [f"--load={saved}"], end
    return bits(saved), losses(log)


def bits(saved):
    return {key: tensor.data.tobytes()
            for key, tensor in harness.read_checkpoint(saved)[0].items()}


def losses(log):
    return [(entry["step"], entry["loss"]) for entry in harness.read_log(log)
            if "loss" in entry]


def check(tools, history, run, plan, data):
    if run.steps() != list(range(1, history.steps + 1)):
        raise Failed(f"the log has steps {run.steps()}")
    plans = plans_of(run, plan)
    wanted = by_hand(tools, plans if history.model == "gpt" else plans[:1],
                     history.steps, data)
    if losses(run.log) != wanted[1]:
        raise Failed(f"other losses, under {plans}")
    if run.saves and bits(run.saved) != wanted[0]:
        raise Failed(f"another state, under {plans}")
    until = time.monotonic() + 15
    while (left := agents.left_behind(tools)) and time.monotonic() < until:
        time.sleep(0.1)
    if left:
        raise Failed(f"processes {left} are left")
    return plans


def history_body(history, tools):
    plan, data, pace = compiled(tools, history)
    name = f"rh{os.getpid() % 1000}{history.chance.randint(0, 9)}"
    with contextlib.ExitStack() as stack:
        prefix = []
        if history.where == "hosts":
            name = free_hosts(stack)
            prefix = [mpi.HOSTS, "exec", name, "h0"]
        if "full" in history.kinds():
            stack.enter_context(agents.tiny(tools, 32 << 20, "run"))
        options = options_of(tools, history, name)
        tools.extra["MERAK_PACE"] = pace
        saves = history.keeps != "copies"
        run = stack.enter_context(agents.agent(
            tools, plan, *options, steps=history.steps, restarts=30, prefix=prefix,
            data=data, every=agents.EVERY if saves else 0))
        disturbance = Disturbance(tools, history, run, name)
        done = [group for steps, group in history.groups
                if disturbance.happen(steps, group)]
        run.end()
        again = check_again(run, history)
        for extra in ("MERAK_PACE", "MERAK_SLOW"):
            tools.extra.pop(extra, None)
        plans = check(tools, history, run, plan, data)
    if disturbance.slowest > NAMED:
        raise Failed(f"a cause was named after {disturbance.slowest:.1f} s")
    return (f"{sum(map(len, done))} events, {len(run.restarts())} restarts, "
            f"{len(plans)} plans, {again} steps again, named in "
            f"{disturbance.slowest:.1f} s")


def free_hosts(stack):
    """Three hosts under a name that no other case has."""
    for number in range(100):
        name = f"h{os.getpid() % 1000}{number}"
        done = subprocess.run([mpi.HOSTS, "up", name, "3"], check=False,
                              capture_output=True)
        if done.returncode == 0:
            stack.callback(subprocess.run, [mpi.HOSTS, "down", name], check=False,
                           capture_output=True)
            return name
    raise Failed(harness.last_lines(done.stderr.decode(errors="replace")))


def cases(everything, with_mpi, why_no_hosts):
    for seed in range(100) if everything else FEW:
        history = History(seed)
        kinds = history.kinds()
        if (("hosts" in kinds and why_no_hosts) or ("processes" in kinds and not with_mpi)
                or ("full" in kinds and os.geteuid() != 0)):
            print(f"skipped {seed}: {history.name()}")
            continue
        yield Case(f"{seed} {history.name()}", functools.partial(history_body, history))


def main():
    args = harness.parser(__doc__).parse_args()
    with_mpi = shutil.which("mpirun") and mpi_is_built(args.bin_dir)
    why = mpi.why_no_hosts() if with_mpi else "there is no MPI"
    if why:
        print(f"what needs hosts is skipped: {why}")
    return harness.run_cases("histories", list(cases(args.all, with_mpi, why)), args)


if __name__ == "__main__":
    sys.exit(main())
