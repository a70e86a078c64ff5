#!/usr/bin/env python3
"""Questions to the planner are answered truly.

--frontier holds no plan that another one beats, its ends are what the objectives
choose, every point compiles to the step and the bytes that it says, in the same run
and from the file. More memory never makes the chosen plan slower. Techniques by name
are left out or used. What cannot be answered is one sentence.
"""
import functools
import json
import os
import re
import sys
import xml.etree.ElementTree

import harness
from bad_input import refuse
from harness import Case, Failed

RTX = "--cluster=" + os.path.join(harness.ROOT,
                                  "samples/clusters/rtx3090-16x4.json")
# Of two plans that the search expects to take the same time within a percent only
# one is simulated (passes/Planning/Confirm.cpp), so the plan taken without any
# question may be so much slower than the best of all that were simulated, and as
# much more as prices are trusted to be off.
NEAR = 0.03


def model(name):
    return os.path.join(harness.MODELS, name, "model.onnx")


def frontier(tools, name, *options, leaf="f.json"):
    path = tools.path(leaf)
    tools.run("merakc", model(name), f"--frontier={path}", "-q", *options)
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def measure(tools, plan):
    """(bytes of the fullest rank's arena, seconds of a simulated step)."""
    printed, _ = tools.run("merak-plan", "print", plan)
    arenas = re.findall(r"^  arena (\d+) bytes", printed, re.M)
    step, _ = tools.run("merak-plan", "simulate", plan)
    number, unit = re.match(r"step (\S+) (\S+)", step).groups()
    scale = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}[unit]
    return max(map(int, arenas)), float(number) * scale


def compiled(tools, name, *options, expect=0):
    plan = tools.path("out.plan")
    tools.run("merakc", model(name), "-o", plan, "-q", *options, expect=expect)
    return measure(tools, plan) if tools.returncode == 0 else None


def same_time(a, b):
    """Printed times have four digits."""
    return abs(a - b) <= 6e-4 * b


def check_curves(answer, devices):
    if [c["devices"] for c in answer["curves"]] != devices:
        raise Failed(f"curves of {[c['devices'] for c in answer['curves']]}")
    numbers = [p["point"] for c in answer["curves"] for p in c["points"]]
    if numbers != list(range(1, len(numbers) + 1)):
        raise Failed(f"points {numbers}")
    for curve in answer["curves"]:
        points = curve["points"]
        if not points or curve["plans_simulated"] < len(points):
            raise Failed(f"{len(points)} points of {curve['plans_simulated']}")
        for a, b in zip(points, points[1:]):
            if not (a["memory_bytes"] < b["memory_bytes"] and
                    a["step_seconds"] > b["step_seconds"]):
                raise Failed(f"points {a['point']} and {b['point']}: one is "
                             "beaten")
        for p in points:
            if "pipelines" in p["strategy"]:
                if not p["decisions"][0].startswith("stages on devices "):
                    raise Failed(f"point {p['point']}: {p['decisions'][0]}")
                continue
            mesh = p["strategy"]["mesh"]
            if mesh["pp"] * mesh["dp"] * mesh["tp"] != curve["devices"]:
                raise Failed(f"point {p['point']} has the mesh {mesh}")
            if not p["decisions"][0].startswith(f"pp={mesh['pp']} dp="):
                raise Failed(f"point {p['point']} says {p['decisions'][0]}")
            error = p["expected_step_seconds"] / p["step_seconds"] - 1
            if abs(error - p["step_error"]) > 1e-6:
                raise Failed(f"error {p['step_error']}, it is {error}")
    return numbers


def ends(name, options, tools):
    """The least memory and the least time are those of the objectives."""
    answer = frontier(tools, name, *options, "--devices=4")
    again = frontier(tools, name, *options, "--devices=4", leaf="again.json")
    if again != answer:
        raise Failed("a second run answers otherwise")
    numbers = check_curves(answer, [4])
    points = answer["curves"][0]["points"]
    least = compiled(tools, name, *options, "--devices=4", "--objective=memory")
    if least[0] != points[0]["memory_bytes"] or not same_time(
            points[0]["step_seconds"], least[1]):
        raise Failed(f"--objective=memory: {least}, the frontier begins with "
                     f"{points[0]['memory_bytes']}")
    _, seconds = compiled(tools, name, *options, "--devices=4",
                          "--objective=time")
    fastest = points[-1]["step_seconds"]
    if not (1 - 6e-4) * fastest <= seconds <= (1 + NEAR) * fastest:
        raise Failed(f"--objective=time: {seconds} s, the frontier ends with "
                     f"{fastest}")
    return f"{len(numbers)} points"


def picked(name, options, tools):
    """Each point is a plan of the step and bytes that it says: from the file, and
    where the question is asked and answered in one run."""
    options = [*options, "--devices=2,4"]
    answer = frontier(tools, name, *options)
    numbers = check_curves(answer, [2, 4])
    points = [p for c in answer["curves"] for p in c["points"]]
    chosen = {points[0]["point"], points[-1]["point"],
              *(p["point"] for p in points[::4])}
    for leaf, some in (("f.json", chosen), ("fresh.json", {1, len(points)})):
        for p in points:
            if p["point"] not in some:
                continue
            found = compiled(tools, name, *options,
                             f"--frontier={tools.path(leaf)}",
                             f"--pick={p['point']}")
            if found[0] != p["memory_bytes"] or not same_time(
                    found[1], p["step_seconds"]):
                raise Failed(f"point {p['point']} of {leaf} says "
                             f"{p['memory_bytes']} bytes and "
                             f"{p['step_seconds']} s, its plan has {found}")
            if leaf == "fresh.json":
                os.remove(tools.path(leaf))
    # By name, of all and of one curve.
    for word, end in (("smallest@4", answer["curves"][1]["points"][0]),
                      ("fastest@2", answer["curves"][0]["points"][-1])):
        found = compiled(tools, name, *options,
                         f"--frontier={tools.path('f.json')}", f"--pick={word}")
        if found[0] != end["memory_bytes"]:
            raise Failed(f"{word} has {found}")
    return f"{len(chosen)} of {len(numbers)} points"


def other_question(tools):
    """A file that answers another question is not taken for the answer."""
    path = tools.path("f.json")
    frontier(tools, "gpt2-tiny", RTX, "--devices=4")
    options = [RTX, "--devices=4", "--forbid=pipeline"]
    found = compiled(tools, "gpt2-tiny", *options, f"--frontier={path}",
                     "--pick=smallest")
    with open(path, encoding="utf-8") as file:
        answer = json.load(file)
    for p in answer["curves"][0]["points"]:
        if p["strategy"]["mesh"]["pp"] != 1:
            raise Failed(f"a pipeline that is forbidden: {p['decisions']}")
    if found[0] != answer["curves"][0]["points"][0]["memory_bytes"]:
        raise Failed(f"{found} is not the smallest")
    for more in ("--for-rates=1:3", "--parts=off"):
        before = answer["question"]
        compiled(tools, "gpt2-tiny", *options, more, f"--frontier={path}",
                 "--pick=smallest")
        with open(path, encoding="utf-8") as file:
            answer = json.load(file)
        if answer["question"] == before:
            raise Failed(f"{more} has the answer of another question")


def page(tools):
    """The page is well-formed, draws each point and holds the same answer."""
    options = ["gpt2-tiny", RTX, "--devices=2,4"]
    answer = frontier(tools, *options)
    path = tools.path("f.html")
    tools.run("merakc", model("gpt2-tiny"), f"--frontier={path}", "-q",
              *options[1:])
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if re.search(r"(?:src|href)=\"(?!data:)", text):
        raise Failed("the page refers to something outside")
    root = xml.etree.ElementTree.fromstring(text)
    count = sum(len(c["points"]) for c in answer["curves"])
    tags = [e.tag.rsplit("}", 1)[-1] for e in root.iter()]
    if tags.count("circle") != count or tags.count("tr") != count + 1:
        raise Failed(f"{tags.count('circle')} circles, {tags.count('tr')} rows "
                     f"for {count} points")
    if sum(e.get("class") == "curve" for e in root.iter()) != 2:
        raise Failed("two curves were expected")
    data = [e for e in root.iter() if e.get("id") == "frontier"]
    if json.loads(data[0].text) != answer:
        raise Failed("the page holds another answer than the file")
    found = compiled(tools, *options, f"--frontier={path}", "--pick=1")
    if found[0] != answer["curves"][0]["points"][0]["memory_bytes"]:
        raise Failed(f"a point of the page is {found}")
    return f"{count} points"


def fewest(tools):
    """--objective=devices: one device less does not fit, and it is the fastest
    there."""
    name, limit = "gpt2-tiny", "--memory-limit=1000000"
    found = compiled(tools, name, RTX, "--devices=8", limit,
                     "--objective=devices")
    devices = ranks(tools)
    for fewer in range(1, devices):
        if compiled(tools, name, RTX, f"--devices={fewer}", limit,
                    expect=1) is not None:
            raise Failed(f"{fewer} devices are enough")
    least = compiled(tools, name, RTX, f"--devices={devices}", limit)
    if found[0] > 1000000 or found[1] > (1 + NEAR) * least[1]:
        raise Failed(f"{found} on {devices} devices, {least} is possible")
    if devices < 2:
        raise Failed("one device is enough: nothing is shown")
    return f"{devices} devices"


def ranks(tools):
    printed, _ = tools.run("merak-plan", "print", tools.path("out.plan"))
    return len(re.findall(r"^  rank \d+", printed, re.M))


def more_memory(name, options, low, high, steps, tools):
    """The chosen plan's simulated time never rises with the limit."""
    before, kinds, first = None, set(), None
    for k in range(steps):
        limit = int(low * (high / low) ** (k / (steps - 1)))
        found = compiled(tools, name, *options, f"--memory-limit={limit}",
                         expect=None)
        if found is None:
            if tools.returncode != 1 or before is not None:
                raise Failed(f"ends with {tools.returncode} under {limit} "
                             f"bytes, though less is enough")
            continue
        if found[0] > limit:
            raise Failed(f"{found[0]} bytes under {limit}")
        first = first or limit
        if before is not None and found[1] > before * (1 + 1e-3):
            raise Failed(f"{found[1]} s under {limit} bytes, {before} under "
                         "less")
        before = found[1]
        kinds.add(found[1])
    if len(kinds) < 3:
        raise Failed(f"only {len(kinds)} plans: nothing is shown")
    return f"{len(kinds)} plans from {first} bytes"


def conversions(tools):
    """In bf16 there are plans that keep converted parameters and plans that do not:
    a limit that holds the former costs no time."""
    base = ["gpt2-tiny", RTX, "--devices=4", "--precision=bf16"]
    answer = frontier(tools, *base)
    check_curves(answer, [4])
    kinds = {p["strategy"]["cast_weights"]
             for p in answer["curves"][0]["points"]}
    if kinds != {"step", "use"}:
        raise Failed(f"parameters are converted by {sorted(kinds)}")
    free = compiled(tools, *base)
    loose = compiled(tools, *base, "--memory-limit=1000000000")
    if loose[1] > (1 + NEAR) * free[1]:
        raise Failed(f"{loose[1]} s with all memory, {free[1]} without a limit")
    return more_memory(base[0], base[1:], 6e5, 4e6, 7, tools)


def unlike_stages(tools):
    """Of devices that no mesh uses well stages on meshes of their own are among the
    plans, are picked, and fit the limits that they are asked for."""
    base = ["gpt2-tiny", RTX, "--devices=5"]
    free = compiled(tools, *base)
    loose = compiled(tools, *base, "--memory-limit=1000000000")
    if loose[1] > (1 + NEAR) * free[1]:
        raise Failed(f"{loose[1]} s with all memory, {free[1]} without a limit")
    answer = frontier(tools, *base)
    check_curves(answer, [5])
    apart = [p for p in answer["curves"][0]["points"]
             if "pipelines" in p["strategy"]]
    if not apart:
        raise Failed("every point has one mesh")
    for p in (apart[0], apart[-1]):
        picked = [f"--frontier={tools.path('f.json')}", f"--pick={p['point']}"]
        for known in (True, False):  # from the file, and searched again
            found = compiled(tools, *base, *picked)
            if found[0] != p["memory_bytes"] or \
                    not same_time(found[1], p["step_seconds"]):
                raise Failed(f"point {p['point']} is {found}")
            if known:
                os.remove(tools.path("f.json"))
        found = compiled(tools, *base, f"--memory-limit={p['memory_bytes']}")
        if found[0] > p["memory_bytes"] or \
                found[1] > (1 + NEAR) * p["step_seconds"]:
            raise Failed(f"{found} within the memory of point {p['point']}")
    return f"{len(apart)} points"


def technique_use(tools):
    """What is forbidden is in no plan, what is allowed is used where it helps."""
    base = ["gpt2-tiny", RTX, "--devices=4"]
    data = frontier(tools, *base, "--forbid=pipeline,tensor,recompute")
    for p in data["curves"][0]["points"]:
        mesh = p["strategy"]["mesh"]
        if (mesh["pp"], mesh["tp"]) != (1, 1) or "recompute_ops" in p["strategy"]:
            raise Failed(f"{p['decisions']} uses what is forbidden")
    left_out = {one["technique"]: one["reason"] for one in data["left_out"]}
    if set(left_out) != {"tensor", "pipeline", "recompute", "zero", "sequence",
                         "context", "mixed"}:
        raise Failed(f"left out: {sorted(left_out)}")
    if "--allow=zero" not in left_out["zero"]:
        raise Failed(left_out["zero"])
    zero = frontier(tools, *base, "--forbid=pipeline,tensor", "--allow=zero")
    least = [c["curves"][0]["points"][0] for c in (data, zero)]
    if least[1]["memory_bytes"] >= 0.8 * least[0]["memory_bytes"]:
        raise Failed("parts of parameters save nothing")
    if not any("zero" in word for word in least[1]["decisions"]):
        raise Failed(f"{least[1]['decisions']} does not tell of zero")
    plain = frontier(tools, *base, "--forbid=interleave")
    for p in plain["curves"][0]["points"]:
        if p["strategy"].get("chunks", 1) != 1:
            raise Failed(f"{p['decisions']} has several parts on a stage")


def told(tools):
    """The terminal has a line a point, and what was left out, with the reason."""
    path = tools.path("f.json")
    said, _ = tools.run("merakc", model("gpt2-tiny"), f"--frontier={path}", RTX,
                        "--devices=2,4")
    with open(path, encoding="utf-8") as file:
        answer = json.load(file)
    count = sum(len(c["points"]) for c in answer["curves"])
    lines = re.findall(r"^ +\d+ .* MiB .* %.* % +pp=", said, re.M)
    if len(lines) != count:
        raise Failed(f"{len(lines)} lines for {count} points")
    if not re.search(r"^left out +zero: off by default: .*--allow=zero", said,
                     re.M):
        raise Failed(harness.last_lines(said))


def refused(tools):
    """One sentence each; wrong usage is 2, what cannot be answered is 1."""
    gpt, out = model("gpt2-tiny"), tools.path("o.plan")
    path = tools.path("f.json")
    frontier(tools, "gpt2-tiny", RTX, "--devices=2")
    with open(path, "rb") as file:
        before = file.read()

    def usage(*options, says):
        refuse(tools, "merakc", gpt, *options, says=[says], code=2)

    def fails(*options, says):
        said = refuse(tools, "merakc", gpt, *options, says=[says], code=1)
        if said.count("error:") > 1:
            raise Failed(f"more than one sentence: {said}")

    asked = [RTX, "--devices=2", f"--frontier={path}", "-o", out]
    usage("-o", out, "--allow=zero,fast", says="found 'fast'")
    usage("-o", out, "--forbid=fast", says="expected names of data, tensor")
    usage("-o", out, "--allow=zero", "--forbid=zero", says="both name 'zero'")
    usage("-o", out, "--zero=1", "--forbid=zero", says="contradicts")
    usage("-o", out, "--pick=1", says="--pick needs the --frontier")
    usage("-o", out, "--objective=least", says="objective")
    usage("-o", out, "--devices=2,4", says="several --devices are for")
    usage("-o", out, "--devices=2,x", says="found 'x'")
    usage("--frontier=f.svg", says=r"expected FILE\.json or FILE\.html")
    usage(f"--frontier={path}", "-o", out, says="--pick=POINT")
    usage(f"--frontier={path}", "--objective=memory", says="--pick=smallest")
    fails(*asked, "--pick=999", says=r"expected a point from 1 to \d+")
    fails(*asked, "--pick=best", says="found 'best'")
    fails(*asked, "--pick=fastest@3", says="a number of devices that")
    with open(path, "rb") as file:
        if file.read() != before:
            raise Failed("the frontier was written again")
    nowhere = tools.path("nowhere/f.json")
    fails(RTX, f"--frontier={nowhere}", "--devices=2", says="cannot write")
    fails(RTX, f"--frontier={tools.path('g.json')}", "--devices=2,128",
          says="has 64 devices, not 128")
    little = [RTX, "--devices=4", "--memory-limit=10000"]
    fails(*little, f"--frontier={tools.path('g.json')}", says="no plan fits")
    fails(*little, "--objective=memory", "-o", out, says="no plan fits")
    fails(*little, "--objective=devices", "-o", out,
          says="no plan on 1 to 4 devices")
    fails(*little, "-o", out, says="no plan fits")


def main():
    args = harness.parser(__doc__).parse_args()
    cases = [
        Case("ends gpt2-tiny", functools.partial(ends, "gpt2-tiny", [RTX])),
        Case("ends resnet-tiny", functools.partial(ends, "resnet-tiny", [RTX])),
        Case("ends mlp-ce, processor",
             functools.partial(ends, "mlp-ce", ["--global-batch=8"])),
        Case("picked gpt2-tiny", functools.partial(picked, "gpt2-tiny", [RTX])),
        Case("picked gpt2-tiny, all techniques", functools.partial(
            picked, "gpt2-tiny", [RTX, "--allow=zero,sequence",
                                  "--forbid=pipeline"])),
        Case("picked resnet-plain-tiny", functools.partial(
            picked, "resnet-plain-tiny", [RTX, "--global-batch=8"])),
        Case("another question", other_question),
        Case("page", page),
        Case("fewest devices", fewest),
        Case("more memory gpt2-tiny, 4 devices", functools.partial(
            more_memory, "gpt2-tiny", [RTX, "--devices=4"], 7e5, 4e6, 15)),
        Case("more memory gpt2-tiny, 2 devices", functools.partial(
            more_memory, "gpt2-tiny", [RTX, "--devices=2"], 1.2e6, 5e6, 14)),
        Case("more memory resnet-tiny", functools.partial(
            more_memory, "resnet-tiny", [RTX, "--devices=4"], 3e5, 4e6, 14)),
        Case("conversions", conversions),
        Case("unlike stages", unlike_stages),
        Case("techniques by name", technique_use),
        Case("the terminal", told),
        Case("bad questions", refused),
    ]
    return harness.run_cases("frontier", cases, args)


if __name__ == "__main__":
    sys.exit(main())
