#!/usr/bin/env python3
"""Memory that merak-plan predicts beside what merak-run allocated: arenas and
working memory of the kernels, within 1 %, on plans of different meshes.
"""
import functools
import json
import os
import re
import sys

import harness
from harness import Case, Failed

ALLOWED = 0.01
# Microbatches large enough that a row or two of working memory weigh little.
OPTIONS = ["--quiet", "--global-batch=64", "--optimizer=adamw:lr=1e-3"]
MESHES = {"one rank": ["--microbatch=32"],
          "pp=2": ["--mesh=pp=2", "--microbatch=32"],
          "dp=2": ["--mesh=dp=2", "--microbatch=32"],
          "tp=2": ["--mesh=tp=2", "--microbatch=32"]}


def body(model, options, tools):
    plan, log = tools.path("out.plan"), tools.path("log.jsonl")
    tools.run("merakc", os.path.join(harness.MODELS, model, "model.onnx"),
              "-o", plan, *OPTIONS, *options)
    text, _ = tools.run("merak-plan", "simulate", plan)
    predicted = int(re.search(r"^allocated: (\d+) bytes", text, re.M)[1])
    tools.run("merak-run", plan, "--data=synthetic", "--steps=2",
              "--threads=1", f"--log={log}")
    with open(log, encoding="utf-8") as file:
        allocated = max(json.loads(line)["memory_bytes"] for line in file)
    error = predicted / allocated - 1
    if abs(error) > ALLOWED:
        raise Failed(f"predicted {predicted} bytes, the runtime allocated "
                     f"{allocated}: {error:+.2%}")
    return f"{allocated} bytes, predicted {error:+.2%}"


def main():
    args = harness.parser(__doc__).parse_args()
    cases = [(f"{model}, {name}", model, options)
             for model in ("bert-tiny", "vit-tiny")
             for name, options in MESHES.items()]
    return harness.run_cases("memory", [
        Case(name, functools.partial(body, *rest)) for name, *rest in cases],
        args)


if __name__ == "__main__":
    sys.exit(main())
