#!/usr/bin/env python3
"""Kernels of plans for GPUs, without a GPU.

Every model, and every recorded family, is compiled for clusters of GPUs. Its plan must pass the verifier;
its kernels must be entries of its PTX; and NVIDIA's assembler must accept the
PTX for sm_80 and sm_90 (where it is installed; the last lines say if it is
not). What the kernels compute is tested by KernelCompilerTest, which runs them
in a simulated grid.

--families DIR: also what test/families/export.py wrote there.
"""
import functools
import os
import re
import shutil
import subprocess
import sys

import exact_models  # noqa: E402
import harness
import matrix
from harness import Case, Failed

sys.path.insert(0, os.path.join(harness.ROOT, "test/families"))
import families  # noqa: E402

CLUSTER = os.path.join(harness.ROOT, "samples/clusters/h200-8x8.json")
EXACT = os.path.join(harness.ROOT, "test/data/exact")
ARCHITECTURES = ["sm_80", "sm_90"]


def tool(name):
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which(name) or shutil.which(name, path=home + "/bin")


ASSEMBLER, PACKER = tool("ptxas"), tool("fatbinary")


def compile_model(tools, model, mesh, *options, microbatch="half"):
    plan = tools.path("out.plan")
    tools.run("merakc", model, "-o", plan, "-q", f"--cluster={CLUSTER}",
              *matrix.compile_options(mesh, microbatch, "1f1b"), *options)
    tools.run("merak-plan", "verify", plan)
    return plan


def symbols(tools, plan):
    text, _ = tools.run("merak-plan", "print", plan)
    if "device cuda" not in text:
        raise Failed("the plan is not for GPUs")
    return set(re.findall(r"= kernel (merak_k[0-9a-f]{32})", text))


def assemble(path, architecture):
    done = subprocess.run([ASSEMBLER, "--gpu-name", architecture,
                           "--output-file", os.devnull, path],
                          capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"ptxas for {architecture}: "
                     f"{harness.last_lines(done.stdout + done.stderr)}")


def kernels(model, mesh, optimizer, precision, tools, *options,
            microbatch="half"):
    """The PTX, which is what the plan holds without NVIDIA's tools."""
    tools.extra = {"CUDA_HOME": "/nonexistent", "PATH": "/nonexistent"}
    plan = compile_model(tools, model, mesh, f"--optimizer={optimizer}",
                         f"--precision={precision}", *options,
                         microbatch=microbatch)
    named = symbols(tools, plan)
    path = os.path.join(plan, "kernels.ptx")
    with open(path, encoding="ascii") as file:
        text = file.read()
    entries = set(re.findall(r"^\.visible \.entry (\w+)\(", text, re.M))
    if not named or named != entries:
        raise Failed(f"{len(named)} kernels in the plan, {len(entries)} in "
                     f"the PTX, {len(named & entries)} in both")
    for architecture in ARCHITECTURES if ASSEMBLER else []:
        assemble(path, architecture)
    return f"{len(entries)} kernels"


def stored(option, precision, tools):
    """Parameters in parts over the replicas, or tokens over tp."""
    return kernels(os.path.join(harness.MODELS, "gpt2-tiny", "model.onnx"),
                   "pp=2,dp=2,tp=2", "adamw", precision, tools, option)


def family(folder, mesh, precision, tools):
    """A family's export; what merakc refuses has no kernels."""
    info = families.expected(folder)
    if info.get("refuses"):
        return "refused"
    return kernels(os.path.join(folder, "model.onnx"), mesh,
                   f"sgd:lr={info['lr']}", precision, tools,
                   *families.model_options(info),
                   microbatch=info.get("microbatch", "half"))


def file_of_both(tools):
    """With the tools, one file of code for both devices and PTX for others;
    compiling again gives the same bytes."""
    model = os.path.join(harness.MODELS, "gpt2-tiny", "model.onnx")
    contents = []
    for _ in range(2):
        plan = compile_model(tools, model, "none")
        with open(os.path.join(plan, "kernels.fatbin"), "rb") as file:
            contents.append(file.read())
        shutil.rmtree(plan)
    if contents[0] != contents[1]:
        raise Failed("compiling again gives other bytes")
    if contents[0][:4] != b"\x50\xed\x55\xba":
        raise Failed("kernels.fatbin does not start as one does")
    # Three images: two ELF files and the text of the PTX (compressed).
    if contents[0].count(b"\x7fELF") != 2:
        raise Failed("not one ELF file for each of the two devices")


def refused_tool(tools):
    """An assembler that fails is a problem of the plan, told with its text."""
    folder = tools.path("bin")
    os.makedirs(folder)
    for name in ("ptxas", "fatbinary"):
        path = os.path.join(folder, name)
        with open(path, "w", encoding="ascii") as file:
            file.write("#!/bin/sh\necho 'no licence on Saturdays'\nexit 3\n")
        os.chmod(path, 0o755)
    tools.extra = {"PATH": folder + ":/usr/bin:/bin"}
    model = os.path.join(harness.MODELS, "mlp-ce", "model.onnx")
    _, errors = tools.run("merakc", model, "-o", tools.path("o.plan"),
                          f"--cluster={CLUSTER}", "--devices=1",
                          "--global-batch=8", expect=1)
    if "ptxas failed: no licence on Saturdays" not in errors:
        raise Failed(harness.last_lines(errors))
    if os.path.exists(tools.path("o.plan")):
        raise Failed("left a plan behind")


def wrong_target(tools):
    """Kernels for another kind of device than the cluster's."""
    model = os.path.join(harness.MODELS, "mlp-ce", "model.onnx")
    plan = tools.path("o.plan")
    for options, says in (
            (["--target=sm_80"], r"devices are of the kind 'cpu' and cannot "
                                 r"run kernels for 'sm_80'"),
            ([f"--cluster={CLUSTER}", "--devices=1", "--target=x86-64"],
             r"devices are of the kind 'cuda' and cannot run kernels for "
             r"'x86-64'"),
            ([f"--cluster={CLUSTER}", "--devices=65"],
             r"h200-8x8\.json has 64 devices, not 65")):
        _, errors = tools.run("merakc", model, "-o", plan, "--global-batch=8",
                              *options, expect=1)
        if not re.search(says, errors) or os.path.exists(plan):
            raise Failed(harness.last_lines(errors))


def main():
    parser = harness.parser(__doc__)
    parser.add_argument("--families", metavar="DIR")
    args = parser.parse_args()
    cases = []
    models = [os.path.join(harness.MODELS, name, "model.onnx")
              for name in sorted(os.listdir(harness.MODELS))
              if os.path.isdir(os.path.join(harness.MODELS, name))]
    for model in models:
        for mesh in matrix.MESHES:
            name = os.path.basename(os.path.dirname(model))
            for precision in ("fp32", "bf16", "fp16", "fp8"):
                cases.append(Case(f"{name} {mesh} {precision}",
                                  functools.partial(kernels, model, mesh,
                                                    "adamw", precision)))
    for option in ("--zero=1", "--zero=2", "--zero=3", "--sequence-parallel=on"):
        for precision in ("fp32", "bf16", "fp16", "fp8"):
            cases.append(Case(f"gpt2-tiny pp=2,dp=2,tp=2 {precision} {option}",
                              functools.partial(stored, option, precision)))
    for leaf in sorted(os.listdir(EXACT)):
        if leaf.endswith(".textproto"):
            cases.append(Case("exact " + leaf[:-10], functools.partial(
                kernels, os.path.join(EXACT, leaf), "none", "sgd", "fp32",
                microbatch="whole" if leaf[:-10] in exact_models.JOINS
                else "half")))
    for root in filter(None, (families.RECORDED, args.families)):
        for name in sorted(os.listdir(root)):
            for mesh in ("none", "pp=2,dp=2,tp=2"):
                for precision in ("fp32", "bf16"):
                    cases.append(Case(
                        f"family {name} {mesh} {precision}",
                        functools.partial(family, os.path.join(root, name),
                                          mesh, precision)))
    cases += [Case("an assembler that fails", refused_tool),
              Case("target and cluster contradict", wrong_target)]
    if ASSEMBLER and PACKER:
        cases.append(Case("machine code", file_of_both))
    code = harness.run_cases("gpu-kernels", cases, args)
    if not ASSEMBLER or not PACKER:
        print("skipped: assembling for " + ", ".join(ARCHITECTURES) +
              ", as ptxas and fatbinary of the CUDA toolkit are not installed")
    return code


if __name__ == "__main__":
    sys.exit(main())
