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
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import slow_hosts  # noqa: E402

CASES = os.path.join(slow_hosts.ROOT, "samples/resharding/nine-cases.json")
SPACE = "mkrs"
PER_HOST = 4
# Sizes of the paper's tensors of 2 GiB, for 16 MiB and its multiples by four.
SIZES = {16: {"1024": 256, "512": 64, "3072": 768, "170": 21},
         64: {"1024": 512, "512": 64, "3072": 1536, "170": 21}}
# Column, strategy, order.
WAYS = [("send-recv", "send-recv", "best"), ("alpa", "alpa", "best"),
        ("naive", "broadcast", "naive"), ("sorted", "broadcast", "sorted"),
        ("ordered", "broadcast", "best"), ("chosen", None, "best")]


class Bench:
    def __init__(self, args, scratch, hosts):
        self.args, self.scratch, self.hosts = args, scratch, hosts
        with open(CASES, encoding="utf-8") as file:
            self.boundaries = json.load(file)["boundaries"]
        sizes = SIZES[args.mib]
        for boundary in self.boundaries:
            for end in ("source", "target"):
                boundary[end]["layout"] = re.sub(
                    r"\d+", lambda found: str(sizes[found[0]]),
                    boundary[end]["layout"])

    def measure(self, machine, boundary, strategy, order):
        """Median seconds of a step, predicted seconds and bound."""
        options = [f"--order={order}"]
        if strategy:
            options.append(f"--reshard={strategy}")
        seconds, told = self.hosts.boundary(self.scratch, machine, boundary,
                                            self.args.steps, *options)
        return seconds, told["predicted_seconds"], told["lower_bound_seconds"]

    def table(self):
        mib = self.args.mib
        bandwidth = self.hosts.goodput(self.scratch, mib, self.args.steps)
        machine = slow_hosts.cluster(20, PER_HOST, bandwidth)
        print(f"goodput {8e-6 * bandwidth:.0f} Mb/s of {self.args.rate}, tensors "
              f"of {mib} MiB; seconds, and predicted ones behind",
              flush=True)
        print("| case | " + " | ".join(name for name, _, _ in WAYS) +
              " | bound | over | slower |")
        print("|---" * (len(WAYS) + 4) + "|", flush=True)
        for boundary in self.boundaries:
            if self.args.cases and boundary["name"][5:] not in self.args.cases:
                continue
            row, seconds = [], {}
            for name, strategy, order in WAYS:
                found, predicted, bound = self.measure(machine, boundary,
                                                       strategy, order)
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
    parser.add_argument("--bin-dir", default=os.path.join(slow_hosts.ROOT,
                                                          "build/release/bin"))
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--mib", type=int, choices=sorted(SIZES), default=16)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--cases", help="of 1 to 9, as in 37")
    args = parser.parse_args()
    with slow_hosts.SlowHosts(SPACE, 5, args.rate, args.bin_dir) as hosts, \
            tempfile.TemporaryDirectory(prefix="merak-reshard-") as scratch:
        Bench(args, scratch, hosts).table()


if __name__ == "__main__":
    main()
