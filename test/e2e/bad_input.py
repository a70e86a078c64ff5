#!/usr/bin/env python3
"""Bad input: exit code 1, a located sentence for every problem, and nothing
half-written. Wrong usage: exit code 2."""
import ctypes
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import exact_models
import harness
from harness import Case, Failed
from processes import free_port

MLP = os.path.join(harness.MODELS, "mlp-ce")
MODEL = os.path.join(MLP, "model.onnx")
DATA = os.path.join(MLP, "data")
TRAIN = ["--global-batch=8", "--optimizer=sgd:lr=0.1"]


def listing(folder):
    return sorted(os.path.relpath(os.path.join(base, name), folder)
                  for base, names, leaves in os.walk(folder)
                  for name in names + leaves)


def refuse(tools, tool, *arguments, says=(), code=1):
    """The tool must refuse, say so on stderr, and leave the folder alone."""
    before = listing(tools.folder)
    _, errors = tools.run(tool, *arguments, expect=code)
    if after := sorted(set(listing(tools.folder)) - set(before)):
        raise Failed(f"left {after[:4]} behind")
    for pattern in says:
        if not re.search(pattern, errors, re.I):
            raise Failed(f"'{pattern}' is not in: {harness.last_lines(errors, 6)}")
    for shout in (r"terminate called", r"Assertion", r"Stack dump", r"what\(\)"):
        if re.search(shout, errors):
            raise Failed(f"a crash, not a sentence: {harness.last_lines(errors)}")
    return harness.last_lines(errors, 2)


def good_plan(tools, *options):
    plan = tools.path("good.plan")
    tools.run("merakc", MODEL, "-o", plan, *TRAIN, *options)
    return plan


def write(tools, name, content):
    path = tools.path(name)
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    return path


def read(path):
    with open(path, "rb") as file:
        return file.read()


# ------------------------------------------------------------------ compiling


def too_little_memory(tools):
    """The stage, its bytes and largest tensors, and a change that would fit."""
    model = os.path.join(harness.MODELS, "gpt2-tiny", "model.onnx")
    limit = 1_000_000
    said = refuse(tools, "merakc", model, "-o", tools.path("o.plan"),
                  "--mesh=pp=2,dp=1,tp=1", "--global-batch=8",
                  "--microbatch=8", "--recompute=none",
                  f"--memory-limit={limit}",
                  says=[r"no plan fits into the 1\.0 MiB", r"stage [01] needs",
                        r"MiB (parameter|activation) '", r"it fits with|needs devices"])
    refuse(tools, "merakc", model, "-o", tools.path("o.plan"),
           "--mesh=pp=2,dp=1,tp=1", "--global-batch=8", "--memory-limit=1000",
           says=[r"it needs devices with \d"])
    return said


def truncated_model(tools):
    path = write(tools, "cut.onnx", read(MODEL)[:-5000])
    return refuse(tools, "merakc", path, "-o", tools.path("o.plan"), *TRAIN,
                  says=[r"cut\.onnx"])


def random_bytes(tools):
    path = write(tools, "noise.onnx", random.Random(1).randbytes(4096))
    return refuse(tools, "merakc", path, "-o", tools.path("o.plan"), *TRAIN,
                  says=[r"noise\.onnx"])


def random_text(tools):
    path = write(tools, "noise.textproto", "graph { node { nonsense: 1 } }")
    return refuse(tools, "merakc", path, "-o", tools.path("o.plan"), *TRAIN,
                  says=[r"noise\.textproto"])


def empty_model(tools):
    path = write(tools, "empty.onnx", b"")
    return refuse(tools, "merakc", path, "-o", tools.path("o.plan"), *TRAIN,
                  says=[r"empty\.onnx"])


def absent_model(tools):
    return refuse(tools, "merakc", tools.path("nowhere.onnx"), "-o",
                  tools.path("o.plan"), *TRAIN, says=[r"nowhere\.onnx"])


def unbound_dimension(tools):
    text = exact_models.embedding().text().replace(
        'dim { dim_value: 8 }', 'dim { dim_param: "length" }', 1)
    path = write(tools, "open.textproto", text)
    return refuse(tools, "merakc", path, "-o", tools.path("o.plan"), *TRAIN,
                  says=[r"length", r"--shape", r"ids"])


def two_unsupported_ops(tools):
    text = exact_models.linear().text()
    text = text.replace('"Relu"', '"Frobnicate"').replace('"Mul"', '"Quuxify"')
    path = write(tools, "odd.textproto", text)
    return refuse(tools, "merakc", path, "-o", tools.path("o.plan"), *TRAIN,
                  says=[r"Frobnicate", r"Quuxify", r"Relu_2", r"Mul_4"])


def names_of_functions(tools):
    text = exact_models.linear().text()
    text = text.replace('"w1"', '"model"').replace('"w2"', '"step"')
    path = write(tools, "named.textproto", text)
    return refuse(tools, "merakc", path, "-o", tools.path("o.plan"), *TRAIN,
                  says=[r"another name for initializer 'model'",
                        r"another name for initializer 'step'"])


def check_lists_all(tools):
    """merakc --check: all at once on stdout, exit code 1, nothing written."""
    text = exact_models.linear().text()
    text = text.replace('"Relu"', '"Frobnicate"').replace('"Mul"', '"Quuxify"')
    path = write(tools, "odd.textproto", text)
    before = listing(tools.folder)
    said, _ = tools.run("merakc", "--check", path, expect=1)
    for word in ("Frobnicate", "Quuxify", "Relu_2", "Mul_4", "2 problems"):
        if word not in said:
            raise Failed(f"'{word}' is not in: {harness.last_lines(said, 6)}")
    for broken in (b"", b"\x08\x08" * 40):
        cut = write(tools, "cut.onnx", broken)
        said, _ = tools.run("merakc", "--check", cut, expect=1)
        if "problem: expected an ONNX model" not in said:
            raise Failed(f"no problem in: {harness.last_lines(said, 6)}")
    os.remove(cut)
    if listing(tools.folder) != before:
        raise Failed("left files behind")
    tools.run("merakc", "--check", path, "--mesh=pp=0", expect=2)
    return "all listed"


def mesh_needs_more(tools):
    return refuse(tools, "merakc", MODEL, "-o", tools.path("o.plan"), *TRAIN,
                  "--devices=2", "--mesh=pp=1,dp=4,tp=1", says=[r"\b4\b", r"\b2\b"])


def batch_does_not_divide(tools):
    return refuse(tools, "merakc", MODEL, "-o", tools.path("o.plan"), *TRAIN,
                  "--devices=3", "--mesh=pp=1,dp=3,tp=1",
                  says=[r"\b8\b", r"\b3\b", r"divi"])


def microbatch_does_not_divide(tools):
    return refuse(tools, "merakc", MODEL, "-o", tools.path("o.plan"), *TRAIN,
                  "--microbatch=3", says=[r"\b8\b", r"\b3\b", r"divi"])


def halves_of_one_sample(tools):
    """A network without tokens."""
    return refuse(tools, "merakc",
                  os.path.join(harness.MODELS, "mlp-ce", "model.onnx"), "-o",
                  tools.path("o.plan"), *TRAIN,
                  "--mesh=pp=1,dp=1,tp=2", "--microbatch=1", "--tp-overlap=3",
                  says=[r"overlap 3 splits a microbatch into two submicrobatches, found "
                        r"1 sample a microbatch .*: no dimension besides the "
                        r"batch can be halved"])


def numbers(tools):
    """Options that are numbers, each tool: what was expected, and what was found."""
    plan = tools.path("no.plan")
    whole = r"{}: expected a whole number {}, found '{}'"
    for tool, option, value, says in [
            ("merakc", "--microbatch", "abc", whole.format("{}", "from 1", "{}")),
            ("merakc", "--microbatch", "0", whole.format("{}", "from 1", "{}")),
            ("merakc", "--global-batch", "1.5", whole.format("{}", "from 1", "{}")),
            ("merakc", "--grad-clip", "-1", r"{}: expected a number from 0, found '{}'"),
            ("merakc", "--memory-limit", "-3", r"{}: expected bytes, as .*, found '{}'"),
            ("merakc", "--memory-limit", "40 apples",
             r"{}: expected bytes, as .* 40GB or 37\.5GiB, found '{}'"),
            ("merakc", "--grad-bucket", "all",
             r"{}: expected bytes, as 25MB, or auto, found '{}'"),
            ("merak-run", "--steps", "x", whole.format("{}", "from 1", "{}")),
            ("merak-run", "--rates", "-1", whole.format("{}", "from 0", "{}")),
            ("merak-run", "--threads", "5000", whole.format("{}", "from 1 to 4096", "{}")),
            ("merak-run", "--save-every", "1.5", whole.format("{}", "from 1", "{}")),
            ("merak-run", "--restarts", "x", whole.format("{}", "from 0", "{}")),
            ("merak-run", "--copies", "65", whole.format("{}", "from 0 to 64", "{}"))]:
        refuse(tools, tool, MODEL if tool == "merakc" else plan, f"{option}={value}",
               says=[f"{tool}: (error: )?" + says.format(option, value)], code=2)
    refuse(tools, "merak-plan", "draw", plan, "--columns=1",
           says=[r"merak-plan: error: --columns: expected a whole number from 10 to"],
           code=2)
    return "14 sentences"


def memory_with_a_unit(tools):
    """The same plan as with digits, also when it is made again from the plan's options."""
    printed = []
    for limit in ("3MB", "3000000", "2929.6875KiB"):
        tools.run("merakc", MODEL, "-o", tools.path("o.plan"), *TRAIN, "--devices=2",
                  f"--memory-limit={limit}", "--grad-bucket=0.1MB")
        printed.append(tools.run("merak-plan", "print", tools.path("o.plan"))[0])
    if len(set(printed)) != 1:
        raise Failed("units change the plan")
    return "3 ways to say it"


def no_such_schedule(tools):
    """May also be the name of a file, so it is input, not usage."""
    return refuse(tools, "merakc", MODEL, "-o", tools.path("o.plan"), *TRAIN,
                  "--schedule=1f2b", says=[r"1f2b", r"1f1b", r"gpipe"])


def bad_schedule_file(tools):
    """Every problem of a schedule file at once, with file, stage and position;
    a deadlock with its cycle."""
    layout = ["--devices=2", "--mesh=pp=2,dp=1,tp=1", "--microbatch=2"]
    good = ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]
    doubled = ["F0 F1 B0 F2 B1 F3 B2 B2", "F0 B0 F1 B1 F2 X2 F3 B3"]
    cases = [
        ([good[0]] * 3, 3, [r"expected 2 stages, found 3",
                            r"expected 4 microbatches, found 3",
                            r"stage 2, position 5: F3 is outside"]),
        (doubled, 4, [r"stage 1, position 5: 'X2' is no action"]),
        ([doubled[0], "F0 B0 F1 B1 F2 F3 B3"], 4,
         [r"stage 0, position 7: B2 is a duplicate, first at position 6",
          r"stage 0: B3 is missing", r"stage 1: B2 is missing"]),
        (["F0 F1 B1 B0 F2 F3 B2 B3", good[1]], 4,
         [r"stage 0, position 3: B0 stands after microbatch 1"]),
        (["F0 B0 F1 B1 F2 B2 F3 B3", "F0 F1 B0 B1 F2 B2 F3 B3"], 4,
         [r"deadlock: stage 0 B0 waits for stage 1 B0 waits for stage 1 F1 "
          r"waits for stage 0 F1 waits for stage 0 B0"]),
    ]
    for number, (stages, microbatches, says) in enumerate(cases):
        path = write(tools, f"schedule{number}.json", json.dumps(
            {"microbatches": microbatches, "stages": stages}))
        note = refuse(tools, "merakc", MODEL, "-o", tools.path("o.plan"),
                      *TRAIN, *layout, f"--schedule={path}",
                      says=[re.escape(path) + ": " + text for text in says])
    refuse(tools, "merakc", MODEL, "-o", tools.path("o.plan"), *TRAIN, *layout,
           "--schedule=absent.json", says=[r"absent\.json"])
    return note


def bad_cluster(tools):
    """Every problem of a cluster file at once, with its path in the file."""
    path = write(tools, "c.json", json.dumps({
        "kinds": {"a": {"backend": "cpu", "flops": {"bf16": 1e9},
                        "memory_bandwidth": 0, "colour": 1},
                  "b": {"backend": "cuda", "flops": 1e9,
                        "memory_bandwidth": 1e9, "memory_bytes": 8.5,
                        "kernels": {"copy": {"sizes": [[8, 1], [4, 1]]}}}},
        "nodes": [{"kind": "c", "devices": 2}, {"kinds": ["a"], "devices": 2}],
        "links": {"inter": {"bandwidth": -3}}, "rates": {"9": 1}}))
    note = refuse(
        tools, "merakc", MODEL, "-o", tools.path("o.plan"), *TRAIN,
        f"--cluster={path}",
        says=[re.escape(path) + ": " + text for text in (
            r"kinds\.a\.colour: unknown field",
            r"kinds\.a\.flops\.f32: missing",
            r"kinds\.a\.memory_bandwidth: expected a positive number of bytes "
            r"per second, found 0",
            r"kinds\.b\.memory_bytes: expected a whole number .*found 8\.5",
            r"kinds\.b\.kernels\.copy\.sizes\[1\]\[0\]: expected more than",
            r"kinds\.b\.backend: \"cuda\" contradicts \"cpu\"",
            r"nodes\[0\]\.kind: expected one of the kinds a, b, found \"c\"",
            r"nodes\[1\]\.devices: 2 contradicts the 1 kinds",
            r"links\.intra: missing",
            r"links\.inter\.bandwidth: expected a positive number of bytes per "
            r"second, found -3",
            r"links\.inter\.latency: missing",
            r"rates\.9: expected a device between 0 and 2")])
    for text, says in (("{", r"c\.json:1:2: expected a JSON object"),
                       ("[1]", r"expected a JSON object"),
                       ('{"devices": 1e300}', r"devices: expected a whole"),
                       ("\0\0", r"c\.json"),
                       (json.dumps({"kinds": {}, "nodes": [
                           {"kind": "a", "devices": 1, "host": "a;b"}]}),
                        r"nodes\[0\]\.host: expected a name of letters"),
                       ('{"devices": 2, "devices": 3}', r"devices: .*twice")):
        path = write(tools, "c.json", text)
        refuse(tools, "merakc", MODEL, "-o", tools.path("o.plan"), *TRAIN,
               f"--cluster={path}", says=[says])
    refuse(tools, "merakc", MODEL, "-o", tools.path("o.plan"), *TRAIN,
           "--cluster=absent.json", says=[r"absent\.json"])
    # Rates of devices.
    for text, code, says in (
            ("1:0.5,2,x:2,0:nan", 2, [rf"--for-rates: expected .*'{part}'" for part
                                      in ("1:0.5", "2", "x:2", "0:nan")]),
            ("1:2,1:3", 2, ["device 1 twice"]),
            ("7:2,9:3", 1, [r"no device 7 of 4", r"no device 9 of 4"])):
        refuse(tools, "merakc", MODEL, "-o", tools.path("o.plan"), *TRAIN,
               "--devices=4", f"--for-rates={text}", code=code, says=says)
    plan = good_plan(tools)
    refuse(tools, "merak-plan", "simulate", plan, "--cluster=absent.json",
           says=[r"absent\.json"])
    # Too few devices for the plan.
    two = tools.path("two.plan")
    tools.run("merakc", MODEL, "-o", two, *TRAIN, "--devices=2",
              "--mesh=pp=1,dp=2,tp=1")
    path = write(tools, "one.json", json.dumps(
        {"devices": 1, "device": {"kind": "cpu", "flops": 1e9,
                                  "memory_bandwidth": 1e9}}))
    refuse(tools, "merak-plan", "simulate", two, f"--cluster={path}",
           says=[r"one\.json: has 1 devices, the plan 2 ranks"])
    return note


def stragglers(tools):
    good = {"devices": 8, "devices_per_node": 4, "layers": 8, "microbatches": 8,
            "mesh": {"pp": 2, "dp": 1, "tp": 4}, "rho": [1, 1.9],
            "stragglers": {"0": 2.5}}
    tools.run("merak-plan", "rates", json.dumps(good))

    def wrong(says, **changed):
        path = write(tools, "s.json", json.dumps({**good, **changed}))
        return refuse(tools, "merak-plan", "rates", path, says=says)

    note = wrong([r"s\.json: there is no field 'speed'", r"layers: expected a whole",
                  r"mesh\.tp: expected a whole number, found nothing",
                  r"rho: expected a list", r"stragglers\.9: expected devices between",
                  r"stragglers\.1: expected how many times longer"],
                 speed=1, layers=1.5, mesh={"pp": 2, "dp": 1}, rho=2,
                 stragglers={"9": 2, "1": -1})
    wrong([r"tp: expected a power of two, found 3"], mesh={"pp": 1, "dp": 1, "tp": 3})
    wrong([r"8 \* 4 are more than 8 devices|2 \* 4 \* 2 are more than 8"],
          mesh={"pp": 2, "dp": 2, "tp": 4})
    wrong([r"stragglers: devices: 0 groups are left"], stragglers={"0-7": "gone"})
    for text in ("{", "[]", '{"layers": 1, "layers": 2}'):
        refuse(tools, "merak-plan", "rates", write(tools, "s.json", text),
               says=[r"s\.json"])
    for option, says in (("--rates=0", r"--rates: expected rates of devices"),
                         ("--from=absent.json", r"absent\.json"),
                         ("--situation=x", r"known are stragglers"),
                         ("-oabsent/x.json", r"absent/x\.json: cannot be written")):
        refuse(tools, "merak-plan", "rates", json.dumps(good), option, says=[says])
    refuse(tools, "merak-plan", "rates", json.dumps(good), "--reaction=x", code=2)
    return note


def precision(tools):
    for name in ("int4", "fp64"):
        note = refuse(tools, "merakc", MODEL, "-o", tools.path("o.plan"), *TRAIN,
                      f"--precision={name}", code=2,
                      says=[f"--precision: {name} not in .fp32,bf16"])
    return note


def no_such_loss(tools):
    return refuse(tools, "merakc", MODEL, "-o", tools.path("o.plan"), *TRAIN,
                  "--loss=perplexity", says=[r"perplexity"])


def no_such_parameter(tools):
    return refuse(tools, "merakc", MODEL, "-o", tools.path("o.plan"), *TRAIN,
                  "--freeze=encoder.weight", says=[r"encoder\.weight"])


def unwritable_output(tools):
    write(tools, "file", "")
    return refuse(tools, "merakc", MODEL, "-o", tools.path("file/o.plan"), *TRAIN,
                  says=[r"file/o\.plan"])


def broken_linker(tools):
    """Kernels that cannot be linked are a fault of ours: 70, with the command
    that shows it again. No linker at all is none of ours."""
    folder = tools.path("tools")
    os.makedirs(folder)
    linker = os.path.join(folder, "ld.lld")
    write(tools, "tools/ld.lld", b"#!/bin/sh\necho no symbol >&2\nexit 1\n")
    os.chmod(linker, 0o755)
    tools.extra["PATH"] = folder + ":/bin"
    note = refuse(tools, "merakc", MODEL, "-o", tools.path("out.plan"), *TRAIN,
                  code=70, says=("internal error: linking with .*no symbol",
                                 "internal error; reproduce with: .*--global-batch"))
    os.remove(linker)
    tools.extra["PATH"] = folder
    refuse(tools, "merakc", MODEL, "-o", tools.path("out.plan"), *TRAIN,
           says=("no linker found; expected one of ld.lld",))
    return note


def foreign_folder(tools):
    """A folder that is no plan is not replaced by one."""
    os.makedirs(tools.path("thesis"))
    write(tools, "thesis/chapter1.txt", "years of work")
    note = refuse(tools, "merakc", MODEL, "-o", tools.path("thesis"), *TRAIN,
                  says=[r"thesis"])
    if read(tools.path("thesis/chapter1.txt")) != b"years of work":
        raise Failed("overwrote a folder that was no plan")
    return note


def bad_options(tools):
    for options in (["--optimizer=lion"], ["--mesh=pp=two"],
                    ["--no-such-option"],
                    ["--optimizer=sgd:speed=1"]):
        note = refuse(tools, "merakc", MODEL, "-o", tools.path("o.plan"),
                      *[o for o in TRAIN if o.split("=")[0] !=
                        options[0].split("=")[0]], *options, code=2)
    refuse(tools, "merak-run", code=2)
    refuse(tools, "merak-run", tools.path("o.plan"), "--no-such-option", code=2)
    return note


# -------------------------------------------------------------------- running


def no_plan(tools):
    return refuse(tools, "merak-run", tools.path("no.plan"), "--data=synthetic",
                  "--steps=1", says=[r"no\.plan"])


def truncated_plan(tools):
    plan = good_plan(tools)
    name = os.path.join(plan, "program-0.pb")
    content = read(name)
    with open(name, "wb") as file:
        file.write(content[:len(content) // 2])
    refuse(tools, "merak-plan", "verify", plan, says=[r"program-0\.pb"])
    return refuse(tools, "merak-run", plan, f"--data={DATA}", "--steps=1",
                  says=[r"program-0\.pb"])


def absent_weights(tools):
    """The weights may be absent when compiling, not when running."""
    text = exact_models.linear().text()
    head, rest = text.split("  initializer {\n", 1)
    first, rest = rest.split("  }\n", 1)
    first = re.sub(r"    float_data: .*\n", "", first)
    first += ('    data_location: EXTERNAL\n    external_data { key: "location" '
              'value: "elsewhere.bin" }\n    external_data { key: "length" '
              'value: "2048" }\n')
    path = write(tools, "external.textproto",
                 head + "  initializer {\n" + first + "  }\n" + rest)
    plan = tools.path("o.plan")
    tools.run("merakc", path, "-o", plan, *TRAIN)
    return refuse(tools, "merak-run", plan, "--data=synthetic", "--steps=1",
                  says=[r"elsewhere\.bin", r"w1"])


def bad_data(tools, name, descr, shape, values, *says):
    plan = good_plan(tools)
    folder = tools.path("data")
    shutil.copytree(DATA, folder)
    os.chmod(folder, 0o755)
    target = os.path.join(folder, name + ".npy")
    os.remove(target)
    if descr:
        harness.write_npy(target, descr, shape, values)
    return refuse(tools, "merak-run", plan, f"--data={folder}", "--steps=1",
                  says=[name, *says])


def data_shape(tools):
    return bad_data(tools, "x", "<f4", [80, 27], [0] * 80 * 27, r"28", r"27")


def data_dtype(tools):
    return bad_data(tools, "x", "<i8", [80, 28], [0] * 80 * 28, r"i(nt)?64|<i8",
                    r"f(loat)?32|<f4")


def data_missing(tools):
    return bad_data(tools, "labels", None, None, None, r"labels\.npy")


def data_too_short(tools):
    return bad_data(tools, "labels", "<i8", [3], [0] * 3, r"\b3\b", r"\b80\b")


def data_out_of_range(tools):
    labels = [0] * 80
    labels[5] = 12345
    return bad_data(tools, "labels", "<i8", [80], labels, r"12345", r"\b5\b")


def data_not_npy(tools):
    plan = good_plan(tools)
    folder = tools.path("data")
    shutil.copytree(DATA, folder)
    os.chmod(folder, 0o755)
    os.remove(os.path.join(folder, "x.npy"))
    write(tools, "data/x.npy", b"not an array")
    return refuse(tools, "merak-run", plan, f"--data={folder}", "--steps=1",
                  says=[r"x\.npy"])


def no_data(tools):
    return refuse(tools, "merak-run", good_plan(tools),
                  f"--data={tools.path('nowhere')}", "--steps=1",
                  says=[r"nowhere"])


def foreign_checkpoint(tools):
    other = tools.path("other.plan")
    model = os.path.join(harness.MODELS, "mlp-mse")
    tools.run("merakc", os.path.join(model, "model.onnx"), "-o", other, *TRAIN)
    tools.run("merak-run", other, f"--data={model}/data", "--steps=1",
              f"--save={tools.path('saved')}")
    return refuse(tools, "merak-run", good_plan(tools), f"--data={DATA}",
                  "--steps=1", f"--load={tools.path('saved')}", says=[r"saved"])


def absent_checkpoint(tools):
    return refuse(tools, "merak-run", good_plan(tools), f"--data={DATA}",
                  "--steps=1", f"--load={tools.path('nowhere')}",
                  says=[r"nowhere"])


def unwritable_log(tools):
    plan = good_plan(tools)
    write(tools, "file", "")
    for option in ("log", "save", "trace", "save-grads"):
        note = refuse(tools, "merak-run", plan, f"--data={DATA}", "--steps=1",
                      f"--{option}={tools.path('file/x')}", says=[r"file/x"])
    return note


def unwritable_report(tools):
    write(tools, "file", "")
    return refuse(tools, "merakc", MODEL, "-o", tools.path("o.plan"), *TRAIN,
                  f"--report={tools.path('file/x.html')}",
                  says=[r"file/x\.html"])


def wrong_links(tools):
    plan = good_plan(tools)
    for links in ("fast", "5us", "5us/-1MB/s", tools.path("nowhere.json")):
        note = refuse(tools, "merak-run", plan, f"--data={DATA}", "--steps=1",
                      f"--links={links}", says=[re.escape(links)])
    return note


def trace_of_another_plan(tools):
    plan, trace = good_plan(tools), tools.path("trace.json")
    tools.run("merak-run", plan, f"--data={DATA}", "--steps=1",
              f"--trace={trace}")
    other = tools.path("other.plan")
    tools.run("merakc", MODEL, "-o", other, *TRAIN, "--mesh=pp=2",
              "--microbatch=2")
    return refuse(tools, "merak-plan", "report", other, f"--trace={trace}",
                  "-o", tools.path("x.html"), says=[r"trace\.json",
                                                    r"another plan"])


def killed_while_saving(tools):
    """What a killed run leaves is a whole checkpoint: it loads."""
    plan, saved = good_plan(tools), tools.path("saved")
    for pause in (0.05, 0.1, 0.2):
        command = tools.start("merak-run", plan, f"--data={DATA}",
                              "--steps=100000", f"--save={saved}",
                              "--save-every=1")
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL,
                                   env=dict(os.environ))
        began = time.monotonic()
        latest = os.path.join(saved, "latest")
        while (not os.path.exists(latest) and process.poll() is None and
               time.monotonic() - began < 60):
            time.sleep(0.01)
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if not os.path.exists(latest):
            raise Failed("no checkpoint appeared in 60 s")
        tools.run("merak-run", plan, f"--data={DATA}", "--steps=1",
                  f"--load={saved}")
    return "loads after 3 kills"


def interrupted(tools):
    """A run that is told to stop ends after its step and saves."""
    plan, saved = good_plan(tools), tools.path("saved")
    for number in (signal.SIGINT, signal.SIGTERM):
        log = tools.path(f"{number.name}.jsonl")
        process = subprocess.Popen(
            tools.start("merak-run", plan, f"--data={DATA}", "--steps=100000",
                        f"--save={saved}", f"--log={log}"),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        began = time.monotonic()
        while (not (os.path.exists(log) and read(log)) and
               process.poll() is None and time.monotonic() - began < 60):
            time.sleep(0.01)
        process.send_signal(number)
        note = process.communicate(timeout=60)[1].strip()
        steps = len(harness.read_log(log))
        wanted = f"stopped by {number.name} after step {steps} of 100000"
        if process.returncode != 1 or wanted not in note:
            raise Failed(f"ended with {process.returncode}: {note}, expected "
                         f"'{wanted}'")
        tools.run("merak-run", plan, f"--data={DATA}", "--steps=1",
                  f"--load={saved}", f"--log={log}")
        if [e["step"] for e in harness.read_log(log)] != list(
                range(1, steps + 2)):
            raise Failed("does not continue with the next step")
    return note


def generations(folder):
    """{path: content} of all but the lock, which tells who was there last."""
    paths = [os.path.join(at, name) for at, _, names in os.walk(folder)
             for name in names if name != ".lock"]
    return {path: read(path) for path in paths}


def lost_rank(tools, how, *says):
    """A rank that fails or falls silent in the middle of a step ends the run
    with a sentence that names it; the last checkpoint stays whole."""
    plan = good_plan(tools, "--devices=4", "--mesh=pp=2,dp=1,tp=2",
                     "--microbatch=2")
    saved = tools.path("saved")
    tools.run("merak-run", plan, f"--data={DATA}", "--steps=1",
              f"--save={saved}")
    before = generations(saved)
    tools.extra = {"MERAK_FAULT": f"1:3:{how}", "MERAK_WATCHDOG_SECONDS": "2"}
    note = refuse(tools, "merak-run", plan, f"--data={DATA}", "--steps=5",
                  f"--save={saved}", says=[r"rank 1\b", r"step 3\b", *says])
    if before != generations(saved):
        raise Failed("the checkpoint changed")
    return note


def rank_fails(tools):
    return lost_rank(tools, "fail")


def rank_hangs(tools):
    return lost_rank(tools, "hang", r"rank 0\b.*(recv|send|all_reduce|waits)")


def elastic(tools):
    """--elastic of what cannot go on whatever happens, and of other clusters."""
    kind = {"backend": "cpu", "flops": 5e10, "memory_bandwidth": 1e10}
    link = {"bandwidth": 5e9, "latency": 5e-6}

    def cluster(name, *nodes):
        return write(tools, name, json.dumps(
            {"kinds": {"a": kind}, "links": {"intra": link, "inter": link},
             "nodes": [{"kind": "a", "devices": 2, **node} for node in nodes]}))

    nodes = cluster("nodes.json", {}, {})
    other = cluster("other.json", {"devices": 4})
    few = cluster("few.json", {})
    plan = good_plan(tools, f"--cluster={nodes}", "--mesh=pp=1,dp=4,tp=1")
    run = ["merak-run", plan, f"--data={DATA}", "--elastic"]
    for file, says in (
            (nodes, r"nodes\.json\" has 2 nodes and does not say on which hosts"),
            (other, r"compiled for another machine than \".*other\.json\""),
            (few, r"few\.json\" has 2 devices, the plan is for 4")):
        refuse(tools, *run, f"--cluster={file}", code=2,
               says=[r"\A[^\n]*" + says + r"[^\n]*\n\Z"])
    cluster("nodes.json", {"host": "a"}, {})
    refuse(tools, *run, f"--cluster={nodes}", "--ranks=env", code=2,
           says=[r"nodes\[1\]\.host: missing: other nodes have it"])
    refuse(tools, "merak-run", plan, f"--cluster={nodes}", code=2,
           says=[r"--cluster is for --elastic"])
    refuse(tools, "merak-run", tools.path("no.plan"), "--elastic",
           says=[r"no\.plan"])
    infer = tools.path("infer.plan")
    tools.run("merakc", MODEL, "-o", infer, "--mode=infer", "--global-batch=8")
    return refuse(tools, "merak-run", infer, "--elastic", "--restarts=0", code=2,
                  says=["does not train: --elastic is for training",
                        "--restarts=0 does not"])


def plan_of_another_device(tools):
    cluster = os.path.join(harness.ROOT, "samples/clusters/h200-8x8.json")
    gpus = good_plan(tools, f"--cluster={cluster}")
    refuse(tools, "merak-run", gpus, f"--data={DATA}", "--steps=1",
           says=[r"is a plan for cuda, the backend is cpu"])
    # Where there is a driver the plan runs; elsewhere one sentence says why not.
    try:
        ctypes.CDLL("libcuda.so.1")
        return "this machine has a driver"
    except OSError:
        pass
    return refuse(tools, "merak-run", gpus, f"--data={DATA}", "--steps=1",
                  "--backend=cuda",
                  says=[r"\A[^\n]*(NVIDIA's driver: libcuda|without the CUDA "
                        r"toolkit)[^\n]*\n\Z"])


def fake_driver(tools, settings):
    """Programs find a libcuda.so.1 of the tests; see
    test/unit/driver/FakeDriver.cpp. False where there is none."""
    folder = os.path.join(tools.bin_dir, "../fake-driver")
    tools.extra = {"LD_LIBRARY_PATH": os.path.abspath(folder),
                   "MERAK_FAKE_CUDA": settings}
    return os.path.isdir(folder)


def gpu(tools, settings, *says):
    """A driver or a device that cannot be used: one sentence, or, of memory,
    one with a table."""
    cluster = os.path.join(harness.ROOT, "samples/clusters/h200-8x8.json")
    plan = good_plan(tools, f"--cluster={cluster}", "--devices=1",
                     "--mesh=pp=1,dp=1,tp=1")
    if not fake_driver(tools, settings):
        return "built without the CUDA toolkit"
    return refuse(tools, "merak-run", plan, f"--data={DATA}", "--steps=1",
                  "--backend=cuda", says=says)


def no_gpu(tools):
    return gpu(tools, "devices=0", r"\A[^\n]*error: the cuda backend needs a "
               r"GPU: the driver sees none\n\Z")


def old_gpu(tools):
    return gpu(tools, "capability=75", r"\A[^\n]*error: fake gpu has compute "
               r"capability 7\.5, the kernels need 8\.0 or newer\n\Z")


def old_driver(tools):
    return gpu(tools, "version=11080", r"\A[^\n]*error: the driver knows CUDA "
               r"11\.8, the kernels were built with \d+\.\d\n\Z")


def small_gpu(tools):
    return gpu(tools, "bytes=5000", r"error: rank 0 needs \S+ \wi?B on a device "
               r"with 4\.9 KiB free\n.*parameters")


def launched_as_ranks(tools, ranks, environment, *says):
    """One process of torchrun's, with a plan for two ranks."""
    cluster = os.path.join(harness.ROOT, "samples/clusters/h200-8x8.json")
    plan = good_plan(tools, f"--cluster={cluster}", "--devices=2",
                     "--mesh=pp=1,dp=2,tp=1")
    if not fake_driver(tools, "devices=1"):
        return "built without the CUDA toolkit"
    tools.extra |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks),
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                    **environment}
    _, errors = tools.run("merak-run", plan, f"--data={DATA}", "--steps=1",
                          "--backend=cuda", "--ranks=env", expect=1)
    if "which this build does not have" in errors:
        return "built without NCCL"
    for pattern in says:
        if not re.search(pattern, errors):
            raise Failed(f"'{pattern}' is not in: {errors.strip()}")
    return harness.last_lines(errors, 1)


def no_nccl(tools):
    return launched_as_ranks(
        tools, 1, {"MERAK_NCCL_LIBRARY": "/absent/libnccl.so.2"},
        r"\A[^\n]*error: the cuda backend needs NCCL: /absent/libnccl\.so\.2: "
        r"[^\n]*\n\Z")


def wrong_world_size(tools):
    return launched_as_ranks(
        tools, 1, {}, r"\A[^\n]*error: \"[^\n]*\" is a plan for 2 ranks, 1 "
        r"(was|were) started\n\Z")


CASES = [plan_of_another_device, no_gpu, old_gpu, old_driver, small_gpu, no_nccl,
         wrong_world_size, too_little_memory, truncated_model, random_bytes, random_text,
         empty_model, absent_model,
         names_of_functions,
         unbound_dimension, two_unsupported_ops, check_lists_all, mesh_needs_more,
         batch_does_not_divide, microbatch_does_not_divide,
         halves_of_one_sample, numbers, memory_with_a_unit, no_such_schedule,
         bad_schedule_file, bad_cluster, elastic, precision, no_such_loss,
         no_such_parameter, unwritable_output, broken_linker, foreign_folder,
         bad_options, stragglers, no_plan, truncated_plan, absent_weights, data_shape, data_dtype,
         data_missing, data_too_short, data_out_of_range, data_not_npy, no_data,
         foreign_checkpoint, absent_checkpoint, unwritable_log,
         killed_while_saving, interrupted, rank_fails, rank_hangs,
         unwritable_report, wrong_links, trace_of_another_plan]


def main():
    args = harness.parser(__doc__).parse_args()
    import strange  # which takes what is above
    cases = [Case(f.__name__.replace("_", " "), f)
             for f in CASES + strange.CASES]
    return harness.run_cases("bad input", cases, args)


if __name__ == "__main__":
    sys.exit(main())
