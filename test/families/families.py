#!/usr/bin/env python3
"""Model families exported by PyTorch, trained by plans: five losses within 1e-4
of PyTorch's on one rank, and on two replicas, two tensor parts, two stages and
all three at once.

    families.py                     the recorded cases of test/data/families, on
                                    one rank and on eight
    families.py --cases DIR         what export.py wrote there, on every mesh
    families.py --cases DIR --random 1000 --seed 7
                                    instead so many layouts drawn at random:
                                    degrees, microbatch, schedule, recomputation,
                                    overlap; the recorded cases have a few, too
    families.py --cases DIR --bf16  instead in bf16, losses within 1e-2, with
                                    --random too; the recorded cases run so, too
    families.py --results FILE      also writes what happened; adds to what the
                                    file holds
    families.py --table FILE        takes such a file over as results.json and
                                    writes docs/Families.md from it

On one rank the trained weights also go back into the ONNX file, whose losses
ONNX Runtime (if it can be imported) must compute as PyTorch does after its own
training, and `merakc --check` must find a problem where compiling fails and
none where it does not.

A case with `refuses` in its expected.json must be refused by merakc with an
error that holds all these texts.
"""
import functools
import json
import math
import os
import random
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../e2e"))
import expectations  # noqa: E402
import export_onnx  # noqa: E402
import harness  # noqa: E402
import matrix  # noqa: E402
import seam_layouts  # noqa: E402
import seams  # noqa: E402
from harness import Case, Failed  # noqa: E402

RECORDED = os.path.join(harness.ROOT, "test/data/families")
MESHES = ["none", "dp=2", "tp=2", "pp=2", "pp=2,dp=2,tp=2"]
RECORDED_MESHES = ["none", "pp=2,dp=2,tp=2"]
EXPORTERS = ["torchscript", "dynamo", "dynamo-default", "dynamo-optimized",
             "dynamo-merged"]
TOLERANCE, LOW_TOLERANCE = 1e-4, 1e-2


def expected(folder):
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as file:
        info = json.load(file)
    refuses, problems = expectations.refused(info["family"], info["exporter"])
    return {**info, "refuses": refuses, "problems": problems}


def kinks(info):
    """Whether random layouts may decide which side of a kink a value is on."""
    return info["family"] in KINKS or info.get("kinks")


def compare(found, wanted, tolerance=TOLERANCE):
    worst = 0.0
    if len(found) != len(wanted):
        raise Failed(f"{len(found)} losses, expected {len(wanted)}")
    for step, (x, y) in enumerate(zip(found, wanted), 1):
        x = float("nan") if x is None else x
        error = abs(x - y) / abs(y)
        if not error <= tolerance:
            raise Failed(f"loss of step {step} is {x:.7g}, expected {y:.7g} "
                         f"(relative error {error:.1e})")
        worst = max(worst, error)
    return worst


def model_options(info):
    """What merakc must be told about the model."""
    freeze = info.get("freeze")
    return ["--loss=" + info.get("loss", "loss"),
            *(["--freeze=" + ",".join(freeze)] if freeze else [])]


def compile_command(folder, info, mesh, plan):
    return [os.path.join(folder, "model.onnx"), "-o", plan,
            *matrix.compile_options(mesh, info.get("microbatch", "half"),
                                    "1f1b"),
            f"--optimizer=sgd:lr={info['lr']}", *model_options(info), "-q"]


def train(folder, info, mesh, tools):
    plan, saved = map(tools.path, ("out.plan", "saved"))
    command = compile_command(folder, info, mesh, plan)
    if info.get("refuses"):
        _, errors = tools.run("merakc", *command, expect=1)
        for text in info["refuses"]:
            if text not in errors:
                raise Failed(f"'{text}' is not in: "
                             f"{harness.last_lines(errors, 4)}")
        return "refused: " + re.search(r"error: (.*)", errors)[1]
    tools.run("merakc", *command)
    return run(folder, info, mesh, tools, f"--save={saved}")


def run(folder, info, mesh, tools, *options, tolerance=TOLERANCE):
    """Runs out.plan; the largest error of a loss."""
    plan, log = map(tools.path, ("out.plan", "log.jsonl"))
    tools.run("merak-run", plan, "--data=" + os.path.join(folder, "data"),
              f"--steps={info['steps']}", f"--log={log}", *options)
    # With batch norm in training mode, losses depend on the replicas.
    wanted = info.get("replica_losses", {}).get(
        str(matrix.degrees(mesh)["dp"]), info["losses"])
    name = info.get("loss", "loss")
    error = compare([e[name] for e in harness.read_log(log)], wanted,
                    tolerance)
    return f"{error:.0e}"


# Families that bf16 moves further, PyTorch's autocast too: docs/Precision.md.
SENSITIVE = {"clip": 0.02, "efficientnet": 0.08, "resnet18": 0.03,
             "resnet50": 0.08}


def low_tolerance(info):
    return SENSITIVE.get(info["family"], LOW_TOLERANCE)


def low(folder, mesh, tools):
    """In bf16, beside the losses of full precision."""
    info = expected(folder)
    if info.get("refuses"):
        return "refused"
    tools.run("merakc",
              *compile_command(folder, info, mesh, tools.path("out.plan")),
              "--precision=bf16")
    return run(folder, info, mesh, tools, tolerance=low_tolerance(info))


def judge(folder, info, tools):
    """The losses of ONNX Runtime with the weights that were trained."""
    if export_onnx.judge() is None:
        return "no onnxruntime"
    model = os.path.join(folder, "model.onnx")
    out, data = tools.path("trained.onnx"), os.path.join(folder, "data")
    rest = (0, info["steps"], info["global_batch"], info.get("loss", "loss"))
    try:
        untrained = export_onnx.judged(model, data, *rest)
    except Failed as failure:
        said = re.search(r"model\.onnx failed:(.*)", str(failure))
        return ("refuses the exported model: "
                + re.sub(r'"/[^"]*/', '"', said[1] if said else str(failure))
                [:200])
    # A file that has lost label smoothing, or a mask of which it makes inf, as
    # of the logarithm of a sigmoid that it rounds to 0.
    first = info["losses"][0]
    if abs(untrained[0] - first) > TOLERANCE * abs(first) or not all(
            math.isfinite(loss) for loss in untrained):
        return "computes the exported model otherwise"
    tools.run("merak-plan", "export-onnx", tools.path("out.plan"),
              "--load=" + tools.path("saved"), "-o", out)
    error = compare(export_onnx.judged(out, data, *rest),
                    info["after"])
    try:
        compare(untrained, info["after"], 1e-6)
    except Failed:
        return f"{error:.0e}"
    raise Failed("training changed nothing, so nothing is proved")


def check(folder, info, tools):
    """`merakc --check` finds a problem exactly where there is one; returns the
    kinds of warnings."""
    said, errors = tools.run(
        "merakc", "--check", os.path.join(folder, "model.onnx"),
        f"--global-batch={info['global_batch']}", *model_options(info),
        expect=1 if info["problems"] else 0)
    for text in info["problems"] or []:
        if text not in said + errors:
            raise Failed(f"--check does not say '{text}'")
    warnings = sorted(set(re.findall(r"^warning: (.*)", said, re.M)))
    lost = expectations.warned(info.get("note", ""), info["exporter"])
    if lost and not any(lost in warning for warning in warnings):
        raise Failed(f"--check does not warn of '{lost}': {warnings}")
    if "warns" in info and warnings != info["warns"]:
        raise Failed(f"--check warns of {warnings}, expected {info['warns']}")
    return warnings


def body(folder, mesh, outcomes, tools):
    info = expected(folder)
    key = f"{info['family']} {info['exporter']} "
    parts = {mesh: functools.partial(train, folder, info, mesh)}
    if mesh == "none":
        parts["check"] = functools.partial(check, folder, info)
        if "after" in info and not info.get("refuses"):
            parts["onnxruntime"] = functools.partial(judge, folder, info)
    problems, notes = [], []
    for name, part in parts.items():
        if name == "onnxruntime" and problems:
            continue  # nothing was trained
        try:
            outcomes[key + name] = part(tools)
            notes.append(f"{name}: {outcomes[key + name]}")
        except Failed as failure:
            outcomes[key + name] = "FAILED " + str(failure)
            problems.append(str(failure))
    if problems:
        raise Failed("; ".join(problems))
    return "  ".join(notes)[:200]


# Rectified families are left out: a sum in another order may decide which side
# of a kink a value of nearly 0 is on.
KINKS = {"densenet", "resnet18", "resnet50", "unet"}
RANDOM_MESHES = ["none", "pp=2", "pp=3", "pp=4", "pp=8", "tp=2", "tp=4", "dp=2",
                 "pp=2,tp=2", "pp=2,dp=2", "dp=2,tp=2", "pp=2,dp=2,tp=2",
                 "pp=4,tp=2"]
# What a layout may be refused for.
REFUSALS = ["splits a microbatch into two submicrobatches",
            "needs the whole batch of",
            "summed over all microbatches before it can run",
            "nothing is summed over tp", "no dimension of tokens that"]


def draw(r, info):
    """merakc's options for a layout that is defined."""
    while True:
        mesh = r.choice(RANDOM_MESHES)
        microbatch = r.choice(["whole", "half", "one"])
        if "replica_losses" in info or info.get("microbatch") == "whole":
            microbatch = info.get("microbatch", "half")
        schedule = r.choice(matrix.ALL_SCHEDULES + ["auto"] * 3)
        if not matrix.defined(mesh, microbatch, schedule):
            continue
        options = matrix.compile_options(
            mesh, microbatch, schedule,
            r.choice(["none", "auto", "full", "0.5", "0.8"]))
        options.append("--grad-overlap=" + r.choice(["on", "off"]))
        if "tp" in mesh and r.random() < 0.6:
            options.append("--tp-overlap=" + r.choice(["1", "2", "3", "auto"]))
        return mesh, options


def random_body(folder, mesh, options, tools):
    info = expected(folder)
    tolerance = (low_tolerance(info) if "--precision=bf16" in options
                 else TOLERANCE)
    _, errors = tools.run(
        "merakc", os.path.join(folder, "model.onnx"), "-o",
        tools.path("out.plan"), *options,
        f"--optimizer=sgd:lr={info['lr']}", *model_options(info), "-q",
        expect=None)
    if tools.returncode == 1 and any(text in errors for text in REFUSALS):
        return "refused: " + errors.splitlines()[0][:150]
    if tools.returncode:
        raise Failed(f"merakc ended with {tools.returncode}: "
                     f"{harness.last_lines(errors)}")
    return run(folder, info, mesh, tools, tolerance=tolerance)


def trained(root):
    """Cases whose losses do not hang on the order of sums."""
    for name in sorted(os.listdir(root)):
        folder = os.path.join(root, name)
        if os.path.exists(os.path.join(folder, "expected.json")):
            info = expected(folder)
            if not (kinks(info) or info["refuses"]):
                yield name, folder, info


def random_cases(root, count, seed, low=False):
    r = random.Random(seed)
    names = list(trained(root))
    for number in range(count):
        name, folder, info = r.choice(names)
        mesh, options = draw(r, info)
        if low:
            options.append("--precision=bf16")
        yield Case(" ".join(["random", str(number), name, *options[1:]]),
                   functools.partial(random_body, folder, mesh, options))


# Of the strategies that a seed draws, the first one that is not refused counts.
MOST_REFUSED = 100


def seam_body(folder, mesh, microbatch, seed, tools):
    info, path = expected(folder), tools.path("seams.json")
    model = os.path.join(folder, "model.onnx")
    uses, pick = seam_layouts.uses_of(model), random.Random(f"{folder} {seed}")
    for refused in range(MOST_REFUSED):
        seam_layouts.write_random(path, uses, mesh, pick)
        _, errors = tools.run(
            "merakc", model, "-o", tools.path("out.plan"), "-q",
            *matrix.compile_options(mesh, microbatch, "1f1b"),
            f"--optimizer=sgd:lr={info['lr']}", *model_options(info),
            f"--strategy={path}", expect=None)
        if tools.returncode == 0:
            return (run(folder, info, mesh, tools) +
                    f", {refused} refused before")
        if tools.returncode != 1 or not any(
                why in errors for why in (*seams.REFUSALS, *REFUSALS)):
            raise Failed(f"merakc ended with {tools.returncode}: "
                         f"{harness.last_lines(errors)}")
        # Import folds many nodes away.
        gone = re.findall(r"of op '([^']*)', which the model lacks", errors)
        uses = [use for use in uses if use[0] not in gone]
    raise Failed(f"{MOST_REFUSED} strategies refused")


def seam_cases(root, count, seed):
    r = random.Random(seed)
    names = [(name, folder, info) for name, folder, info in trained(root)
             if "replica_losses" not in info]
    for number in range(count):
        name, folder, info = r.choice(names)
        mesh = r.choice(seam_layouts.MESHES)
        microbatch = info.get("microbatch") or r.choice(["whole", "half"])
        yield Case(f"seams {number} {name} {mesh} {microbatch}",
                   functools.partial(seam_body, folder, mesh, microbatch, number))


def notes_of(cases):
    """What export.py says about cases that it could not make, or that cannot
    be equal."""
    notes = {}
    for name in os.listdir(cases):
        folder = os.path.join(cases, name)
        for exporter in EXPORTERS:
            if not name.endswith("-" + exporter):
                continue
            family = name[:-len(exporter) - 1]
            if os.path.exists(os.path.join(folder, "refused.txt")):
                notes[f"{family} {exporter}"] = "the exporter refuses the model"
            elif os.path.exists(os.path.join(folder, "expected.json")):
                if note := expected(folder).get("note"):
                    notes[f"{family} {exporter}"] = note
    return notes


PAGE = os.path.join(harness.ROOT, "docs/Families.md")
RESULTS = os.path.join(harness.ROOT, "test/families/results.json")
HEAD = """# Model families

Small models with random weights, exported by PyTorch {version} and trained for
five steps of plain SGD on a global batch of 8. A number is the largest relative
error of a loss against PyTorch in float64, over {meshes};
up to 1e-4 passes. The last column is ONNX
Runtime's: the trained weights are written back into the exported file
(`merak-plan export-onnx`), and its losses on five batches are compared with those
of PyTorch after its own training.

Written by `test/families/families.py --table` from a run over everything that
`test/families/export.py` exports; the cases recorded in `test/data/families` run
with every `scripts/check`.

- TorchScript: opset 17, `do_constant_folding=False`; batch norm in training mode,
  with the statistics of the whole batch, or, as PyTorch's DistributedDataParallel
  has it, of each replica's part of it where there are two.
- dynamo: opset 18, `optimize=False`; batch norm in training mode, which import reads
  from the exporter's notes.
- dynamo, default: `torch.onnx.export(model, inputs, dynamo=True)` and nothing else:
  a fixed batch, the exporter's opset, what can be folded is folded, weights beside the
  file.
- dynamo, optimized: opset 23, `optimize=True`, dynamic batch where the model
  allows it.
- dynamo, merged: the same from weights fresh from initialization, of which the
  exporter makes one initializer where values are equal; import takes them apart.
  Where it also made one node of two equal ones, that is one parameter.

Parameters that PyTorch does not train (`requires_grad`, `no_grad`) are named to
`--freeze`, which ONNX cannot say; so are a few tables that look like weights in files
of TorchScript, which tell nothing of buffers.

What is in brackets the exporter lost, in PyTorch too; `merakc --check` warns of it
where the file has a trace of it.

"""
TITLES = ["TorchScript", "dynamo", "dynamo, default", "dynamo, optimized",
          "dynamo, merged"]


def reason(outcome):
    """One short sentence for a table."""
    text = re.sub(r"\s+", " ", outcome)
    for pattern, words in (
            (r"^FAILED merakc ended with 1.*?: error: (.*?)( \\| |$)",
             "error: {}"),
            (r"relative error ([\d.e+-]+)", "off by {}"),
            (r"^FAILED (.*)", "{}")):
        match = re.search(pattern, text)
        if match:
            return words.format(match[1][:160].replace("|", ","))
    return text


def cell(found, note, problems, title, meshes):
    """All meshes in one number, or what does not pass."""
    if not found:
        return note or ""
    bad = {mesh: found[mesh] for mesh in meshes
           if found.get(mesh, "FAILED not run").startswith("FAILED")}
    for mesh, outcome in bad.items():
        problems.append(f"{title}, {'one rank' if mesh == 'none' else mesh}: "
                        + reason(outcome))
    good = [found[mesh] for mesh in meshes if mesh not in bad]
    if good and good[0].startswith("refused"):
        return "refused"
    text = f"{len(good)} of {len(meshes)}" if bad else ""
    if good:
        worst = max(good, key=float)
        text = f"{text}, {worst}" if text else worst
    return text + (f" ({note})" if note else "")


def read_results(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def table(outcomes):
    """The text of the page."""
    rows = {}
    for key, outcome in outcomes["cases"].items():
        family, exporter, part = key.split(" ", 2)
        rows.setdefault(family, {}).setdefault(exporter, {})[part] = outcome
    run = {key.split(" ", 2)[2] for key in outcomes["cases"]}
    meshes = [mesh for mesh in MESHES if mesh in run]
    text = HEAD.format(version=outcomes["torch"], meshes=" and ".join(
        "one rank" if mesh == "none" else f"`{mesh}`" for mesh in meshes))
    text += "| family | " + " | ".join(TITLES) + " | ONNX Runtime |\n"
    text += "|---|" + "---|" * (len(TITLES) + 1) + "\n"
    problems, refused, passed, total = [], [], 0, 0
    for family in sorted(rows):
        cells, judged = [], []
        for exporter, title in zip(EXPORTERS, TITLES):
            found = rows[family].get(exporter, {})
            note = outcomes["notes"].get(f"{family} {exporter}", "")
            cells.append(cell(found, note, problems, f"{family}, {title}",
                              meshes))
            total += len(found) > 0
            passed += len(found) > 0 and not any(
                found.get(mesh, "FAILED").startswith("FAILED")
                for mesh in meshes)
            if found.get("none", "").startswith("refused"):
                refused.append(f"{family}, {title}: `{found['none'][9:]}`")
            if second := found.get("onnxruntime"):
                judged.append(second)
                if not re.match(r"\d", second):
                    problems.append(f"{family}, {title}, ONNX Runtime: "
                                    + reason(second))
        numbers = [x for x in judged if re.match(r"\d", x)]
        cells.append(max(numbers, key=float, default="") if
                     len(numbers) == len(judged) else
                     f"{len(numbers)} of {len(judged)}" +
                     (", " + max(numbers, key=float) if numbers else ""))
        text += f"| {family} | " + " | ".join(cells) + " |\n"
    text += f"\n{passed} of {total} exports do what is expected.\n"
    for title, lines in (("Refused, as they should be", refused),
                         ("What does not pass", problems)):
        if lines:
            text += f"\n## {title}\n\n"
            text += "".join(f"- {line}\n" for line in lines)
    return text


def write_table(path):
    outcomes = read_results(path)
    with open(RESULTS, "w", encoding="utf-8") as file:
        json.dump(outcomes, file, indent=1)
        file.write("\n")
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(table(outcomes))


def fresh(_):
    """The page is that of the recorded results."""
    with open(PAGE, encoding="utf-8") as file:
        if file.read() != table(read_results(RESULTS)):
            raise Failed("docs/Families.md is not what --table writes")


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--table":
        return write_table(sys.argv[2])
    parser = harness.parser(__doc__)
    parser.add_argument("--cases", default=RECORDED)
    parser.add_argument("--mesh", help="only this one")
    parser.add_argument("--results")
    parser.add_argument("--random", type=int)
    parser.add_argument("--seams", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--torch", default="2", help="version, for the table")
    args = parser.parse_args()
    outcomes = {}
    cases = []
    meshes = RECORDED_MESHES if args.cases == RECORDED else MESHES
    if args.mesh:
        meshes = [args.mesh]
    if args.cases == RECORDED:
        cases.append(Case("page", fresh))
    if args.random is None and args.cases == RECORDED and not args.mesh:
        cases += random_cases(args.cases, 60, args.seed)
        cases += random_cases(args.cases, 20, args.seed + 1, low=True)
        cases += seam_cases(args.cases, 20, args.seed)
    for name in sorted(os.listdir(args.cases)):
        folder = os.path.join(args.cases, name)
        if os.path.exists(os.path.join(folder, "expected.json")):
            for mesh in meshes:
                if not args.bf16:
                    cases.append(Case(f"{name} {mesh}", functools.partial(
                        body, folder, mesh, outcomes)))
                if args.bf16 or args.cases == RECORDED:
                    cases.append(Case(f"bf16 {name} {mesh}", functools.partial(
                        low, folder, mesh)))
    if args.random is not None:
        cases = list(random_cases(args.cases, args.random, args.seed,
                                  args.bf16))
    if args.seams is not None:
        cases = list(seam_cases(args.cases, args.seams, args.seed))
    code = harness.run_cases("families", cases, args)
    if args.results:
        if os.path.exists(args.results):
            outcomes = {**read_results(args.results)["cases"], **outcomes}
        with open(args.results, "w", encoding="utf-8") as file:
            json.dump({"torch": args.torch, "notes": notes_of(args.cases),
                       "cases": dict(sorted(outcomes.items()))}, file, indent=1)
            file.write("\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
