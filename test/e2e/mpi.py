#!/usr/bin/env python3
"""Ranks as processes: what mpirun starts gives the bits of ranks in one
process, ends together when one is lost, and works across hosts.

equal    models on 2, 4 and 8 processes: losses, gradients, weights, and the
         files that hold them, byte for byte
boxes    the same with values that go between unlike meshes in several messages
resume   checkpoints go from one kind of ranks to the other; inference,
         timelines and single collectives too
killed   runs whose ranks are killed while they train and save go on, and end
         with the bits of a run that nobody killed
folders  processes with folders of their own save, are gathered, and go on
loss     a killed, silent or failing rank ends all others, and is named
links    merak-bench measures them between processes
sockets  that hold less than a message: what is left of it goes out later
hosts    two network namespaces as two hosts (needs root); their links
"""
import contextlib
import filecmp
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import checkpoint
import delayed_gradients
import exact_models
import harness
import matrix
import oracle
import sparse_models
from harness import Case, Failed

HOSTS = os.path.join(harness.ROOT, "test/mpi/hosts")
SAMPLE = os.path.join(harness.ROOT, "samples/01-train-gpt/model.onnx")
# More processes than cores: waiting must not keep others from computing.
MPIRUN = ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
ROOT_ALLOWED = {"OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
MESHES = ["pp=2", "dp=2", "tp=2", "pp=2,tp=2", "dp=2,tp=2", "pp=2,dp=2,tp=2"]
LIMIT = 10  # seconds until all others have ended


def count(mesh):
    sizes = matrix.degrees(mesh)
    return sizes["pp"] * sizes["dp"] * sizes["tp"]


def compile_plan(tools, model, mesh, name, *more):
    path = tools.path(name)
    options = matrix.compile_options(mesh, "half", "1f1b")
    if model in oracle.FREEZE:
        options.append(f"--freeze={oracle.FREEZE[model]}")
    tools.run("merakc", os.path.join(harness.MODELS, model, "model.onnx"), "-o",
              path, *options, *(more or [oracle.optimizer_option(model,
                                                                 "adamw")]))
    return path


def data_of(model):
    return "--data=" + os.path.join(harness.MODELS, model, "data")


def mpi(tools, ranks, *arguments, expect=0):
    tools.extra.update(ROOT_ALLOWED)
    return tools.run(shutil.which("mpirun"), "-np", ranks, *MPIRUN,
                     os.path.join(tools.bin_dir, tools.program), *arguments,
                     "--ranks=env", expect=expect)


def manifest(path):
    """Of a generation, without the name of the run."""
    with open(path, encoding="utf-8") as file:
        found = json.load(file)
    return {k: v for k, v in found.items() if k not in ("run", "checksum")}


def same_files(a, b):
    """Fails unless two files, or folders of files, are equal byte for byte,
    but for what names a run."""
    if not os.path.isdir(a):
        if not (manifest(a) == manifest(b) if a.endswith("/index.json") else
                filecmp.cmp(a, b, shallow=False)):
            raise Failed(f"{a} and {b} differ")
        return
    names, others = ([n for n in sorted(os.listdir(x)) if n != ".lock"]
                     for x in (a, b))
    if names != others:
        raise Failed(f"{a} has {names}, {b} has {others}")
    for name in names:
        same_files(os.path.join(a, name), os.path.join(b, name))


def losses(path):
    return [(entry["step"], entry["loss"], entry.get("grad_norm"))
            for entry in harness.read_log(path)]


def train_both(tools, plan, data, ranks, *options, steps=3, elsewhere=None):
    """Trains in one process and, perhaps with another plan, in several;
    everything must be equal."""
    for tag, run, plan in (("in", tools.run, plan),
                           ("mpi", functools.partial(mpi, tools),
                            elsewhere or plan)):
        first = "merak-run" if tag == "in" else ranks
        run(first, plan, data, "--steps=1",
            f"--save-grads={tools.path(tag + '.grads')}")
        run(first, plan, data, f"--steps={steps}",
            f"--log={tools.path(tag + '.log')}",
            f"--save={tools.path(tag + '.saved')}", *options)
    if losses(tools.path("in.log")) != losses(tools.path("mpi.log")):
        raise Failed(f"losses {losses(tools.path('mpi.log'))}, in one process "
                     f"{losses(tools.path('in.log'))}")
    for what in ("grads", "saved"):
        same_files(tools.path("in." + what), tools.path("mpi." + what))
    return "identical"


def model_body(model, mesh, tools):
    plan = compile_plan(tools, model, mesh, "x.plan")
    return train_both(tools, plan, data_of(model), count(mesh))


def buckets_body(mesh, bucket, tools):
    """Gradients in buckets over MPI, one by one in one process."""
    adamw = oracle.optimizer_option("gpt2-tiny", "adamw")
    each, buckets = (
        compile_plan(tools, "gpt2-tiny", mesh, f"{size}.plan", adamw,
                     f"--grad-bucket={size}") for size in ("0", bucket))
    return train_both(tools, each, data_of("gpt2-tiny"), count(mesh),
                      elsewhere=buckets)


def exact_body(name, mesh, tools):
    graph = next(m for m in exact_models.MODELS if m.__name__ == name)()
    data = tools.path("data")
    os.makedirs(data, exist_ok=True)
    for key, (descr, shape, values) in graph.data.items():
        harness.write_npy(os.path.join(data, key + ".npy"), descr, shape, values)
    plan = tools.path("x.plan")
    tools.run("merakc", exact_models.path(name), "-o", plan,
              *matrix.compile_options(
                  mesh, "one",
                  "zb" if exact_models.runs(name, "one", "zb") else "gpipe"),
              "--optimizer=sgd:lr=0.5")
    # Their losses grow without bounds, exactly.
    return train_both(tools, plan, f"--data={data}", count(mesh),
                      "--on-nonfinite=ignore")


def replayed_body(mesh, options, tools):
    """Rows of a table take the steps they were left out of; a checkpoint has all.
    With --touched messages end where their rows do."""
    model, data = sparse_models.write(tools, sparse_models.long_linear(
        40, sparse_models.come_and_go))
    plan = tools.path("x.plan")
    tools.run("merakc", model, "-o", plan, "--sparse=exact",
              *matrix.compile_options(mesh, "half", "1f1b"),
              f"--optimizer={sparse_models.REPLAYED['adamw']}", *options)
    said = tools.run("merak-plan", "print", plan)[0]
    if ("trim=" in said) != bool(options):
        raise Failed("messages are trimmed, or not, as they should not be")
    return train_both(tools, plan, f"--data={data}", count(mesh), steps=40)


def delayed_body(mesh, tools):
    """Rows that wait for the next step; the last ones go between steps."""
    model, data = sparse_models.write(tools, sparse_models.long_linear(
        20, sparse_models.come_and_go))
    plan = tools.path("x.plan")
    tools.run("merakc", model, "-o", plan, "--sparse=lazy", "--delayed-rows=on",
              "--mixed-layouts=off", *matrix.compile_options(mesh, "half", "1f1b"),
              f"--optimizer={sparse_models.REPLAYED['adamw']}")
    if "step_before" not in tools.run("merak-plan", "print", plan)[0]:
        raise Failed("nothing is delayed")
    return train_both(tools, plan, f"--data={data}", count(mesh), steps=20)


def gradients_body(mesh, tools):
    """Gradients that wait for the next step, and the last ones between steps."""
    model, data = sparse_models.write(tools, delayed_gradients.straight())
    plan = delayed_gradients.compile_plan(
        tools, model, (mesh, "half", "1f1b", "none"),
        [f"--optimizer={sparse_models.REPLAYED['adamw']}", delayed_gradients.ON])
    return train_both(tools, plan, f"--data={data}", count(mesh), steps=8)


def resume_body(tools):
    """Six steps: two in one process, two in eight, two in one again; other
    layouts each time. The files at the end are those of a run that never left
    its process."""
    model = "gpt2-tiny"
    data = data_of(model)
    plans = [compile_plan(tools, model, mesh, f"{k}.plan") for k, mesh in
             enumerate(["dp=2", "pp=2,dp=2,tp=2", "dp=2"])]
    for tag in ("in", "mpi"):
        saved = [tools.path(f"{tag}{k}") for k in range(3)]
        tools.run("merak-run", plans[0], data, "--steps=2", f"--save={saved[0]}")
        middle = (plans[1], data, "--steps=2", f"--load={saved[0]}",
                  f"--save={saved[1]}")
        if tag == "in":
            tools.run("merak-run", *middle)
        else:
            mpi(tools, 8, *middle)
        tools.run("merak-run", plans[2], data, "--steps=2", f"--load={saved[1]}",
                  f"--save={saved[2]}")
    for k in range(3):
        same_files(tools.path(f"in{k}"), tools.path(f"mpi{k}"))
    return "identical"


class Processes:
    """What checkpoint.killed asks of a run: here one of mpirun."""

    def __init__(self, ranks):
        self.ranks = ranks

    def command(self, tools, *arguments):
        tools.extra.update(ROOT_ALLOWED)
        return tools.start(shutil.which("mpirun"), "-np", self.ranks, *MPIRUN,
                           os.path.join(tools.bin_dir, "merak-run"), *arguments,
                           "--ranks=env")

    def kill(self, process, chance):
        """One rank, which ends the others, or everything at once."""
        ranks = list(children(process).values())
        alone = ranks and chance.random() < 0.5
        for pid in ([chance.choice(ranks)] if alone else
                    [process.pid, *ranks]):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        process.wait(timeout=60)
        began = time.monotonic()
        while any(os.path.exists(f"/proc/{pid}/exe") for pid in ranks):
            if time.monotonic() - began > 60:
                raise Failed("ranks outlive mpirun for 60 s")
            time.sleep(0.01)

    def is_killed(self, code, errors):
        return (code in (-signal.SIGKILL, 128 + signal.SIGKILL) or
                "is gone" in errors)


def folders_checked(tools, model, launch):
    """Runs of which two ranks of four each have a folder of their own; `launch`:
    the command line. What they save is no checkpoint until it is gathered; then
    it is bit for bit what one process saves, and goes on elsewhere too."""
    plan = compile_plan(tools, model, "pp=2,tp=2", "x.plan")
    data = data_of(model)
    tools.extra.update(ROOT_ALLOWED)
    for host in ("h0", "h1"):
        os.makedirs(tools.path(host))

    def in_one(which, load, save):
        tools.run("merak-run", which, data, "--steps=3",
                  *([f"--load={tools.path(load)}"] if load else []),
                  f"--save={tools.path(save)}")

    def in_two(*options, expect=0):
        _, errors = tools.run(*launch(
            os.path.join(tools.bin_dir, "merak-run"), plan, data, "--steps=3",
            *options), expect=expect)
        return errors

    def gather(name):
        tools.run("merak-plan", "gather", tools.path("h0/" + name),
                  tools.path("h1/" + name), "-o", tools.path(name))

    in_one(plan, None, "one3")
    in_one(plan, "one3", "one6")
    errors = in_two("--save=first")
    if "is not one folder but 2" not in errors:
        raise Failed(f"no word on two folders: {errors}")
    held = [sorted(n for n in os.listdir(harness.generation(
        tools.path(f"{host}/first"))) if n != "index.json")
            for host in ("h0", "h1")]
    if held != [[f"rank-{r}.safetensors" for r in ranks]
                for ranks in ((0, 1), (2, 3))]:
        raise Failed(f"the folders hold {held}")
    # A part is not taken for the whole.
    _, errors = tools.run("merak-run", plan, data,
                          f"--load={tools.path('h0/first')}", expect=1)
    if "rank-2.safetensors\" is missing" not in errors:
        raise Failed(f"a part was loaded: {errors}")
    gather("first")
    same_state(tools, "first", "one3")
    if model.endswith("untied"):  # what ranks hold, their own folders have
        in_two("--load=first", "--save=second")
        gather("second")
        same_state(tools, "second", "one6")
    else:  # weights of both stages lie in the first one's
        errors = in_two("--load=first", expect=None)
        if "merak-plan gather makes a whole" not in errors:
            raise Failed(f"expected to hear of gather: {errors}")
    in_two(f"--load={tools.path('first')}", "--save=third")
    gather("third")
    same_state(tools, "third", "one6")
    other = compile_plan(tools, model, "dp=2", "other.plan")
    in_one(other, "one3", "other6")
    in_one(other, "first", "gathered6")
    same_state(tools, "gathered6", "other6")
    return "gathered, identical"


def same_state(tools, *names):
    a, b = (checkpoint.state_of(tools.path(name)) for name in names)
    if a != b:
        raise Failed(f"{names} differ")


def folders_body(tools):
    """Two folders on this machine: which one, the rank says."""
    return folders_checked(tools, "gpt2-tiny-untied", lambda *arguments: [
        shutil.which("mpirun"), "-np", "4", *MPIRUN, "sh", "-c",
        'cd "$0/h$((OMPI_COMM_WORLD_RANK / 2))" && exec "$@"', tools.folder,
        *arguments, "--ranks=env"])


def infer_body(tools):
    model = "gpt2-tiny"
    plan = tools.path("x.plan")
    tools.run("merakc", os.path.join(harness.MODELS, model, "model.onnx"), "-o",
              plan, "--mode=infer",
              *matrix.compile_options("pp=2,dp=2", "half", "gpipe"))
    tools.run("merak-run", plan, data_of(model), "--steps=2",
              f"--out={tools.path('in')}")
    mpi(tools, 4, plan, data_of(model), "--steps=2", f"--out={tools.path('mpi')}")
    same_files(tools.path("in"), tools.path("mpi"))
    return "identical"


def trace_body(tools):
    """One timeline with all ranks, and communication beside computation."""
    plan = compile_plan(tools, "gpt2-tiny", "pp=2,tp=2", "x.plan")
    trace = tools.path("trace.json")
    mpi(tools, 4, plan, data_of("gpt2-tiny"), "--steps=2", f"--trace={trace}")
    with open(trace, encoding="utf-8") as file:
        events = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X"]
    if {e["pid"] for e in events} != {0, 1, 2, 3}:
        raise Failed(f"ranks {sorted({e['pid'] for e in events})}")
    if min(e["ts"] for e in events) < 0:
        raise Failed("an event before the beginning")
    # A receive of a rank is under way while the rank computes.
    for event in events:
        if event["cat"] == "recv" and any(
                e["pid"] == event["pid"] and e["cat"] in ("kernel", "library")
                and event["ts"] < e["ts"] and
                e["ts"] + e["dur"] < event["ts"] + event["dur"]
                for e in events):
            return f"{len(events)} events"
    raise Failed("no receive is under way while its rank computes")


def conformance_body(tools):
    """Every collective, type, shape and layout (test/conformance)."""
    tools.extra.update(ROOT_ALLOWED)
    text, _ = tools.run(shutil.which("mpirun"), "-np", 4, *MPIRUN,
                        os.path.join(tools.bin_dir, "merak-conformance"), "mpi")
    return text.strip().splitlines()[-1]


RATES = os.path.join(harness.ROOT, "samples/clusters/xeon-2.json")
SMALL_SOCKETS = ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_sndbuf", "4096",
                 "--mca", "btl_tcp_rcvbuf", "4096"]


def calibrate(tools, command):
    """Measures links; a machine so busy that none can be seen is asked again."""
    for _ in range(2):
        text, errors = tools.run(*command, expect=None)
        if "other work on the machine disturbs them" not in errors:
            break
    else:
        text, errors = tools.run(*command)
    if tools.returncode != 0:
        raise Failed(harness.last_lines(errors))
    return text


def links_of(tools, path, nodes, names):
    """A cluster file that was measured: its nodes and links."""
    with open(path, encoding="utf-8") as file:
        cluster = json.load(file)
    found = [(n["count"], n["devices"]) for n in cluster["nodes"]]
    if found != nodes or set(cluster["links"]) != set(names):
        raise Failed(f"nodes {found}, links {cluster['links']}")
    for link in cluster["links"].values():
        if link["bandwidth"] <= 0 or link["latency"] < 0:
            raise Failed(f"link {link}")
    # It is read, and it predicts.
    plan = compile_plan(tools, "gpt2-tiny", "pp=2,tp=2", "linked.plan")
    text, _ = tools.run("merak-plan", "simulate", plan, f"--cluster={path}")
    if not text.startswith("step "):
        raise Failed(text)
    return ", ".join(f"{name} {link['bandwidth'] / 1e9:.1f} GB/s"
                     for name, link in cluster["links"].items())


def quick_links(tools, path, ranks=4, options=()):
    """The command that measures links between processes of this machine."""
    return [shutil.which("mpirun"), "-np", ranks, *MPIRUN, *options,
            os.path.join(tools.bin_dir, "merak-bench"), "calibrate", "-o", path,
            "--ranks=env", "--quick", f"--rates={RATES}"]


def small_sockets_body(tools):
    """A message whose end its sender's socket did not take arrives although the
    sender, to MPI done with it, then sends nothing more."""
    tools.extra.update(ROOT_ALLOWED)
    path = tools.path("links.json")
    calibrate(tools, quick_links(tools, path, 4, SMALL_SOCKETS))
    return links_of(tools, path, [(1, 4)], ["intra"])


def links_body(tools):
    tools.extra.update(ROOT_ALLOWED)
    path = tools.path("links.json")
    text = calibrate(tools, quick_links(tools, path))
    for line in ("link inside a node", "all_reduce  "):
        if line not in text:
            raise Failed(f"no '{line}' in: {text}")
    # One process has the trouble, all end with it.
    _, errors = tools.run(*quick_links(tools, "/no/such/folder/links.json", 2),
                          expect=1)
    if "merak-bench: error: cannot write '/no/such/folder/links.json'" not in errors:
        raise Failed(errors.strip())
    return links_of(tools, path, [(1, 4)], ["intra"])


# ---------------------------------------------------------------------- loss


def sentences(text):
    return [line.split("merak-run: error: ", 1)[1]
            for line in text.splitlines() if "merak-run: error: " in line]


def expect_sentences(text, wanted, at_least=1):
    found = sentences(text)
    if sum(wanted in line for line in found) < at_least:
        raise Failed(f"expected {at_least} times \"{wanted}\", found {found}")


def fault_body(fault, wanted, code, tools):
    plan = compile_plan(tools, "gpt2-tiny", "pp=2,dp=2", "x.plan")
    tools.extra["MERAK_FAULT"] = fault
    tools.extra["MERAK_WATCHDOG_SECONDS"] = "3"
    began = time.monotonic()
    _, text = mpi(tools, 4, plan, data_of("gpt2-tiny"), "--steps=3",
                  expect=code)
    seconds = time.monotonic() - began
    if seconds > LIMIT + 5:  # the start and what mpirun itself takes
        raise Failed(f"ended after {seconds:.1f} s")
    expect_sentences(text, wanted.replace("HOST", os.uname().nodename))
    return sentences(text)[0][:60]


@contextlib.contextmanager
def running(tools, command):
    """A run in the background, whose first step is done; ended at last."""
    tools.extra.update(ROOT_ALLOWED)
    error = tools.path("stderr")
    with open(error, "w", encoding="utf-8") as stderr:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True,
            env={**os.environ, **tools.extra})
    try:
        for line in process.stdout:
            if line.startswith("step "):
                break
        else:
            with open(error, encoding="utf-8") as stream:
                raise Failed("no step: " + harness.last_lines(stream.read()))
        yield process, error
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def ended(process, error, limit):
    """Waits for the end; returns (seconds, exit code, stderr)."""
    began = time.monotonic()
    try:
        process.communicate(timeout=limit + 5)
    except subprocess.TimeoutExpired:
        raise Failed(f"not ended {limit + 5} s later") from None
    with open(error, encoding="utf-8") as stream:
        return time.monotonic() - began, process.returncode, stream.read()


def children(process):
    """Process ids of the ranks that an mpirun of this machine started."""
    ids = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                with open(f"/proc/{name}/environ", "rb") as file:
                    values = dict(v.split(b"=", 1) for v in
                                  file.read().split(b"\0") if b"=" in v)
                with open(f"/proc/{name}/stat", encoding="utf-8") as file:
                    parent = int(file.read().rsplit(")", 1)[1].split()[1])
                rank = values.get(b"OMPI_COMM_WORLD_RANK")
                if rank is not None and parent == process.pid:
                    ids.append((int(rank), int(name)))
    return dict(ids)


def signal_body(number, tools):
    """A signal from outside to one rank of four, in the middle of a long run."""
    plan = compile_plan(tools, "mlp-ce", "dp=4", "x.plan")
    saved = tools.path("saved")
    tools.extra["MERAK_SILENCE_SECONDS"] = "3"
    command = tools.start(shutil.which("mpirun"), "-np", 4, *MPIRUN,
                          os.path.join(tools.bin_dir, "merak-run"), plan,
                          data_of("mlp-ce"), "--steps=10000000", "--ranks=env",
                          f"--save={saved}")
    with running(tools, command) as (process, error):
        ranks = children(process)
        if sorted(ranks) != [0, 1, 2, 3]:
            raise Failed(f"found the ranks {sorted(ranks)}")
        if number == signal.SIGTERM:  # one of them is asked to save, too
            os.kill(ranks[1], signal.SIGUSR1)
            began = time.monotonic()
            while not os.path.exists(os.path.join(saved, "latest")):
                if time.monotonic() - began > 60:
                    raise Failed("SIGUSR1 saved nothing in 60 s")
                time.sleep(0.01)
        os.kill(ranks[2], number)
        try:
            seconds, code, text = ended(process, error, LIMIT)
        finally:
            with contextlib.suppress(OSError):
                os.kill(ranks[2], signal.SIGKILL)
    if code == 0:
        raise Failed("exit code 0")
    host = os.uname().nodename
    if number == signal.SIGTERM:  # all end after the same step
        expect_sentences(text, "stopped by SIGTERM after step ")
        with open(os.path.join(harness.generation(saved), "index.json"),
                  encoding="utf-8") as file:
            step = json.load(file)["step"]
        if f"after step {step} of" not in sentences(text)[0]:
            raise Failed(f"saved step {step}: {sentences(text)}")
    elif number == signal.SIGKILL:
        expect_sentences(text, f"rank 2 on host {host} is gone")
    else:
        expect_sentences(text, f"rank 2 on host {host} has not answered")
    if seconds > LIMIT:
        raise Failed(f"ended after {seconds:.1f} s")
    return f"{seconds:.1f} s"


# ---------------------------------------------------------------- bad input


def bad_body(tools):
    plan = compile_plan(tools, "mlp-ce", "dp=2", "x.plan")
    data = data_of("mlp-ce")
    _, text = mpi(tools, 3, plan, data, expect=1)
    if sentences(text) != [f"\"{plan}\" is a plan for 2 ranks, 3 were started"]:
        raise Failed(f"{sentences(text)}")
    _, text = mpi(tools, 2, plan, "--data=/nowhere", expect=1)
    if len(sentences(text)) != 1:
        raise Failed(f"{sentences(text)}")
    for variables, wanted in [
            ({}, ["none of RANK, OMPI_COMM_WORLD_RANK, PMI_RANK and "
                  "SLURM_PROCID is set"]),
            ({"RANK": "0", "WORLD_SIZE": "x"},
             ["WORLD_SIZE: expected a number from 1, found \"x\"",
              "RANK is set, LOCAL_RANK, MASTER_ADDR, MASTER_PORT are not"]),
            ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0",
              "MASTER_ADDR": "localhost", "MASTER_PORT": "29511"},
             ["start them with mpirun or srun"]),
            ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
             ["the environment says rank 0 of 2, MPI says rank 0 of 1"])]:
        tools.extra.update(variables)
        _, text = tools.run("merak-run", plan, data, "--ranks=env", expect=1)
        for name in variables:
            tools.extra.pop(name)
        found = sentences(text)
        if len(found) != len(wanted) or not all(
                w in f for w, f in zip(wanted, found)):
            raise Failed(f"expected {wanted}, found {found}")
    return "7 sentences"


# --------------------------------------------------------------------- hosts


@contextlib.contextmanager
def two_hosts(name):
    try:
        subprocess.run([HOSTS, "up", name, "2"], check=True,
                       capture_output=True)
        yield
    finally:
        subprocess.run([HOSTS, "down", name], check=False, capture_output=True)


# With these mpirun notices a lost host before its ranks do, and ends the job;
# without, it waits for that host's daemon.
KEEPALIVE = ["--mca", "oob_tcp_keepalive_time", "2", "--mca",
             "oob_tcp_keepalive_intvl", "1", "--mca",
             "oob_tcp_keepalive_probes", "2"]


def mpirun_on(name, ranks, *arguments, options=()):
    """mpirun's command line on h0, so many ranks on each host, over their network."""
    return [HOSTS, "exec", name, "h0", shutil.which("mpirun"), "-np",
            str(sum(ranks.values())), "--host",
            ",".join(f"h{host}:{count}" for host, count in ranks.items()), "--mca",
            "plm_rsh_agent", f"{HOSTS} agent {name}", "--mca", "btl",
            "tcp,self,vader", "--mca", "btl_tcp_if_include", "veth0", "--mca",
            "oob_tcp_if_include", "veth0", *options, *MPIRUN, *arguments,
            "--ranks=env"]


def on_hosts(name, ranks, *arguments, options=()):
    """The same with half of the ranks on either of two hosts."""
    return mpirun_on(name, {0: ranks // 2, 1: ranks // 2}, *arguments,
                     options=["-x", "MERAK_SILENCE_SECONDS", *options])


def ranks_on_hosts(name):
    """How many ranks run on the two hosts."""
    count = 0
    for host in ("h0", "h1"):
        listed = subprocess.run(["ip", "netns", "pids", f"{name}-{host}"],
                                capture_output=True, text=True, check=True)
        for pid in listed.stdout.split():
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
                    count += file.read().strip() == "merak-run"
    return count


def hosts_body(tools):
    """Equal bits over a network; then the other host's cable is pulled."""
    plan = compile_plan(tools, "gpt2-tiny", "pp=2,tp=2", "x.plan")
    data = data_of("gpt2-tiny")
    name = f"mk{os.getpid() % 10000}"
    merak_run = os.path.join(tools.bin_dir, "merak-run")
    tools.extra.update(ROOT_ALLOWED)
    tools.extra["MERAK_SILENCE_SECONDS"] = "3"
    with two_hosts(name):
        tools.run("merak-run", plan, data, "--steps=3",
                  f"--save={tools.path('in')}")
        tools.run(*on_hosts(name, 4, merak_run, plan, data, "--steps=3",
                            f"--save={tools.path('mpi')}"))
        same_files(tools.path("in"), tools.path("mpi"))
        path = tools.path("links.json")
        bench = os.path.join(tools.bin_dir, "merak-bench")
        calibrate(tools, on_hosts(name, 4, bench, "calibrate", "-o", path,
                                  "--quick", f"--rates={RATES}"))
        links = links_of(tools, path, [(2, 2)], ["intra", "inter"])
        command = on_hosts(name, 4, merak_run, plan, data, "--steps=10000000")
        with running(tools, command) as (process, error):
            subprocess.run([HOSTS, "link", name, "h1", "down"], check=True)
            began = time.monotonic()
            # mpirun itself has no such limit: it waits for the host.
            while alive := ranks_on_hosts(name):
                if time.monotonic() - began > LIMIT:
                    raise Failed(f"{alive} ranks are still there")
                time.sleep(0.1)
            seconds = time.monotonic() - began
            with open(error, encoding="utf-8") as stream:
                expect_sentences(stream.read(),
                                 "on host h1 has not answered for 3 seconds")
    # The launcher too, and with the silence after which ranks give up unset.
    del tools.extra["MERAK_SILENCE_SECONDS"]
    with two_hosts(name):
        command = on_hosts(name, 4, merak_run, plan, data, "--steps=10000000",
                           options=KEEPALIVE)
        with running(tools, command) as (process, error):
            subprocess.run([HOSTS, "link", name, "h1", "down"], check=True)
            launcher, code, text = ended(process, error, LIMIT)
            if launcher > LIMIT or code == 0:
                raise Failed(f"mpirun ended with {code} after {launcher:.1f} s")
            # Now and then mpirun notices elsewhere and only guesses; by then
            # the ranks have said it.
            guessed = ("inability to create a connection back to mpirun" in text
                       and "on host h1 has not answered" in text)
            if not guessed and not re.search(
                    r"lost communication with a remote daemon.*node h1", text,
                    re.S):
                raise Failed(f"mpirun: {harness.last_lines(text, 8)}")
            if alive := ranks_on_hosts(name):
                time.sleep(LIMIT - launcher)
                if alive := ranks_on_hosts(name):
                    raise Failed(f"{alive} ranks outlive mpirun")
    return (f"identical; {links}; without the cable ended after {seconds:.1f} s, mpirun "
            f"{launcher:.1f} s")


def host_folders_body(tools):
    name = f"mk{os.getpid() % 10000}f"
    with two_hosts(name):
        return folders_checked(
            tools, "gpt2-tiny", lambda *arguments: on_hosts(
                name, 4, "sh", "-c", 'cd "$0/$(hostname)" && exec "$@"',
                tools.folder, *arguments))


def why_no_hosts():
    """Why two hosts cannot be made here; empty if they can."""
    for tool in ("ip", "unshare"):
        if not shutil.which(tool):
            return f"there is no {tool} (iproute2, util-linux)"
    name = f"mk{os.getpid() % 10000}t"
    try:
        with two_hosts(name):
            done = subprocess.run([HOSTS, "exec", name, "h0", "true"],
                                  capture_output=True, text=True, check=False)
            return (harness.last_lines(done.stderr, 1)
                    if done.returncode else "")
    except subprocess.CalledProcessError as error:
        return ("network namespaces are not permitted: " +
                harness.last_lines(error.stderr.decode(errors="replace"), 1))


# --------------------------------------------------------------------- cases


def boxes_body(reshard, tools):
    """Between stages of unlike meshes: several messages of a value, of 100 KB and
    more, which are under way at a time."""
    strategy, plan = tools.path("stages.json"), tools.path("x.plan")
    with open(strategy, "w", encoding="utf-8") as file:
        json.dump({"pipelines": [{"microbatches": 2, "stages": [
            {"devices": "0,1", "mesh": "dp=2"},
            {"devices": "2-4", "mesh": "dp=1,tp=3",
             "begin": "/blocks.2/norm1/LayerNormalization"}]}]}, file)
    tools.run("merakc", SAMPLE, "-o", plan, "--global-batch=160",
              f"--strategy={strategy}", f"--reshard={reshard}")
    return train_both(tools, plan, "--data=synthetic", 5, steps=2)


def cases(everything, short):
    models = sorted(m for m in os.listdir(harness.MODELS)
                    if os.path.isdir(os.path.join(harness.MODELS, m)))
    chosen = [(m, mesh) for m in models for mesh in MESHES]
    exact = [(m.__name__, mesh) for m in exact_models.MODELS for mesh in MESHES]
    if not everything:  # each model once, with every number of processes
        chosen = [(m, MESHES[k % len(MESHES)]) for k, m in enumerate(models)]
        exact = [(m.__name__, MESHES[(k + 2) % len(MESHES)])
                 for k, m in enumerate(exact_models.MODELS) if k % 3 == 0]
    if short:  # each mesh once
        chosen, exact = chosen[:len(MESHES)], exact[:2]
    for model, mesh in chosen:
        yield Case(f"equal {model} {mesh}",
                   functools.partial(model_body, model, mesh))
    for name, mesh in exact:
        yield Case(f"equal exact {name} {mesh}",
                   functools.partial(exact_body, name, mesh))
    for mesh, options in (("dp=2", []), ("dp=2,tp=2", []), (
            "dp=4", ["--touched=table=0.05", "--mixed-layouts=off"])):
        yield Case(" ".join(["replayed", mesh, *options]),
                   functools.partial(replayed_body, mesh, options))
    for mesh in ("dp=2", "pp=2,dp=2", "dp=4"):
        yield Case(f"delayed {mesh}", functools.partial(delayed_body, mesh))
        yield Case(f"delayed gradients {mesh}",
                   functools.partial(gradients_body, mesh))
    for mesh, bucket in (("dp=2", "20000"), ("dp=4", "1000000000"),
                         ("pp=2,dp=2,tp=2", "50000")):
        yield Case(f"buckets {mesh} {bucket}",
                   functools.partial(buckets_body, mesh, bucket))
    for reshard in ("broadcast", "scatter-gather", "convert"):
        yield Case(f"boxes {reshard}", functools.partial(boxes_body, reshard))
    yield Case("resume in process, mpi, in process", resume_body)
    yield Case("killed", lambda tools: checkpoint.killed(
        "gpt2-tiny", "pp=2,tp=2", [], 9, 50 if everything else 3, tools,
        Processes(4)))
    yield Case("folders", folders_body)
    yield Case("infer", infer_body)
    yield Case("links", links_body)
    yield Case("links small sockets", small_sockets_body)
    yield Case("conformance", conformance_body)
    yield Case("trace", trace_body)
    for fault, wanted, code in [
            ("2:2:kill", "rank 2 on host HOST is gone", 137),
            ("0:2:kill", "rank 0 on host HOST is gone", 137),
            ("1:2:fail", "rank 1 on host HOST · step 2", 1),
            ("3:2:hang", "has not moved for 3 seconds", 1)]:
        yield Case(f"loss {fault}",
                   functools.partial(fault_body, fault, wanted, code))
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
        yield Case(f"loss {number.name} from outside",
                   functools.partial(signal_body, number))
    yield Case("bad input", bad_body)


def why_no_processes(bin_dir):
    """None where ranks can be processes of mpirun."""
    if not shutil.which("mpirun"):
        return "there is no mpirun (openmpi-bin)"
    probe = subprocess.run([os.path.join(bin_dir, "merak-run"), "x.plan",
                            "--ranks=env"], capture_output=True, text=True,
                           env={**os.environ, "PMI_RANK": "0", "PMI_SIZE": "1"},
                           check=False)
    if "which this build does not have" in probe.stderr:
        return "merak-run was built without MPI (libopenmpi-dev)"
    return None


def main():
    args = harness.parser(__doc__).parse_args()
    found = list(cases(args.all, args.short))
    # What cannot be run here is skipped, and says why.
    if reason := why_no_processes(args.bin_dir):
        print(f"skipped {len(found) + 1} cases: {reason}\n0 passed, 0 failed")
        return 0
    reason = why_no_hosts()
    if reason:
        print(f"skipped two hosts: {reason}")
    else:
        found += [Case("two hosts", hosts_body),
                  Case("two hosts folders", host_folders_body)]
    return harness.run_cases("mpi", found, args)


if __name__ == "__main__":
    sys.exit(main())
