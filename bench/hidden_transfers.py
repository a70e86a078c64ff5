#!/usr/bin/env python3
"""How much of the transfers between pipeline stages a schedule hides: predicted and
measured, each stage a host with a slow cable.

    sudo python3 bench/hidden_transfers.py [--shares=0.2,1] [--stages=2] [--svg=FILE]
    sudo python3 bench/hidden_transfers.py --pinned

Hosts are network namespaces on this machine, a rank on each, over MPI. Cables are as
slow as it takes for what a microbatch sends over a boundary, there and back, to take
such a share of what the busiest stage computes for it. Two models: the GPT of
samples/01-train-gpt, one value between two stages, and a U-shaped network, whose skip
connections cross every cut. One cut for all schedules; losses are compared, bit for bit.

  blocking      1F1B, the stage that sends computes nothing until all has left
  asynchronous  1F1B, values leave beside what comes next, when the forward or the
                whole backward is done
  split         1F1B, a gradient leaves before gradients of weights are computed
  eager         eager-1F1B, split
  auto          the schedule that --schedule=auto takes, split: as many microbatches
                ahead at each boundary as its transfers need

Devices are slower than this machine's cores and instructions last what the cluster's
file says, so that ranks do not wait for a core. With --pinned each rank computes as fast
as a core of its own does, and predictions are for devices on which a step without slow
cables takes as long as measured; the GPT is wider then, since TCP takes its part of these
cores (make_gpt.py, which needs the `onnx` and `numpy` packages). `arithmetic`: the whole
step by docs/Resharding.md's law for equal stages, where asynchronous is (m+p-1)(f+b) +
((p-1)m/p + p-2)c and eager (m+p-1)(f+b) + (p-1)c. Else standard library only.
"""
import argparse
import json
import os
import re
import statistics
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pictures  # noqa: E402
import seam_plans  # noqa: E402
import slow_hosts  # noqa: E402

GPT = os.path.join(slow_hosts.ROOT, "samples/01-train-gpt/model.onnx")
SPACE = "mkht"
FAST = 1e12  # bytes a second of cables that take no time
MODERATE = 3e7
ASYNCHRONOUS = "asynchronous"
WAYS = {"blocking": ("1f1b", "blocking"), ASYNCHRONOUS: ("1f1b", "late"),
        "split": ("1f1b", "early"), "eager": ("eager", "early"),
        "auto": ("auto", "early")}


def u_shaped(size=32, width=16):
    """Two levels down, two up, a skip at each."""
    g = seam_plans.Model("u-shaped")

    def convolution(x, inputs, outputs):
        g.count += 1
        x = g.op("Conv", x, g.weight(f"w{g.count}", [outputs, inputs, 3, 3], 0.1),
                 kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        return g.op("Relu", x)

    def block(x, inputs, outputs):
        return convolution(convolution(x, inputs, outputs), outputs, outputs)

    def smaller(x):
        return g.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])

    def larger(x, inputs, outputs):
        g.count += 1
        return g.op("ConvTranspose", x,
                    g.weight(f"w{g.count}", [inputs, outputs, 2, 2], 0.1),
                    kernel_shape=[2, 2], strides=[2, 2])

    a = block(g.input("x", [3, size, size]), 3, width)
    b = block(smaller(a), width, 2 * width)
    c = block(smaller(b), 2 * width, 4 * width)
    d = g.op("Concat", larger(c, 4 * width, 2 * width), b, axis=1)
    d = block(d, 4 * width, 2 * width)
    e = g.op("Concat", larger(d, 2 * width, width), a, axis=1)
    e = block(e, 2 * width, width)
    g.target_loss(convolution(e, width, 4), [4, size, size])
    return g


def wide_gpt(folder):
    path = os.path.join(folder, "wide.onnx")
    slow_hosts.run([sys.executable, os.path.join(slow_hosts.ROOT, "bench/make_gpt.py"),
                    path, "--width=512", "--heads=8"])
    return path


class Bench:
    def __init__(self, args, scratch):
        self.args, self.scratch = args, scratch
        self.speed = 1.0  # of devices, over what slow_hosts says

    def path(self, leaf):
        return os.path.join(self.scratch, leaf)

    def tool(self, name, *arguments):
        return slow_hosts.run([os.path.join(self.args.bin_dir, name), *arguments])

    def cluster(self, stages, bandwidth):
        machine = slow_hosts.cluster(stages, 1, bandwidth)
        machine["device"] = {
            key: value * self.speed if key in ("flops", "memory_bandwidth") else value
            for key, value in machine["device"].items()}
        return machine

    def plan(self, model, name, stages, bandwidth, way, *options, microbatches=None):
        """A plan and its predicted seconds; the cut is that of `options`."""
        cluster, plan = self.path("cluster.json"), self.path(name + ".plan")
        with open(cluster, "w", encoding="utf-8") as file:
            json.dump(self.cluster(stages, bandwidth), file)
        schedule, sends = WAYS[way]
        count = microbatches or self.args.microbatches
        self.tool("merakc", model, "-o", plan, "--quiet", f"--cluster={cluster}",
                  f"--mesh=pp={stages},dp=1,tp=1", "--recompute=none",
                  f"--microbatch={self.args.microbatch}",
                  f"--global-batch={count * self.args.microbatch}",
                  f"--schedule={schedule}", f"--sends={sends}",
                  "--optimizer=sgd:lr=1e-4", *options)
        told = self.tool("merak-plan", "simulate", plan)
        return plan, seam_plans.predicted(told), told

    def cut(self, model, stages):
        """An option that pins where stages begin: as even as can be where links are
        neither fast nor slow."""
        whole, strategy = self.path("whole.json"), self.path("cut.json")
        self.plan(model, "cut", stages, MODERATE, "split", f"--emit-strategy={whole}")
        with open(whole, encoding="utf-8") as file:
            begins = json.load(file)["stage_begins"]
        with open(strategy, "w", encoding="utf-8") as file:
            json.dump({"stage_begins": begins}, file)
        return f"--strategy={strategy}"

    def microbatch(self, model, stages, cut):
        """What one more microbatch takes on links that take no time, and bytes of it
        over the busiest boundary, there and back."""
        count = self.args.microbatches
        _, once, told = self.plan(model, "once", stages, FAST, "split", cut)
        _, twice, more = self.plan(model, "twice", stages, FAST, "split", cut,
                                   microbatches=2 * count)

        def moved(text):
            """Bytes by stage and the one that it sends to."""
            found, stage = {}, None
            for line in text.splitlines():
                if begun := re.match(r"stage (\d+)", line):
                    stage = int(begun[1])
                if sent := re.match(r"\s+send over pp=(\d+): \d+ times, (\d+)", line):
                    found[stage, int(sent[1])] = int(sent[2])
            return found

        before, after = moved(told), moved(more)
        grown = {key: (after[key] - before[key]) / count for key in after}
        return (twice - once) / count, max(
            grown.get((s, s + 1), 0) + grown.get((s + 1, s), 0)
            for s in range(stages - 1))

    def measured(self, hosts, plan, stages, name):
        """Median seconds of a step, and the losses."""
        log = self.path(name + ".jsonl")
        seconds = hosts.steps(plan, {host: 1 for host in range(stages)}, log,
                              self.args.steps + 2, "--data=synthetic",
                              pinned=self.args.pinned)
        with open(log, encoding="utf-8") as file:
            losses = [entry["loss"] for entry in map(json.loads, file)
                      if "loss" in entry]
        return statistics.median(seconds[2:]), losses

    def calibrate(self, model, stages, cut):
        """Makes devices as fast as this machine's cores are with this model."""
        self.speed = 1.0
        with slow_hosts.SlowHosts(SPACE, stages, None, self.args.bin_dir) as hosts:
            for _ in range(2):
                plan, predicted, _ = self.plan(model, "speed", stages, 1e9, "split",
                                               cut)
                measured, _ = self.measured(hosts, plan, stages, "speed")
                self.speed *= predicted / measured

    def table(self, name, model, stages, share):
        cut = self.cut(model, stages)
        if self.args.pinned:
            self.calibrate(model, stages, cut)
        period, moved = self.microbatch(model, stages, cut)
        wanted = moved / (share * period)
        # Frames and TCP take a twentieth.
        with slow_hosts.SlowHosts(SPACE, stages, f"{int(8 * wanted / 0.95)}bit",
                                  self.args.bin_dir) as hosts:
            return self.rows(hosts, name, model, stages, cut, period, moved)

    def rows(self, hosts, name, model, stages, cut, period, moved):
        seconds = max(0.2, 20 * period)
        mib = max(1, round(moved / period * seconds / (1 << 20)))
        bandwidth = hosts.goodput(self.scratch, mib, 3, each_way=True)
        latency = self.cluster(stages, bandwidth)["links"]["inter"]["latency"]
        m, p, c = self.args.microbatches, stages, moved / bandwidth + 2 * latency
        law = {ASYNCHRONOUS: (m + p - 1) * period + ((p - 1) * m / p + p - 2) * c,
               "eager": (m + p - 1) * period + (p - 1) * c if c <= period else None}
        print(f"{name}, {stages} stages: a microbatch computes {1e3 * period:.2f} ms, "
              f"its transfers take {1e3 * c:.2f} ms ({c / period:.2f}) at "
              f"{8e-6 * bandwidth:.1f} Mb/s; {m} microbatches", flush=True)
        found, all_losses = {}, []
        for way in WAYS:
            plan, predicted, _ = self.plan(model, way, stages, bandwidth, way, cut)
            measured, losses = self.measured(hosts, plan, stages, way)
            found[way] = predicted, measured
            all_losses.append(losses)
        if any(losses != all_losses[0] for losses in all_losses):
            sys.exit(f"losses differ: {all_losses}")
        for way, (predicted, measured) in found.items():
            expected, taken = found[ASYNCHRONOUS]
            arithmetic = law.get(way)
            print(f"| {way} | {1e3 * predicted:.1f} | {1e3 * measured:.1f} | "
                  f"{100 * (predicted / measured - 1):+.1f} % | "
                  f"{expected / predicted:.2f} | {taken / measured:.2f} | "
                  + (f"{1e3 * arithmetic:.1f}" if arithmetic else "") + " |",
                  flush=True)
        return (f"{name}, {stages} stages, transfers {c / period:.1f} of the "
                "computation", [(way, 1e3 * predicted, 1e3 * measured)
                                for way, (predicted, measured) in found.items()])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin-dir",
                        default=os.path.join(slow_hosts.ROOT, "build/release/bin"))
    parser.add_argument("--models", default="gpt,u-shaped")
    parser.add_argument("--shares", default="0.2,1")
    parser.add_argument("--stages", default="2")
    parser.add_argument("--microbatch", type=int, default=1, help="samples")
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--pinned", action="store_true",
                        help="real times, a core for each rank")
    parser.add_argument("--svg", help="also draws it")
    args = parser.parse_args()
    if not args.pinned:
        os.environ["MERAK_PACE"] = "1"  # instructions last as predicted
    groups = []
    with tempfile.TemporaryDirectory(prefix="merak-hidden-") as scratch:
        bench = Bench(args, scratch)
        models = {"gpt": lambda: wide_gpt(scratch) if args.pinned else GPT,
                  "u-shaped": lambda: u_shaped().write(scratch)}
        print("| schedule | predicted ms | measured ms | error | faster than "
              "asynchronous, predicted | measured | arithmetic ms |\n"
              "|---|---|---|---|---|---|---|")
        for name in args.models.split(","):
            for stages in map(int, args.stages.split(",")):
                for share in map(float, args.shares.split(",")):
                    groups.append(bench.table(name, models[name](), stages, share))
    if args.svg:
        most = max(measured for _, rows in groups for _, _, measured in rows)
        with open(args.svg, "w", encoding="utf-8") as file:
            file.write(pictures.bars("A step over slow cables, by schedule", groups,
                                     "ms", most))


if __name__ == "__main__":
    main()
