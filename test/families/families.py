#!/usr/bin/env python3
"""Model families exported by PyTorch, trained by plans: five losses within 1e-4
of PyTorch's, on one rank and on eight (two replicas, two tensor parts, two
stages).

    families.py                     the recorded cases of test/data/families
    families.py --cases DIR         what export.py wrote there
    families.py --results FILE      also writes what happened, for --table
    families.py --table FILE        writes docs/Families.md from such a file

A case with `refuses` in its expected.json must be refused by merakc with an
error that holds all these texts.
"""
import functools
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../e2e"))
import harness  # noqa: E402
import matrix  # noqa: E402
from harness import Case, Failed  # noqa: E402

RECORDED = os.path.join(harness.ROOT, "test/data/families")
MESHES = ["none", "pp=2,dp=2,tp=2"]
TOLERANCE = 1e-4
# What merakc is told beside the layout.
OPTIONS = {}


def expected(folder):
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as file:
        return json.load(file)


def compare(found, wanted):
    worst = 0.0
    if len(found) != len(wanted):
        raise Failed(f"{len(found)} losses, expected {len(wanted)}")
    for step, (x, y) in enumerate(zip(found, wanted), 1):
        error = abs(x - y) / abs(y) if x is not None else float("nan")
        if not error <= TOLERANCE:
            raise Failed(f"loss of step {step} is {x:.7g}, expected {y:.7g} "
                         f"(relative error {error:.1e})")
        worst = max(worst, error)
    return worst


def body(folder, mesh, outcomes, tools):
    info = expected(folder)
    key = f"{info['family']} {info['exporter']} {mesh}"
    plan = tools.path("out.plan")
    microbatch = info.get("microbatch", {}).get(mesh, "half")
    command = [os.path.join(folder, "model.onnx"), "-o", plan,
               *matrix.compile_options(mesh, microbatch, "1f1b"),
               f"--optimizer=sgd:lr={info['lr']}", "--loss=loss", "-q",
               *info.get("options", [])]
    try:
        if info.get("refuses"):
            _, errors = tools.run("merakc", *command, expect=1)
            for text in info["refuses"]:
                if text not in errors:
                    raise Failed(f"'{text}' is not in: "
                                 f"{harness.last_lines(errors, 4)}")
            outcomes[key] = "refused: " + info["refuses"][0]
            return "refused as expected"
        tools.run("merakc", *command)
        log = tools.path("log.jsonl")
        tools.run("merak-run", plan,
                  "--data=" + os.path.join(folder, "data"),
                  f"--steps={info['steps']}", f"--log={log}")
        error = compare([e["loss"] for e in harness.read_log(log)],
                        info["losses"])
        outcomes[key] = f"{error:.0e}"
        return f"loss {error:.0e}"
    except Failed as failure:
        outcomes[key] = "FAILED " + str(failure)
        raise


def notes_of(cases):
    """What export.py says about cases that it could not make, or that cannot
    be equal."""
    notes = {}
    for name in os.listdir(cases):
        folder = os.path.join(cases, name)
        for exporter in ("torchscript", "dynamo", "dynamo-optimized"):
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
HEAD = """# Model families

Small models with random weights, exported by PyTorch {version} and trained for
five steps of plain SGD on a global batch of 8. A number is the largest relative
error of a loss against PyTorch in float64, on one rank / on eight ranks
(`pp=2,dp=2,tp=2`); up to 1e-4 passes. Written by `test/families/families.py
--table` from a run over everything that `test/families/export.py` exports; cases
recorded in `test/data/families` run with every `scripts/check`.

- TorchScript: opset 17, `do_constant_folding=False`.
- dynamo: opset 18, `optimize=False`.
- dynamo, optimized: opset 23, `optimize=True`, dynamic batch where the model
  allows it. The exporter folds and merges parameters; see `merakc --check`.

| family | TorchScript | dynamo | dynamo, optimized |
|---|---|---|---|
"""


def reason(outcome):
    """One short sentence for a table."""
    text = re.sub(r"\s+", " ", outcome)
    if text.startswith("refused: "):
        return "refused: " + text[9:]
    for pattern, words in (
            (r"^FAILED merakc ended with 1.*?: error: (.*?)( \\| |$)", "error: {}"),
            (r"relative error ([\d.e+-]+)", "off by {}"),
            (r"^FAILED (.*)", "{}")):
        match = re.search(pattern, text)
        if match:
            return words.format(match[1][:110].replace("|", ","))
    return text


def write_table(path):
    with open(path, encoding="utf-8") as file:
        outcomes = json.load(file)
    rows = {}
    for key, outcome in outcomes["cases"].items():
        family, exporter, mesh = key.split(" ", 2)
        rows.setdefault(family, {}).setdefault(exporter, {})[mesh] = outcome
    text = HEAD.format(version=outcomes["torch"])
    notes = outcomes.get("notes", {})
    for family in sorted(rows):
        cells = []
        for exporter in ("torchscript", "dynamo", "dynamo-optimized"):
            found = rows[family].get(exporter)
            if not found:
                cells.append(notes.get(f"{family} {exporter}", "not exported"))
                continue
            one, many = (reason(found.get(mesh, "")) for mesh in MESHES)
            cells.append(one if one == many else f"{one} / {many}")
            if note := notes.get(f"{family} {exporter}"):
                cells[-1] += " (" + note + ")"
        text += f"| {family} | " + " | ".join(cells) + " |\n"
    merged = sorted(f for f in rows if "dynamo-merged" in rows[f])
    text += ("\nWith weights fresh from initialization `optimize=True` merges "
             "parameters of equal\nvalues into one initializer; import takes "
             "them apart:\n\n| family | dynamo, merged |\n|---|---|\n")
    for family in merged:
        found = rows[family]["dynamo-merged"]
        one, many = (reason(found.get(mesh, "")) for mesh in MESHES)
        text += f"| {family} | {one if one == many else one + ' / ' + many} |\n"
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--table":
        return write_table(sys.argv[2])
    parser = harness.parser(__doc__)
    parser.add_argument("--cases", default=RECORDED)
    parser.add_argument("--results")
    parser.add_argument("--torch", default="2", help="version, for the table")
    args = parser.parse_args()
    outcomes = {}
    cases = []
    for name in sorted(os.listdir(args.cases)):
        folder = os.path.join(args.cases, name)
        if os.path.exists(os.path.join(folder, "expected.json")):
            for mesh in MESHES:
                cases.append(Case(f"{name} {mesh}", functools.partial(
                    body, folder, mesh, outcomes)))
    code = harness.run_cases("families", cases, args)
    if args.results:
        with open(args.results, "w", encoding="utf-8") as file:
            json.dump({"torch": args.torch, "notes": notes_of(args.cases),
                       "cases": dict(sorted(outcomes.items()))}, file, indent=1)
            file.write("\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
