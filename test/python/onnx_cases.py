"""The package with ONNX files; needs no torch."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import harness
from harness import Case, Failed

import merakc
from merakc import _metadata

CASES = []
MLP = os.path.join(harness.MODELS, "mlp-ce")
GPT = os.path.join(harness.MODELS, "gpt2-tiny")
QUIET = dict(progress=False)
SGD = dict(global_batch=8, optimizer="sgd:lr=0.05", **QUIET)


def case(function):
    CASES.append(Case(function.__name__.replace("_", " "), function))
    return function


def expect(condition, what):
    if not condition:
        raise Failed(what)


def near(found, expected, tolerance=1e-4):
    expect(len(found) == len(expected) and all(
        abs(a - b) <= tolerance * max(1, abs(b))
        for a, b in zip(found, expected)), f"losses {found}, not {expected}")


def refused(error, function, *says):
    """The exception, whose sentences say all of `says`."""
    try:
        function()
    except error as raised:
        for part in says:
            expect(part in str(raised), f"'{part}' is not in: {raised}")
        return raised
    raise Failed(f"no {error.__name__}")


def recorded(folder, optimizer="sgd"):
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as file:
        expected = json.load(file)
    setup = expected["optimizers"][optimizer]
    return setup["losses"]


@case
def onnx_trains(tools):
    """Losses of the recorded run; state, log, exported model."""
    expected = recorded(MLP)
    import numpy
    program = merakc.compile(os.path.join(MLP, "model.onnx"), devices=2,
                             mesh={"pp": 1, "dp": 1, "tp": 2}, **SGD)
    seen = []
    result = program.run(os.path.join(MLP, "data"), steps=3,
                         on_step=seen.append)
    near(result.losses, expected[:3])
    expect([e["step"] for e in seen] == [1, 2, 3], f"on_step saw {seen}")
    expect(result.steps == 3 and len(result.log) == 3, "steps")
    state = result.state_dict()
    whole, _ = harness.read_checkpoint(result.checkpoint)
    names = [t.name for t in program.plan.tensors if t.role == "parameter"]
    expect(names and sorted(state) == sorted(names), f"names {sorted(state)}")
    for name in names:
        array = numpy.asarray(state[name])
        expect(array.tobytes() == whole[name].data.tobytes() and
               list(array.shape) == whole[name].shape, f"bits of {name}")
    trained = tools.path("trained.onnx")
    result.export_onnx(trained)
    again = merakc.compile(trained, **SGD)
    more = program.run(os.path.join(MLP, "data"), steps=1, load=result)
    expect(more.steps == 4, "goes on")
    expect(more.losses[0] != expected[0] and again.plan.ranks == 1, "resume")
    near(more.losses, expected[3:4])
    return f"{len(names)} parameters"


@case
def arrays_as_data(tools):
    """Dicts and tuples, converted to the input's type; sentences for what
    does not fit."""
    import numpy
    program = merakc.compile(os.path.join(MLP, "model.onnx"), **SGD)
    data = {x.name: numpy.load(os.path.join(MLP, "data", x.name + ".npy"))
            for x in program.plan.inputs}
    expected = recorded(MLP)
    near(program.run(data, steps=2).losses, expected[:2])
    wide = {k: v.astype("f8" if v.dtype.kind == "f" else "i4")
            for k, v in data.items()}
    near(program.run(tuple(wide.values()), steps=2).losses, expected[:2])
    first = next(iter(data))
    refused(merakc.RunError, lambda: program.run({"nonsense": data[first]}),
            f"data has no '{first}'", "no input 'nonsense'")
    refused(merakc.RunError, lambda: program.run((data[first],) * 5),
            "expected 2 arrays")
    refused(merakc.RunError, lambda: program.run(
        dict(data, **{first: data[first][:, :1]})), "expected samples of shape")
    refused(merakc.RunError, lambda: program.run(tools.path("nowhere")),
            "nowhere")
    refused(merakc.RunError, lambda: program.run(), "give --data")

    class Mine(Exception):
        pass

    def raises(entry):
        raise Mine()
    refused(Mine, lambda: program.run(data, steps=50, on_step=raises))


@case
def other_ranks(tools):
    """A plan for a cluster of GPUs, tried out on ranks of the processor."""
    program = merakc.compile(
        os.path.join(MLP, "model.onnx"), mesh="pp=2,dp=2,tp=1", devices=4,
        cluster=os.path.join(harness.ROOT, "samples/clusters/h100-8x8.json"),
        **SGD)
    expect(program.plan.device == "cuda" and program.plan.ranks == 4, "plan")
    expect(program.predict().step_seconds > 0, "predicts")
    result = program.run(os.path.join(MLP, "data"), steps=3, ranks=2)
    near(result.losses, recorded(MLP)[:3])
    expect(result.program.plan.ranks == 2, "ranks")


@case
def ranks_under_a_launcher(tools):
    """Processes of mpirun give the bits of threads."""
    if not shutil.which("mpirun"):
        return "skipped: no mpirun"
    program = merakc.compile(os.path.join(MLP, "model.onnx"), devices=2, **SGD)
    data = os.path.join(MLP, "data")
    result = program.run(
        data, steps=2, threads=1,
        launcher="mpirun --allow-run-as-root --oversubscribe -np 2")
    expect(result.losses == program.run(data, steps=2).losses, "losses")
    refused(merakc.RunError, lambda: program.run(
        data, launcher=["mpirun", "--allow-run-as-root", "-np", "1"]),
        "a plan for 2 ranks")


@case
def refusals_are_exceptions(tools):
    """All problems at once, located; usage; a file that is none."""
    import exact_models
    text = exact_models.linear().text()
    text = text.replace('"Relu"', '"Frobnicate"').replace('"Mul"', '"Quuxify"')
    path = tools.path("odd.textproto")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    error = refused(merakc.CompileError, lambda: merakc.compile(path, **SGD),
                    "Frobnicate", "Quuxify")
    expect(len(error.problems) >= 2 and not error.internal and
           error.command[0].endswith("merakc"), f"problems {error.problems}")
    refused(TypeError, lambda: merakc.compile(path, grad_clop=1, **SGD),
            "did you mean grad_clip")
    refused(TypeError, lambda: merakc.compile(path, check=True, **SGD),
            "no option 'check'")
    refused(merakc.CompileError, lambda: merakc.compile(
        path, global_batch=8, mesh="qq=2", **QUIET), "qq")
    refused(merakc.CompileError, lambda: merakc.compile(
        tools.path("none.onnx"), **SGD), "none.onnx")
    refused(TypeError, lambda: merakc.compile(3, **SGD), "ModelProto")
    refused(TypeError, lambda: merakc.compile(path, (1,), **SGD), "inputs")
    refused(TypeError, lambda: merakc.compile(path, loss=len, **SGD), "loss")
    refused(merakc.RunError, lambda: merakc.open(tools.path("nothing")),
            "not a plan")
    expect(not [n for n in os.listdir(tools.folder) if "plan" in n], "left")


@case
def reports(tools):
    program = merakc.compile(os.path.join(MLP, "model.onnx"), devices=2, **SGD)
    report = program.report()
    expect("import: opset" in str(report) and "<html" in report.html, "report")
    page = program._repr_html_()
    expect(page.startswith("<iframe") and 'srcdoc="' in page and
           "<html" not in page, "the page is quoted into a frame")
    expect(os.path.getsize(report.save(tools.path("r.html"))) > 10000, "saved")
    prediction = program.predict()
    expect(prediction.step_seconds > 0 and prediction.rows and
           prediction.rows[0]["arena_bytes"] > 0, "prediction")
    expect("F0" in program.draw(60), "drawing")
    expect("sound: 2 ranks" in program.verify(), "verify")
    lines = []
    merakc.compile(os.path.join(MLP, "model.onnx"), global_batch=8,
                   progress=lines.append)
    expect(any("compiling" in line for line in lines), f"progress {lines}")


@case
def open_and_save(tools):
    """A saved plan of a model in memory is whole: it runs where it was moved
    to, from Python and by hand, and is exported from there."""
    class Proto:  # what onnx.load gives
        def SerializeToString(self):
            with open(os.path.join(MLP, "model.onnx"), "rb") as file:
                return file.read()

    program = merakc.compile(Proto(), devices=2, **SGD)
    saved = program.save(tools.path("one.plan"))
    program.save(saved)  # replaces a plan
    refused(merakc.RunError, lambda: program.save(tools.folder),
            "left alone")
    data = os.path.join(MLP, "data")
    expected = program.run(data, steps=2).losses
    del program
    moved = tools.path("moved.plan")
    os.rename(saved, moved)
    opened = merakc.open(moved)
    expect(opened.run(data, steps=2).losses == expected, "the same bits")
    near(opened.run(data, steps=2, ranks=1).losses, expected)
    out, _ = tools.run("merak-run", moved, f"--data={data}", "--steps=2",
                       "--save=" + tools.path("state"))
    expect(f"loss {expected[1]:.6f}" in out, "merak-run by hand")
    result = opened.result(tools.path("state"))
    result.export_onnx(tools.path("a.onnx"))
    tools.run("merak-plan", "export-onnx", moved,
              "--load=" + tools.path("state"), "-o", tools.path("b.onnx"))
    with open(tools.path("a.onnx"), "rb") as a, \
            open(tools.path("b.onnx"), "rb") as b:
        expect(a.read() == b.read(), "the same exported model")
    leftovers = [n for n in os.listdir(tools.folder) if "tmp" in n or
                 "old" in n]
    expect(not leftovers, f"left {leftovers}")


@case
def inference(tools):
    import numpy
    program = merakc.compile(os.path.join(MLP, "model.onnx"), mode="infer",
                             global_batch=8, **QUIET)
    result = program.run(os.path.join(MLP, "data"), steps=2)
    expect(result.outputs and all(isinstance(v, numpy.ndarray)
                                  for v in result.outputs.values()), "outputs")
    refused(merakc.RunError, result.state_dict, "kept no state")


@case
def metadata_entries(tools):
    """Entries appended to a file are read back, and the file stays a model."""
    path = tools.path("noted.onnx")
    shutil.copy(os.path.join(MLP, "model.onnx"), path)
    entries = _metadata.model_entries(
        ["b", "a"], {"a": ["x.weight", "y.weight"], "b": ["z"]})
    _metadata.append(path, entries)
    found, inputs = _metadata.read(path)
    expect(_metadata.names_of(found) ==
           {"a": ["x.weight", "y.weight"], "b": ["z"]}, "names")
    expect(json.loads(found[_metadata.TRAINABLE]) == ["a", "b"], "trainable")
    program = merakc.compile(os.path.join(MLP, "model.onnx"), **SGD)
    expect(sorted(inputs) == sorted(program.inputs) ==
           sorted(x.name for x in program.plan.inputs), f"inputs {inputs}")


def documented(page, mark=""):
    """[(language, text)] of the blocks of a page that are to be run here."""
    with open(os.path.join(harness.ROOT, page), encoding="utf-8") as file:
        return re.findall(rf"^<!-- run by test/python{mark} -->\n```(\w+)\n"
                          r"(.*?)^```$", file.read(), re.M | re.S)


@case
def loss_added_to_a_model(tools):
    """What docs/FromPyTorch.md does with other converters' models: a loss, and
    what is trained; a constant stays."""
    import importlib.util
    if not importlib.util.find_spec("onnx"):
        return "skipped: no onnx package"
    import numpy
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    draw = numpy.random.default_rng(1)
    weights = [numpy_helper.from_array(draw.normal(size=s).astype("f4"), n)
               for n, s in (("w", (6, 5)), ("b", (5,)))]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]),
         helper.make_node("Add", ["h", "b"], ["logits"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT,
                                       ["batch", 5])], weights)
    onnx.save(helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tools.path("m.onnx"))
    ((_, text),) = documented("docs/FromPyTorch.md", ": onnx")
    subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = "
                    f"{[p for p in sys.path if p]!r}\n{text}"], check=True,
                   cwd=tools.folder)
    program = merakc.compile(tools.path("with_loss.onnx"), **SGD)
    data = {"x": draw.normal(size=(16, 6)).astype("f4"),
            "labels": draw.integers(0, 5, 16)}
    result = program.run(data, steps=20)
    expect(result.losses[18] < result.losses[0], "it trains")
    expect(sorted(result.state_dict()) == ["b", "w"], "names")


# --------------------------------------------------------------- interruptions

SCRIPT = """
import os, sys
sys.path[:0] = {paths!r}
import merakc
print(os.getpid(), flush=True)
try:
    {body}
except merakc.RunInterrupted as stop:
    result = stop.result
    print("stopped", result and result.steps, len(result.log), flush=True)
    print("state", len(result.state_dict()), flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def interrupted(tools, body, when, bin_dir=None):
    """The output of a script that gets SIGINT, alone, once `when(lines)`."""
    scratch = tools.path("scratch")
    os.makedirs(scratch, exist_ok=True)
    paths = [p for p in sys.path if p]
    with open(tools.path("script.py"), "w", encoding="utf-8") as file:
        file.write(SCRIPT.format(paths=paths, body=body))
    process = subprocess.Popen(
        [sys.executable, tools.path("script.py")], text=True,
        # Whoever runs this in the background ignores it, and so would a child.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tools.folder,
        env={**os.environ, "TMPDIR": scratch, "MERAKC_BIN_DIR":
             bin_dir or os.environ["MERAKC_BIN_DIR"]})
    lines = []
    try:
        for line in process.stdout:
            lines.append(line.strip())
            if when(lines):
                break
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    lines += rest.splitlines()
    expect(process.returncode == 0, f"ended with {process.returncode}: "
           f"{lines[-3:]}")
    left = os.listdir(scratch)
    expect(not left, f"left {left} behind")
    return lines


@case
def ctrl_c_compiling(tools):
    """The compiler is ended, and leaves nothing."""
    slow = tools.path("slow")
    os.makedirs(slow)
    for name in ("merakc", "merak-plan"):  # a compiler that takes its time
        path = os.path.join(slow, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\necho $$ > " + tools.path("pid") +
                       "\nexec sleep 1000\n")
        os.chmod(path, 0o755)
    model = os.path.join(MLP, "model.onnx")
    lines = interrupted(
        tools, f"merakc.compile({model!r}, progress=False)",
        lambda lines: _wait(lambda: os.path.exists(tools.path("pid"))),
        bin_dir=slow)
    expect(lines[-1] == "interrupted", f"said {lines}")
    with open(tools.path("pid"), encoding="utf-8") as file:
        pid = int(file.read())
    expect(_wait(lambda: not _lives(pid)), "the compiler goes on")


@case
def ctrl_c_running(tools):
    """The run ends after its step; its state is there."""
    model, data = os.path.join(MLP, "model.onnx"), os.path.join(MLP, "data")
    lines = interrupted(
        tools, f"""merakc.compile({model!r}, global_batch=8, progress=False
        ).run({data!r}, steps=100000000, progress=lambda line: print(line,
        flush=True))""", lambda lines: len(lines) > 3)
    stopped = [l for l in lines if l.startswith("stopped")][0].split()
    expect(int(stopped[1]) == int(stopped[2]) > 0, f"said {stopped}")
    expect(lines[-1].startswith("state "), f"said {lines[-1]}")
    return f"{stopped[1]} steps"


def _wait(done, seconds=20):
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _lives(pid):
    try:
        os.kill(pid, 0)
        return True
    except OSError:
        return False


@case
def crash_of_a_tool(tools):
    """A tool that dies is an exception that says so, not a dead notebook."""
    folder = tools.path("bin")
    os.makedirs(folder)
    for name, body in (("merak-plan", "exit 0"), ("merakc", "kill -SEGV $$")):
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n{body}\n")
        os.chmod(path, 0o755)
    body = ("\nimport sys\ntry:\n    merakc.compile(%r, progress=False)\n"
            "except merakc.CompileError as e:\n    print(e)" %
            os.path.join(MLP, "model.onnx"))
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.path[:0] = "
         f"{[p for p in sys.path if p]!r}\nimport merakc{body}"], text=True,
        capture_output=True, env={**os.environ, "MERAKC_BIN_DIR": folder})
    expect("merakc was ended by SIGSEGV" in done.stdout,
           done.stdout + done.stderr)
