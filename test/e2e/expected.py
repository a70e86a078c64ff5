#!/usr/bin/env python3
"""What the search expected of the plan that it chose is what the simulator says of
the plan that was written, within STEP: the exact models on all meshes, the sample GPT
under all schedules, weight-less GPT-2 of 124M and 1.5B parameters on the sample
clusters. No time is measured.

Cases that are farther apart are recorded by name, and may not get farther; one that has
come within STEP must leave the record, and none may join it. The last line of a run
says how the errors are distributed.

    expected.py --record    writes the record anew
"""
import functools
import glob
import itertools
import json
import os
import sys
import zlib

import harness
import matrix
import prices
import real_models
from harness import Case, Failed

EXACT = os.path.join(harness.ROOT, "test/data/exact")
SAMPLE = os.path.join(harness.ROOT, "samples/01-train-gpt/model.onnx")
CLUSTERS = os.path.join(harness.ROOT, "samples/clusters")
STEP = 0.02
MESHES = ["pp=1,dp=1,tp=1", "pp=1,dp=2,tp=1", "pp=1,dp=1,tp=2",
          "pp=2,dp=1,tp=1", "pp=1,dp=2,tp=2", "pp=2,dp=2,tp=1",
          "pp=2,dp=1,tp=2", "pp=2,dp=2,tp=2"]
SCHEDULES = ["1f1b", "zb", "scp", "gpipe", "interleaved", "auto"]
# Model, cluster, mesh (None: searched, on 8 devices), samples of a microbatch (None:
# searched) and of a step, more options.
REAL = [
    ("gpt2-124m", "h100-8x8", "pp=1,dp=1,tp=2", 4, 64),
    ("gpt2-124m", "h100-8x8", "pp=1,dp=1,tp=2", 4, 64, "--tp-overlap=3"),
    ("gpt2-124m", "h100-8x8", "pp=2,dp=2,tp=2", 4, 64, "--tp-overlap=3"),
    ("gpt2-124m", "h100-8x8", "pp=1,dp=8,tp=1", 4, 64),
    ("gpt2-124m", "h100-8x8", "pp=4,dp=2,tp=1", 4, 64),
    ("gpt2-124m", "rtx3090-16x4", "pp=1,dp=4,tp=2", 2, 64, "--tp-overlap=3"),
    ("gpt2-124m", "rtx3090-16x4", "pp=2,dp=2,tp=2", 2, 32),
    ("gpt2-124m", "rtx3090-16x4", None, None, 64),
    ("gpt2-1.5b", "h100-8x8", "pp=2,dp=2,tp=2", 4, 64),
    ("gpt2-1.5b", "h100-8x8", "pp=1,dp=2,tp=4", 4, 64, "--tp-overlap=3"),
    ("gpt2-1.5b", "h100-8x8", "pp=1,dp=8,tp=1", 4, 64),
    *(("gpt2-124m", "h100-8x8", "pp=1,dp=8,tp=1", 4, 64, f"--zero={level}")
      for level in (1, 2, 3)),
    ("gpt2-124m", "h100-8x8", "pp=2,dp=4,tp=1", 4, 64, "--zero=1"),
    ("gpt2-124m", "h100-8x8", "pp=1,dp=4,tp=2", 4, 64, "--zero=3"),
    ("gpt2-124m", "h100-8x8", "pp=1,dp=1,tp=2", 4, 64,
     "--sequence-parallel=on"),
    ("gpt2-124m", "h100-8x8", "pp=4,dp=2,tp=1", 4, 64, "slow=3:0.5"),
    ("gpt2-124m", "h100-8x8", "pp=8,dp=1,tp=1", 4, 64, "slow=5:0.3"),
    ("gpt2-1.5b", "h100-8x8", "pp=4,dp=1,tp=2", 2, 64, "slow=6:0.4"),
]
# By case the share by which it was off when it was recorded; what is overlooked, says
# docs/CostModel.md.
RECORD = os.path.join(EXACT, "expected-steps.json")
SLACK = 0.005


def with_slow(options, tools):
    """The options with the cluster in which a device has a rate of its own:
    "slow=DEVICE:RATE" says so."""
    slow = [option for option in options if option.startswith("slow=")]
    if not slow:
        return options
    options = [option for option in options if option not in slow]
    at = next(i for i, o in enumerate(options) if o.startswith("--cluster="))
    with open(options[at].split("=", 1)[1], encoding="utf-8") as file:
        cluster = json.load(file)
    cluster["rates"] = {device: float(rate) for device, rate in (
        one.removeprefix("slow=").split(":") for one in slow)}
    path = tools.path("cluster.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(cluster, file)
    options[at] = "--cluster=" + path
    return options


def checked(name, model, options, known, shares, tools):
    plan = tools.path("x.plan")
    options = with_slow(options, tools)
    path = model if os.path.exists(model) else tools.path("model.textproto")
    if path != model:
        with open(path, "w", encoding="utf-8") as file:
            file.write(real_models.MODELS[model]())
    text = "".join(tools.run("merakc", path, "-v", "-o", plan, *options,
                             expect=None))
    if tools.returncode == 1:
        return "refused"  # this layout or schedule is not for this model
    expected, simulated, share = prices.off(text, tools, plan)
    shares[name] = abs(share)
    said = (f"{expected:.4g} s expected, the plan takes {simulated:.4g} s: "
            f"{100 * share:+.1f}%")
    if known is None:
        return f"{100 * share:+.1f}%"
    if name in known and abs(share) <= STEP - SLACK:
        raise Failed(f"{said}: within {100 * STEP:g}%, take it off the list")
    bound = known[name] + SLACK if name in known else STEP
    if abs(share) > bound:
        raise Failed(f"{said}, at most {100 * bound:g}% is allowed")
    return f"{100 * share:+.1f}%" + (" (known)" if name in known else "")


def exact_cases():
    """Each mesh of each model; with stages the schedules take turns, from one that
    the model's name says, so that another model changes no case of this one."""
    models = sorted(glob.glob(os.path.join(EXACT, "*.textproto")))
    turn = {path: itertools.islice(itertools.cycle(SCHEDULES),
                                   zlib.crc32(os.path.basename(path).encode()) %
                                   len(SCHEDULES), None) for path in models}
    for path, mesh in itertools.product(models, MESHES):
        staged = matrix.degrees(mesh)["pp"] > 1
        schedule = next(turn[path]) if staged else "1f1b"
        name = os.path.basename(path).removesuffix(".textproto")
        yield (f"exact {name} {mesh} {schedule}", path,
               ["--mesh=" + mesh, "--global-batch=16",
                "--schedule=" + schedule])


def sample_cases():
    whole = [(mesh, "1f1b") for mesh in ["pp=1,dp=1,tp=1", "dp=2", "tp=2"]]
    for mesh, schedule in whole + list(itertools.product(
            ["pp=2", "pp=4", "pp=2,tp=2", "pp=2,dp=2,tp=2"], SCHEDULES)):
        yield (f"sample {mesh} {schedule}", SAMPLE,
               ["--mesh=" + mesh, "--global-batch=32",
                "--schedule=" + schedule])


def real_cases():
    for case, precision in itertools.product(REAL, ["bf16", "fp32"]):
        model, cluster, mesh, microbatch, batch, *options = case
        ranks = 8
        if mesh:
            degrees = matrix.degrees(mesh)
            ranks = degrees["pp"] * degrees["dp"] * degrees["tp"]
        yield (" ".join([model, cluster, mesh or "searched", precision,
                         *options]), model,
               [f"--cluster={CLUSTERS}/{cluster}.json", f"--devices={ranks}",
                f"--precision={precision}", f"--global-batch={batch}",
                *(["--mesh=" + mesh] if mesh else []),
                *([f"--microbatch={microbatch}"] if microbatch else []),
                *options])


def distribution(shares):
    ordered = sorted(shares.values())
    inside = sum(share <= STEP for share in ordered)
    return (f"{len(ordered)} plans: median {100 * ordered[len(ordered) // 2]:.2f}%, "
            f"{inside} within {100 * STEP:g}%, worst {100 * ordered[-1]:.1f}%")


def main():
    parser = harness.parser(__doc__)
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    known = None
    if not args.record:
        with open(RECORD, encoding="utf-8") as file:
            known = json.load(file)
    shares = {}
    cases = [Case(name, functools.partial(checked, name, model, options, known,
                                          shares))
             for name, model, options in
             [*exact_cases(), *sample_cases(), *real_cases()]]
    strangers = sorted(set(known or {}) - {case.name for case in cases})
    for name in strangers:
        print(f"FAILED {name} is recorded, but no case")
    code = harness.run_cases("expected", cases, args)
    if shares:
        print(distribution(shares))
    if args.record and code == 0:
        with open(RECORD, "w", encoding="utf-8") as file:
            json.dump({name: round(share, 4)
                       for name, share in sorted(shares.items())
                       if share > STEP}, file, indent=1)
            file.write("\n")
    return code or bool(strangers)


if __name__ == "__main__":
    sys.exit(main())
