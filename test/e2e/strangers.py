#!/usr/bin/env python3
"""Strangers: who connects to a run's port, and whose plan one is given.

flood    connections that say nothing, noise and guessed tokens at the port of two
         ranks, from before they meet until they end: the losses of a run without
         them, no memory for them, and nobody listens once the ranks have met
plans    kernels of another user's plan, of a changed and of an unsigned one are
         not loaded; with --trust-plan they are

Loopback alone is attacked. `--connections` and `--megabytes` bound an attack; the
table of docs/Reliability.md was made with `--connections=2000 --megabytes=10000
--steps=400 --filter=flood`, which prints medians of steps too, and the time of
processors that the ranks took. `--apart` gives the first processor to the ranks and
the second to the attacker: what is slower then, the attack made slower.
"""
import contextlib
import errno
import functools
import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time

import harness
import mpi
from harness import Case, Failed
from processes import free_port

HELLO = 152  # bytes of a rank's first message (Handshake.h)


class Attack:
    """Strangers at a port of this machine, until `stop`."""

    def __init__(self, port, connections, megabytes, core):
        self.port, self.connections = port, connections
        self.core = core
        self.bytes_left = megabytes << 20
        self.made = self.refused = self.sent = self.dropped = 0
        self.over = threading.Event()
        self.sockets = []
        self.threads = [threading.Thread(target=self.attack, args=(each,))
                        for each in (self.stay, self.shout, self.guess)]
        for thread in self.threads:
            thread.start()

    def attack(self, body):
        """On a processor of its own an attacker takes none of the run's."""
        if self.core is None:
            os.setpriority(os.PRIO_PROCESS, 0, 19)  # of this thread
        else:
            os.sched_setaffinity(0, {self.core})
        body()

    def connect(self):
        """A connection, or None where nobody listens."""
        connection = socket.socket()
        connection.settimeout(1)
        try:
            connection.connect(("127.0.0.1", self.port))
            self.made += 1
            return connection
        except OSError:
            connection.close()
            self.refused += 1
            # Whoever attacks leaves the run its processor: not what is tested.
            self.over.wait(0.002)
            return None

    def stay(self):
        """Says nothing."""
        while not self.over.is_set() and self.made < self.connections:
            connection = self.connect()
            if connection:
                self.sockets.append(connection)
        self.over.wait()

    def shout(self):
        """Sends noise to whoever listens."""
        noise = os.urandom(1 << 20)
        while not self.over.is_set() and self.bytes_left > 0:
            connection = self.connect()
            if not connection:
                continue
            with contextlib.closing(connection), \
                    contextlib.suppress(OSError):
                while self.bytes_left > 0:
                    count = connection.send(noise)
                    self.sent += count
                    self.bytes_left -= count

    def guess(self):
        """What looks like a rank's first message, without a token."""
        while not self.over.is_set():
            connection = self.connect()
            if not connection:
                continue
            with contextlib.closing(connection), \
                    contextlib.suppress(OSError):
                challenge = connection.recv(40)
                connection.sendall(challenge[:8] + (1).to_bytes(8, "little") +
                                   (2).to_bytes(8, "little") +
                                   bytes(HELLO - 24))
                while connection.recv(4096):
                    pass

    def stop(self):
        self.over.set()
        for thread in self.threads:
            thread.join()
        for connection in self.sockets:
            connection.close()


def most_memory(process, seen):
    """MiB that each rank has taken at most."""
    for rank, pid in mpi.children(process).items():
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/status", encoding="utf-8") as file:
                for line in file:
                    if line.startswith("VmHWM:"):
                        seen[rank] = max(seen.get(rank, 0),
                                         int(line.split()[1]) >> 10)


def train(tools, plan, port, steps, cores, attack=None):
    """(losses, median ms of a step, ms of processors a step, MiB of the ranks, the
    attack). `cores`: of the ranks and of the attacker; None: any."""
    tools.extra.update(mpi.ROOT_ALLOWED)
    tools.extra["MASTER_ADDR"] = "127.0.0.1"
    tools.extra["MASTER_PORT"] = str(port)
    log = tools.path("log")
    command = tools.start(
        shutil.which("mpirun"), "-np", 2, "--bind-to", "none", *mpi.MPIRUN,
        os.path.join(tools.bin_dir, "merak-run"), plan,
        mpi.data_of("gpt2-tiny"), f"--steps={steps}", f"--log={log}",
        "--ranks=env", "--threads=1")
    strangers = attack and Attack(port, *attack, cores[1])
    memory = {}
    before = os.times()
    with open(tools.path("stderr"), "w+", encoding="utf-8") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL,
                                   stderr=errors,
                                   env={**os.environ, **tools.extra})
        if cores[0] is not None:
            os.sched_setaffinity(process.pid, {cores[0]})
        try:
            listened = after_first_step(process, log, port, memory)
        finally:
            process.kill()
            process.wait()
            if strangers:
                strangers.stop()
        errors.seek(0)
        if process.returncode:
            raise Failed(f"exit code {process.returncode}: "
                         f"{harness.last_lines(errors.read())}")
    if listened:
        raise Failed("somebody listens after the first step")
    entries = harness.read_log(log)
    after = os.times()
    taken = (after.children_user + after.children_system -
             before.children_user - before.children_system)
    return ([entry["loss"] for entry in entries],
            1e3 * statistics.median(entry["seconds"] for entry in entries),
            1e3 * taken / steps, memory, strangers)


def after_first_step(process, log, port, memory):
    """Waits for the end; whether the port was open after the first step."""
    listened = False
    began = time.monotonic()
    while process.poll() is None:
        if time.monotonic() - began > 300:
            raise Failed("not ended after 300 s")
        most_memory(process, memory)
        if os.path.exists(log) and os.path.getsize(log):
            with contextlib.closing(socket.socket()) as probe:
                listened = probe.connect_ex(
                    ("127.0.0.1", port)) != errno.ECONNREFUSED or listened
        time.sleep(0.05)
    return listened


def flood(connections, megabytes, steps, cores, tools):
    plan = mpi.compile_plan(tools, "gpt2-tiny", "dp=2", "x.plan")
    quiet = train(tools, plan, free_port(), steps, cores)
    os.remove(tools.path("log"))
    loud = train(tools, plan, free_port(), steps, cores,
                 (connections, megabytes))
    if quiet[0] != loud[0] or len(quiet[0]) != steps:
        raise Failed(f"losses {loud[0]}, without strangers {quiet[0]}")
    grown = max(loud[3].get(rank, 0) - quiet[3].get(rank, 0)
                for rank in (0, 1))
    # What many connections would take, were anything kept of them.
    if grown > 32:
        raise Failed(f"{grown} MiB more, ranks took {loud[3]}, {quiet[3]}")
    strangers = loud[4]
    if strangers.refused == 0:
        raise Failed("nobody was refused: the attack did not last")
    return (f"{strangers.made} connections and {strangers.refused} refused, "
            f"{strangers.sent >> 20} MiB sent, step {loud[1]:.2f} ms and "
            f"{loud[2]:.2f} ms of processors, without {quiet[1]:.2f} and "
            f"{quiet[2]:.2f}, {grown:+d} MiB")


def plans(tools):
    def run(plan, *options, expect=0):
        return tools.run("merak-run", plan, mpi.data_of("mlp-ce"), "--steps=1",
                         *options, expect=expect)[1]

    def refused(plan, sentence):
        found = run(plan, expect=1).strip()
        if not found.startswith(f"merak-run: error: {plan}: its ") or \
                sentence not in found or "--trust-plan" not in found or \
                "\n" in found:
            raise Failed(found)
        run(plan, "--trust-plan")

    tools.extra["MERAK_KEY"] = tools.path("mine")
    plan = mpi.compile_plan(tools, "mlp-ce", "dp=2", "x.plan")
    run(plan)
    copy = tools.path("copy.plan")
    shutil.copytree(plan, copy)
    run(copy)  # wherever it lies
    tools.extra["MERAK_KEY"] = tools.path("yours")
    refused(plan, "was not signed with this user's key")
    tools.extra["MERAK_KEY"] = tools.path("mine")
    # Two plans of one user; the checksums of each are right.
    other = mpi.compile_plan(tools, "mlp-ce", "pp=2", "y.plan")
    shutil.copy(os.path.join(other, "signature"), plan)
    refused(plan, "or the plan was changed since")
    os.remove(os.path.join(plan, "signature"))
    refused(plan, "nobody signed")
    os.chmod(tools.path("mine"), 0o644)
    refused(copy, "others than its owner may use it: chmod 600")
    # Without a place for a key there are plans, and a warning.
    tools.extra["MERAK_KEY"] = "/proc/no/such/key"
    unsigned = tools.path("z.plan")
    _, said = tools.run("merakc", os.path.join(harness.MODELS, "mlp-ce",
                                               "model.onnx"), "-o", unsigned,
                        "--global-batch=8", "-q")
    if "the plan is not signed, so merak-run wants --trust-plan" not in said:
        raise Failed(said)
    refused(unsigned, "nobody signed")
    return "5 refused"


def main():
    options = harness.parser(__doc__)
    options.add_argument("--connections", type=int, default=300)
    options.add_argument("--megabytes", type=int, default=64)
    options.add_argument("--steps", type=int, default=30)
    options.add_argument("--apart", action="store_true")
    args = options.parse_args()
    cores = (sorted(os.sched_getaffinity(0))[:2] if args.apart else
             (None, None))
    if len(cores) < 2:
        sys.exit("--apart: expected two processors")
    found = [Case("plans", plans)]
    if shutil.which("mpirun"):
        found.append(Case("flood", functools.partial(
            flood, args.connections, args.megabytes, args.steps, cores)))
    else:
        print("skipped flood: there is no mpirun (openmpi-bin)")
    return harness.run_cases("strangers", found, args)


if __name__ == "__main__":
    sys.exit(main())
