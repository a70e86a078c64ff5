"""Hosts of this machine with slow cables, and runs over them: network namespaces, MPI
between ranks. As root."""
import json
import os
import re
import shutil
import statistics
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
sys.path.insert(0, os.path.join(ROOT, "test/e2e"))
import mpi  # noqa: E402

# In front of a command: on the core of the rank's number. mpirun takes each host for
# a machine, and would bind all to the first core.
PINNED = ["sh", "-c", 'exec taskset -c '
          f'$((OMPI_COMM_WORLD_RANK % {os.cpu_count()})) "$0" "$@"']
HEADERS = 14 + 20 + 32  # of a packet; TCP's has times in it
# Of the CPUs that ranks share; what a cluster file needs, and no bound is made of.
DEVICE = {"kind": "cpu", "flops": 1e10, "memory_bandwidth": 4e9,
          "memory_bytes": 16e9, "launch_seconds": 1e-6}


def run(command, timeout=600):
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          timeout=timeout, env={**os.environ, **mpi.ROOT_ALLOWED})
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def cluster(devices, per_node, bandwidth):
    """Cables of so many bytes a second between nodes of so many devices."""
    return {"name": "hosts with slow cables", "devices": devices,
            "devices_per_node": per_node, "device": DEVICE, "collectives": "ring",
            "links": {"intra": {"bandwidth": 2e9, "latency": 2e-5},
                      "inter": {"bandwidth": bandwidth, "latency": 2e-4,
                                "shared": True}}}


# Between two hosts of two devices: from either to the other at once.
EACH_WAY = {"mesh": "h=2", "devices": "1-2"}, {"mesh": "h=2", "devices": "3,0"}
ONE_WAY = {"mesh": "", "devices": "0"}, {"mesh": "", "devices": "2"}


class SlowHosts:
    """Hosts h0 .. h(count-1), each with a cable that carries `rate` (as tc understands
    it; None: what this machine does) in each direction, while this is open; `space`
    keeps several sets apart."""

    def __init__(self, space, count, rate, bin_dir):
        self.space, self.count, self.rate = space, count, rate
        self.bin_dir = bin_dir

    def __enter__(self):
        if os.geteuid() != 0 or not shutil.which("mpirun"):
            sys.exit("needs root, for network namespaces, and mpirun")
        try:
            run([mpi.HOSTS, "up", self.space, str(self.count)])
            if self.rate:
                run([mpi.HOSTS, "limit", self.space, str(self.count), self.rate])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        subprocess.run([mpi.HOSTS, "down", self.space], check=False,
                       capture_output=True)

    def tool(self, name):
        return os.path.join(self.bin_dir, name)

    def steps(self, plan, ranks, log, steps, *options, pinned=False):
        """Seconds of each step of a plan with so many ranks on each host; `pinned`: each
        rank on a core."""
        run(mpi.mpirun_on(self.space, ranks, *(PINNED if pinned else []),
                          self.tool("merak-run"), plan,
                          f"--steps={steps}", f"--log={log}", "--threads=1",
                          *options))
        with open(log, encoding="utf-8") as file:
            return [entry["seconds"] for entry in map(json.loads, file)
                    if "seconds" in entry]

    def sent(self, host):
        """Bytes that a host has sent so far, as its interface counts them, without the
        headers of Ethernet, IP and TCP."""
        read = run([mpi.HOSTS, "exec", self.space, f"h{host}", "cat",
                    *(f"/sys/class/net/veth0/statistics/tx_{what}"
                      for what in ("bytes", "packets"))])
        sent, packets = map(int, read.split())
        return sent - HEADERS * packets

    def boundary(self, scratch, machine, boundary, steps, *options):
        """Median seconds of a step that does nothing but this, and what merak-plan says
        of it."""
        path, plan, log = (os.path.join(scratch, name) for name in
                           ("boundary.json", "boundary.plan", "boundary.jsonl"))
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"cluster": machine, "boundaries": [boundary]}, file)
        shutil.rmtree(plan, ignore_errors=True)
        told = json.loads(run([self.tool("merak-plan"), "reshard", path, "--json",
                               f"--plan={plan}", *options]))[0]
        ranks = {}
        for end in ("source", "target"):
            for first, last in re.findall(r"(\d+)(?:-(\d+))?",
                                          boundary[end]["devices"]):
                for device in range(int(first), int(last or first) + 1):
                    host = device // machine["devices_per_node"]
                    ranks[host] = ranks.get(host, 0) + 1
        seconds = self.steps(plan, dict(sorted(ranks.items())), log, steps + 1)
        return statistics.median(seconds[1:]), told

    def goodput(self, scratch, mib, steps=5, each_way=False):
        """Bytes a second from one host to another, of so many MiB; or in each direction
        while the other one carries as much."""
        layout = f"[2@h, {mib << 20}]" if each_way else f"[{mib << 20}]"
        source, target = EACH_WAY if each_way else ONE_WAY
        seconds, _ = self.boundary(scratch, cluster(4, 2, 1e8), {
            "name": "goodput", "dtype": "u8", "source": {"layout": layout, **source},
            "target": {"layout": layout, **target}}, steps)
        return (mib << 20) / seconds
