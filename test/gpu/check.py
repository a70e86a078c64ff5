#!/usr/bin/env python3
"""The model cases on a GPU: packed plans, ranks sharing the device, losses
against recorded runs. Standard library only.

    check.py --bin-dir DIR --pack DIR [--list | --plans]

--plans needs no GPU: are the plans whole, and their models there? Prints a line
a case and `N passed, M failed`.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import cases

# Relative; f32 products in f32.
LOSS = {"fp32": 1e-4, "bf16": 1e-2, "fp16": 2e-3, "fp8": 3e-2}


def run(args, case, prefix=(), steps=cases.STEPS, options=(), limit=60):
    """The losses, or a sentence that says what went wrong."""
    model = os.path.join(args.pack, "models", case[0])
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log.jsonl")
        command = [*prefix, os.path.join(args.bin_dir, "merak-run"),
                   os.path.join(args.pack, "plans", cases.name(case)),
                   "--backend=cuda", f"--model-dir={model}",
                   f"--data={os.path.join(model, 'data')}",
                   f"--steps={steps}", f"--log={log}",
                   *cases.run_options(case), *options]
        try:
            done = subprocess.run(command, capture_output=True, text=True,
                                  errors="replace", timeout=limit)
        except subprocess.TimeoutExpired:
            return None, f"did not end in {limit} s"
        if done.returncode and prefix:  # the sanitizer's report is its output
            report = [line for line in done.stdout.splitlines()
                      if line.startswith("=========")]
            return None, "\n".join(report[:40] or done.stderr.splitlines()[-9:])
        if done.returncode:
            return None, (done.stderr or done.stdout).strip()[-400:]
        with open(log, encoding="utf-8") as file:
            entries = [json.loads(line) for line in file]
        if any(e.get("graph") for e in entries):
            args.graphs.add(case)
        return [e["loss"] for e in entries if "loss" in e], None


def compare(args, case, losses):
    path = os.path.join(args.pack, "models", case[0], "expected.json")
    with open(path, encoding="utf-8") as file:
        wanted = json.load(file)["optimizers"][case[2]]["losses"]
    if len(losses) != len(wanted):
        return f"{len(losses)} losses, expected {len(wanted)}"
    for step, (x, y) in enumerate(zip(losses, wanted), 1):
        bound = LOSS[cases.precision(case)]
        if x is None or not abs(x - y) <= bound * abs(y):
            return f"loss of step {step} is {x}, expected {y:.7g}"
    return None


def verify(args, case):
    """What a run would stop at before it needs the device."""
    plan = os.path.join(args.pack, "plans", cases.name(case))
    done = subprocess.run(
        [os.path.join(args.bin_dir, "merak-plan"), "verify", plan],
        capture_output=True, text=True, errors="replace")
    if done.returncode:
        return (done.stderr or done.stdout).strip()[-400:]
    model = os.path.join(args.pack, "models", case[0])
    for path in ("model.onnx", "expected.json", "data"):
        if not os.path.exists(os.path.join(model, path)):
            return f"lacks {os.path.join(model, path)}"
    if not any(leaf.startswith("kernels.") for leaf in os.listdir(plan)):
        return "has no kernels"
    return None


def packed(args):
    """The cases whose plans are there."""
    return [case for case in cases.CASES if os.path.exists(
        os.path.join(args.pack, "plans", cases.name(case)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin-dir")
    parser.add_argument("--pack")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--plans", action="store_true")
    parser.add_argument("--sanitizer", help="compute-sanitizer; its case only")
    args = parser.parse_args()
    args.graphs = set()  # cases whose steps were launched as one graph
    if args.list:
        for case in cases.CASES:
            print("  model case", " ".join(case))
        return 0
    chosen, prefix, steps = packed(args), (), cases.STEPS
    if not chosen:
        print(f"no plans in {args.pack}")
        return 1
    if args.sanitizer:
        chosen, steps = [cases.SANITIZED], 2
        # The packed tools are started by a script. What a library asks the
        # driver and takes no for an answer is no error; ours are looked at by
        # the runtime.
        prefix = (args.sanitizer, "--error-exitcode=9", "--leak-check=no",
                  "--report-api-errors=no", "--target-processes=all")
    failed = 0
    for case in chosen:
        if args.plans:
            problem = verify(args, case)
            failed += bool(problem)
            print("FAILED" if problem else "passed", " ".join(case),
                  problem or "", flush=True)
            continue
        losses, problem = run(args, case, prefix, steps,
                              limit=140 if args.sanitizer else 60)
        if not problem and not args.sanitizer:
            problem = compare(args, case, losses)
        # The same bits again, now without graphs: no atomics, no order left to
        # chance, and nothing that a captured step would miss.
        if not problem and not args.sanitizer:
            again, problem = run(args, case, options=["--graphs=off"])
            if not problem and again != losses:
                problem = "a second run, without graphs, has other losses"
        failed += bool(problem)
        print("FAILED" if problem else "passed", " ".join(case),
              problem or "", flush=True)
    graphs = f", {len(args.graphs)} as one graph" if args.graphs else ""
    print(f"{len(chosen) - failed} passed, {failed} failed{graphs}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
