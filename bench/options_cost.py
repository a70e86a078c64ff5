#!/usr/bin/env python3
"""What an option of merak-run costs, on a machine with other work: runs without
and with it take turns; of each the time of processors and the median step, then by
how much their medians differ. For saving also, within one run, how much longer the
steps behind a save are than those that no save is under way beside.

    options_cost.py PLAN DATA --save-every=5 | --with=OPTIONS [--steps=60]
                    [--rounds=5] [--bin-dir=build/release/bin]
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))


def run(args, options, log):
    """(seconds of processors, seconds of each step)."""
    before = os.times()
    subprocess.run([os.path.join(args.bin_dir, "merak-run"), args.plan,
                    "--data=" + args.data, f"--steps={args.steps}",
                    "--log=" + log, *options], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    with open(log, encoding="utf-8") as file:
        steps = [json.loads(line)["seconds"] for line in file]
    os.remove(log)
    return (after.children_user + after.children_system - before.children_user -
            before.children_system, steps)


def behind_saves(steps, every):
    """(seconds of a step beside no save, seconds more for each save): medians of
    the steps at each distance from a save, the farther half as those beside none."""
    steps = steps[every:]
    places = [statistics.median(steps[k::every]) for k in range(every)]
    quiet = statistics.median(places[every // 2:])
    return quiet, sum(place - quiet for place in places[:every // 2])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("plan")
    parser.add_argument("data")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--save-every", type=int)
    what.add_argument("--with", dest="options", default="")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bin-dir", default=os.path.join(ROOT,
                                                          "build/release/bin"))
    args = parser.parse_args()
    every = args.save_every
    taken, medians = ({"without": [], "with": []} for _ in range(2))
    saves = []
    with tempfile.TemporaryDirectory() as folder:
        kinds = {"without": [], "with": [
            f"--save={folder}/saved", f"--save-every={every}"] if every else
                 shlex.split(args.options)}
        for number in range(args.rounds):
            for kind in sorted(kinds, reverse=number % 2 == 1):
                seconds, steps = run(args, kinds[kind],
                                     os.path.join(folder, "log"))
                taken[kind].append(seconds)
                medians[kind].append(statistics.median(steps))
                if every and kind == "with":
                    saves.append(behind_saves(steps, every))
    for kind in taken:
        print(f"{kind:8} {statistics.median(taken[kind]):.2f} s of processors, "
              f"median step {1e3 * statistics.median(medians[kind]):.2f} ms")
    more = statistics.median(taken["with"]) - statistics.median(taken["without"])
    print(f"{100 * more / statistics.median(taken['without']):+.1f} % of the time "
          "of processors")
    if every:
        count = args.steps // every
        quiet, longer = (statistics.median(column) for column in zip(*saves))
        print(f"each save: {1e3 * more / count:.1f} ms of processors, steps "
              f"{1e3 * longer:.1f} ms longer in all, beside "
              f"{1e3 * quiet:.1f} ms for a step")


if __name__ == "__main__":
    main()
