#!/usr/bin/env python3
"""Exchanges of a table's gradient beside each other: predicted and measured, ranks of
this machine over slow links (emulated: ranks sleep), bytes as the plan counts them.

    python3 bench/sparse_tables.py [--bin-dir=build/release/bin] [--ranks=4,8]
    python3 bench/sparse_tables.py --hosts [--bandwidth=2e7]
    python3 bench/sparse_tables.py --zipf=1.1 [--hosts] [--svg=FILE]
    python3 bench/sparse_tables.py --zipf=1.1 --layers=2 --slower=50
    python3 bench/sparse_tables.py --held=1000000,10000000
    python3 bench/sparse_tables.py --owed=0.0002,0.001,0.01,0.1 --rows=262144
    python3 bench/sparse_tables.py --shares=0.001,0.01,0.1,0.5 --ranks=4,16,64,256 \
        --width=512 --cluster=samples/clusters/rtx3090-16x4.json
    python3 bench/sparse_tables.py --skew=1 --rows=793471 --width=512 --tokens=2560 \
        --ranks=4,8,16,64 --group=4

A language model in small: a table that holds nearly all parameters, a narrow layer
behind it, SGD. `dense`: the gradient of the whole table is all-reduced. `rows`:
--sparse=exact, replicas gather ids and slices. `columns`: each replica has some columns
of the table, rows and slices go by all-to-all. The fastest of the measured steps counts:
other work on the machine only makes steps slower. With --hosts each rank is a process
on a network namespace with a slow cable, predictions are of the goodput of such a cable
in the same run, and in brackets is what a host really sent, without headers. `2D`: rows
that no lookup of the next step needs are exchanged beside it (--delayed-rows). With
--zipf ids are drawn with chances that fall as 1 / rank ** EXPONENT, and beside slices as
they are replicas send sums of one id each (--data; in brackets what is predicted from the
share of the rows alone, --touched). With --layers there is more behind the table, with
--slower devices are slower than those of --cluster, and instructions last as predicted
for them. With --held tables of so many rows on one rank, by `--sparse=lazy`: a step follows the rows that are touched. With --owed one
rank looks up such shares of the table's rows in a step, by --optimizer with dense
gradients, `lazy` and `exact`: mean steps, of the last one after 256 others. With
--shares plans are simulated only: each rank looks up such a part of the table's rows in a
step. With --skew nothing is run: bytes that a rank would send in a step of --tokens ids on
each, with chances that fall as 1 / rank ** SKEW. Standard library only.
"""
import argparse
import contextlib
import itertools
import json
import math
import os
import random
import re
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pictures  # noqa: E402
import seam_plans  # noqa: E402
import slow_hosts  # noqa: E402
import harness  # noqa: E402

OPTIMIZER = "--optimizer=sgd:lr=1e-3"


def language_model(rows, width, tokens, layers=1):
    g = seam_plans.Model("language")
    h = g.op("Gather", g.weight("table", [rows, width]),
             g.input("ids", [tokens], kind=seam_plans.exact_models.INT64), axis=0)
    for k in range(layers):
        h = g.op("Relu", g.op("MatMul", h, g.weight(f"w{k or ''}",
                                                    [width, width])))
    g.target_loss(g.op("MatMul", h, g.weight("out", [width, 4])), [tokens, 4])
    return g


def columns(ranks):
    return {"version": 2, "mesh": {"pp": 1, "dp": ranks, "tp": 1},
            "seams": [{"op": "MatMul_2", "operand": 0}],
            "classes": [{"tensor": "table", "dim": 1, "axes": ["dp"]},
                        {"op": "Gather_1", "operand": 1, "dim": 0,
                         "axes": ["mb"]}]}


class Bench(seam_plans.Bench):
    touched = 1

    def write_zipf(self, samples):
        """Data, and the part of the rows that a step looks up."""
        args = self.args
        pick = random.Random(1)
        chances = list(itertools.accumulate(
            (k + 1) ** -args.zipf for k in range(args.rows)))
        rows = list(range(args.rows))
        pick.shuffle(rows)  # which rows are frequent has no order
        ids = pick.choices(rows, cum_weights=chances, k=samples * args.tokens)
        self.data = self.path("data")
        os.makedirs(self.data, exist_ok=True)
        shape = [samples, args.tokens]
        harness.write_npy(os.path.join(self.data, "ids.npy"), "<i8", shape, ids)
        harness.write_npy(os.path.join(self.data, "target.npy"), "<f4",
                          [*shape, 4], [pick.gauss(0, 1) for _ in
                                        range(4 * samples * args.tokens)])
        each = args.batch * args.tokens
        steps = [len(set(ids[k:k + each])) for k in range(0, len(ids), each)]
        self.touched = sum(steps) / len(steps) / args.rows

    wire = {}  # by plan, bytes that a host sent in a step
    bandwidth = 0  # measured

    def hosts(self, ranks):
        return contextlib.nullcontext()

    def machine_of(self, ranks):
        path = self.machine(self.args.latency,
                            self.bandwidth or self.args.bandwidth)
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        data["nodes"] = [{"count": 1, "kind": "cpu", "devices": ranks}]
        if self.args.slower:
            data.pop("host", None)
            data["rates"] = {str(rank): 1 / self.args.slower
                             for rank in range(ranks)}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(data, file)
        return path

    def compile(self, model, machine, ranks, what, told=False):
        plan = self.path(what + (".told" if told else "") + ".plan")
        options = [f"--devices={ranks}", f"--mesh=pp=1,dp={ranks},tp=1",
                   f"--cluster={machine}", f"--global-batch={self.args.batch}",
                   f"--microbatch={self.args.batch // ranks}", OPTIMIZER]
        if what != "dense":
            options += ["--sparse=lazy", "--mixed-layouts=off"]
        if what.endswith("2D"):
            options.append("--delayed-rows=on")
        if self.args.zipf and what.endswith(("summed", "2D")):
            options.append(f"--touched=table={self.touched}" if told else
                           f"--data={self.data}")
        if what.startswith("columns"):
            path = self.path("columns.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(columns(ranks), file)
            options.append("--strategy=" + path)
        self.run("merakc", model, "-o", plan, "--quiet", *options)
        seconds = seam_plans.predicted(self.run("merak-plan", "simulate", plan))
        sent = sum(int(n) for n in re.findall(
            r"over dp: .*, (\d+) sent", self.run("merak-plan", "account", plan)))
        return seconds, sent, plan


class HostsBench(Bench):
    """Ranks are processes on hosts of their own. What links carry is measured in the
    same run; what a host sends in a step is the difference of runs of many and of few
    steps, without what a run sends to begin and to end."""

    def measure(self, plan, machine, steps):
        few = seam_plans.SKIPPED
        begin = self.sent()
        self.seconds(plan, few)
        middle = self.sent()
        seconds = self.seconds(plan, steps)
        once = middle - begin
        self.wire.setdefault(plan, []).append(
            (self.sent() - middle - once) / (steps - few))
        return min(seconds[few:])

    def seconds(self, plan, steps):
        return self.there.steps(plan, {host: 1 for host in range(self.there.count)},
                                self.path("log.jsonl"), steps,
                                f"--data={self.data}")

    def sent(self):
        return self.there.sent(1)

    @contextlib.contextmanager
    def hosts(self, ranks):
        rate = f"{round(8 * self.args.bandwidth)}bit"
        with slow_hosts.SlowHosts("mkst", ranks, rate,
                                  self.args.bin_dir) as self.there:
            mib = max(1, round(self.args.bandwidth / 2**20))
            self.bandwidth = self.there.goodput(self.folder, mib, each_way=True)
            self.wire = {}
            print(f"goodput {self.bandwidth / 1e6:.2f} MB/s of cables of "
                  f"{self.args.bandwidth / 1e6:.2f}, each way at once", flush=True)
            yield


def held(bench, counts):
    args = bench.args
    print("| rows | optimizer | step, ms |\n|---|---|---|")
    for rows in counts:
        model = language_model(rows, args.width, args.tokens).write(bench.folder)
        for optimizer in ("sgd:lr=1e-3", "adamw:lr=1e-3"):
            plan = bench.path("held.plan")
            bench.run("merakc", model, "-o", plan, "--quiet", "--devices=1",
                      f"--global-batch={args.batch}",
                      f"--microbatch={args.batch}", f"--optimizer={optimizer}",
                      "--sparse=lazy")
            log = bench.path("log.jsonl")
            bench.run("merak-run", plan, "--data=synthetic", "--threads=1",
                      f"--steps={args.steps}", f"--log={log}")
            with open(log, encoding="utf-8") as file:
                seconds = sorted(json.loads(line)["seconds"] for line in file)
            print(f"| {rows} | {optimizer} | "
                  f"{1e3 * seconds[len(seconds) // 2]:.2f} |", flush=True)


def owed(bench, share):
    """Mean steps in ms: with dense gradients, lazy and exact."""
    args = bench.args
    tokens = max(1, round(share * args.rows / args.batch))
    model = language_model(args.rows, args.width, tokens).write(bench.folder)
    means, settled = [], 256
    for option in ("off", "lazy", "exact"):
        plan, log = bench.path("owed.plan"), bench.path("log.jsonl")
        bench.run("merakc", model, "-o", plan, "--quiet", "--devices=1",
                  f"--global-batch={args.batch}", f"--microbatch={args.batch}",
                  f"--optimizer={args.optimizer}", f"--sparse={option}")
        # Rows are owed steps only after some; a step with dense gradients is one.
        begin = settled if option == "exact" else 4
        bench.run("merak-run", plan, "--data=synthetic", "--threads=1",
                  f"--steps={begin + args.steps}", f"--log={log}")
        with open(log, encoding="utf-8") as file:
            seconds = [json.loads(line)["seconds"] for line in file]
        means.append(1e3 * sum(seconds[begin:]) / len(seconds[begin:]))
    print(f"| {share} | {tokens * args.batch} | " +
          " | ".join(f"{ms:.2f}" for ms in means) + " |", flush=True)


def shares(bench, ranks, share):
    """Simulated steps by exchange, in ms, and the bytes that a rank sends for the table,
    of what an all-reduce of its gradient sends."""
    args = bench.args
    tokens = max(1, round(share * args.rows))
    model = language_model(args.rows, args.width, tokens).write(bench.folder)
    args.batch = ranks
    with open(args.cluster, encoding="utf-8") as file:
        data = json.load(file)
    each = min(ranks, data["nodes"][0]["devices"])
    data["nodes"] = [dict(data["nodes"][0], count=ranks // each, devices=each)]
    machine = bench.path("machine.json")
    with open(machine, "w", encoding="utf-8") as file:
        json.dump(data, file)
    found = {}
    # The other parameters and the loss are all-reduced in any case.
    others = 2 * (ranks - 1) / ranks * 4 * (args.width * (args.width + 4) + 1)
    for what in ("dense", "rows", "columns"):
        seconds, sent, _ = bench.compile(model, machine, ranks, what)
        found[what] = seconds, sent - others
    best = min(found, key=lambda what: found[what][0])
    # Section 3 of the paper: an all-reduce sends 1/a of what columns do, rows N/2.
    bytes_of = {"dense": 1, "rows": share * ranks / 2, "columns": share}
    print(f"| {ranks} | {share} | " + " | ".join(
        f"{1e3 * found[what][0]:.1f}" for what in found) + f" | {best} | " +
        " | ".join(f"{found[what][1] / found['dense'][1]:.4f} ({part:.4f})"
                   for what, part in bytes_of.items() if what != "dense") + " |",
        flush=True)


def beside(bench, ranks):
    args = bench.args
    model = language_model(args.rows, args.width, args.tokens,
                           args.layers).write(bench.folder)
    machine = bench.machine_of(ranks)
    names = ("dense", "rows", "columns", "columns, 2D")
    if args.zipf:
        names = ("dense", "rows", "rows, summed", "rows, 2D", "columns",
                 "columns, summed", "columns, 2D")
        bench.write_zipf(8 * args.batch)
    plans = {what: bench.compile(model, machine, ranks, what) for what in names}
    told = {what: bench.compile(model, machine, ranks, what, told=True)
            for what in names if args.zipf and what.endswith(("summed", "2D"))}
    times = {what: [] for what in names}
    for _ in range(args.rounds):
        for what in names:
            times[what].append(bench.measure(plans[what][2], machine, args.steps))
    rows = []
    for what in names:
        predicted, sent, plan = plans[what]
        measured = min(times[what])
        rows.append((what, predicted * 1e3, measured * 1e3))
        wire = f" ({min(bench.wire[plan]) / 1e3:.0f})" if bench.wire else ""
        share = f" ({told[what][0] * 1e3:.1f})" if what in told else ""
        print(f"| {ranks} | {what} | {sent / 1e3:.0f}{wire} | "
              f"{predicted * 1e3:.1f}{share} | {measured * 1e3:.1f} | "
              f"{predicted / measured - 1:+.0%} | "
              f"{measured / min(times['columns']):.2f} |", flush=True)
    return f"{ranks} ranks", rows


def skewed(args, counts):
    """Arithmetic: what other layouts would send. `once`: a looked-up row goes once to
    a replica, not for each of its ids. `hot`: the most frequent rows, as many as are
    best, are held by all and all-reduced. `groups`: columns are split within --group
    ranks, sums of the groups' rows gathered between them."""
    weights = [(k + 1) ** -args.skew for k in range(args.rows)]
    total, row, ids = sum(weights), 4e-6 * args.width, args.tokens
    chances = [w / total for w in weights]

    def named(count):
        return sum(-math.expm1(count * math.log1p(-p)) for p in chances)

    own, group = named(ids), named(args.group * ids)
    print(f"{ids} ids name {own:.0f} rows, of {args.group} ranks {group:.0f}")
    print("| ranks | rows, MB | rows, hot apart | columns | columns, once | "
          "columns, hot apart | columns, to other groups | groups, to other groups |")
    print("|---|---|---|---|---|---|---|---|")
    for n in counts:
        part = (n - 1) / n * row
        best = [math.inf, math.inf]
        cold, cold_ids = own, ids
        for hot, p in enumerate(chances):
            reduced = 2 * part * hot
            best = [min(best[0], reduced + (n - 1) * row * cold),
                    min(best[1], reduced + part * (cold_ids + cold))]
            cold += math.expm1(ids * math.log1p(-p))
            cold_ids -= ids * p
        print(f"| {n} | {(n - 1) * row * own:.1f} | {best[0]:.1f} | "
              f"{part * (ids + own):.2f} | {part * 2 * own:.2f} | {best[1]:.2f} | "
              f"{(n - args.group) / n * row * 2 * own:.2f} | "
              f"{(n / args.group - 1) * row * group / args.group:.2f} |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin-dir", default=os.path.join(seam_plans.ROOT,
                                                          "build/release/bin"))
    parser.add_argument("--cluster", default=seam_plans.XEON)
    parser.add_argument("--ranks", default="4,8")
    parser.add_argument("--rows", type=int, default=32768)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--slower", type=float, default=0, metavar="FACTOR",
                        help="devices, than those of --cluster: so many ranks share "
                        "few cores as if each had its own")
    parser.add_argument("--layers", type=int, default=1,
                        help="behind the table: what exchanges may run beside")
    parser.add_argument("--tokens", type=int, default=64, help="of a sample")
    parser.add_argument("--batch", type=int, default=64, help="samples a step")
    parser.add_argument("--latency", type=float, default=1e-4, help="seconds")
    parser.add_argument("--bandwidth", type=float, default=2e7,
                        help="bytes a second")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3,
                        help="runs of each plan, in turn")
    parser.add_argument("--hosts", action="store_true",
                        help="ranks on network namespaces, over MPI; as root")
    parser.add_argument("--held", default="", help="rows of tables on one rank")
    parser.add_argument("--skew", type=float, default=0, metavar="EXPONENT",
                        help="of chances, for what other layouts would send")
    parser.add_argument("--group", type=int, default=4,
                        help="ranks that share columns, with --skew")
    parser.add_argument("--zipf", type=float, default=0, metavar="EXPONENT",
                        help="of the chances of ids")
    parser.add_argument("--owed", default="",
                        help="looked up by one rank, of a table's rows")
    parser.add_argument("--optimizer", default="adamw:lr=1e-3", help="of --owed")
    parser.add_argument("--shares", default="",
                        help="of a table's rows that a rank looks up")
    parser.add_argument("--svg", default="", metavar="FILE",
                        help="draws the table of exchanges, too")
    args = parser.parse_args()
    if args.slower:
        os.environ["MERAK_PACE"] = "1"  # instructions last as predicted
    if args.skew:
        skewed(args, map(int, args.ranks.split(",")))
        return
    if args.owed:
        print("| looked up | ids | dense, ms | lazy, ms | exact, ms |\n"
              "|---|---|---|---|---|")
        with tempfile.TemporaryDirectory() as folder:
            for share in args.owed.split(","):
                owed(Bench(args, folder), float(share))
        return
    if args.shares:
        print("| ranks | share | dense, ms | rows, ms | columns, ms | least | sent "
              "by rows, of dense (formula) | by columns (formula) |\n"
              "|---|---|---|---|---|---|---|---|")
        for ranks in map(int, args.ranks.split(",")):
            for share in map(float, args.shares.split(",")):
                with tempfile.TemporaryDirectory(prefix="merak-sparse-") as folder:
                    shares(Bench(args, folder), ranks, share)
        return
    if args.held:
        with tempfile.TemporaryDirectory(prefix="merak-sparse-") as folder:
            held(Bench(args, folder), map(int, args.held.split(",")))
        return
    groups = []
    for ranks in map(int, args.ranks.split(",")):
        with tempfile.TemporaryDirectory(prefix="merak-sparse-") as folder:
            bench = (HostsBench if args.hosts else Bench)(args, folder)
            with bench.hosts(ranks):
                print("| ranks | exchange | sent by a rank, kB | predicted ms | "
                      "measured ms | error | of columns |\n"
                      "|---|---|---|---|---|---|---|", flush=True)
                groups.append(beside(bench, ranks))
    if args.svg:
        most = max(measured for _, rows in groups
                   for what, _, measured in rows if what != "dense")
        with open(args.svg, "w", encoding="utf-8") as file:
            file.write(pictures.bars(
                "a step by the exchange of the table's gradient, links of "
                f"{args.bandwidth / 1e6:g} MB/s", groups, "ms", most))


if __name__ == "__main__":
    main()
