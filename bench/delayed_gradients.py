#!/usr/bin/env python3
"""Gradients that wait for the next step's forward pass (--delayed-gradients) beside
such that do not: predicted and measured.

    python3 bench/delayed_gradients.py [--bin-dir=build/release/bin] [--ranks=2,4]
    python3 bench/delayed_gradients.py --tables

Ranks are threads of this machine, links are emulated (ranks sleep), and instructions last
as predicted for devices that are --slower: several ranks share few cores as if each had its
own. The model is the sample GPT; with --tables a language model with a table in columns
over replicas, whose delayed rows wait as well. Plans take turns; the median step of a
run counts, of the runs the fastest: other work on the machine makes them slower. Standard
library only.
"""
import argparse
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import seam_plans  # noqa: E402
import sparse_tables  # noqa: E402

SAMPLE = os.path.join(seam_plans.ROOT, "samples/01-train-gpt/model.onnx")
OFF, ROWS, ON = "off", "rows", "on"
OPTIONS = {OFF: [], ROWS: ["--delayed-rows=on"],
           ON: ["--delayed-gradients=on"]}


class Bench(seam_plans.Bench):
    def machine_of(self, ranks, bandwidth):
        path = self.machine(self.args.latency, bandwidth)
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        data["nodes"] = [{"count": 1, "kind": "cpu", "devices": ranks}]
        data.pop("host", None)
        data["rates"] = {str(rank): 1 / self.args.slower for rank in range(ranks)}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(data, file)
        return path

    def measure(self, plan, machine, steps):
        """The median: what a late rank makes up for shortens the step behind."""
        log = self.path("log.jsonl")
        self.run("merak-run", plan, f"--data={self.data}", f"--steps={steps}",
                 "--threads=1", f"--links={machine}", f"--log={log}")
        with open(log, encoding="utf-8") as file:
            seconds = sorted([json.loads(line)["seconds"] for line in file]
                             [seam_plans.SKIPPED:])
        return seconds[len(seconds) // 2]

    def compile_for(self, model, machine, ranks, leaf, options):
        """Predicted seconds, and the plan."""
        plan = self.path(leaf + ".plan")
        self.run(
            "merakc", model, "-o", plan, "--quiet", f"--devices={ranks}",
            f"--mesh=pp=1,dp={ranks},tp=1", f"--cluster={machine}",
            f"--global-batch={self.args.batch}",
            f"--microbatch={self.args.batch // ranks // self.args.microbatches}",
            "--optimizer=adamw:lr=1e-3", *options)
        return seam_plans.predicted(self.run("merak-plan", "simulate", plan)), plan


def models(args, folder, ranks):
    """The model and its options."""
    if not args.tables:
        return SAMPLE, []
    path = os.path.join(folder, "columns.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(sparse_tables.columns(ranks), file)
    model = sparse_tables.language_model(args.rows, args.width, args.tokens,
                                         args.layers).write(folder)
    return model, ["--sparse=lazy", f"--strategy={path}"]


def row(args, ranks):
    with tempfile.TemporaryDirectory(prefix="merak-delayed-") as folder:
        bench = Bench(args, folder)
        model, common = models(args, folder, ranks)
        kinds = {"at once": [OFF], "gradients wait": [ON]}
        if args.tables:
            kinds = {"at once": [OFF], "rows wait": [ROWS],
                     "gradients wait": [ON], "both wait": [ROWS, ON]}
        machine = bench.machine_of(ranks, args.bandwidth)
        plans = {}
        for what, options in kinds.items():
            plans[what] = bench.compile_for(
                model, machine, ranks, what.replace(" ", "-"),
                [*common, *(o for kind in options for o in OPTIONS[kind])])
        times = {what: [] for what in kinds}
        for _ in range(args.rounds):
            for what in kinds:
                times[what].append(bench.measure(plans[what][1], machine,
                                                 args.steps))
        first = min(times["at once"])
        for what, (predicted, _) in plans.items():
            best = min(times[what])
            print(f"| {ranks} | {args.bandwidth / 1e6:g} | {what} | "
                  f"{1e3 * predicted:.1f} | {1e3 * best:.1f} | "
                  f"{100 * (best / first - 1):+.1f} % |", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin-dir", default=os.path.join(seam_plans.ROOT,
                                                          "build/release/bin"))
    parser.add_argument("--cluster", default=seam_plans.XEON)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--slower", type=float, default=50)
    parser.add_argument("--latency", type=float, default=1e-4, help="seconds")
    parser.add_argument("--bandwidth", type=float, default=2e7,
                        help="bytes a second")
    parser.add_argument("--batch", type=int, default=16, help="samples a step")
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--rows", type=int, default=32768, help="of the table")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64, help="of a sample")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2,
                        help="runs of each plan, in turn")
    args = parser.parse_args()
    os.environ["MERAK_PACE"] = "1"  # instructions last as predicted
    print("| ranks | MB/s | sums | predicted ms | measured ms | of at once |\n"
          "|---|---|---|---|---|---|")
    for ranks in map(int, args.ranks.split(",")):
        row(args, ranks)


if __name__ == "__main__":
    main()
