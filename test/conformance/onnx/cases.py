#!/usr/bin/env python3
"""Runs ONNX backend tests through merakc and merak-run.

Each case is a folder with model.onnx and test_data_set_*/{input,output}_*.pb.
The model is compiled for inference, its inputs are data and its initializers
weights, and the outputs are compared with the case's own tolerances. A case
has

  passed        every output of every data set agrees
  unsupported   merakc refused it with a reason, at a place
  failed        anything else: a wrong value, shape or type, a crash, an error
                of our own in compiling or linking (exit code 70), a run that
                stops

The compiler works ahead of time, so operands that decide shapes or axes (the
second input of Reshape, say) are given as initializers: SHAPE_OPERANDS.

  cases.py                    Debian's libonnx-testdata
  cases.py --cases FOLDER     FOLDER/<category>/<case>/
  cases.py --subset           one case an operator, and the small categories
  cases.py --all              also the newest onnx package from PyPI
  cases.py --refused          what the last recorded run refused

A case that is refused and not in unsupported.tsv has regressed. The last line
is `N passed, M failed`.
"""
import argparse
import concurrent.futures
import glob
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import wire

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
sys.path.insert(0, os.path.join(ROOT, "test/e2e"))
import harness  # noqa: E402

TIMEOUT = 60  # seconds a tool may take for one case
DEBIAN = "/usr/share/libonnx-testdata/data"
SHAPE_OPERANDS = {
    "Reshape": [1], "Expand": [1], "Slice": [1, 2, 3, 4], "Pad": [1, 3],
    "Tile": [1], "Split": [1], "SplitToSequence": [1], "Squeeze": [1],
    "Unsqueeze": [1], "TopK": [1], "OneHot": [1], "Range": [0, 1, 2],
    "ConstantOfShape": [0], "Resize": [1, 2, 3], "Upsample": [1],
    "CumSum": [1], "CumProd": [1], "Trilu": [1], "Dropout": [1, 2],
    "CenterCropPad": [1], "Col2Im": [1, 2], "DFT": [1, 2], "STFT": [1, 3],
    "AffineGrid": [1], "MaxUnpool": [2], "HannWindow": [0],
    "HammingWindow": [0], "BlackmanWindow": [0], "EyeLike": [],
    "MelWeightMatrix": [0, 1, 2, 3, 4], "If": [0], "Loop": [0, 1],
    "Compress": [1], "SequenceAt": [1], "SequenceInsert": [2],
    "SequenceErase": [1],
    **{"Reduce" + name: [1] for name in
       ("Sum", "SumSquare", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum",
        "LogSumExp")}}


# These expect the numbers of NumPy's generator; test/e2e/dropout.py has
# statistics and gradients of ours.
DRAWN = ("test_training_dropout", "test_training_dropout_default",
         "test_training_dropout_mask", "test_training_dropout_default_mask")


# Drawn by NumPy as well: of ours type, shape and range are compared.
TOSSED = ("test_bernoulli", "test_bernoulli_double", "test_bernoulli_seed")


# The reference is of f32 and off by more than its own tolerance where the result
# is 0.
NOISY = {"test_dft_inverse": 1e-6, "test_dft_inverse_opset19": 1e-6}


def excluded(folder, data):
    """Why a case cannot be compared with, or nothing."""
    name = os.path.basename(folder)
    if name in DRAWN:
        return "a mask drawn by NumPy's generator"
    # Corrected in later versions.
    if name == "test_adam_multiple" and b"epsilon" not in data:
        return "outputs computed with an epsilon that the node has not"
    return ""


def compare_tossed(name, found, expected, chances):
    """Zeros and ones, and what is certain."""
    if (found.code, found.shape) != (expected.code, expected.shape):
        raise harness.Failed(
            f"output '{name}' is {wire.type_name(found.code)}{found.shape}, "
            f"expected {wire.type_name(expected.code)}{expected.shape}")
    for i, (x, chance) in enumerate(zip(found.numbers(), chances.numbers())):
        if x not in (0, 1) or (chance in (0, 1) and x != chance):
            raise harness.Failed(f"output '{name}'[{i}] is {x:.9g} of a chance "
                                 f"of {chance:.9g}")


class Unsupported(Exception):
    """Refused with a reason."""


# ------------------------------------------------------------------ one case


def fixed_inputs(model):
    """Names of inputs that the compiler must know."""
    names = set()
    for node in model.nodes:
        for slot in SHAPE_OPERANDS.get(node.op_type, ()):
            if slot < len(node.inputs):
                names.add(node.inputs[slot])
    return names & {info.name for info in model.feeds()}


def fixed_of(folder, model):
    """The same; a function body hides what decides shapes, so that the test of
    the operator itself is asked."""
    names = fixed_inputs(model)
    twin = os.path.join(re.sub(r"_expanded(_ver\d+)?$", "", folder),
                        "model.onnx")
    if not folder.endswith(os.path.basename(os.path.dirname(twin))) and \
            os.path.exists(twin):
        names |= fixed_inputs(wire.Model(read(twin))) & {
            info.name for info in model.feeds()}
    return names


def read(path):
    with open(path, "rb") as file:
        return file.read()


def load_npy(path):
    data = read(path)
    size = struct.unpack("<H", data[8:10])[0]
    header = eval(data[10:10 + size].decode(), {"__builtins__": {}}, {})
    code = next(code for code, row in wire.TYPES.items()
                if row[2] == header["descr"])
    raw = wire.put_varint(2 << 3) + wire.put_varint(code)
    for dim in header["shape"]:
        raw += wire.put_varint(1 << 3) + wire.put_varint(dim)
    return wire.read_tensor(raw + wire.put(9, data[10 + size:]))


def file_name(name):
    return name.replace("/", "_") + ".npy"


def save_npy(path, tensor):
    dims = "".join(f"{n}, " for n in tensor.shape).rstrip()
    header = (f"{{'descr': '{wire.TYPES[tensor.code][2]}', 'fortran_order': "
              f"False, 'shape': ({dims}), }}")
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)))
        file.write(header.encode() + tensor.data.tobytes())


def compare(name, found, expected, rtol, atol):
    """numpy.testing.assert_allclose, in words. Of 16-bit floats two units in
    the last place are allowed: the reference rounds after every step."""
    if found.code != expected.code:
        raise harness.Failed(f"output '{name}' is {wire.type_name(found.code)},"
                             f" expected {wire.type_name(expected.code)}")
    if found.shape != expected.shape:
        raise harness.Failed(f"output '{name}' has shape {found.shape}, "
                             f"expected {expected.shape}")
    rtol = max(rtol, {10: 2 ** -9, 16: 2 ** -6}.get(expected.code, 0))
    for i, (x, y) in enumerate(zip(found.numbers(), expected.numbers())):
        same = x == y or (x != x and y != y)
        if not same and not abs(x - y) <= atol + rtol * abs(y):
            raise harness.Failed(f"output '{name}'[{i}] is {x:.9g}, expected "
                                 f"{y:.9g}")


def reason_of(text):
    """The first message of merakc without its place."""
    for line in text.splitlines():
        if ": error: " in line:
            return line.split(": error: ", 1)[1]
    return ""


def names_file(reason):
    """Whether a refusal speaks of a file of ours, not of the model."""
    return tempfile.gettempdir() in reason or "internal error" in reason


def compile_model(tools, model, given, inputs):
    path, plan = tools.path("model.onnx"), tools.path("out.plan")
    with open(path, "wb") as file:
        file.write(model.with_initializers(given))
    shapes = [f"--shape={name}=" + "x".join(map(str, tensor.shape))
              for name, tensor in inputs.items() if tensor.shape]
    _, errors = tools.run("merakc", path, "-o", plan, "--mode=infer", "-q",
                          *shapes, expect=None)
    reason = reason_of(errors)
    if tools.returncode == 1 and reason and not names_file(reason):
        raise Unsupported(reason)
    if tools.returncode:
        raise harness.Failed(f"merakc ended with {tools.returncode}: "
                             + harness.last_lines(errors))
    return plan


def read_set(folder, kind):
    count = len(glob.glob(os.path.join(folder, kind + "_*.pb")))
    return [read(os.path.join(folder, f"{kind}_{i}.pb")) for i in range(count)]


def read_as(info, data):
    """The tensor; older data holds bf16 as u16."""
    tensor = wire.read_tensor(data)
    if info.code == 16 and tensor.code == 4:
        tensor.code = 16
    return tensor


def check_types(infos, what):
    for info in infos:
        if info.kind not in ("tensor", "untyped"):
            raise Unsupported(f"{what} of kind {info.kind}")


def run_set(tools, model, folder, fixed, rtol, atol):
    feeds = model.feeds()
    raw = read_set(folder, "input")
    check_types(feeds, "input")
    check_types(model.outputs, "output")
    # The order of the graph's inputs, with those that initializers give
    # left out or not.
    infos = feeds if len(raw) <= len(feeds) else model.inputs
    given, inputs = [], {}
    for info, data in zip(infos, raw):
        if info.name in fixed:
            given.append(wire.with_name(data, info.name))
        else:
            inputs[info.name] = read_as(info, data)
    plan = compile_model(tools, model, given, inputs)
    data, out = tools.path("data"), tools.path("out")
    os.makedirs(data, exist_ok=True)
    for name, tensor in inputs.items():
        if tensor.data is not None and wire.TYPES[tensor.code][2]:
            save_npy(os.path.join(data, file_name(name)), tensor)
    tools.run("merak-run", plan, f"--data={data}", f"--out={out}",
              "--threads=1")
    results = read_set(folder, "output")
    for info, data in zip(model.outputs, results):
        expected = read_as(info, data)
        found = load_npy(os.path.join(out, file_name(info.name)))
        # A single number comes with one entry a step.
        if not expected.shape and found.shape == [1]:
            found.shape = []
        if re.sub("_expanded$", "", case_of(folder)) in TOSSED:
            compare_tossed(info.name, found, expected, *inputs.values())
        else:
            compare(info.name, found, expected, rtol, atol)


def case_of(data_set):
    return os.path.basename(os.path.dirname(data_set))


def run_case(folder, bin_dir, keep):
    """("passed" | "unsupported" | "failed", reason)."""
    work = keep or tempfile.mkdtemp(prefix="onnx-case-")
    os.makedirs(work, exist_ok=True)
    tools = harness.Tools(bin_dir, work, timeout=TIMEOUT)
    try:
        data = read(os.path.join(folder, "model.onnx"))
        if excluded(folder, data):
            raise Unsupported(excluded(folder, data))
        model = wire.Model(data)
        rtol, atol = 1e-3, 1e-7
        options = os.path.join(folder, "data.json")
        if os.path.exists(options):
            values = json.loads(read(options))
            rtol, atol = values.get("rtol", rtol), values.get("atol", atol)
        atol = NOISY.get(os.path.basename(folder), atol)
        sets = sorted(glob.glob(os.path.join(folder, "test_data_set_*")))
        if not sets:
            raise harness.Failed("no data")
        for data in sets:
            run_set(tools, model, data, fixed_of(folder, model), rtol, atol)
        return "passed", ""
    except Unsupported as refusal:
        return "unsupported", str(refusal)
    except harness.Failed as failure:
        return "failed", str(failure)
    except (OSError, ArithmeticError, LookupError, ValueError) as error:
        return "failed", f"{type(error).__name__}: {error}"
    finally:
        if not keep:
            shutil.rmtree(work, ignore_errors=True)


# ---------------------------------------------------------------- all cases


def source_name(root):
    """Where cases come from: libonnx-testdata or onnx-VERSION."""
    version = os.path.join(root, "version")
    if os.path.exists(version):
        return "onnx-" + read(version).decode().strip()
    return "libonnx-testdata"


def find_cases(roots):
    """{source/category/case: folder}."""
    found = {}
    for root in roots:
        for model in glob.glob(os.path.join(root, "*", "*", "model.onnx")):
            folder = os.path.dirname(model)
            category = os.path.basename(os.path.dirname(folder))
            if category != "real":
                found["/".join((source_name(root), category,
                                os.path.basename(folder)))] = folder
    return dict(sorted(found.items()))


def op_of(folder):
    """The operator of a node test, or nothing."""
    model = wire.Model(read(os.path.join(folder, "model.onnx")))
    return model.nodes[0].op_type if len(model.nodes) == 1 else ""


def subset(cases):
    """One case an operator, and every case of the small categories."""
    seen, chosen = set(), {}
    for name, folder in cases.items():
        if "/node/" not in name:
            chosen[name] = folder
            continue
        op = "" if name.endswith("_expanded") else op_of(folder)
        if op and op not in seen:
            seen.add(op)
            chosen[name] = folder
    return chosen


def newest_onnx(folder=os.path.join(ROOT, "build/onnx-cases")):
    """Cases of the newest onnx package, made once: needs pip and PyPI."""
    out = os.path.join(folder, "cases")
    if os.path.exists(os.path.join(out, "version")):
        return out
    site = os.path.join(folder, "site")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet",
                    "--target", site, "onnx"], check=True)
    subprocess.run(
        [sys.executable, "-W", "ignore", os.path.join(
            os.path.dirname(os.path.abspath(__file__)), "make_cases.py"), out],
        check=True, env={**os.environ, "PYTHONPATH": site})
    return out


def recorded():
    """Names of cases that are known to be refused."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                        "unsupported.tsv")
    if not os.path.exists(path):
        return set()
    with open(path, encoding="utf-8") as file:
        return {line.split("\t")[0] for line in file}


def run_all(cases, args):
    """{name: (status, reason)}; each is also a line of --results."""
    results = {}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        futures = {name: pool.submit(run_case, folder, args.bin_dir, args.keep)
                   for name, folder in cases.items()}
        for name, future in futures.items():
            results[name] = future.result()
            if args.results:
                with open(args.results, "a", encoding="utf-8") as file:
                    file.write("\t".join((results[name][0], name,
                                          op_of(cases[name]),
                                          results[name][1])) + "\n")
    return results


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", action="append", default=[])
    parser.add_argument("--subset", action="store_true")
    parser.add_argument("--all", action="store_true",
                        help="all of Debian's and of the newest onnx's")
    parser.add_argument("--refused", action="store_true",
                        help="only what the last recorded run refused")
    parser.add_argument("--bin-dir", default=os.path.join(
        ROOT, "build/release/bin"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--filter", default="")
    parser.add_argument("--keep", default="")
    parser.add_argument("--results", default="",
                        help="append one line a case: status, case, operator, "
                        "reason")
    args = parser.parse_args()
    roots = args.cases or [DEBIAN]
    if args.all and not args.cases:
        roots.append(newest_onnx())
    cases = {name: folder for name, folder in find_cases(roots).items()
             if args.filter in name}
    if not cases:
        print(f"no cases in {', '.join(roots)} (libonnx-testdata is not "
              "installed?)")
        print("0 passed, 1 failed")
        return 1
    if args.subset and not args.all:
        cases = subset(cases)
    known = recorded()
    if args.refused:
        cases = {name: cases[name] for name in cases if name in known}
    sources = {name.split("/")[0] for name in known}
    results = run_all(cases, args)
    counts, bad = {}, 0
    for name, (status, reason) in results.items():
        row = counts.setdefault(name.rsplit("/", 1)[0], {})
        row[status] = row.get(status, 0) + 1
        regressed = (status == "unsupported" and name not in known
                     and name.split("/")[0] in sources)
        bad += status == "failed" or regressed
        if status == "failed" or regressed or args.filter:
            print(f"{'REGRESSED' if regressed else status.upper():<11} "
                  f"{name}: {reason}")
    for category, row in counts.items():
        print(f"{category}: " + ", ".join(
            f"{row.get(s, 0)} {s}" for s in ("passed", "unsupported",
                                             "failed")))
    print(f"{len(results) - bad} passed, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
