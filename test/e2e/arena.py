#!/usr/bin/env python3
"""merak-run --arena=separate: each buffer in an allocation of its own, between red
zones that are looked at behind every instruction.

same     losses and weights are bit for bit those of the packed arena, so nothing
         that is executed needs one buffer beside another or reads beyond one; on
         the CPU, and on the CUDA backend over the emulated device
planted  a call of a generated kernel with a row too many is named with its rank,
         step, call and instruction, and the buffer; the packed arena hides it.
         Built for AddressSanitizer the kernel asks before it writes, and the report
         names the kernel
"""
import functools
import glob
import os
import re
import sys

import harness
import oracle
import precision
from harness import Case, Failed

STEPS = 2
SAME = [
    ("gpt2-tiny", "pp=2,dp=2,tp=2", "half", "1f1b", []),
    ("gpt2-tiny", "dp=2", "half", "gpipe", ["--zero=3"]),
    ("gpt2-tiny", "none", "half", "gpipe", ["--precision=bf16"]),
    ("bert-tiny", "tp=2", "one", "1f1b", ["--sequence-parallel=on"]),
    ("resnet-tiny", "dp=2", "half", "gpipe", []),
    ("vit-tiny", "dp=2,tp=2", "half", "gpipe", ["--tp-overlap=3"]),
]
EMULATED = [
    ("gpt2-tiny", "dp=2,tp=2", "half", "1f1b", []),
    ("mlp-ce", "pp=2,dp=2", "half", "1f1b", []),
]
# Whether kernels ask AddressSanitizer; those on the emulated device know no zones.
ASKS = os.environ.get("MERAK_SANITIZE_KERNELS") == "address"
PLANTED = [("resnet-tiny", "none", "half", "gpipe", []),
           ("resnet-tiny", "pp=2,dp=2", "half", "1f1b", [])]


def train(tools, tool, plan, data, arena):
    log = harness.fresh(tools.path("log.jsonl"))
    saved = tools.path(arena)
    tools.run(tool, plan, data, f"--steps={STEPS}", f"--log={log}",
              f"--save={saved}", f"--arena={arena}")
    return ([(entry["loss"], entry.get("grad_norm"))
             for entry in harness.read_log(log)], precision.state(saved))


def same(case, tool, tools):
    plan, data = oracle.compile_adamw(tools, *case)
    packed = train(tools, tool, plan, data, "packed")
    separate = train(tools, tool, plan, data, "separate")
    if separate != packed:
        raise Failed(f"losses {separate[0]}, expected {packed[0]}")


def reported(tools, kernel, *command):
    """The report is one that is looked for: not among those of the suite."""
    options = os.environ.get("ASAN_OPTIONS", "")
    tools.extra = {
        "ASAN_OPTIONS": f"{options}:log_path={tools.path('report')}"}
    tools.run(*command, expect=99)
    texts = []
    for path in glob.glob(tools.path("report*")):
        with open(path, encoding="utf-8", errors="replace") as file:
            texts.append(file.read())
    wanted = rf"use-after-poison(.*\n)+ +#\d+ 0x\w+ in {re.escape(kernel)} "
    if len(texts) != 1 or not re.search(wanted, texts[0]):
        raise Failed(f"expected one report with {wanted}, found {texts}")


def planted(case, tool, tools):
    plan, data = oracle.compile_adamw(tools, *case)
    broken = tools.path("broken.plan")
    said, _ = tools.run("merak-plant-overrun", plan, broken)
    index, kernel, buffer = said.split()
    tools.run(tool, broken, data, "--steps=1", "--arena=packed", expect=None)
    if tools.returncode != 0:
        raise Failed("the packed arena shows the overrun; plant another one")
    if ASKS and tool == "merak-run":
        return reported(tools, kernel, tool, broken, data, "--steps=1")
    _, errors = tools.run(tool, broken, data, "--steps=1", "--arena=separate",
                          expect=1)
    wanted = (rf"merak-run: error: rank \d+ · step 1 · \S+( mb \d+)? · instr "
              rf"{index} {kernel}[^:]*: wrote behind buffer "
              rf'"{re.escape(buffer)}", 0 bytes from its end$')
    if not re.match(wanted, errors.splitlines()[0]):
        raise Failed(f"expected {wanted}, found {errors.strip()}")


def main():
    args = harness.parser(__doc__).parse_args()
    tools = ["merak-run"]
    if os.path.exists(os.path.join(args.bin_dir, "merak-run-emulated")):
        tools.append("merak-run-emulated")

    def cases(kind, body, lists):
        for tool, which in zip(tools, lists):
            for case in which:
                yield Case(" ".join([kind, tool, *case[:-1], *case[-1]]),
                           functools.partial(body, case, tool))

    return harness.run_cases(
        "arena", [*cases("same", same, (SAME, EMULATED)),
                  *cases("planted", planted, (PLANTED, PLANTED[:1]))], args)


if __name__ == "__main__":
    sys.exit(main())
