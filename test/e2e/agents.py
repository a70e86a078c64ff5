"""Runs with an agent (merak-run --restarts), whatever suite disturbs them: how they are
started, what hosts and memories stand for, and what their end is compared with."""
import contextlib
import json
import os
import subprocess
import time

import checkpoint
import exact_models
import harness
import mpi
import seams
from harness import Failed

GPT = os.path.join(harness.MODELS, "gpt2-tiny/model.onnx")
# Where devices are emulated, which takes long.
SMALL = [os.path.join(harness.MODELS, "mlp-ce/model.onnx"), "--global-batch=8",
         "--optimizer=adamw"]
STEP = 0.03  # seconds of a step
STEPS, EVERY = 60, 7
SILENCE = 8  # seconds until a run that does nothing is killed
COPIES = 5  # steps from one copy to the next
HOSTS = ("h0", "h1", "h2")  # and the folders of their memory
GPUS = "merak-run-emulated"  # merak-run on GPUs that are emulated
NCCL = "libmerak-nccl-stand-in.so"  # what they communicate by


def has_gpus(bin_dir):
    return os.path.exists(os.path.join(bin_dir, NCCL))


def on_gpus(tools, processes):
    """From now on runs of this case compute on emulated GPUs, of which each process
    has one; there are as many multiprocessors as what communicates asks for."""
    tools.program = GPUS
    if processes:
        tools.extra.update(MERAK_NCCL_LIBRARY=os.path.join(tools.bin_dir, NCCL),
                           MERAK_EMULATED_PROCESSORS="1024")


def pace_for(tools, plan, step):
    """How slow devices are so that steps of a plan take so many seconds."""
    number, unit = tools.run("merak-plan", "simulate",
                             plan)[0].split("step ")[1].split()[:2]
    return str(step / (float(number) * {"us": 1e-6, "ms": 1e-3, "s": 1}[unit]))


def gpt_plan(tools, mesh, name, *options, model=(GPT,)):
    """A plan, and how slow devices are so that its steps take STEP."""
    path = tools.path(name)
    tools.run("merakc", *model, "-o", path, f"--mesh={mesh}", *options)
    return path, pace_for(tools, path, STEP)


def whole(tools, plan, steps=STEPS):
    """What a run leaves that nobody disturbs."""
    tools.run("merak-run", plan, "--data=synthetic", f"--steps={steps}",
              f"--save={tools.path('whole')}", f"--log={tools.path('whole.jsonl')}")
    return (checkpoint.state_of(tools.path("whole")),
            checkpoint.untimed(tools.path("whole.jsonl")))


def undisturbed(tools, mesh):
    """A plan on devices so slow that its steps take STEP, and what a run of it leaves
    that nobody disturbs."""
    plan, pace = gpt_plan(tools, mesh, "x.plan")
    wanted = whole(tools, plan)
    tools.extra["MERAK_PACE"] = pace
    return plan, wanted


class Agent:
    """A run with an agent, whose log is read while it trains."""

    def __init__(self, tools, plan, *options, name="run", steps=STEPS, restarts=9,
                 every=EVERY, prefix=(), save=True, data="synthetic", log=None):
        """`every` 0: saved at the end alone; `save` false: not even then. `restarts` 0:
        the option is not given; `log`: where it lies without that."""
        self.saves, saves = save, []
        if save:
            saves = [f"--save={tools.path(name)}"]
        if save and every:
            saves.append(f"--save-every={every}")
        self.output = tools.path(name + ".out")
        self.saved, self.log = tools.path(name), log or tools.path(name + ".jsonl")
        self.error, self.furthest = tools.path(name + ".err"), 0
        command = tools.start(
            "merak-run", plan, f"--data={data}", f"--steps={steps}", "--threads=1",
            *saves, *([] if log else [f"--log={self.log}"]),
            *([f"--restarts={restarts}"] if restarts else []), *options)
        with (open(self.error, "w", encoding="utf-8") as file,
              open(self.output, "w", encoding="utf-8") as output):
            self.process = subprocess.Popen(
                [*prefix, *command], stdout=output, stderr=file,
                env={**os.environ, **tools.extra})

    def told(self):
        with open(self.error, encoding="utf-8", errors="replace") as file:
            return file.read()

    def lines(self, tries=5):
        if not os.path.exists(self.log):
            return []
        try:
            with open(self.log, encoding="utf-8") as file:
                return [json.loads(line) for line in file if line.endswith("\n")]
        except ValueError:
            # A run that goes on cuts it, maybe between two reads of this.
            if tries == 1:
                raise
            return self.lines(tries - 1)

    def steps(self):
        return [entry["step"] for entry in self.lines() if "loss" in entry]

    def restarts(self):
        return [{"step": entry["step"], **entry["restart"]}
                for entry in self.lines() if "restart" in entry]

    def plans(self):
        """Each that it went on with, and after which step, by a restart or without."""
        return [(entry["step"], entry["restart"]["plan"] if "restart" in entry
                 else entry["replan"]["to"]) for entry in self.lines()
                if "restart" in entry
                or entry.get("replan", {}).get("what") == "switch"]

    def wait_for(self, what, seconds=240):
        until = time.monotonic() + seconds
        while not (found := what()):
            if self.process.poll() is not None or time.monotonic() > until:
                raise Failed(f"it did not happen: {harness.last_lines(self.told())}")
            time.sleep(0.01)
        return found

    def wait_for_step(self, step):
        self.wait_for(lambda: (self.steps() or [0])[-1] >= step)

    def end(self, code=0, seconds=240):
        try:
            if self.process.wait(timeout=seconds) != code:
                raise Failed(f"ended with {self.process.returncode}, expected {code}: "
                             f"{harness.last_lines(self.told(), 6)}")
        except subprocess.TimeoutExpired:
            raise Failed(f"still there: {harness.last_lines(self.told())}") from None
        return self.told()

    def below(self, name, pid=None):
        """Processes of this name that it started, and that these did."""
        found = []
        with contextlib.suppress(OSError):
            pid = pid or self.process.pid
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children",
                          encoding="utf-8") as file:
                    for child in file.read().split():
                        with open(f"/proc/{child}/comm", encoding="utf-8") as comm:
                            # Of which the kernel keeps 15 characters.
                            if comm.read().strip() in (
                                    name, GPUS[:15] if name == "merak-run" else name):
                                found.append(int(child))
                        found += self.below(name, child)
        return found

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def agent(*arguments, **options):
    run = Agent(*arguments, **options)
    try:
        yield run
    finally:
        run.close()


def same(run, wanted):
    state, steps = wanted
    entries = [e for e in checkpoint.untimed(run.log) if "loss" in e]
    if entries != steps:
        raise Failed(f"another log: {[e['step'] for e in entries]}")
    if run.saves and checkpoint.state_of(run.saved) != state:
        raise Failed("another state than that of a run that nobody disturbed")


def folders(tools, name):
    """What a run keeps in the memory of a host."""
    base = tools.path(name)
    return ([os.path.join(base, found) for found in os.listdir(base)]
            if os.path.isdir(base) else [])


def newest_copy(tools, hosts=("h0",)):
    """That all of these have. They end a copy one after the other: what one alone has
    may lack parts when it is lost then, and before the first copy there is no other."""
    return min(max([int(step[5:]) for folder in folders(tools, host)
                    for step in os.listdir(folder) if step.startswith("step-")],
                   default=0) for host in hosts)


def left_behind(tools):
    """Processes of a case, on any host."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            if os.fsencode(tools.folder) in file.read() and int(pid) != os.getpid():
                found.append(int(pid))
    return found


def newest_saved(run):
    """That is whole: a folder is there as soon as a save begins."""
    with contextlib.suppress(OSError), open(os.path.join(run.saved, "latest"),
                                            encoding="utf-8") as file:
        return int(file.read().split()[0].removeprefix("step-"))
    return 0


def on_hosts(tools):
    """A launcher whose four ranks are on what stands for three hosts."""
    script = tools.path("host")
    with open(script, "w", encoding="utf-8") as file:
        file.write("export MERAK_COPIES="
                   + tools.path("h$(( (OMPI_COMM_WORLD_RANK + 1) / 2 ))")
                   + '\nmkdir -p "$MERAK_COPIES"\nexec "$@"\n')
    tools.extra.update(mpi.ROOT_ALLOWED, MERAK_SILENCE_SECONDS="3")
    return "--launcher=" + " ".join(["mpirun -np {ranks}", *mpi.MPIRUN, "sh", script])


def with_copies(tools):
    os.makedirs(tools.path("h0"), exist_ok=True)
    tools.extra["MERAK_COPIES"] = tools.path("h0")
    return ["--copies=1", f"--copies-every={COPIES}"]


@contextlib.contextmanager
def tiny(tools, size, name="h0"):
    """A file system in memory of so many bytes."""
    path = tools.path(name)
    os.makedirs(path, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path],
                   check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def host_launcher(name):
    """Of ranks on hosts, whose network is between namespaces."""
    return " ".join(
        ["mpirun -np {ranks} --host {hosts} --mca plm_rsh_agent",
         f"'{mpi.HOSTS} agent {name}'", "--mca btl tcp,self,vader",
         "--mca btl_tcp_if_include veth0 --mca oob_tcp_if_include veth0",
         "-x MERAK_SILENCE_SECONDS -x MERAK_PACE", *mpi.KEEPALIVE, *mpi.MPIRUN])


def with_memory(tools, launcher):
    """Each host has a memory of its own, by its name."""
    script = tools.path("host")
    with open(script, "w", encoding="utf-8") as file:
        file.write(f"export MERAK_COPIES={tools.path('$(hostname)')}\n"
                   'mkdir -p "$MERAK_COPIES"\nexec "$@"\n')
    return " ".join([launcher, "sh", script])


def replayed(tools, run, plan, steps):
    """The same by hand: each plan for its steps, from the checkpoint before. The state
    and the losses."""
    done, load, losses = 0, [], []
    stops = run.plans()
    for number, (until, following) in enumerate([*stops, (steps, None)]):
        if until > done:
            tools.run("merak-run", plan, "--data=synthetic", *load,
                      f"--steps={until - done}", f"--save={tools.path(f'p{number}')}",
                      f"--log={tools.path(f'p{number}.jsonl')}")
            losses += [entry["loss"] for entry in
                       harness.read_log(tools.path(f"p{number}.jsonl"))]
            load, done = [f"--load={tools.path(f'p{number}')}"], until
        plan = following
    return {key: tensor.data.tobytes() for key, tensor in
            harness.read_checkpoint(tools.path(f"p{len(stops)}"))[0].items()}, losses


def as_replayed(tools, run, plan, steps):
    """Fails unless the log has each step once, and the state, or where none is saved the
    losses, are those of the logged plans one after the other."""
    if run.steps() != list(range(1, steps + 1)):
        raise Failed(f"the log has steps {run.steps()}")
    state, losses = replayed(tools, run, plan, steps)
    if run.saves:
        same_bits = state == {key: tensor.data.tobytes() for key, tensor in
                              harness.read_checkpoint(run.saved)[0].items()}
    else:
        same_bits = losses == [entry["loss"] for entry in run.lines() if "loss" in entry]
    if not same_bits:
        raise Failed("other bits than those of the logged plans one after the other")


def elastic_plan(tools, nodes):
    """A plan of four ranks whose sums are exact, the file of its cluster, which has
    these nodes, and options of a run; what that leaves if nobody disturbs it."""
    cluster = tools.path("c.json")
    link = {"bandwidth": 5e9, "latency": 5e-6}
    with open(cluster, "w", encoding="utf-8") as file:
        json.dump({"kinds": {"k": {"backend": "cpu", "flops": 5e10,
                                   "memory_bandwidth": 1e10}},
                   "links": {"intra": link, "inter": link},
                   "nodes": [{"kind": "k", **node} for node in nodes]}, file)
    plan, data = tools.path("x.plan"), seams.write_data(tools, "wide")
    # Weights stay, and the momentum sums whole numbers.
    tools.run("merakc", exact_models.path("wide"), "-o", plan, "--mesh=pp=2,dp=2",
              "--global-batch=8", "--optimizer=sgd:lr=0,momentum=1",
              f"--cluster={cluster}")
    return plan, data, ["--elastic", f"--cluster={cluster}"]


def as_undisturbed(tools, run, plan, data, steps):
    """Whichever plans it went on with."""
    tools.run("merak-run", plan, f"--data={data}", f"--steps={steps}",
              f"--save={tools.path('whole')}", f"--log={tools.path('whole.jsonl')}")
    losses, wanted = ([(entry["step"], entry["loss"])
                       for entry in harness.read_log(path) if "loss" in entry]
                      for path in (run.log, tools.path("whole.jsonl")))
    if losses != wanted:
        raise Failed(f"other losses: {losses[:3]}, expected {wanted[:3]}")
    bits = [{key: tensor.data.tobytes() for key, tensor in
             harness.read_checkpoint(path)[0].items()}
            for path in (run.saved, tools.path("whole"))]
    if bits[0] != bits[1]:
        raise Failed("another state than that of a run that nobody disturbed")
