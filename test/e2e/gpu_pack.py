#!/usr/bin/env python3
"""What test/gpu/pack.py packs, unpacked elsewhere: everything that
test/gpu/run.sh can do there without a GPU.

whole    a checkout without its build, the packed plans and runtime: a table, a
         sentence that there is no GPU, exit code 3
broken   a plan that was cut short: told in the table, exit code 1
empty    nothing unpacked: exit code 1
list     what would be checked names every case
checked  what judges the runs there, on a plan for the emulated device: losses, and
         the same bits without graphs; wrong recorded losses fail
attempted  a machine whose GPU runs nothing: all rows failed, exit code 1
chosen   --only and --minutes: some of the checks, an unknown one, no time
cudnn    a build without cuDNN is neither packed nor measured
bench    the benchmark's scripts on the CPU: a profile, the simulator beside the
         measured step; a plan that does not run is told
losses   the benchmark's judgement of losses: skipped steps, none that is finite,
         others than PyTorch's; weights and tokens as they are described
"""
import array
import functools
import json
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tarfile

import harness
import matrix
import oracle
from harness import Case, Failed

sys.path.insert(0, os.path.join(harness.ROOT, "test/gpu"))
import cases  # noqa: E402

# What a checkout needs there beside sources.
FOLDERS = ["test/gpu", "bench"]
PACKED = {"": "mlp-ce-none", "bf16": "gpt2-tiny-none-adamw-whole-gpipe-bf16"}


def checkout(tools):
    root = tools.path("checkout")
    for folder in FOLDERS:
        shutil.copytree(os.path.join(harness.ROOT, folder),
                        os.path.join(root, folder),
                        ignore=shutil.ignore_patterns("__pycache__"))
    return root


def run_sh(tools, root, *options, smi_says="exit 9"):
    """Exit code and output. A machine with a GPU is made to look without."""
    stand_in = tools.path("bin")
    os.makedirs(stand_in, exist_ok=True)
    smi = os.path.join(stand_in, "nvidia-smi")
    with open(smi, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\n{smi_says}\n")
    os.chmod(smi, 0o755)
    command = [os.path.join(root, "test/gpu/run.sh"), *options]
    tools.commands.append(" ".join(command))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120,
                          cwd=tools.folder,
                          env={**os.environ,
                               "PATH": stand_in + ":" + os.environ["PATH"]})
    return done.returncode, done.stdout + done.stderr


def pack(tools, root, only, *options):
    archive = tools.path("pack.tar.gz")
    command = [sys.executable, os.path.join(harness.ROOT, "test/gpu/pack.py"),
               archive, "--bin-dir", os.path.abspath(tools.bin_dir), "--only",
               only, "--without-cudnn", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"pack.py: {harness.last_lines(done.stderr)}")
    with tarfile.open(archive) as file:
        file.extractall(root, filter="data")


def row(output, name):
    found = re.findall(rf"^{name} +(\w+) +(.*)$", output, re.M)
    if not found:
        raise Failed(f"no row {name}: {harness.last_lines(output, 12)}")
    return found[-1]


def whole(which, tools):
    root = checkout(tools)
    bin_dir = os.path.abspath(tools.bin_dir)
    if which:
        pack(tools, root, PACKED[which], "--no-runtime")
        code, output = run_sh(tools, root, "--bin-dir", bin_dir)
    else:
        pack(tools, root, PACKED[which])
        code, output = run_sh(tools, root)
    if code != 3 or not output.endswith(
            "1 of 8 checks were made on a machine without a GPU\n"
            "no GPU: nvidia-smi finds none\n"):
        raise Failed(f"exit code {code}: {harness.last_lines(output, 10)}")
    if row(output, "plans") != ("passed", "1 passed, 0 failed"):
        raise Failed(f"plans: {row(output, 'plans')}")
    for name in ("conformance", "collectives", "nccl", "models", "sanitizer",
                 "benchmark", "calibration"):
        if row(output, name) != ("skipped", "needs a GPU"):
            raise Failed(f"{name}: {row(output, name)}")
    # The plans need no file of the machine that made them: with them, the
    # packed data and the packed model, a run gets as far as the driver.
    pack_dir = os.path.join(root, "build/gpu-pack")
    if not which:
        libraries = os.listdir(os.path.join(pack_dir, "runtime/lib"))
        if not any(name.startswith("libprotobuf") for name in libraries) or any(
                name.startswith(("libc.", "ld-linux")) for name in libraries):
            raise Failed(f"packed libraries: {libraries}")
        bin_dir = os.path.join(pack_dir, "runtime/bin")
    (plan,) = os.listdir(os.path.join(pack_dir, "plans"))
    (model,) = os.listdir(os.path.join(pack_dir, "models"))
    model = os.path.join(pack_dir, "models", model)
    driver = os.path.abspath(os.path.join(tools.bin_dir, "../fake-driver"))
    tools.extra = {"MERAK_KEY": os.path.join(pack_dir, "key")}
    if os.path.exists(driver):
        tools.extra.update({"LD_LIBRARY_PATH": driver,
                            "MERAK_FAKE_CUDA": "devices=0"})
    _, errors = tools.run(os.path.join(bin_dir, "merak-run"),
                          os.path.join(pack_dir, "plans", plan),
                          "--backend=cuda", f"--model-dir={model}",
                          f"--data={model}/data", "--steps=1", expect=1)
    if not re.search(r"the driver sees none|NVIDIA's driver|without the CUDA",
                     errors):
        raise Failed(f"a run stops at: {errors.strip()}")


def broken(tools):
    root = checkout(tools)
    pack(tools, root, PACKED[""], "--no-runtime")
    plans = os.path.join(root, "build/gpu-pack/plans")
    (plan,) = os.listdir(plans)
    programs = [os.path.join(base, leaf)
                for base, _, leaves in os.walk(os.path.join(plans, plan))
                for leaf in leaves if leaf.endswith(".pb")]
    with open(sorted(programs)[0], "r+b") as file:
        file.truncate(os.path.getsize(file.name) // 2)
    code, output = run_sh(tools, root, "--bin-dir",
                          os.path.abspath(tools.bin_dir))
    if code != 1 or row(output, "plans") != ("FAILED", "0 passed, 1 failed"):
        raise Failed(f"exit code {code}: {harness.last_lines(output, 10)}")


def empty(tools):
    code, output = run_sh(tools, checkout(tools), "--bin-dir",
                          os.path.abspath(tools.bin_dir))
    if code != 1 or row(output, "plans")[0] != "FAILED":
        raise Failed(f"exit code {code}: {harness.last_lines(output, 10)}")


def listed(tools):
    code, output = run_sh(tools, checkout(tools), "--list")
    if code != 0 or output.count("model case") < 15:
        raise Failed(f"exit code {code}: {harness.last_lines(output, 10)}")


# merak-run as test/gpu/check.py calls it, on the emulated device, which runs
# plans for CPUs.
EMULATED = """#!/bin/sh
for option do
  shift
  [ "$option" = --backend=cuda ] || set -- "$@" "$option"
done
exec "%s/merak-run-emulated" "$@"
"""


def checked(tools):
    case = cases.SANITIZED
    model, mesh, optimizer, microbatch, schedule = case
    pack_dir, stand_in = tools.path("pack"), tools.path("bin")
    os.makedirs(os.path.join(pack_dir, "plans"))
    os.makedirs(stand_in)
    source = os.path.join(pack_dir, "models", model)
    shutil.copytree(os.path.join(harness.MODELS, model), source)
    tools.run("merakc", os.path.join(source, "model.onnx"), "-o",
              os.path.join(pack_dir, "plans", cases.name(case)), "-q",
              *matrix.compile_options(mesh, microbatch, schedule),
              oracle.optimizer_option(model, optimizer))
    runner = os.path.join(stand_in, "merak-run")
    with open(runner, "w", encoding="utf-8") as file:
        file.write(EMULATED % os.path.abspath(tools.bin_dir))
    os.chmod(runner, 0o755)

    def check():
        done = subprocess.run(
            [sys.executable, os.path.join(harness.ROOT, "test/gpu/check.py"),
             "--bin-dir", stand_in, "--pack", pack_dir],
            capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    code, output = check()
    if code != 0 or not output.endswith("1 passed, 0 failed, 1 as one graph\n"):
        raise Failed(f"exit code {code}: {harness.last_lines(output)}")
    recorded = os.path.join(source, "expected.json")
    with open(recorded, encoding="utf-8") as file:
        wanted = json.load(file)
    wanted["optimizers"][optimizer]["losses"][4] *= 1.001
    with open(recorded, "w", encoding="utf-8") as file:
        json.dump(wanted, file)
    code, output = check()
    if code != 1 or "loss of step 5 is " not in output:
        raise Failed(f"exit code {code}: {harness.last_lines(output)}")


def chosen(tools):
    root = checkout(tools)
    bin_dir = os.path.abspath(tools.bin_dir)
    pack(tools, root, PACKED[""], "--no-runtime")
    code, output = run_sh(tools, root, "--bin-dir", bin_dir, "--only",
                          "plans,nccl")
    if code != 3 or "1 of 2 checks were made" not in output:
        raise Failed(f"exit code {code}: {harness.last_lines(output, 10)}")
    code, output = run_sh(tools, root, "--only", "plans,speed")
    if code != 2 or 'found "speed"' not in output:
        raise Failed(f"exit code {code}: {harness.last_lines(output, 10)}")
    code, output = run_sh(tools, root, "--bin-dir", bin_dir, "--minutes", "0")
    if code != 1 or row(output, "plans") != (
            "FAILED", "no time is left of 0 minutes"):
        raise Failed(f"exit code {code}: {harness.last_lines(output, 10)}")


def attempted(tools):
    """A machine that says it has a GPU, on which nothing runs: every check is
    made, and fails in the table."""
    root = checkout(tools)
    pack(tools, root, PACKED[""], "--no-runtime")
    os.makedirs(os.path.join(root, "build/gpu-pack/bench"))
    driver = os.path.abspath(os.path.join(tools.bin_dir, "../fake-driver"))
    tools_dir = tools.path("tools")
    os.makedirs(tools_dir)
    for tool in ("merak-run", "merak-plan", "merak-bench", "merak-conformance",
                 "MerakCudaTests"):
        with open(os.path.join(tools_dir, tool), "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\nLD_LIBRARY_PATH={driver} exec "
                       f"{os.path.abspath(tools.bin_dir)}/{tool} \"$@\"\n")
        os.chmod(file.name, 0o755)
    code, output = run_sh(tools, root, "--bin-dir", tools_dir, "--only",
                          "plans,models,nccl,benchmark,calibration",
                          smi_says="echo 'GPU 0: one of the tests'")
    if code != 1 or row(output, "plans") != ("passed", "1 passed, 0 failed"):
        raise Failed(f"exit code {code}: {harness.last_lines(output, 10)}")
    folder = os.path.join(root, "build/gpu-pack")
    said, _ = tools.run("merak-run", "--version")
    found = re.search(r"^cuDNN: .*, found ", said, re.M)
    lacks = "No such file or directory" if found else "cuDNN: "
    for name, says in (("models", "0 passed, 1 failed"), ("nccl", ""),
                       ("benchmark", lacks),
                       ("calibration", f"no {folder}/results/measured.json: run "
                                       "bench/gpu/run.py first")):
        state, detail = row(output, name)
        if state != "FAILED" or says not in detail:
            raise Failed(f"{name}: {state} {detail}")


def cudnn(tools):
    """Builds that say what their libraries are."""
    folder = tools.path("bin")
    os.makedirs(folder)

    def refused(line, *command):
        with open(os.path.join(folder, "merak-run"), "w",
                  encoding="utf-8") as file:
            file.write(f"#!/bin/sh\necho 'plans of version 2\n{line}'\n")
        os.chmod(file.name, 0o755)
        done = subprocess.run([sys.executable, *command, "--bin-dir", folder],
                              capture_output=True, text=True)
        return done.returncode == 1 and "cuDNN" in done.stderr, done.stderr

    pack_py = (os.path.join(harness.ROOT, "test/gpu/pack.py"),
               tools.path("pack.tar.gz"), "--only", "no such case")
    run_py = (os.path.join(harness.ROOT, "bench/gpu/run.py"), "--pack",
              tools.path("none"))
    for line, packs, measures in (
            ("cuDNN: not built in", False, False),
            ("cuDNN: built with 9.19.0, not found: no such file", True, False),
            ("cuDNN: built with 9.19.0, found 9.20.0", True, True)):
        for command, passes in ((pack_py, packs), (run_py, measures)):
            no, errors = refused(line, *command)
            if no == passes:
                raise Failed(f"{line}: {harness.last_lines(errors)}")
    said, _ = tools.run("merak-run", "--version")
    for name in ("CUDA", "cuBLASLt", "cuDNN", "NCCL", "MPI"):
        if not re.search(rf"^{name}: \S", said, re.M):
            raise Failed(f"merak-run --version: {said}")


def losses(tools):
    sys.path.insert(0, os.path.join(harness.ROOT, "bench/gpu"))
    import run as benchmark
    good = {"losses": [10.8, 10.1, 9.5, 9.0], "skipped": 0}
    near = {"losses": [10.81, 10.09, 9.51, 3.0]}
    for mine, others, says in (
            (good, {"best": near}, None),
            (good, {}, None),
            ({**good, "skipped": 2}, {"best": near}, "2 steps were skipped"),
            ({**good, "losses": [10.8, None]}, {}, "loss of step 2 is None"),
            ({**good, "losses": [float("nan")]}, {}, "loss of step 1 is nan"),
            (good, {"best": near, "blocks": {"losses": [10.8, 10.3]}},
             "loss of step 2 is 10.10000, PyTorch's (blocks) 10.30000")):
        said = benchmark.problem_of(mine, others)
        if said != says and (not says or says not in (said or "")):
            raise Failed(f"{mine} beside {others}: {said}")
    folder = tools.path("data")
    benchmark.write_tokens(folder, 3)
    rows = {}
    for name in ("tokens", "labels"):
        with open(os.path.join(folder, name + ".npy"), "rb") as file:
            file.seek(8)
            header = file.read(struct.unpack("<H", file.read(2))[0])
            if b"'<i8'" not in header or b"(3, 1024)" not in header:
                raise Failed(f"{name}: {header}")
            rows[name] = array.array("q", file.read())
        if len(rows[name]) != 3 * 1024 or max(rows[name]) > 50256:
            raise Failed(f"{len(rows[name])} {name}")
    for row in range(3):
        begin, end = row * 1024, (row + 1) * 1024
        if rows["tokens"][begin + 1:end] != rows["labels"][begin:end - 1]:
            raise Failed(f"labels of sample {row} are not the next tokens")
    benchmark.write_weights(tools.path("weights"),
                            [["a", [2, 3], 0, 1], ["b", [1100, 1000], 0.5, 0]])
    with open(tools.path("weights"), "rb") as file:
        values = array.array("f", file.read())
    if len(values) != 1100006 or any(x != 1 for x in values[:6]) or \
            abs(statistics.pstdev(values[6:200000]) - 0.5) > 0.01:
        raise Failed(f"{len(values)} weights, the first {values[:6]}")


def bench(tools):
    folder = tools.path("pack/tiny")
    shutil.copytree(os.path.join(harness.MODELS, "gpt2-tiny"), folder)
    tools.run("merakc", os.path.join(folder, "model.onnx"), "-o",
              os.path.join(folder, "plan"), "-q", "--global-batch=8")
    with open(os.path.join(folder, "model.json"), "w",
              encoding="utf-8") as file:
        json.dump({"parameters": 1000, "layers": 2, "width": 64, "heads": 2,
                   "samples": 8, "microbatches": 1}, file)

    def measure():
        done = subprocess.run(
            [sys.executable, os.path.join(harness.ROOT, "bench/gpu/run.py"),
             "--bin-dir", os.path.abspath(tools.bin_dir), "--backend=cpu",
             "--pack", tools.path("pack"), "--models=tiny", "--steps=2",
             "--no-torch"], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    code, output = measure()
    if code != 0 or not re.search(r"^tiny +merak .* tok/s +MFU", output, re.M):
        raise Failed(f"exit code {code}: {harness.last_lines(output)}")
    profile = re.findall(r"^tiny +([a-z_ ]+|\(between\)) +-?[\d.]+ ", output, re.M)
    if not {"matmul", "fused kernel", "(between)"} <= {name.strip() for name in profile}:
        raise Failed(f"profile {profile}: {harness.last_lines(output, 20)}")
    if "step" not in output.splitlines()[-2]:
        raise Failed(f"no step in {harness.last_lines(output, 4)}")

    def compare(*options):
        done = subprocess.run(
            [sys.executable,
             os.path.join(harness.ROOT, "bench/gpu/calibrated.py"),
             "--bin-dir", os.path.abspath(tools.bin_dir), "--backend=cpu",
             "--pack", tools.path("pack"), *options],
            capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    cluster = os.path.join(harness.ROOT, "samples/clusters/xeon-2.json")
    code, compared = compare("--cluster", cluster)
    if code != 0 or not re.search(
            r"^tiny +predicted +[\d.]+ ms, measured +[\d.]+ ms\n"
            r"predicted beside measured: tiny [+-][\d.]+ %", compared, re.M):
        raise Failed(f"exit code {code}: {harness.last_lines(compared)}")
    # A plan for another device is not what is measured.
    code, compared = compare("--backend=cuda")
    if code != 1 or "calibration failed: merak-bench: error: " not in compared:
        raise Failed(f"exit code {code}: {harness.last_lines(compared)}")
    code, compared = compare("--results", tools.path("nothing"))
    if code != 1 or "run bench/gpu/run.py first" not in compared:
        raise Failed(f"exit code {code}: {harness.last_lines(compared)}")
    shutil.rmtree(os.path.join(folder, "plan"))
    code, output = measure()
    if code != 1 or not output.endswith("not measured; failed: tiny\n"):
        raise Failed(f"exit code {code}: {harness.last_lines(output)}")


def main():
    args = harness.parser(__doc__).parse_args()
    if not os.path.exists(os.path.join(args.bin_dir, "MerakCudaTests")):
        return harness.nothing_to_test(
            "gpu-pack", "built without the CUDA toolkit, nothing to pack")
    found = [Case(f"whole {which}".strip(), functools.partial(whole, which))
             for which in PACKED]
    found += [Case(f.__name__, f) for f in (broken, empty, listed, checked, chosen,
                                           attempted, cudnn,
                                           losses, bench)]
    return harness.run_cases("gpu-pack", found, args)


if __name__ == "__main__":
    sys.exit(main())
