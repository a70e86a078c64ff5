#!/usr/bin/env python3
"""Trained weights back into the ONNX file: `merak-plan export-onnx`.

With ONNX Runtime (scripts/install-deps --check fetches it into
build/python-packages) the written file is opened and must predict what the plan
computes from the same weights, within 1e-4. Without it the files are compared
byte by byte where they must agree.
"""
import array
import functools
import json
import os
import shutil
import struct
import subprocess
import sys

import harness
from harness import Case, Failed

PACKAGES = os.path.join(harness.ROOT, "build/python-packages")
FAMILIES = os.path.join(harness.ROOT, "test/data/families")
TOLERANCE = 1e-4
TRAINED = 3  # steps

# Runs in a Python with onnxruntime: prints the outputs of one batch.
JUDGE = """
import json, sys
import numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options,
                                       providers=["CPUExecutionProvider"])
losses = []
batch, start, steps = map(int, sys.argv[3:6])
data = {i.name: numpy.load(sys.argv[2] + "/" + i.name + ".npy")
        for i in session.get_inputs()}
for step in range(start, start + steps):
    feed = {name: x[step * batch:(step + 1) * batch] for name, x in data.items()}
    losses.append(float(session.run([sys.argv[6]], feed)[0]))
print(json.dumps(losses))
"""


@functools.lru_cache(maxsize=None)
def judge():
    """The environment in which onnxruntime can be imported, or None."""
    for extra in ({"PYTHONPATH": PACKAGES}, {}):
        environment = {**os.environ, **extra}
        if subprocess.run([sys.executable, "-c", "import onnxruntime, numpy"],
                          env=environment, capture_output=True,
                          check=False).returncode == 0:
            return environment
    return None


def judged(model, data, start, steps, batch=8, loss="loss"):
    """Losses of global batches from `start` on."""
    done = subprocess.run([sys.executable, "-c", JUDGE, model, data, str(batch),
                           str(start), str(steps), loss], env=judge(),
                          capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed("onnxruntime: " + harness.last_lines(done.stderr))
    return json.loads(done.stdout)


# ------------------------------------------------------- protobuf, just enough


def fields(data):
    """(number, wire, value or bytes) of a message."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(data):
        tag = varint()
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            yield number, wire, varint()
            continue
        size = varint() if wire == 2 else 8 if wire == 1 else 4
        yield number, wire, data[at:at + size]
        at += size


def put(number, payload):
    def varint(value):
        out = b""
        while value >= 128:
            out += bytes([value & 127 | 128])
            value >>= 7
        return out + bytes([value])
    if isinstance(payload, int):
        return varint(number << 3) + varint(payload)
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def initializers(path):
    """name -> (type, dims, bytes), and the rest of the graph's fields."""
    with open(path, "rb") as file:
        model = file.read()
    graph = next(v for n, _, v in fields(model) if n == 7)
    found, rest = {}, []
    for number, wire, value in fields(graph):
        if number != 5:
            rest.append((number, wire, value))
            continue
        name, kind, dims, raw, place = "", 0, [], b"", {}
        for n, w, v in fields(value):
            if n == 1:
                dims += [v] if w == 0 else [x for x in v]
            elif n == 2:
                kind = v
            elif n == 8:
                name = v.decode()
            elif n in (4, 9, 10):
                raw = v
            elif n == 13:
                pair = {a: b for a, _, b in fields(v)}
                place[pair[1].decode()] = pair[2].decode()
        if place:
            with open(os.path.join(os.path.dirname(path), place["location"]),
                      "rb") as file:
                if int(place["offset"]) % 4096:
                    raise Failed(f"{name} is not aligned")
                file.seek(int(place["offset"]))
                raw = file.read(int(place["length"]))
        found[name] = (kind, dims, raw)
    return found, rest


# ----------------------------------------------------------------------- cases


def info_of(folder):
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as file:
        return json.load(file)


def train(tools, model, data, *options):
    plan, saved = tools.path("out.plan"), tools.path("saved")
    tools.run("merakc", model, "-o", plan, "--global-batch=8",
              "--optimizer=sgd:lr=0.05", "-q", *options)
    tools.run("merak-run", plan, f"--data={data}", f"--steps={TRAINED}",
              f"--save={saved}")
    return plan, saved


def losses_of(tools, plan, data, weights, steps):
    """The plan's losses from weights that stay what they are."""
    log = harness.fresh(tools.path("again.jsonl"))
    tools.run("merak-run", plan, f"--data={data}", f"--steps={steps}",
              f"--load={weights}", f"--log={log}")
    return [entry["loss"] for entry in harness.read_log(log)]


def round_trip(folder, mesh, tools, *options):
    """Trains, writes back, and asks the other engine for its losses."""
    model, data = os.path.join(folder, "model.onnx"), os.path.join(folder, "data")
    plan, saved = train(tools, model, data, *mesh, *options)
    out = tools.path("trained.onnx")
    tools.run("merak-plan", "export-onnx", plan, f"--load={saved}", "-o", out)
    weights, _ = harness.read_checkpoint(saved)
    before, rest = initializers(model)
    after, rest_after = initializers(out)
    parameters = {name: tensor for name, tensor in weights.items()
                  if name in after and "." + name.rsplit(".", 1)[-1] not in (
                      ".exp_avg", ".exp_avg_sq", ".momentum")}
    for name, tensor in parameters.items():
        if after[name][2] != tensor.data.tobytes():
            raise Failed(f"{name} is not what was trained")
    for name, entry in before.items():
        if name not in parameters and after.get(name) != entry:
            raise Failed(f"{name} changed")
    if set(after) == set(before) and rest != rest_after:
        raise Failed("the graph changed")
    if judge() is None:
        return f"{len(parameters)} tensors (no onnxruntime)"
    try:
        judged(model, data, 0, 1)
    except Failed:
        return (f"{len(parameters)} tensors (onnxruntime refuses the exported "
                "model itself)")
    # A plan that does not move its weights computes the same losses.
    still = tools.path("still.plan")
    tools.run("merakc", model, "-o", still, "--global-batch=8",
              "--optimizer=sgd:lr=0", "-q", *options)
    # A loaded checkpoint goes on with the data where it stopped.
    wanted = losses_of(tools, still, data, saved, 2)
    found = judged(out, data, TRAINED, 2)
    unseen = judged(model, data, TRAINED, 2)
    worst = max(abs(a - b) / abs(b) for a, b in zip(found, wanted))
    if not worst <= TOLERANCE:
        raise Failed(f"onnxruntime computes {found}, the plan {wanted}")
    if max(abs(a - b) / abs(b) for a, b in zip(unseen, wanted)) <= TOLERANCE:
        raise Failed("training changed nothing, so nothing is proved")
    return f"{len(parameters)} tensors, loss {worst:.0e}"


def external_data(tools):
    """External data in and out, weights of a type other than the plan's."""
    folder = os.path.join(harness.MODELS, "mlp-ce")
    source = os.path.join(folder, "model.onnx")
    plan, saved = train(tools, source, os.path.join(folder, "data"))
    out = tools.path("outside.onnx")
    tools.run("merak-plan", "export-onnx", plan, f"--load={saved}", "-o", out,
              "--external-data")
    if not os.path.exists(out + ".data"):
        raise Failed("no file of external data")
    weights, _ = harness.read_checkpoint(saved)
    after, _ = initializers(out)
    large = 0
    for name, (_, _, raw) in after.items():
        if name in weights and raw != weights[name].data.tobytes():
            raise Failed(f"{name} is not what was trained")
        large += len(raw) >= 1024
    # And again from a model whose data are outside.
    again = tools.path("again")
    os.makedirs(again)
    plan2, saved2 = train_in(tools, out, os.path.join(folder, "data"), again)
    second = os.path.join(again, "second.onnx")
    tools.run("merak-plan", "export-onnx", plan2, f"--load={saved2}", "-o",
              second)
    if not os.path.exists(second + ".data"):
        raise Failed("external weights came back inside")
    if judge() is not None:
        judged(second, os.path.join(folder, "data"), 0, 1)
    return f"{large} tensors outside"


def train_in(tools, model, data, folder):
    plan, saved = os.path.join(folder, "p.plan"), os.path.join(folder, "saved")
    tools.run("merakc", model, "-o", plan, "--global-batch=8",
              "--optimizer=sgd:lr=0.05", "-q")
    tools.run("merak-run", plan, f"--data={data}", "--steps=1",
              f"--save={saved}")
    return plan, saved


def other_types(tools):
    """float64, float16 and bfloat16 initializers keep their type."""
    folder = os.path.join(harness.MODELS, "mlp-ce")
    source = os.path.join(folder, "model.onnx")
    plan, saved = train(tools, source, os.path.join(folder, "data"))
    weights, _ = harness.read_checkpoint(saved)
    for code, size in ((11, 8), (10, 2), (16, 2)):
        converted = tools.path(f"type{code}.onnx")
        retype(source, converted, code, size)
        out = tools.path(f"out{code}.onnx")
        tools.run("merak-plan", "export-onnx", plan, f"--load={saved}", "-o",
                  out, f"--model={converted}")
        after, _ = initializers(out)
        for name, (kind, _, raw) in after.items():
            if name not in weights:
                continue
            if kind != code:
                raise Failed(f"{name} has type {kind}")
            bound = {11: 0, 10: 2**-10, 16: 2**-7}[code]
            for x, y in zip(decode(raw, code), weights[name].data):
                if not abs(x - y) <= bound * abs(y) + 1e-7 * (code == 10):
                    raise Failed(f"{name}: {x} in type {code}, expected {y}")
    return "3 types"


def decode(raw, code):
    if code == 11:
        return array.array("d", raw)
    if code == 10:
        return [x for (x,) in struct.iter_unpack("<e", raw)]
    return [struct.unpack("<f", b"\0\0" + raw[i:i + 2])[0]
            for i in range(0, len(raw), 2)]


def retype(source, target, code, size):
    """The model with the types of its float initializers changed (and zeros)."""
    with open(source, "rb") as file:
        model = file.read()
    out = b""
    for number, _, value in fields(model):
        if number != 7:
            out += put(number, value)
            continue
        graph = b""
        for n, _, v in fields(value):
            if n == 5:
                parts = list(fields(v))
                if any(p[0] == 2 and p[2] == 1 for p in parts):
                    bytes_ = sum(len(p[2]) for p in parts if p[0] == 9)
                    v = b"".join(put(2, code) if p[0] == 2 else
                                 put(9, bytes(bytes_ // 4 * size))
                                 if p[0] == 9 else put(p[0], p[2])
                                 for p in parts)
            graph += put(n, v)
        out += put(7, graph)
    with open(target, "wb") as file:
        file.write(out)


def refusals(tools):
    """What cannot be written back is named, and nothing is left."""
    folder = os.path.join(harness.MODELS, "mlp-ce")
    plan, saved = train(tools, os.path.join(folder, "model.onnx"),
                        os.path.join(folder, "data"))
    other = os.path.join(harness.MODELS, "mlp-mse", "model.onnx")
    before = sorted(os.listdir(tools.folder))

    def refused(*arguments, says, code=1):
        _, errors = tools.run("merak-plan", "export-onnx", *arguments,
                              expect=code)
        if says not in errors:
            raise Failed(f"'{says}' is not in: {harness.last_lines(errors)}")
    refused(plan, f"--load={saved}", "-o", tools.path("o.onnx"),
            f"--model={other}", says="initializer")
    refused(plan, f"--load={tools.path('absent')}", "-o", tools.path("o.onnx"),
            says="absent")
    refused(plan, f"--load={saved}", "-o", tools.path("none/o.onnx"),
            says="cannot be written")
    copy = tools.path("copy.onnx")
    shutil.copy(other, copy)
    refused(plan, f"--load={saved}", "-o", copy, f"--model={copy}",
            says="expected another file")
    os.remove(copy)
    refused(plan, "-o", tools.path("o.onnx"), says="--load", code=2)
    if sorted(os.listdir(tools.folder)) != before:
        raise Failed("left files behind")
    return "refused"


def rewrite(source, target, change):
    """Copies a model, its fields of the model and of nodes through `change`:
    (is a node's, number, value) -> value or None."""
    def wire(number, kind, value):
        if kind in (0, 2):
            return put(number, value)
        return bytes([number << 3 | kind]) + value

    with open(source, "rb") as file:
        model = file.read()
    out = b""
    for number, kind, value in fields(model):
        if number == 7:
            graph = b""
            for n, k, v in fields(value):
                if n == 1:
                    v = b"".join(wire(a, b, change(True, a, c))
                                 for a, b, c in fields(v)
                                 if change(True, a, c) is not None)
                graph += wire(n, k, v)
            value = graph
        else:
            value = change(False, number, value)
        if value is not None:
            out += wire(number, kind, value)
    with open(target, "wb") as file:
        file.write(out)


def device_notes(tools):
    """--emit-onnx: the annotated model compiles to the same plan without
    options; the standard fields alone give the same mesh, stages and shards;
    the onnx package keeps them."""
    model = os.path.join(harness.MODELS, "gpt2-tiny", "model.onnx")
    noted, plan = tools.path("noted.onnx"), tools.path("a.plan")
    strategy = tools.path("a.json")
    tools.run("merakc", model, "-o", plan, "--devices=8", "-q",
              "--mesh=pp=2,dp=2,tp=2", "--global-batch=8", "--microbatch=2",
              "--schedule=1f1b", "--recompute=full", f"--emit-onnx={noted}",
              f"--emit-strategy={strategy}")
    with open(strategy, encoding="utf-8") as file:
        wanted = json.load(file)

    def decisions(path, name):
        made = tools.path(name + ".json")
        said, _ = tools.run("merakc", path, "-v", "-o",
                            tools.path(name + ".plan"),
                            "--global-batch=8", f"--emit-strategy={made}")
        if "device notes of the model: dp=2 pp=2 tp=2" not in said:
            raise Failed("the report does not tell of the notes")
        with open(made, encoding="utf-8") as file:
            return json.load(file)
    found = decisions(noted, "again")
    if found != wanted:
        raise Failed(f"the annotated model gives {found}, expected {wanted}")
    # Only what the standard knows.
    standard = tools.path("standard.onnx")
    rewrite(noted, standard, lambda node, number, value:
            None if not node and number == 14 else value)
    found = decisions(standard, "standard")
    # Nodes that became nothing of their own may move the cut by a few.
    if found["mesh"] != wanted["mesh"] or \
            len(found["stage_begins"]) != len(wanted["stage_begins"]):
        raise Failed(f"{found['mesh']}, {found['stage_begins']}, expected "
                     f"{wanted['mesh']}, {wanted['stage_begins']}")

    def split(strategy_):
        return {(c["tensor"], c["dim"]) for c in strategy_["classes"]}
    if not split(wanted) <= split(found):
        raise Failed(f"not split: {sorted(split(wanted) - split(found))}")
    # A configuration that no node may name.
    broken = tools.path("broken.onnx")
    rewrite(standard, broken, lambda node, number, value:
            value.replace(b"merak", b"other") if node and number == 10
            else value)
    _, errors = tools.run("merakc", broken, "-o", tools.path("b.plan"),
                          "--global-batch=8", expect=1)
    if "expected the name of a device configuration" not in errors:
        raise Failed(f"no problem in: {harness.last_lines(errors)}")
    kept = tools.path("kept.onnx")
    script = ("import onnx, sys\n"
              "m = onnx.load(sys.argv[1])\n"
              "onnx.checker.check_model(m)\n"
              "assert m.configuration[0].num_devices == 8\n"
              "assert m.ir_version >= 11\n"
              "n = [c for x in m.graph.node for c in x.device_configurations]\n"
              "assert {c.pipeline_stage for c in n} == {0, 1}\n"
              "s = [s for c in n for s in c.sharding_spec]\n"
              "assert s and all(len(x.device) == 2 for x in s), s\n"
              "onnx.save(m, sys.argv[2])\n")
    environment = judge()
    done = environment and subprocess.run(
        [sys.executable, "-c", script, noted, kept], env=environment,
        capture_output=True, text=True, check=False)
    if not done or "No module named 'onnx'" in done.stderr:
        return "no onnx package"
    if done.returncode:
        raise Failed("onnx: " + harness.last_lines(done.stderr))
    if decisions(kept, "kept") != wanted:
        raise Failed("the onnx package lost decisions")
    return "kept by the onnx package"


def cases():
    meshes = {"one rank": [], "pp=2,dp=2,tp=2": [
        "--devices=8", "--mesh=pp=2,dp=2,tp=2", "--microbatch=2"],
        # Parameters and state in parts over the replicas.
        "dp=2 zero=3": [
            "--devices=2", "--mesh=pp=1,dp=2,tp=1", "--microbatch=2", "--zero=3",
            "--grad-clip=0.5"],
        "pp=2,dp=2,tp=2 zero=3": [
            "--devices=8", "--mesh=pp=2,dp=2,tp=2", "--microbatch=4", "--zero=3",
            "--grad-clip=0.5"]}
    for model in ("gpt2-tiny", "bert-tiny", "resnet-plain-tiny"):
        for name, mesh in meshes.items():
            yield Case(f"{model} {name}", functools.partial(
                round_trip, os.path.join(harness.MODELS, model), mesh))
    if os.path.isdir(FAMILIES):
        for family in sorted(os.listdir(FAMILIES)):
            folder = os.path.join(FAMILIES, family)
            info = info_of(folder)
            # Where the loss has a name of its own, families.py does the same.
            if not info.get("refuses") and "loss" not in info:
                freeze = ["--freeze=" + ",".join(info["freeze"])
                          ] if "freeze" in info else []
                yield Case(f"{family} one rank", functools.partial(
                    lambda f, o, tools: round_trip(f, [], tools, *o), folder,
                    ["--loss=loss", *freeze, "--microbatch=8" if
                     info.get("microbatch") == "whole" else "--microbatch=4"]))
    yield Case("external data", external_data)
    yield Case("other types", other_types)
    yield Case("refusals", refusals)
    yield Case("device notes", device_notes)


def main():
    args = harness.parser(__doc__).parse_args()
    return harness.run_cases("export", list(cases()), args)


if __name__ == "__main__":
    sys.exit(main())
