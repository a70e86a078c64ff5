#!/usr/bin/env python3
"""The nine cases of docs/Resharding.md over slow links, measured.

    sudo python3 bench/reshard_links.py [--rate=200mbit] [--mib=16] [--steps=5]

Hosts are network namespaces on this machine, each with a cable of its own that
carries so much in each direction; four ranks a host, over MPI. Each way of each case
is a plan that does it once a step (merak-plan reshard --plan), and the median step
counts. First one rank sends to one on another host: that goodput, measured in the same
run, is the bandwidth of which bounds and predictions are made. `over` is the broadcast
in its order over the bound of that goodput, `slower` is send-recv over it. Other work
on the machine makes steps longer: ranks are processes that need cores to send.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
HOSTS = os.path.join(ROOT, "test/mpi/hosts")
CASES = os.path.join(ROOT, "samples/resharding/nine-cases.json")
SPACE = "mkrs"
PER_HOST = 4
# Sizes of the paper's tensors of 2 GiB, for 16 MiB and its multiples by four.
SIZES = {16: {"1024": 256, "512": 64, "3072": 768, "170": 21},
         64: {"1024": 512, "512": 64, "3072": 1536, "170": 21}}
# Column, strategy, order.
WAYS = [("send-recv", "send-recv", "best"), ("alpa", "alpa", "best"),
        ("naive", "broadcast", "naive"), ("sorted", "broadcast", "sorted"),
        ("ordered", "broadcast", "best"), ("chosen", None, "best")]


def run(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1",
                               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}, **more)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


class Bench:
    def __init__(self, args, scratch):
        self.args, self.scratch = args, scratch
        with open(CASES, encoding="utf-8") as file:
            self.description = json.load(file)
        sizes = SIZES[args.mib]
        for boundary in self.description["boundaries"]:
            for end in ("source", "target"):
                boundary[end]["layout"] = re.sub(
                    r"\d+", lambda found: str(sizes[found[0]]),
                    boundary[end]["layout"])

    def tool(self, name):
        return os.path.join(self.args.bin_dir, name)

    def links(self, bandwidth):
        cluster = self.description["cluster"]
        cluster["device"] = {"kind": "cpu", "flops": 1e10,
                             "memory_bandwidth": 4e9, "memory_bytes": 16e9,
                             "launch_seconds": 1e-6}
        cluster["links"] = {"intra": {"bandwidth": 2e9, "latency": 2e-5},
                            "inter": {"bandwidth": bandwidth, "latency": 2e-4,
                                      "shared": True}}

    def measure(self, boundary, strategy=None, order="best"):
        """Median seconds of a step, predicted seconds and bound."""
        path, plan, log = (os.path.join(self.scratch, name) for name in
                           ("case.json", "case.plan", "case.jsonl"))
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**self.description, "boundaries": [boundary]}, file)
        shutil.rmtree(plan, ignore_errors=True)
        told = run([self.tool("merak-plan"), "reshard", path, "--json",
                    f"--order={order}", f"--plan={plan}",
                    *([f"--reshard={strategy}"] if strategy else [])])
        told = json.loads(told)[0]
        hosts = {}
        for end in ("source", "target"):
            first, last = (boundary[end]["devices"] + "-").split("-")[:2]
            for device in range(int(first), int(last or first) + 1):
                hosts.setdefault(device // PER_HOST, []).append(device)
        run([HOSTS, "exec", SPACE, "h0", shutil.which("mpirun"), "-np",
             str(sum(map(len, hosts.values()))), "--host",
             ",".join(f"h{host}:{len(ranks)}" for host, ranks in hosts.items()),
             "--mca", "plm_rsh_agent", f"{HOSTS} agent {SPACE}", "--mca", "btl",
             "tcp,self,vader", "--mca", "btl_tcp_if_include", "veth0", "--mca",
             "oob_tcp_if_include", "veth0", "--oversubscribe", "--mca",
             "mpi_yield_when_idle", "1", self.tool("merak-run"), plan,
             f"--steps={self.args.steps + 1}", f"--log={log}", "--threads=1",
             "--ranks=env"], timeout=600)
        with open(log, encoding="utf-8") as file:
            seconds = [entry["seconds"] for entry in map(json.loads, file)
                       if "seconds" in entry]
        return (statistics.median(seconds[1:]), told["predicted_seconds"],
                told["lower_bound_seconds"])

    def goodput(self):
        self.links(1e8)
        layout = f"[{self.args.mib}, 1048576]"
        seconds, _, _ = self.measure(
            {"name": "goodput", "dtype": "u8",
             "source": {"layout": layout, "mesh": "", "devices": "0"},
             "target": {"layout": layout, "mesh": "", "devices": "4"}},
            "send-recv")
        return self.args.mib * 2**20 / seconds

    def table(self):
        bandwidth = self.goodput()
        print(f"goodput {8e-6 * bandwidth:.0f} Mb/s of {self.args.rate}, tensors "
              f"of {self.args.mib} MiB; seconds, and predicted ones behind",
              flush=True)
        self.links(bandwidth)
        print("| case | " + " | ".join(name for name, _, _ in WAYS) +
              " | bound | over | slower |")
        print("|---" * (len(WAYS) + 4) + "|", flush=True)
        for boundary in self.description["boundaries"]:
            if self.args.cases and boundary["name"][5:] not in self.args.cases:
                continue
            row, seconds = [], {}
            for name, strategy, order in WAYS:
                found, predicted, bound = self.measure(boundary, strategy, order)
                seconds[name] = found
                row.append(f"{found:.2f} ({predicted:.2f})")
            print(f"| {boundary['name'][5:]} | " + " | ".join(row) +
                  f" | {bound:.2f} | {seconds['ordered'] / bound:.2f} | "
                  f"{seconds['send-recv'] / seconds['ordered']:.1f} |",
                  flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin-dir", default=os.path.join(ROOT,
                                                          "build/release/bin"))
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--mib", type=int, choices=sorted(SIZES), default=16)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--cases", help="of 1 to 9, as in 37")
    args = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("mpirun"):
        sys.exit("needs root, for network namespaces, and mpirun")
    try:
        run([HOSTS, "up", SPACE, "5"])
        run([HOSTS, "limit", SPACE, "5", args.rate])
        with tempfile.TemporaryDirectory(prefix="merak-reshard-") as scratch:
            Bench(args, scratch).table()
    finally:
        subprocess.run([HOSTS, "down", SPACE], check=False, capture_output=True)


if __name__ == "__main__":
    main()
