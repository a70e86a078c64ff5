#!/usr/bin/env python3
"""Calibrates the GPU of this machine, and compares what the simulator then says of
the benchmark's plans with what run.py measured.

    calibrated.py --bin-dir DIR --pack DIR [--results DIR] [--cluster FILE]

Reads measured.json of --results (by default the pack), writes gpu.json there: a
cluster file for merakc --cluster. With --cluster that file is taken, and nothing
is calibrated.
"""
import argparse
import json
import os
import re
import subprocess
import sys

GOAL = 0.10  # of the step


def calibrate(args, plans):
    cluster = os.path.join(args.results, "gpu.json")
    command = [os.path.join(args.bin_dir, "merak-bench"), "calibrate",
               "-o", cluster, "--quick", f"--backend={args.backend}",
               *[f"--plan={plan}" for plan in plans]]
    done = subprocess.run(command, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, errors="replace")
    if done.returncode:
        sys.exit("calibration failed: " + done.stderr.strip()[-400:])
    print(done.stdout, end="", flush=True)
    return cluster


def predicted(args, plan, cluster):
    done = subprocess.run(
        [os.path.join(args.bin_dir, "merak-plan"), "simulate", plan,
         f"--cluster={cluster}"], capture_output=True, text=True)
    found = re.match(r"step ([\d.]+) ms$", done.stdout, re.M)
    if not found:
        sys.exit(f"no prediction of {plan}: {done.stderr.strip()[-400:]}")
    return float(found.group(1)) / 1e3


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bin-dir", required=True)
    parser.add_argument("--pack", required=True)
    parser.add_argument("--results", help="folder; by default the pack")
    parser.add_argument("--cluster", help="calibrated before")
    parser.add_argument("--backend", default="cuda", choices=["cuda", "cpu"],
                        help="cpu: to try this script")
    args = parser.parse_args()
    args.results = args.results or args.pack
    path = os.path.join(args.results, "measured.json")
    if not os.path.exists(path):
        sys.exit(f"no {path}: run bench/gpu/run.py first")
    with open(path, encoding="utf-8") as file:
        measured = {name: by_tool["merak"]["seconds"]
                    for name, by_tool in json.load(file).items()
                    if by_tool["merak"]}
    if not measured:
        sys.exit(f"{path} holds no step of ours")
    plans = {name: os.path.join(args.pack, name, "plan") for name in measured}
    cluster = args.cluster or calibrate(args, plans.values())
    errors = []
    for name, seconds in measured.items():
        guess = predicted(args, plans[name], cluster)
        error = guess / seconds - 1
        errors.append(f"{name} {100 * error:+.1f} %" +
                      (" (goal 10 missed)" if abs(error) > GOAL else ""))
        print(f"{name:<10} predicted {guess * 1e3:9.2f} ms, measured "
              f"{seconds * 1e3:9.2f} ms")
    print("predicted beside measured: " + ", ".join(errors))
    return 0


if __name__ == "__main__":
    sys.exit(main())
