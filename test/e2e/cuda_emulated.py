#!/usr/bin/env python3
"""The CUDA backend without a GPU, on whole models.

Plans for the CPU run on the CUDA backend over an emulated device: every library
kernel is the device's, compiled for the host; products are those that cuBLASLt
would be given; ranks share the device, with its streams and events. Losses,
gradients and weights are compared with recorded runs, as the oracle suite does.

family: recorded exports of model families, losses of PyTorch.

packed: the model cases that test/gpu/run.sh checks on a GPU, in that form.

form: plans as GPUs get them: products that end with biases and GELU and sum what
biases need, rows that begin at whole lines, parts that are joined in place. The IR
of such a plan, compiled for a cluster of GPUs, is finished for the CPU instead, so
that the emulated device can call its kernels. In bf16, as GPUs are used, and f32.
With --families DIR also what test/families/export.py wrote there.

stored: the same with parameters in parts over the replicas, or tokens over tp.

memory: a device of the least size that the check before the first step lets
pass runs all steps; with one byte less the check says what is needed, with a
table of buffers and workspaces.
"""
import functools
import itertools
import os
import re
import sys

import harness
import matrix
import oracle
from harness import Case, Failed

sys.path += [os.path.join(harness.ROOT, "test/families"),
             os.path.join(harness.ROOT, "test/gpu")]
import cases as gpu_cases  # noqa: E402
import check as gpu_check  # noqa: E402
import families  # noqa: E402

# Between them most library kernels: scatters and gathers, convolutions in
# groups, sorted and masked values, losses over pairs.
FAMILIES = ["clip-torchscript", "convnext-dynamo-optimized", "dlrm-torchscript",
            "gpt-neox-dynamo-merged", "llama-torchscript",
            "mobilenet-v3-torchscript", "t5-torchscript", "vit-dynamo"]
CLUSTER = os.path.join(harness.ROOT, "samples/clusters/h200-8x8.json")
CASES = [
    ("gpt2-tiny", "none", "adamw", "whole", "gpipe"),
    ("gpt2-tiny", "pp=2,dp=2,tp=2", "adamw", "half", "1f1b"),
    ("gpt2-tiny-untied", "dp=2,tp=2", "sgd", "one", "1f1b"),
    ("bert-tiny", "tp=2", "adamw", "half", "1f1b"),
    ("resnet-tiny", "dp=2", "sgd", "whole", "gpipe"),
    ("resnet-plain-tiny", "pp=2", "adamw", "half", "1f1b"),
    ("vit-tiny", "dp=2,tp=2", "adamw", "half", "gpipe"),
    ("mlp-ce", "pp=2", "adamw", "half", "1f1b"),
]
STORED = [("dp=2", ["--zero=1"]), ("dp=2,tp=2", ["--zero=2"]),
          ("pp=2,dp=2", ["--zero=3"]), ("tp=2", ["--sequence-parallel=on"])]


def memory(model, mesh, tools):
    plan = tools.path("out.plan")
    tools.run("merakc", os.path.join(harness.MODELS, model, "model.onnx"), "-o",
              plan, *matrix.compile_options(mesh, "half", "1f1b"))
    data = "--data=" + os.path.join(harness.MODELS, model, "data")

    def fits(size, steps=1):
        tools.extra = {"MERAK_EMULATED_BYTES": str(size)}
        _, said = tools.run("merak-run-emulated", plan, data,
                            f"--steps={steps}", expect=None)
        if tools.returncode not in (0, 1):
            raise Failed(f"exit code {tools.returncode} with {size} bytes")
        return tools.returncode == 0, said

    low, high = 0, 1 << 32
    if not fits(high)[0]:
        raise Failed("does not run at all")
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle)[0] else (middle, high)
    enough, said = fits(high, 3)
    if not enough:
        raise Failed(f"a later step takes memory: {said.strip()}")
    _, said = fits(low)
    first, *table = said.splitlines()
    if not re.fullmatch(r"merak-run: error: ranks? [0-9,-]+ needs? \S+ \w+ on a "
                        r"device with \S+ \w+ free", first):
        raise Failed(f"with a byte less: {said.strip()}")
    for wanted in (r"rank 0: workspace of stream \"compute\" \S+ MiB",
                   "parameters"):
        if not any(re.search(wanted, line) for line in table):
            raise Failed(f"the table lacks {wanted}: {said.strip()}")
    # Far too little: refused before anything is allocated.
    _, said = fits(1000)
    if not re.match(r"merak-run: error: ranks? [0-9,-]+ needs? .* on a device "
                    r"with 1000 B free\n", said):
        raise Failed(f"with 1000 bytes: {said.strip()}")
    return f"{high} bytes"


def emulate(tools):
    run = tools.run
    tools.run = lambda tool, *rest, **named: run(
        "merak-run-emulated" if tool == "merak-run" else tool, *rest, **named)


def body(case, tools):
    emulate(tools)
    return oracle.body(*case, tools)


def family(name, mesh, tools):
    emulate(tools)
    folder = os.path.join(families.RECORDED, name)
    return families.train(folder, families.expected(folder), mesh, tools)


def compile_form(tools, model, *options):
    """out.plan in the form of GPUs, for the CPU."""
    lowered, plan = tools.path("plan.mlir"), tools.path("out.plan")
    tools.run("merakc", model, "--to=plan", "-o", lowered,
              f"--cluster={CLUSTER}", *options, "-q")
    with open(lowered, encoding="utf-8") as file:
        text = file.read()
    changed = text.replace('backend = "cuda"', 'backend = "cpu"', 1)
    if changed == text:
        raise Failed("the plan is not one for GPUs")
    with open(lowered, "w", encoding="utf-8") as file:
        file.write(changed)
    tools.run("merakc", "--from=plan", lowered, "-o", plan, "-q")
    return plan


def packed(case, tools):
    return packed_with(case[:5], gpu_cases.precision(case), [], tools)


def packed_with(case, precision, options, tools):
    model, mesh, optimizer, microbatch, schedule = case
    folder = os.path.join(harness.MODELS, model)
    plan = compile_form(tools, os.path.join(folder, "model.onnx"),
                        *matrix.compile_options(mesh, microbatch, schedule),
                        f"--precision={precision}", *options,
                        oracle.optimizer_option(model, optimizer))
    log = tools.path("log.jsonl")
    tools.run("merak-run-emulated", plan, f"--data={folder}/data",
              f"--steps={gpu_cases.STEPS}", f"--log={log}",
              *gpu_cases.run_options((*case, precision)))
    wanted = oracle.expected(model)["optimizers"][optimizer]["losses"]
    error = families.compare([e["loss"] for e in harness.read_log(log)], wanted,
                             gpu_check.LOSS[precision])
    return f"{error:.0e}"


def form(folder, info, mesh, precision, tools):
    """`info`: as expected.json of a family."""
    if info.get("refuses"):
        return "refused"
    compile_form(tools, os.path.join(folder, "model.onnx"),
                 *matrix.compile_options(mesh, info.get("microbatch", "half"),
                                         "1f1b"),
                 f"--precision={precision}", f"--optimizer=sgd:lr={info['lr']}",
                 *families.model_options(info))
    emulate(tools)
    tolerance = (families.TOLERANCE if precision == "fp32"
                 else families.low_tolerance(info))
    return families.run(folder, info, mesh, tools, tolerance=tolerance)


def forms(root):
    for name in sorted(os.listdir(root)):
        folder = os.path.join(root, name)
        if os.path.exists(os.path.join(folder, "expected.json")):
            for mesh in ("none", "pp=2,dp=2,tp=2"):
                for precision in ("fp32", "bf16"):
                    yield Case(f"form {name} {mesh} {precision}",
                               functools.partial(form, folder,
                                                 families.expected(folder),
                                                 mesh, precision))


def main():
    parser = harness.parser(__doc__)
    parser.add_argument("--families", metavar="DIR")
    args = parser.parse_args()
    tool = os.path.join(args.bin_dir, "merak-run-emulated")
    if not os.path.exists(tool):
        return harness.nothing_to_test(
            "cuda-emulated", "built without the CUDA toolkit, nothing to test")
    return harness.run_cases(
        "cuda-emulated",
        [Case(" ".join(c), functools.partial(body, c)) for c in CASES] +
        [Case(f"family {name} {mesh}", functools.partial(family, name, mesh))
         for name, mesh in zip(FAMILIES, itertools.cycle(
             ["none", "pp=2,dp=2,tp=2"]))] +
        [Case(f"memory {model} {mesh}", functools.partial(memory, model, mesh))
         for model, mesh in (("mlp-ce", "none"), ("mlp-ce", "dp=2"))] +
        [Case("packed " + " ".join(c), functools.partial(packed, c))
         for c in gpu_cases.CASES] +
        [Case(f"stored gpt2-tiny {mesh} {precision} {' '.join(options)}",
              functools.partial(packed_with,
                                ("gpt2-tiny", mesh, "adamw", "half", "1f1b"),
                                precision, options))
         for mesh, options in STORED
         for precision in ("fp32", "bf16", "fp16", "fp8")] +
        list(forms(args.families or families.RECORDED)), args)


if __name__ == "__main__":
    sys.exit(main())
