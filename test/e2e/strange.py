"""Files that are not what they were, or no files at all, and names that mean
something else: cases of bad_input.py.

Each is refused at once with a sentence, or gives the results that it would have
given."""
import os
import shutil
import sqlite3
import struct
import subprocess
import time

import exact_models
import harness
import training_info as build
from bad_input import DATA, MODEL, TRAIN, good_plan, read, refuse, write
from harness import Failed

SECONDS = 60  # "at once", on a machine with much else to do


# ----------------------------------------------------------- models that change


def own_model(tools, *options):
    """A copy of the model that may be changed, and a plan of it."""
    model = write(tools, "own.onnx", read(MODEL))
    plan = tools.path("own.plan")
    tools.run("merakc", model, "-o", plan, "-q", *TRAIN, *options)
    return model, plan


def losses(tools, plan, *options):
    log = tools.path("log.jsonl")
    tools.run("merak-run", plan, f"--data={DATA}", "--steps=2", f"--log={log}",
              *options)
    return [entry["loss"] for entry in harness.read_log(log)]


def model_changed(tools):
    """Saved again with other weights, and with a byte more or less."""
    model, plan = own_model(tools)
    before, bytes_before = losses(tools, plan), read(model)
    other = bytearray(bytes_before)
    other[len(other) // 2] ^= 64
    for content, says in ((other, "contents of hash"),
                          (bytes_before + b"\0", r"expected \d+ bytes, found"),
                          (bytes_before[:-1], r"expected \d+ bytes, found")):
        write(tools, "own.onnx", bytes(content))
        note = refuse(tools, "merak-run", plan, f"--data={DATA}", "--steps=1",
                      says=[r"own\.onnx.* has changed since the plan was made: "
                            + (says if says.startswith("expected") else
                               "expected " + says)])
        refuse(tools, "merak-run", plan, f"--data={DATA}", "--steps=1",
               "--verify=full", says=["has changed"])
    # Whoever wants it all the same says so.
    write(tools, "own.onnx", bytes(other))
    tools.run("merak-run", plan, f"--data={DATA}", "--steps=1", "--verify=off",
              "--on-nonfinite=ignore")
    # The same bytes at another time, or in another place, are the same model.
    write(tools, "own.onnx", bytes_before)
    os.utime(model, (1, 1))
    if losses(tools, plan) != before:
        raise Failed("other losses with the same bytes")
    os.mkdir(tools.path("moved"))
    shutil.move(model, tools.path("moved/own.onnx"))
    if losses(tools, plan, f"--model-dir={tools.path('moved')}") != before:
        raise Failed("other losses where the model was moved")
    return note


def changed_model_exported(tools):
    model, plan = own_model(tools)
    saved = tools.path("saved")
    tools.run("merak-run", plan, f"--data={DATA}", "--steps=1",
              f"--save={saved}")
    content = bytearray(read(model))
    content[len(content) // 2] ^= 64
    write(tools, "own.onnx", bytes(content))
    return refuse(tools, "merak-plan", "export-onnx", plan, f"--load={saved}",
                  "-o", tools.path("trained.onnx"), says=["has changed since"])


def same_bytes_same_plan(tools):
    """A plan does not depend on when its model was copied there."""
    model, plan = own_model(tools)
    first = {n: read(os.path.join(plan, n)) for n in os.listdir(plan)}
    os.utime(model, (1, 1))
    own_again = write(tools, "own.onnx", read(model))
    os.utime(own_again, (2, 2))
    tools.run("merakc", model, "-o", plan, "-q", *TRAIN)
    for name in first:
        if read(os.path.join(plan, name)) != first[name]:
            raise Failed(f"{name} differs")


# ------------------------------------------------------------- no regular files


def at_once(tools, tool, *arguments, says=(), code=1):
    began = time.monotonic()
    tools.timeout = SECONDS
    note = refuse(tools, tool, *arguments, says=says, code=code)
    if time.monotonic() - began > SECONDS:
        raise Failed("took too long")
    return note


def pipes_and_devices(tools):
    """Nobody writes into the pipe: whoever opens it waits for ever."""
    plan, pipe = good_plan(tools), tools.path("pipe.json")
    os.mkfifo(pipe)
    for path in (pipe, "/dev/zero"):
        said = [r"not a file|something else"]
        run = ["merak-run", plan, "--steps=1"]
        at_once(tools, "merakc", path, "-o", tools.path("o.plan"), says=said)
        at_once(tools, "merakc", path, "--from=graph", "-o",
                tools.path("o.plan"), says=said)
        at_once(tools, *run, f"--data={path}", says=said)
        at_once(tools, *run, f"--data={DATA}", f"--load={path}", says=said)
        at_once(tools, *run, f"--data={DATA}", f"--links={path}")
        for option in ("--cluster", "--strategy", "--schedule"):
            at_once(tools, "merakc", MODEL, "-o", tools.path("o.plan"), *TRAIN,
                    f"{option}={path}")
        note = at_once(tools, "merak-plan", "report", plan, f"--trace={path}",
                       "-o", tools.path("x.html"), says=[r"not a file"])
    folder = tools.path("data")
    shutil.copytree(DATA, folder)
    os.remove(os.path.join(folder, "x.npy"))
    os.mkfifo(os.path.join(folder, "x.npy"))
    at_once(tools, "merak-run", plan, f"--data={folder}", "--steps=1",
            says=[r"x\.npy.*not a file"])
    os.remove(os.path.join(plan, "program-0.pb"))
    os.mkfifo(os.path.join(plan, "program-0.pb"))
    at_once(tools, "merak-run", plan, f"--data={DATA}", "--steps=1",
            says=[r"program-0\.pb.*not a file"])
    return note


def full(tools, tool, *arguments, says="cannot write"):
    """Standard output takes nothing: exit code 1 and a sentence."""
    with open("/dev/full", "wb") as disk:
        done = subprocess.run(tools.start(tool, *arguments), stdout=disk,
                              stderr=subprocess.PIPE, text=True, timeout=300)
    if done.returncode != 1 or says not in done.stderr or \
            "terminate" in done.stderr or "Stack dump" in done.stderr:
        raise Failed(f"{tool} ended with {done.returncode}: "
                     f"{harness.last_lines(done.stderr)}")
    return harness.last_lines(done.stderr, 1)


def full_disk(tools):
    if not os.path.exists("/dev/full"):
        return "no /dev/full here"
    plan = good_plan(tools)
    run = ["merak-run", plan, f"--data={DATA}", "--steps=2"]
    full(tools, "merakc", MODEL, "--to=graph", "-o", "-", *TRAIN)
    full(tools, "merakc", "--help")
    full(tools, "merakc", "--check", MODEL)
    full(tools, "merak-plan", "print", plan)
    note = full(tools, *run)
    refuse(tools, *run, "--log=/dev/full", says=[r"cannot write \"/dev/full\""])
    refuse(tools, "merakc", MODEL, "--to=graph", "-o", "/dev/full", *TRAIN,
           says=[r"cannot write '/dev/full'"])
    # Not even the sentence can be written.
    with open("/dev/full", "wb") as disk:
        done = subprocess.run(tools.start("merak-run", plan, "--data=nowhere"),
                              stderr=disk, stdout=disk, timeout=300)
    if done.returncode != 1:
        raise Failed(f"ended with {done.returncode}")
    return note


def shrinking_data(tools):
    """Data that become shorter while the run reads them."""
    plan, folder = good_plan(tools), tools.path("data")
    os.mkdir(folder)
    rows = 200000
    harness.write_npy(os.path.join(folder, "x.npy"), "<f4", [rows, 28],
                      [0.5] * (rows * 28))
    harness.write_npy(os.path.join(folder, "labels.npy"), "<i8", [rows],
                      [1] * rows)
    log = tools.path("log.jsonl")
    process = subprocess.Popen(
        tools.start("merak-run", plan, f"--data={folder}", "--steps=10000000",
                    f"--log={log}"),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    began = time.monotonic()
    while (not (os.path.exists(log) and read(log)) and process.poll() is None
           and time.monotonic() - began < SECONDS):
        time.sleep(0.01)
    os.truncate(os.path.join(folder, "x.npy"), 4096)
    note = process.communicate(timeout=SECONDS)[1].strip()
    if process.returncode != 1 or "became shorter while it was read" not in note:
        raise Failed(f"ended with {process.returncode}: {note}")
    return note


# -------------------------------------------------------------------- the data


def batch_beyond_data(tools):
    plan = tools.path("large.plan")
    tools.run("merakc", MODEL, "-o", plan, "-q", "--global-batch=160",
              "--optimizer=sgd:lr=0.1")
    return refuse(tools, "merak-run", plan, f"--data={DATA}", "--steps=1",
                  says=[r"80 samples are fewer than the 160 of one step"])


def one_file_for_two(tools):
    """`a/b` and `a_b` are one file of data, and one of outputs."""
    graph = (build.node("Add", ["a/b", "a_b"], ["o/u"])
             + build.node("Sub", ["a/b", "a_b"], ["o_u"]))
    for name in ("a/b", "a_b"):
        graph += build.info("input", name, [4, 2])
    for name in ("o/u", "o_u"):
        graph += build.info("output", name, [4, 2])
    path = write(tools, "m.textproto", f"ir_version: 8 graph {{ name: 'm' {graph}"
                 " }\nopset_import { version: 17 }\n")
    plan, folder = tools.path("m.plan"), tools.path("data")
    tools.run("merakc", path, "-o", plan, "--mode=infer", "-q")
    os.mkdir(folder)
    harness.write_npy(os.path.join(folder, "a_b.npy"), "<f4", [4, 2], [1] * 8)
    note = refuse(tools, "merak-run", plan, f"--data={folder}",
                  says=[r"inputs \"a/b\" and \"a_b\" have one file"])
    refuse(tools, "merak-run", plan, "--data=synthetic",
           f"--out={tools.path('out')}",
           says=[r"outputs \"o/u\" and \"o_u\" have one file"])
    return note


def bad_shuffle(tools):
    plan = good_plan(tools)
    for seed in ("-1", "x", "18446744073709551616"):
        refuse(tools, "merak-run", plan, f"--data={DATA}", f"--shuffle={seed}",
               code=2, says=[r"--shuffle: expected a number of 64 bits"])


def arrays():
    """The data of the model: x as bytes of 28 floats, labels."""
    x = read(os.path.join(DATA, "x.npy"))
    labels = read(os.path.join(DATA, "labels.npy"))
    size = struct.unpack("<H", x[8:10])[0] + 10
    names = struct.unpack("<H", labels[8:10])[0] + 10
    return ([x[size + 112 * k:size + 112 * k + 112] for k in range(80)],
            list(struct.unpack("<80q", labels[names:names + 640])))


def table(path, x, labels):
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE samples(x BLOB, labels INTEGER)")
    base.executemany("INSERT INTO samples VALUES(?, ?)", zip(x, labels))
    base.commit()
    base.close()


def split_npy(folder, x, labels):
    os.makedirs(folder)
    harness.write_npy(os.path.join(folder, "x.npy"), "<f4", [len(x), 28],
                      struct.unpack(f"<{28 * len(x)}f", b"".join(x)))
    harness.write_npy(os.path.join(folder, "labels.npy"), "<i8", [len(labels)],
                      labels)


def same_data(tools):
    """Stored in another way the data give the same losses, in order and
    shuffled; shuffled they do not depend on layouts, and a run that goes on
    sees what it would have seen."""
    x, labels = arrays()
    table(tools.path("one.sqlite"), x, labels)
    for k, (first, end) in enumerate([(0, 7), (7, 8), (8, 80)]):
        split_npy(tools.path(f"npy/{k}"), x[first:end], labels[first:end])
        os.makedirs(tools.path("tables"), exist_ok=True)
        table(tools.path(f"tables/{k}.db"), x[first:end], labels[first:end])
    plan, log = good_plan(tools, "--microbatch=8"), tools.path("log.jsonl")
    wide = tools.path("wide.plan")
    tools.run("merakc", MODEL, "-o", wide, "-q", *TRAIN, "--devices=2",
              "--mesh=pp=2", "--microbatch=8")

    def run(plan, data, *options, steps=25):
        tools.run("merak-run", plan, f"--data={data}", f"--steps={steps}",
                  f"--log={log}", *options)
        return harness.read_log(log)

    seen = {}
    for order in ((), ("--shuffle=3",)):
        base = [e["loss"] for e in run(plan, DATA, *order)]
        seen[order] = base
        for data in ("one.sqlite", "npy", "tables"):
            if [e["loss"] for e in run(plan, tools.path(data), *order)] != base:
                raise Failed(f"{data} {order}: other losses")
    shuffled = seen[("--shuffle=3",)]
    if shuffled == seen[()] or shuffled == [
            e["loss"] for e in run(plan, DATA, "--shuffle=4")]:
        raise Failed("the order is not shuffled")
    if [e["loss"] for e in run(wide, DATA, "--shuffle=3")] != shuffled:
        raise Failed("pp=2: other losses")
    run(plan, DATA, "--shuffle=3", f"--save={tools.path('half')}", steps=12)
    # The log goes on.
    whole = run(plan, DATA, "--shuffle=3", f"--load={tools.path('half')}",
                steps=13)
    if [e["loss"] for e in whole] != shuffled:
        raise Failed("a run that goes on sees other samples")
    if abs(whole[-1]["epoch"] - 2.5) > 1e-9:
        raise Failed(f"25 steps of 8 of 80 samples: epoch {whole[-1]['epoch']}")
    return "25 steps, 4 forms, in order and shuffled"


# ---------------------------------------------------------------------- names


def named(tools, weight, second="v", node="n", output="y"):
    """A model with two weights of these names."""
    graph = (build.tensor("initializer", weight, [4], [0.1] * 4)
             + build.tensor("initializer", second, [4], [0.2] * 4)
             + build.node("Mul", ["x", weight], [output])
             + build.node("Add", [output, second], ["z"])
             + build.node("ReduceMean", ["z"], ["loss"], keepdims=0)
             + build.info("input", "x", [8, 4]) + build.info("output", "loss", []))
    return write(tools, "m.textproto", f"ir_version: 8 graph {{ name: 'm' {graph}"
                 " }\nopset_import { version: 17 }\n")


def reserved_names(tools):
    plan = tools.path("o.plan")
    for weight, second, says in (
            ("grad:v", "v", r"'grad:v'.*reserved"),
            ("__metadata__", "v", r"'__metadata__'.*reserved"),
            ("v.exp_avg", "v", r"'v\.exp_avg'.*optimizer's state of 'v'"),
            ("v.momentum", "v", r"'v\.momentum'.*optimizer's state of 'v'")):
        note = at_once(tools, "merakc", named(tools, weight, second), "-o",
                       plan, says=[says])
    # As far as nothing else has that name.
    for weight, second in (("u.exp_avg", "v"), ("gradient:v", "v")):
        path = named(tools, weight, second)
        tools.run("merakc", path, "-o", plan, "-q")
        saved = tools.path("saved")
        tools.run("merak-run", plan, "--data=synthetic", f"--save={saved}")
        tools.run("merak-run", plan, "--data=synthetic", f"--load={saved}")
    return note


def names_twice(tools):
    text = read(named(tools, "w")).decode()
    plan = tools.path("o.plan")
    twice = text.replace(build.info("output", "loss", []),
                         build.info("output", "loss", []) * 2)
    note = at_once(tools, "merakc", write(tools, "m.textproto", twice), "-o",
                   plan, says=[r"output 'loss' is listed twice"])
    again = text.replace(build.info("output", "loss", []), build.node(
        "Neg", ["x"], ["y"]) + build.info("output", "loss", []))
    at_once(tools, "merakc", write(tools, "m.textproto", again), "-o", plan,
            says=[r"value 'y' is made by two nodes"])
    return note


def names_of_bytes(tools):
    plan = tools.path("o.plan")
    for form in (dict(weight="w\\377"), dict(weight="w", second="v\\n"),
                 dict(weight="w", output="\\303("),
                 dict(weight="w\\000x")):
        note = at_once(tools, "merakc", named(tools, **form), "-o", plan,
                       says=[r"expected a name of printable UTF-8"])
    tools.run("merakc", named(tools, "größe", "名前/ß"), "-o", plan, "-q")
    saved = tools.path("saved")
    tools.run("merak-run", plan, "--data=synthetic", f"--save={saved}")
    tools.run("merak-run", plan, "--data=synthetic", f"--load={saved}")
    return note


# -------------------------------------------------------------------- numbers


def absurd_numbers(tools):
    plan = tools.path("o.plan")
    for options, code in ((["--devices=1000000000"], 2),
                          (["--devices=9223372036854775807"], 2),
                          (["--mesh=dp=4294967296,tp=4294967296"], 2),
                          (["--mesh=dp=1000000000"], 2),
                          (["--global-batch=4611686018427387904"], 1),
                          (["--microbatch=4611686018427387904"], 1)):
        base = [o for o in TRAIN if o.split("=")[0] != options[0].split("=")[0]]
        note = at_once(tools, "merakc", MODEL, "-o", plan, *base, *options,
                       code=code)
    at_once(tools, "merak-run", good_plan(tools), f"--data={DATA}",
            "--threads=1000000000", code=2)
    return note


def sizes_that_wrap(tools):
    plan = tools.path("o.plan")
    for dims in ([1 << 32, 1 << 32], [1 << 62, 4], [3, 1 << 62, 1 << 62]):
        text = read(named(tools, "w")).decode().replace(
            "dims: 4 ", "".join(f"dims: {size} " for size in dims), 1)
        if f"dims: {dims[0]} " not in text:
            raise Failed("the model has no such sizes")
        note = at_once(tools, "merakc", write(tools, "m.textproto", text), "-o",
                       plan)
    for shape in ("4294967296x4294967296", "9223372036854775807x4"):
        at_once(tools, "merakc", MODEL, "-o", plan, f"--shape=x={shape}")
    for kind, shape in (("Expand", [1 << 32, 1 << 30, 4]),
                        ("Reshape", [1 << 32, 1 << 32, 32]),
                        ("Tile", [1 << 40, 1 << 40])):
        g = exact_models.Graph("wrap")
        value = g.op("Mul", g.input("x", [4]), g.weight("w", [4]))
        g.loss(g.op(kind, value, g.shape(shape)))
        at_once(tools, "merakc", write(tools, "m.textproto", g.text()), "-o",
                plan, *TRAIN)
    return note


CASES = [model_changed, changed_model_exported, same_bytes_same_plan,
         pipes_and_devices, full_disk, shrinking_data, batch_beyond_data,
         one_file_for_two, bad_shuffle, same_data, reserved_names, names_twice,
         names_of_bytes, absurd_numbers, sizes_that_wrap]
