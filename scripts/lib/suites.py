#!/usr/bin/env python3
"""Runs the test suites over a finished build, for scripts/check.

Each suite writes logs/<suite>.log in the build folder; what failed is shown at
once. The last line adds up: `N passed, M failed`.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
SHOWN = 60  # lines of a failed suite's log


class Suite:
    def __init__(self, args, name):
        self.args, self.name = args, name
        self.log_path = os.path.join(args.build, "logs", name + ".log")
        self.text = ""

    def run(self, command, environment=None, echo=r"^(FAILED|skipped|-- )"):
        """Runs a command into the log; lines that match `echo` are also shown.
        Returns the exit code."""
        with open(self.log_path, "a", encoding="utf-8") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, text=True, errors="replace",
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})})
            for line in process.stdout:
                log.write(line)
                log.flush()
                self.text += line
                if re.search(echo, line):
                    print("  " + line.rstrip(), flush=True)
            return process.wait()

    def script(self, *command):
        """A script that ends with `N passed, M failed`."""
        code = self.run([sys.executable, *command])
        counts = re.findall(r"^(\d+) passed, (\d+) failed$", self.text, re.M)
        if not counts:
            return 0, 1
        passed, failed = map(int, counts[-1])
        return passed, max(failed, 1 if code else 0)


def sources():
    """All C++ files of the repository, with or without git."""
    for folder, names, leaves in os.walk(ROOT):
        names[:] = [n for n in names if n not in
                    ("build", "out", ".git", ".cache", "data")]
        for leaf in leaves:
            if leaf.endswith((".cpp", ".h", ".cu", ".cuh")):
                yield os.path.relpath(os.path.join(folder, leaf), ROOT)


def run_format(suite):
    """clang-format 14 would change nothing."""
    files = sorted(sources())
    formatter = shutil.which("clang-format-14")
    if not formatter:
        suite.run(["echo", "clang-format-14 is not installed"])
        return 0, 1
    # In chunks, so that both cores work and the command line stays short.
    chunks = [files[k::suite.args.jobs] for k in range(suite.args.jobs)]
    processes = [subprocess.Popen(
        [formatter, "--dry-run", "--Werror", *chunk], cwd=ROOT, text=True,
        stderr=subprocess.PIPE) for chunk in chunks if chunk]
    output = "".join(p.communicate()[1] for p in processes)
    bad = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error", output, re.M)))
    suite.text = "".join(f"clang-format-14 -i {name}\n" for name in bad)
    with open(suite.log_path, "a", encoding="utf-8") as log:
        log.write(output + suite.text)
    return len(files) - len(bad), len(bad)


# Test programs of which a short run takes one case of so many, in their order, so that
# each kernel has some: vectors of fewer bits, and the emulated device.
SHARES = {"MerakConformanceTests-avx2": 8, "MerakConformanceTests-baseline": 8,
          "MerakCudaTests": 3}
# Cases that a short run leaves out: searches in full beside the searches that others
# run, for most of the time of planning_test.
LEFT_OUT = ["LeastSeconds.NoPlanIsFaster",
            "LeastSeconds.WhatIsLeftOutWouldNotBeTaken",
            "LayoutSearch.IsNearTheBestOfAllCombinations",
            "ParetoPlans.KeepsToTheLimit",
            "PipelinePlan.CutsLeftOutEarlyWouldNotBeTaken",
            "PlanSearch.AutoIsNeverWorseThanANamedChoice"]
# Damaged checkpoints that each test of checkpoint_test tries in a short run.
FEW_MUTATIONS = "100"


def unit_runs(short, build):
    """Of each call of ctest its options and environment."""
    if not short:
        return [([], {})]
    listed = subprocess.run(["ctest", "--test-dir", build, "-N"], check=True,
                            capture_output=True, text=True).stdout.split()
    rest = {"GTEST_FILTER": "-" + ":".join(LEFT_OUT),
            "MERAK_MUTATIONS": FEW_MUTATIONS}
    runs = [(["-E", f"^({'|'.join(SHARES)})$"], rest)]
    for program, share in SHARES.items():
        if program not in listed:  # the runtime alone has no emulated device
            continue
        runs.append((["-R", f"^{program}$"],
                     {"GTEST_TOTAL_SHARDS": str(share), "GTEST_SHARD_INDEX": "0"}))
    return runs


def run_unit(suite):
    """gtest binaries through ctest; every case counts."""
    passed = failed = 0
    for number, (options, environment) in enumerate(
            unit_runs(suite.args.short, suite.args.build)):
        results = os.path.join(suite.args.build, "logs", f"gtest-{number}")
        counts = count_unit(suite, results, options, environment)
        passed, failed = passed + counts[0], failed + counts[1]
    return passed, failed


def count_unit(suite, results, options, environment):
    shutil.rmtree(results, ignore_errors=True)
    os.makedirs(results)
    junit = os.path.join(results, "ctest.xml")
    suite.run(["ctest", "--test-dir", suite.args.build, "-j",
               str(suite.args.jobs), "--timeout",
               str(suite.args.timeout or 600), "--output-on-failure",
               "--output-junit", junit, *options],
              {"GTEST_OUTPUT": "json:" + results + "/", **environment},
              echo=r"\*\*\*(Failed|Timeout|Exception)|\[  FAILED  \]")
    passed = failed = 0
    try:
        cases = list(xml.etree.ElementTree.parse(junit).iter("testcase"))
    except (OSError, xml.etree.ElementTree.ParseError):
        return 0, 1
    for case in cases:
        bad = case.get("status") != "run"
        try:
            with open(os.path.join(results, case.get("name") + ".json"),
                      encoding="utf-8") as file:
                counts = json.load(file)
            broken = counts["failures"] + counts.get("errors", 0)
            passed += counts["tests"] - broken
        except (OSError, ValueError):
            broken = 0
            passed += not bad
        failed += max(broken, 1 if bad else 0)
    # A build without a single test proves nothing.
    return passed, failed or (0 if cases else 1)


def run_lit(suite):
    """Text tests."""
    folder = os.path.join(suite.args.build, "test")
    results = os.path.join(suite.args.build, "logs", "lit.json")
    if os.path.exists(results):
        os.remove(results)
    lit = "/usr/lib/llvm-22/bin/lit"
    code = suite.run([lit, "-v", "-j", str(suite.args.jobs), "--output",
                      results, folder], echo=r"^(FAIL|UNRESOLVED|TIMEOUT):")
    try:
        with open(results, encoding="utf-8") as file:
            tests = json.load(file)["tests"]
    except (OSError, ValueError):
        return 0, 1
    good = sum(t["code"] in ("PASS", "XFAIL", "FLAKYPASS") for t in tests)
    bad = sum(t["code"] in ("FAIL", "XPASS", "UNRESOLVED", "TIMEOUT")
              for t in tests)
    return good, max(bad, 1 if code else 0)


def python_suite(path, *options, tools=False):
    def run(suite):
        command = [os.path.join(ROOT, path), *options]
        if tools:
            command += ["--bin-dir", os.path.join(suite.args.build, "bin")]
        if path.startswith(("test/e2e/", "test/fuzz/")) and tools:
            command += ["--jobs", str(suite.args.jobs)]
            command += ["--all"] if suite.args.all else []
        if path.startswith("test/e2e/") and tools:
            command += ["--short"] if suite.args.short else []
            if suite.args.timeout:
                command += ["--timeout", str(suite.args.timeout)]
        return suite.script(*command)
    return run


def has_faults(folder):
    """Whether a build's merak-run listens to MERAK_FAULT."""
    with open(os.path.join(folder, "compile_commands.json"),
              encoding="utf-8") as file:
        commands = json.load(file)
    return any("MERAK_TEST_FAULTS" in entry["command"] for entry in commands
               if entry["file"].endswith("/RunOptions.cpp"))


def run_runtime_only(suite):
    """It configures without CUDA; without tests there is no way to lose a rank
    on purpose; and, under --all, the runtime, its tools and tests without
    LLVM."""
    builds = os.path.dirname(suite.args.build)
    without = os.path.join(builds, "without-cuda")
    if suite.run(["cmake", "--preset", "runtime-only", "-B", without,
                  "-DMERAK_CUDA=OFF", "-DMERAK_BUILD_TESTS=OFF"]) != 0 or \
            "CUDA backend: OFF, NCCL: OFF" not in suite.text:
        return 0, 1
    # The build under test has it: else this proves nothing.
    if has_faults(without) or not has_faults(suite.args.build):
        suite.run(["echo", "FAILED: MERAK_FAULT is for builds with tests alone"])
        return 1, 1
    if not suite.args.all:
        return 2, 0
    folder = os.path.join(builds, "runtime-only")
    jobs = str(suite.args.jobs)
    steps = [["cmake", "--preset", "runtime-only", "-B", folder],
             ["ninja", "-C", folder, "-j", jobs],
             ["ctest", "--test-dir", folder, "-j", jobs, "--timeout", "600",
              "--output-on-failure"]]
    for done, step in enumerate(steps):
        if suite.run(step) != 0:
            return done + 2, 1
    return len(steps) + 2, 0


def run_onnx(suite):
    """Backend tests and gradients; the pages made of the last full run."""
    folder = os.path.join(ROOT, "test/conformance/onnx")
    tools = ["--bin-dir", os.path.join(suite.args.build, "bin"),
             "--jobs", str(suite.args.jobs)]
    passed, failed = suite.script(
        os.path.join(folder, "cases.py"), *tools,
        "--all" if suite.args.all else "--subset")
    # By operator; without --all those that have a rule of their own.
    more = suite.script(os.path.join(folder, "gradients.py"), *tools,
                        "--all" if suite.args.all else "--subset")
    table = suite.script(os.path.join(folder, "operators.py"), *tools)
    stale = suite.run([sys.executable, os.path.join(folder, "report.py"),
                       "--check"]) != 0
    return (passed + more[0] + table[0] + (not stale),
            failed + more[1] + table[1] + stale)


def run_mutations(suite):
    """Planted mistakes; with --all each is built and must fail its test."""
    return suite.script(os.path.join(ROOT, "test/mutations/mutations.py"),
                        "--build", suite.args.build, "--jobs",
                        str(suite.args.jobs),
                        *(["--all"] if suite.args.all else []))


# From quick to slow; scripts/check documents the names.
SUITES = {
    "format": run_format,
    "layering": python_suite("test/layering/layering.py"),
    "dialects": python_suite("test/dialects/specification.py", tools=True),
    "harness": python_suite("test/e2e/selftest.py"),
    "unit": run_unit,
    "lit": run_lit,
    "bad-input": python_suite("test/e2e/bad_input.py", tools=True),
    "checkpoint": python_suite("test/e2e/checkpoint.py", tools=True),
    "infer": python_suite("test/e2e/infer.py", tools=True),
    "batch-norm": python_suite("test/e2e/batch_norm.py", tools=True),
    "hostile": python_suite("test/e2e/hostile.py", tools=True),
    "training-info": python_suite("test/e2e/training_info.py", tools=True),
    "ahead": python_suite("test/e2e/ahead.py", tools=True),
    "onnx": run_onnx,
    "dropout": python_suite("test/e2e/dropout.py", tools=True),
    "identity": python_suite("test/e2e/identity.py", tools=True),
    "oracle": python_suite("test/e2e/oracle.py", tools=True),
    "mpi": python_suite("test/e2e/mpi.py", tools=True),
    "strangers": python_suite("test/e2e/strangers.py", tools=True),
    "precision": python_suite("test/e2e/precision.py", tools=True),
    "delayed-gradients": python_suite("test/e2e/delayed_gradients.py", tools=True),
    "fp8": python_suite("test/e2e/fp8.py", tools=True),
    "loss-scale": python_suite("test/e2e/loss_scale.py", tools=True),
    "gpu-kernels": python_suite("test/e2e/gpu_kernels.py", tools=True),
    "cuda-emulated": python_suite("test/e2e/cuda_emulated.py", tools=True),
    "migration": python_suite("test/e2e/migration.py", tools=True),
    "rates": python_suite("test/e2e/rates.py", tools=True),
    "elastic": python_suite("test/e2e/elastic.py", tools=True),
    "restarts": python_suite("test/e2e/restarts.py", tools=True),
    "standbys": python_suite("test/e2e/standbys.py", tools=True),
    "agent-plans": python_suite("test/e2e/agent_plans.py", tools=True),
    "histories": python_suite("test/e2e/histories.py", tools=True),
    "parts": python_suite("test/e2e/parts.py", tools=True),
    "pipelines": python_suite("test/e2e/pipelines.py", tools=True),
    "arena": python_suite("test/e2e/arena.py", tools=True),
    "cuda-async": python_suite("test/e2e/cuda_async.py", tools=True),
    "cuda-graphs": python_suite("test/e2e/cuda_graphs.py", tools=True),
    "cuda-nccl": python_suite("test/e2e/cuda_nccl.py", tools=True),
    "gpu-pack": python_suite("test/e2e/gpu_pack.py", tools=True),
    "export": python_suite("test/e2e/export_onnx.py", tools=True),
    "families": python_suite("test/families/families.py", tools=True),
    "fuzz": python_suite("test/fuzz/fuzz.py", tools=True),
    "report": python_suite("test/e2e/report.py", tools=True),
    "memory": python_suite("test/e2e/memory.py", tools=True),
    "phases": python_suite("test/e2e/phases.py", tools=True),
    "strategy": python_suite("test/e2e/strategy.py", tools=True),
    "frontier": python_suite("test/e2e/frontier.py", tools=True),
    "seams": python_suite("test/e2e/seams.py", tools=True),
    "seam-options": python_suite("test/e2e/seam_options.py", tools=True),
    "sparse": python_suite("test/e2e/sparse.py", tools=True),
    "accounts": python_suite("test/e2e/accounts.py", tools=True),
    "real-size": python_suite("test/e2e/real_size.py", tools=True),
    "expected": python_suite("test/e2e/expected.py", tools=True),
    "planner-memory": python_suite("test/e2e/planner_memory.py",
                                   tools=True),
    "best-plan": python_suite("test/e2e/best_plan.py", tools=True),
    "overlap": python_suite("test/e2e/overlap.py", tools=True),
    "python": python_suite("test/python/package.py", tools=True),
    "docs": python_suite("test/docs/docs.py", tools=True),
    "runtime-only": run_runtime_only,
    "mutations": run_mutations,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--short", action="store_true",
                        help="a part of the cases: builds for sanitizers are slow")
    parser.add_argument("--only", default=",".join(SUITES))
    parser.add_argument("--timeout", type=int, metavar="SECONDS",
                        help="of one test program or command, instead of their "
                        "own limits: builds for sanitizers are slow")
    args = parser.parse_args()
    args.build = os.path.abspath(args.build)
    names = args.only.split(",")
    unknown = [n for n in names if n not in SUITES]
    if unknown:
        print(f"no suite {', '.join(unknown)}; there are {', '.join(SUITES)}",
              file=sys.stderr)
        return 2
    os.makedirs(os.path.join(args.build, "logs"), exist_ok=True)
    totals = [0, 0]
    table = []
    for name in names:
        suite = Suite(args, name)
        open(suite.log_path, "w", encoding="utf-8").close()
        print(f"== {name}", flush=True)
        began = time.monotonic()
        passed, failed = SUITES[name](suite)
        seconds = time.monotonic() - began
        table.append((name, passed, failed, seconds))
        totals[0] += passed
        totals[1] += failed
        if failed:
            for line in suite.text.rstrip().splitlines()[-SHOWN:]:
                print("  | " + line)
            print(f"  log: {suite.log_path}")
        print(f"   {passed} passed, {failed} failed, {seconds:.0f} s",
              flush=True)
    print(f"\n{'suite':<12} {'passed':>7} {'failed':>7} {'seconds':>8}")
    for name, passed, failed, seconds in table:
        print(f"{name:<12} {passed:>7} {failed:>7} {seconds:>8.0f}")
    print(f"{totals[0]} passed, {totals[1]} failed")
    return 1 if totals[1] else 0


if __name__ == "__main__":
    sys.exit(main())
