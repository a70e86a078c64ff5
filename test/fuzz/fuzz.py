#!/usr/bin/env python3
"""Every reader of files under damaged inputs: makes files of each kind with the
built tools, and hands them to import-fuzz, plan-fuzz and reader-fuzz, which change
them. Nothing may crash, hang, take more than 1 GiB, or be accepted as something
else than it was.

    fuzz.py --bin-dir=DIR               a few seconds of each
    fuzz.py --bin-dir=DIR --all         ten times as many
    fuzz.py --bin-dir=DIR --million     1,130,000 inputs, by hand
    fuzz.py ... --only=NAME,...         some of them
    fuzz.py ... --tools=DIR             the fuzzers of another build, of sanitizers
                                        for instance
    fuzz.py ... --seed=N                other inputs
"""
import argparse
import concurrent.futures
import glob
import os
import random
import re
import sqlite3
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
MODELS = os.path.join(ROOT, "test/data/models")
GPT = os.path.join(MODELS, "gpt2-tiny/model.onnx")
# Of each: how many inputs in the suite, and by hand.
COUNTS = {
    "import": (3000, 50000), "plan": (3000, 150000), "repaired": (100, 10000),
    "npy": (5000, 150000), "tokens": (5000, 150000), "sqlite": (2000, 100000),
    "safetensors": (5000, 150000), "trace": (500, 40000),
    "cluster": (3000, 80000), "strategy": (3000, 60000),
    "schedule": (3000, 60000), "frontier": (1000, 30000),
    "stragglers": (1000, 30000),
    "links": (3000, 50000), "rate": (3000, 50000)}
# Models, data and options of plans: all kinds of instructions.
PLANS = [
    ("mlp-ce", ["--global-batch=8", "--devices=2", "--mesh=dp=2",
                "--optimizer=sgd:lr=0.1,momentum=0.9", "--grad-clip=1"]),
    ("gpt2-tiny", ["--global-batch=8", "--devices=4", "--mesh=pp=2,dp=1,tp=2",
                   "--microbatch=2", "--schedule=1f1b"]),
    ("gpt2-tiny", ["--global-batch=8", "--devices=2", "--mesh=dp=2", "--zero=3",
                   "--microbatch=2", "--optimizer=adamw:lr=1e-3,schedule=cosine,"
                   "warmup=2,total=10"]),
    ("resnet-plain-tiny", ["--global-batch=8", "--devices=2", "--mesh=pp=2",
                           "--microbatch=4", "--schedule=zb"]),
    ("mlp-mse", ["--global-batch=8", "--devices=1", "--mode=infer"])]
RATES = ["0.5 1 t add sqrt div", "s0 | 0 s1 0.5 mul | 1 s0 s1 add 7 mod"]
LINKS = ["5us/200MB/s", "5us/2GB/s,50us/200MB/s@4"]


class Workplace:
    """The files of each kind, made once."""

    def __init__(self, bin_dir, folder):
        self.bin_dir, self.folder = bin_dir, folder

    def path(self, name):
        return os.path.join(self.folder, name)

    def tool(self, *command):
        done = subprocess.run([os.path.join(self.bin_dir, command[0]),
                               *command[1:]], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)}: {done.stderr}")

    def write(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content if isinstance(content, bytes)
                       else content.encode())
        return self.path(name)

    def plans(self):
        made = []
        for number, (model, options) in enumerate(PLANS):
            made.append(self.path(f"{number}.plan"))
            if not os.path.exists(made[-1]):
                self.tool("merakc", os.path.join(MODELS, model, "model.onnx"),
                          "-o", made[-1], "-q", *options)
        return made

    def planned(self, option, name):
        """What merakc writes beside a plan."""
        path = self.path(name)
        self.tool("merakc", GPT, "-q", "-o", self.path(name + ".plan"),
                  "--global-batch=8", "--devices=4", "--mesh=pp=4",
                  "--microbatch=2", f"{option}={path}")
        return path

    def frontier(self):
        path = self.path("frontier.json")
        self.tool("merakc", GPT, "--global-batch=8", "--devices=2", "-q",
                  f"--frontier={path}")
        return path

    def ran(self, option, name, plan=1):
        """What merak-run writes."""
        path = self.path(name)
        self.tool("merak-run", self.plans()[plan], "--data=synthetic",
                  "--threads=1", f"{option}={path}")
        return path

    def table(self):
        path = self.path("samples.sqlite")
        if os.path.exists(path):
            os.remove(path)
        draw = random.Random(1)
        base = sqlite3.connect(path)
        base.execute("PRAGMA page_size=512")
        base.execute("CREATE TABLE samples(input_ids BLOB, labels BLOB)")
        for _ in range(24):
            base.execute("INSERT INTO samples VALUES(?, ?)", [
                struct.pack("<4q", *(draw.randrange(1000) for _ in range(4)))
                for _ in range(2)])
        base.commit()
        base.close()
        return path

    def seeds(self, target):
        """The files that are changed."""
        draw = random.Random(2)
        if target == "import":
            return [os.path.join(MODELS, name, "model.onnx") for name in (
                "mlp-ce", "mlp-mse", "resnet-plain-tiny", "gpt2-tiny")]
        if target in ("plan", "repaired"):
            return self.plans()
        if target == "npy":
            return sorted(glob.glob(os.path.join(MODELS, "mlp-*/data/*.npy")))
        if target == "tokens":
            return [self.write("tokens.bin", struct.pack(
                "<200H", *(draw.randrange(1000) for _ in range(200))))]
        if target == "sqlite":
            return [self.table()]
        if target == "safetensors":
            return [self.ran("--save-grads", "grads.safetensors")]
        if target == "trace":
            return [self.plans()[0], self.ran("--trace", "trace.json", 0)]
        if target == "cluster":
            return sorted(glob.glob(os.path.join(ROOT,
                                                 "samples/clusters/*.json")))
        if target == "stragglers":
            return sorted(glob.glob(os.path.join(ROOT,
                                                 "samples/stragglers/*.json")))
        if target == "strategy":
            return [self.planned("--emit-strategy", "strategy.json")]
        if target == "schedule":
            return [self.planned("--emit-schedule", "schedule.json")]
        if target == "frontier":
            return [self.frontier()]
        texts = LINKS if target == "links" else RATES
        return [self.write(f"{target}-{k}", text)
                for k, text in enumerate(texts)]


def command(target, seeds, args, save):
    count = COUNTS[target][1 if args.million else 0]
    if args.all and not args.million:
        count = min(10 * count, COUNTS[target][1])
    count = args.executions or count
    name = {"import": "import-fuzz", "plan": "plan-fuzz",
            "repaired": "plan-fuzz"}.get(target, "reader-fuzz")
    line = [os.path.join(args.tools or args.bin_dir, name), *seeds,
            f"--executions={count}", f"--seed={args.seed}", f"--save={save}",
            f"--seconds={args.seconds}"]
    if target == "import":
        return line + ["--replay=" + os.path.join(ROOT, "test/data/fuzz")]
    return line + [f"--target={target}"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bin-dir", required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--only", default=",".join(COUNTS))
    parser.add_argument("--tools")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--executions", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=0)
    args = parser.parse_args()
    save = os.path.join(args.bin_dir, "../logs")
    os.makedirs(save, exist_ok=True)
    failed, counted = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        work = Workplace(args.bin_dir, folder)
        lines = [(target, command(target, work.seeds(target), args, save))
                 for target in args.only.split(",")]
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            runs = pool.map(lambda line: subprocess.run(
                line[1], capture_output=True, text=True, errors="replace"),
                lines)
            for (target, _), done in zip(lines, runs):
                shown = [line for line in (done.stdout + done.stderr).
                         splitlines() if not line.startswith("-- ")
                         and not re.match(r"\d+ passed, \d+ failed$", line)]
                failed += done.returncode != 0
                print("\n".join(("FAILED " if done.returncode else "") + line
                                for line in shown), flush=True)
                found = re.search(r"^(\d+) executions", done.stdout, re.M)
                counted += int(found.group(1)) if found else 0
    print(f"-- {counted} inputs")
    print(f"{len(lines) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
