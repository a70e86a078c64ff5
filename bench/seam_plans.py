#!/usr/bin/env python3
"""Plans with a seam beside the best plans without one: predicted and measured, two
ranks of this machine over slow links (emulated: ranks sleep).

    python3 bench/seam_plans.py [--bin-dir=build/release/bin] [--cluster=FILE]

Two networks. `embedding`: a wide table in front of narrow layers, whose columns lie
over dp while all else is split by samples. `convolutions`: convolutions by samples,
wide layers by width. For each speed of the links and each way to lay a model out
without seams (replicas, tensor-parallel, pipeline; the search chooses microbatches,
schedule, overlap), and for what the search takes when all techniques are allowed, the
step that is simulated and the fastest of the measured ones: other work on the
machine only makes steps slower. The seam comes by a strategy
file. Standard library only; --cluster is the machine, without its links.
"""
import argparse
import array
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
sys.path.insert(0, os.path.join(ROOT, "test/e2e"))
import exact_models  # noqa: E402

XEON = os.path.join(ROOT, "samples/clusters/xeon-2.json")
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}
LINKS = {"200 MB/s": (5e-5, 2e8), "100 MB/s": (5e-5, 1e8)}
MESHES = {"replicas, dp=2": ["--mesh=pp=1,dp=2,tp=1"],
          "tensor-parallel, tp=2": ["--mesh=pp=1,dp=1,tp=2"],
          "pipeline, pp=2": ["--mesh=pp=2,dp=1,tp=1"],
          "searched, everything allowed": ["--allow=zero,sequence,context,mixed"]}
SKIPPED = 2  # first steps: memory is touched, code is loaded


class Model(exact_models.Graph):
    """Weights are normal numbers in a file beside the model."""

    def __init__(self, name):
        super().__init__(name)
        self.offset = 0

    def weight(self, name, shape, deviation=0.02):
        count = 1
        for size in shape:
            count *= size
        self.weights[name] = (count, deviation)
        entries = (("location", self.name + ".data"), ("offset", self.offset),
                   ("length", 4 * count))
        self.offset += 4 * count
        self.initializers.append(
            "  initializer {\n" + "".join(f"    dims: {n}\n" for n in shape) +
            f"    data_type: 1\n    name: \"{name}\"\n"
            "    data_location: EXTERNAL\n" + "".join(
                f"    external_data {{ key: \"{key}\" value: \"{value}\" }}\n"
                for key, value in entries) + "  }\n")
        return name

    def input(self, name, shape, low=-1, high=1, kind=exact_models.FLOAT):
        self.inputs.append((name, kind, shape))
        return name

    def write(self, folder):
        path = os.path.join(folder, self.name + ".textproto")
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.text())
        normal = [self.random.gauss(0, 1) for _ in range(1 << 14)]
        with open(os.path.join(folder, self.name + ".data"), "wb") as file:
            for count, deviation in self.weights.values():
                block = array.array("f", [deviation * x for x in normal])
                for begin in range(0, count, len(block)):
                    block[:count - begin].tofile(file)
        return path


def predicted(told):
    """Seconds of a step, of what `merak-plan simulate` prints."""
    number, unit = re.match(r"step ([\d.]+) (\w+)", told).groups()
    return float(number) * UNITS[unit]


def embedding(rows=65536, width=256, tokens=64, layers=4):
    g = Model("embedding")
    h = g.op("Gather", g.weight("table", [rows, width]),
             g.input("ids", [tokens], kind=exact_models.INT64), axis=0)
    h = g.op("Add", h, g.weight("position", [tokens, width]))
    for k in range(layers):
        up = g.op("Relu", g.op("MatMul", h, g.weight(f"up{k}", [width, width])))
        h = g.op("Add", h, g.op("MatMul", up, g.weight(f"down{k}",
                                                       [width, width])))
    g.target_loss(g.op("MatMul", h, g.weight("out", [width, 16])), [tokens, 16])
    return g


def convolutions(size=32, channels=32, layers=4, wide=2048):
    g = Model("convolutions")
    h, inputs = g.input("x", [3, size, size]), 3
    for k in range(layers):
        h = g.op("Conv", h, g.weight(f"c{k}", [channels, inputs, 3, 3], 0.1),
                 kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        h, inputs = g.op("Relu", h), channels
    h = g.op("AveragePool", h, kernel_shape=[4, 4], strides=[4, 4])
    h = g.op("Flatten", h, axis=1)
    first = channels * (size // 4) ** 2
    for k, count in enumerate((first, wide)):
        h = g.op("Relu", g.op("MatMul", h, g.weight(f"wide{k}", [count, wide])))
    g.target_loss(g.op("MatMul", h, g.weight("out", [wide, 16])), [16])
    return g


def products(graph):
    """Names of the matrix products, in order."""
    return re.findall(r'name: "(MatMul_\d+)"', "".join(graph.nodes))


def columns(_):
    """Of the table for all samples, then all columns of half of the samples."""
    return {"seams": [{"op": "Add_2", "operand": 0}],
            "classes": [{"tensor": "table", "dim": 1, "axes": ["dp"]},
                        {"op": "Gather_1", "operand": 1, "dim": 0,
                         "axes": ["mb"]}]}


def widths(graph):
    """Wide layers in halves for all samples, behind and in front of samples."""
    first, *_, last = products(graph)
    return {"seams": [{"op": first, "operand": 0}, {"op": last, "operand": 0}],
            "classes": [{"tensor": "wide0", "dim": 1, "axes": ["dp"]},
                        {"op": first, "operand": 0, "dim": 0, "axes": ["mb"]}]}


# The model, samples of a step, what the strategy says.
CASES = {"embedding": (embedding, 32, columns),
         "convolutions": (convolutions, 32, widths)}


class Bench:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder

    def path(self, leaf):
        return os.path.join(self.folder, leaf)

    def run(self, tool, *arguments):
        done = subprocess.run(
            [os.path.join(self.args.bin_dir, tool), *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{tool} {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def machine(self, latency, bandwidth):
        with open(self.args.cluster, encoding="utf-8") as file:
            data = json.load(file)
        data["links"] = {"intra": {"bandwidth": bandwidth, "latency": latency}}
        path = self.path("machine.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(data, file)
        return path

    def compile(self, model, machine, batch, leaf, options):
        plan = self.path(leaf)
        self.run("merakc", model, "-o", plan, "--quiet", "--devices=2",
                 f"--cluster={machine}", f"--global-batch={batch}",
                 "--optimizer=adamw:lr=1e-5", *options)
        return predicted(self.run("merak-plan", "simulate", plan)), plan

    def seam(self, model, machine, batch, says):
        """The fastest as simulated of all sizes of microbatches."""
        found = []
        for microbatch in (16, 8, 4, 2):
            path = self.path(f"seam-{microbatch}.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"version": 2, "mesh": {"pp": 1, "dp": 2, "tp": 1},
                           **says}, file)
            found.append(self.compile(
                model, machine, batch, f"seam-{microbatch}.plan",
                [f"--strategy={path}", f"--microbatch={microbatch}"]))
        return min(found)

    data = "synthetic"

    def measure(self, plan, machine, steps):
        log = self.path("log.jsonl")
        self.run("merak-run", plan, f"--data={self.data}", f"--steps={steps}",
                 "--threads=1", f"--links={machine}", f"--log={log}")
        with open(log, encoding="utf-8") as file:
            seconds = [json.loads(line)["seconds"] for line in file]
        return min(seconds[SKIPPED:])

    def rows(self, name, link):
        """(what, predicted, plan) of one model over one kind of link."""
        make, batch, says = CASES[name]
        graph = make()
        model = graph.write(self.folder)
        machine = self.machine(*LINKS[link])
        for k, (what, options) in enumerate(MESHES.items()):
            yield (what, *self.compile(model, machine, batch, f"{k}.plan",
                                       options)), machine
        yield ("with the seam, dp=2",
               *self.seam(model, machine, batch, says(graph))), machine


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin-dir", default=os.path.join(ROOT,
                                                          "build/release/bin"))
    parser.add_argument("--cluster", default=XEON)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2,
                        help="runs of each plan, in turn")
    parser.add_argument("--models", default=",".join(CASES))
    parser.add_argument("--no-runs", action="store_true", help="predict only")
    args = parser.parse_args()
    print("| model | links | plan | predicted ms | measured ms | error |\n"
          "|---|---|---|---|---|---|")
    for name in args.models.split(","):
        for link in LINKS:
            with tempfile.TemporaryDirectory(prefix="merak-seams-") as folder:
                bench = Bench(args, folder)
                rows = list(bench.rows(name, link))
                times = [[] for _ in rows]
                for _ in range(0 if args.no_runs else args.rounds):
                    for ((_, _, plan), machine), list_ in zip(rows, times):
                        list_.append(bench.measure(plan, machine, args.steps))
                for ((what, predicted, _), _), list_ in zip(rows, times):
                    measured = min(list_, default=float("nan"))
                    print(f"| {name} | {link} | {what} | {predicted * 1e3:.0f} | "
                          f"{measured * 1e3:.0f} | {predicted / measured - 1:+.0%} "
                          "|", flush=True)


if __name__ == "__main__":
    main()
