#!/usr/bin/env python3
"""Predicted against measured steps: 2 ranks (pp, dp or tp) of this machine, GPTs
of three sizes, three speeds of emulated links.

    python3 predict.py --bin build/release/bin

Calibrates the machine first (or takes --cluster), with the generated kernels of
a model that is none of the three. Then, for each case, compiles for the
calibrated cluster with its link replaced, predicts with `merak-plan simulate`,
runs `merak-run --links` on the same file, and prints a table: the median of the
steps beside the prediction, the memory that the runtime allocated (arenas,
working memory of kernels) beside the predicted. Needs the `onnx` and `numpy` packages for the
models; --python names the interpreter that has them.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
# layers, width, heads, vocabulary, context
SIZES = {"4x128": (4, 128, 4, 512, 64), "6x256": (6, 256, 8, 2048, 128),
         "8x512": (8, 512, 8, 4096, 128)}
CALIBRATION = (3, 192, 6, 1024, 96)
# seconds, bytes a second
LINKS = {"1 GB/s": (1e-5, 1e9), "200 MB/s": (5e-5, 2e8),
         "50 MB/s": (1e-4, 5e7)}
MESHES = {"pp=2": "pp=2,dp=1,tp=1", "dp=2": "pp=1,dp=2,tp=1",
          "tp=2": "pp=1,dp=1,tp=2"}
BATCH, MICROBATCH = 16, 4
SKIPPED = 2  # first steps: memory is touched, code is loaded
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1}


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Bench:
    def __init__(self, options, folder):
        self.o, self.folder = options, folder

    def tool(self, name):
        return os.path.join(self.o.bin, name)

    def path(self, name):
        return os.path.join(self.folder, name)

    def model(self, name, size):
        path = self.path(name + ".onnx")
        command = [self.o.python, os.path.join(HERE, "make_gpt.py"), path]
        for key, value in zip(("layers", "width", "heads", "vocabulary",
                               "context"), size):
            command += [f"--{key}", str(value)]
        run(command)
        return path

    def compile(self, model, plan, mesh, *more):
        run([self.tool("merakc"), model, "-o", plan, "--quiet",
             f"--mesh={mesh}", f"--global-batch={BATCH}",
             f"--microbatch={MICROBATCH}", "--schedule=1f1b",
             "--optimizer=adamw:lr=1e-3", *more])
        return plan

    def calibrate(self):
        model = self.model("calibration", CALIBRATION)
        plan = self.compile(model, self.path("calibration.plan"),
                            "pp=1,dp=1,tp=1")
        cluster = self.path("machine.json")
        run([self.tool("merak-bench"), "calibrate", "-o", cluster, "--ranks=2",
             "--threads=1", f"--plan={plan}", "--quiet"] +
            (["--quick"] if self.o.quick else []))
        return cluster

    def with_links(self, cluster, name, latency, bandwidth):
        with open(cluster, encoding="utf-8") as file:
            data = json.load(file)
        data["links"] = {"intra": {"bandwidth": bandwidth, "latency": latency}}
        data["collectives"] = "ring"
        path = self.path(name + ".json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(data, file)
        return path

    def predict(self, plan):
        """Seconds of a step and bytes of all ranks."""
        text = run([self.tool("merak-plan"), "simulate", plan])
        found = re.search(r"^step ([\d.]+) (us|ms|s)", text, re.M)
        seconds = float(found[1]) * UNITS[found[2]]
        allocated = re.search(r"^allocated: (\d+) bytes", text, re.M)
        return seconds, int(allocated[1])

    def measure(self, plan, links, steps):
        """Seconds of each step and bytes that the runtime allocated."""
        log = self.path("log.jsonl")
        run([self.tool("merak-run"), plan, "--data=synthetic",
             f"--steps={steps}", "--threads=1", f"--links={links}",
             f"--log={log}"])
        with open(log, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        return ([line["seconds"] for line in lines],
                max(line["memory_bytes"] for line in lines))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="folder of the tools")
    parser.add_argument("--cluster", help="calibrated for 2 ranks of 1 thread")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--quick", action="store_true",
                        help="small calibration, few steps")
    parser.add_argument("--rounds", type=int, default=1,
                        help="runs of each case; the fastest counts")
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--meshes", default="pp,dp,tp")
    parser.add_argument("--keep", help="folder for models, plans and clusters")
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if o.keep:
            os.makedirs(o.keep, exist_ok=True)
        bench = Bench(o, o.keep or temporary)
        cluster = o.cluster or bench.calibrate()
        rows, idle = [], os.getloadavg()[0]
        print("| model | mesh | link | predicted ms | median ms | least ms | "
              "error | plan MiB | run MiB | error |")
        print("|---|---|---|---|---|---|---|---|---|---|")
        for size in o.sizes.split(","):
            model = bench.model(size, SIZES[size])
            for mesh in (m for m in MESHES if m[:2] in o.meshes.split(",")):
                for link, (latency, bandwidth) in LINKS.items():
                    machine = bench.with_links(
                        cluster, "links-" + link.replace(" ", "").replace(
                            "/", "p"), latency, bandwidth)
                    plan = bench.compile(
                        model, bench.path(f"{size}-{mesh}.plan"), MESHES[mesh],
                        f"--cluster={machine}")
                    seconds, arenas = bench.predict(plan)
                    steps = 6 if o.quick else max(
                        8, min(40, int(4 / seconds)))
                    # Other work on the machine only makes runs slower.
                    runs = [bench.measure(plan, machine, steps + SKIPPED)
                            for _ in range(o.rounds)]
                    times, memory = min(
                        ((t[SKIPPED:], m) for t, m in runs),
                        key=lambda one: statistics.median(one[0]))
                    median = statistics.median(times)
                    rows.append((seconds / median - 1, arenas / memory - 1,
                                 seconds / min(times) - 1))
                    print(f"| GPT {size} | {mesh} | {link} | "
                          f"{seconds * 1e3:.1f} | {median * 1e3:.1f} | "
                          f"{min(times) * 1e3:.1f} | {rows[-1][0]:+.0%} | "
                          f"{arenas / 2**20:.1f} | {memory / 2**20:.1f} | "
                          f"{rows[-1][1]:+.1%} |", flush=True)
        error, memory, least = (
            statistics.median(abs(row[i]) for row in rows) for i in range(3))
        print(f"\nmedian error of the step {error:.1%} ({least:.1%} to the "
              f"least step), of the memory {memory:.1%}; load of the machine "
              f"{idle:.1f} before, {os.getloadavg()[0]:.1f} after, "
              f"{os.cpu_count()} processors")


if __name__ == "__main__":
    main()
