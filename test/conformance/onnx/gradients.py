#!/usr/bin/env python3
"""Gradients by central differences, on the inputs of the ONNX node tests.

Of each op with a float input one or more cases become a training model: the
float inputs are its weights, the loss is the sum of all float outputs, each
element times a fixed number. The gradient of one step is compared with

  (loss(w + h) - loss(w - h)) / 2h

for every element (at most 64 a case, evenly spread), in float64 where the
kernels of the case know it, else in float32 with a wider tolerance. An element
at which two values of h, or the slopes on both sides, disagree lies on a kink
and is left out.

  gradients.py                Debian's libonnx-testdata
  gradients.py --subset       operators that have a rule of their own
  gradients.py --all          also the newest onnx package from PyPI
  gradients.py --cases FOLDER [--filter TEXT] [--every]

One line a case; the last line is `N passed, M failed`.
"""
import argparse
import array
import concurrent.futures
import math
import os
import shutil
import sys
import tempfile

import cases
import harness
import own_cases
import wire
from build import info, integer, node, tensor

KINDS = {1: ("f", "<f4", "F32"), 11: ("d", "<f8", "F64")}
SUBSET = ("Abs Acos Add Asin Atan AveragePool Concat Conv ConvTranspose Cos "
          "Cosh CumSum Div Einsum Erf Exp Expand Gather GatherElements Gelu "
          "Gemm LayerNormalization Log MatMul Max MaxPool Min Mul Pad Pow "
          "ReduceMax ReduceSum ScatterElements Sigmoid Sin Sinh Slice Softmax "
          "SoftmaxCrossEntropyLoss Sqrt Sub Tan Tanh TopK Transpose "
          "Where").split() + ["BatchNormalization (training)"]
# Inputs that hold tables, to which no gradient goes.
TABLES = {"RotaryEmbedding": [1, 2]}
MOST = 64  # elements of a case that are moved


def scale_of(i):
    """A fixed number for element i, neither small nor regular."""
    return 0.5 + math.fmod(0.618033988749895 * (i + 1), 1.0)


class Problem:
    """One case: which inputs are moved, the rest as they are."""

    def __init__(self, folder, code):
        self.code = code
        self.model = wire.Model(cases.read(os.path.join(folder, "model.onnx")))
        data = os.path.join(folder, "test_data_set_0")
        tensors = [wire.read_tensor(t) for t in cases.read_set(data, "input")]
        raw = cases.read_set(data, "input")
        self.moved, self.fixed = [], []
        shape_inputs = cases.fixed_inputs(self.model)
        tables = {node.inputs[slot] for node in self.model.nodes
                  for slot in TABLES.get(node.op_type, ())}
        for one, value, bytes_ in zip(self.model.feeds(), tensors, raw):
            if one.kind != "tensor" or value.data is None:
                raise cases.Unsupported("an input that is no tensor")
            if value.code in KINDS and one.name not in shape_inputs | tables:
                value.data = array.array("f", value.data)
                self.moved.append((one.name, value))
            else:
                self.fixed.append(wire.with_name(bytes_, one.name))
        self.outputs = []
        for one, value in zip(self.model.outputs,
                              cases.read_set(data, "output")):
            value = wire.read_tensor(value)
            if one.kind == "tensor" and value.code in KINDS and one.name:
                self.outputs.append((one.name, value))
        if not self.moved or not self.outputs:
            raise cases.Unsupported("no float input or output")
        self.frozen = ["scale_" + name for name, _ in self.outputs]
        # What decides shapes is no weight in any case.
        self.frozen += [name for name in map(wire.read_name, self.fixed)
                        if name not in shape_inputs]
        self.flat = [x for _, value in self.moved for x in value.data]

    def loss(self):
        """Nodes and constants from the outputs to `merak_loss`."""
        graph, parts = b"", []
        for name, value in self.outputs:
            count = len(value.data)
            graph += wire.put(5, tensor("scale_" + name, self.code, [count],
                                        map(scale_of, range(count))))
            graph += wire.put(5, tensor("flat_" + name, 7, [1], [count]))
            graph += node("Reshape", [name, "flat_" + name],
                          ["row_" + name])
            graph += node("Mul", ["row_" + name, "scale_" + name],
                          ["scaled_" + name])
            graph += node("ReduceSum", ["scaled_" + name], ["sum_" + name],
                          keepdims=0)
            parts.append("sum_" + name)
        return graph + node("Sum", parts, ["merak_loss"])

    def build(self, front, loss_shape):
        """The model with `front` before its nodes and the loss behind them."""
        out = b""
        for number, value in wire.fields(self.model.data):
            if number == 7:
                kept = b""
                for field, part in wire.fields(value):
                    if field in (11, 12, 13):
                        continue
                    kept += (wire.put(field, part) if not isinstance(part, int)
                             else integer(field, part))
                value = front + kept + b"".join(
                    wire.put(5, one) for one in self.fixed) + self.loss()
                value += info(12, "merak_loss", self.code, loss_shape)
            out += (integer(number, value) if isinstance(value, int)
                    else wire.put(number, value))
        return out

    def training(self):
        """Weights are flat f32 initializers under names that are never taken
        for tables, cast to the precision of the case."""
        front = b""
        for name, value in self.moved:
            front += wire.put(5, tensor(name + ".weight", 1,
                                        [len(value.data)], value.data))
            front += wire.put(5, tensor("merak_shape_" + name, 7,
                                        [len(value.shape)], value.shape))
            front += node("Reshape", [name + ".weight",
                                      "merak_shape_" + name],
                          ["merak_wide_" + name])
            front += node("Cast", ["merak_wide_" + name], [name],
                          to=self.code)
        return self.build(front, [])

    def inference(self):
        """All weights are slices of one row of data."""
        front = info(11, "merak_row", self.code, [1, len(self.flat)])
        sizes = [len(value.data) for _, value in self.moved]
        names = [name for name, _ in self.moved]
        if len(sizes) > 1:
            front += wire.put(5, tensor("merak_sizes", 7, [len(sizes)], sizes))
            front += node("Split", ["merak_row", "merak_sizes"],
                          ["merak_part_" + name for name in names], axis=1)
        else:
            front += node("Identity", ["merak_row"],
                          ["merak_part_" + names[0]])
        for name, value in self.moved:
            front += wire.put(5, tensor("merak_shape_" + name, 7,
                                        [len(value.shape)], value.shape))
            front += node("Reshape", ["merak_part_" + name,
                                      "merak_shape_" + name], [name])
        return self.build(front, [])


# ---------------------------------------------------------------- measuring


def compile_and_run(tools, data, tag, compile_options, run_options):
    path, plan = tools.path(tag + ".onnx"), tools.path(tag + ".plan")
    with open(path, "wb") as file:
        file.write(data)
    _, errors = tools.run("merakc", path, "-o", plan, "-q", *compile_options,
                          expect=None)
    if tools.returncode == 1:
        raise cases.Unsupported(cases.reason_of(errors))
    if tools.returncode:
        raise harness.Failed(harness.last_lines(errors))
    tools.run("merak-run", plan, "--threads=1", *run_options)


def gradients(tools, problem):
    path = tools.path("grads.safetensors")
    compile_and_run(tools, problem.training(), "train",
                    ["--mode=train", "--loss=merak_loss", "--optimizer=sgd",
                     "--freeze=" + ",".join(problem.frozen)],
                    ["--steps=1", f"--save-grads={path}"])
    found = harness.read_safetensors(path)
    flat = []
    for name, value in problem.moved:
        if name + ".weight" in found:
            flat.extend(found[name + ".weight"].data)
        else:
            flat.extend([None] * len(value.data))
    if all(x is None for x in flat):
        raise cases.Unsupported("no gradient reaches an input")
    return flat


def differences(tools, problem, chosen, steps):
    """For each step size the slope along each chosen element, and for each
    element how the slopes on both sides differ at the first."""
    folder, log = tools.path("data"), tools.path("log.jsonl")
    os.makedirs(folder, exist_ok=True)
    rows = array.array(KINDS[problem.code][0])
    for h in steps:
        for i in chosen:
            for sign in (1, -1):
                row = array.array(rows.typecode, problem.flat)
                row[i] += sign * h
                rows.extend(row)
    rows.extend(array.array(rows.typecode, problem.flat))
    count = 2 * len(chosen) * len(steps) + 1
    harness.DESCRS.setdefault("<f8", "d")
    harness.write_npy(os.path.join(folder, "merak_row.npy"),
                      KINDS[problem.code][1], [count, len(problem.flat)], rows)
    out = tools.path("out")
    compile_and_run(tools, problem.inference(), "infer",
                    ["--mode=infer", "--global-batch=1"],
                    [f"--data={folder}", f"--steps={count}", f"--log={log}",
                     f"--out={out}"])
    losses = cases.load_npy(os.path.join(out, "merak_loss.npy")).data
    slopes, at = [], 0
    bends = [abs(losses[2 * i] - 2 * losses[-1] + losses[2 * i + 1]) / steps[0]
             for i in range(len(chosen))]
    for h in steps:
        one = []
        for i in chosen:
            up = array.array(rows.typecode, [problem.flat[i] + h])[0]
            down = array.array(rows.typecode, [problem.flat[i] - h])[0]
            one.append((losses[at] - losses[at + 1]) / (up - down))
            at += 2
        slopes.append(one)
    return slopes + [bends]


def check(folder, bin_dir, code, tools):
    problem = Problem(folder, code)
    count = len(problem.flat)
    found = gradients(tools, problem)
    chosen = sorted({k * count // min(count, MOST)
                     for k in range(min(count, MOST))})
    # Inputs that import takes for bounds or exponents are not trained.
    chosen = [i for i in chosen if found[i] is not None]
    steps = (1e-4, 3e-5) if code == 11 else (1e-2, 4e-3)
    tolerance = 1e-5 if code == 11 else 2e-2
    wide, narrow, bends = differences(tools, problem, chosen, steps)
    size = max((abs(x) for x in wide), default=0) or 1.0
    worst, kinks = 0.0, 0
    for i, a, b, bend in zip(chosen, wide, narrow, bends):
        if (not math.isfinite(b) or bend > 0.1 * max(abs(b), size) or
                abs(a - b) > tolerance * max(abs(b), size)):
            kinks += 1
            continue
        error = abs(found[i] - b) / max(abs(b), size)
        if not error <= tolerance:
            raise harness.Failed(f"element {i}: gradient {found[i]:.6g}, "
                                 f"difference {b:.6g}")
        worst = max(worst, error)
    if kinks == len(chosen):
        raise cases.Unsupported("every element lies on a kink")
    return f"{'f64' if code == 11 else 'f32'} {worst:.0e}"


def run_case(folder, bin_dir):
    work = tempfile.mkdtemp(prefix="onnx-gradient-")
    tools = harness.Tools(bin_dir, work, timeout=60)
    try:
        reason = ""
        for code in (11, 1):
            try:
                return "passed", check(folder, bin_dir, code, tools)
            except cases.Unsupported as refusal:
                reason = str(refusal)
            except harness.Failed as failure:
                if code == 1:
                    return "failed", str(failure)
        return "unsupported", reason
    except cases.Unsupported as refusal:
        return "unsupported", str(refusal)
    except (OSError, ArithmeticError, LookupError, ValueError) as error:
        return "failed", f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", action="append", default=[])
    parser.add_argument("--bin-dir", default=os.path.join(
        cases.ROOT, "build/release/bin"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--filter", default="")
    parser.add_argument("--results", default="",
                        help="append one line an operator: status, operator, "
                        "note")
    parser.add_argument("--subset", action="store_true",
                        help="operators with a rule of their own")
    parser.add_argument("--all", action="store_true",
                        help="also operators of the newest onnx package")
    parser.add_argument("--every", action="store_true",
                        help="every case, not one an op")
    args = parser.parse_args()
    roots = args.cases or [cases.DEBIAN]
    if args.all and not args.cases:
        roots.append(cases.newest_onnx())
    found = {name: folder for name, folder in
             cases.find_cases(roots).items()
             if "/node/" in name and args.filter in name
             and not name.endswith("_expanded")}
    own = tempfile.mkdtemp(prefix="onnx-own-")
    by_op = own_cases.write(own)
    for name, folder in found.items():
        model = wire.Model(cases.read(os.path.join(folder, "model.onnx")))
        if len(model.nodes) == 1 and not model.nodes[0].domain:
            op = model.nodes[0].op_type
            if op == "BatchNormalization" and "training" in name:
                op += " (training)"
            by_op.setdefault(op, []).append((name, folder))
    by_op = {op: [case for case in list_ if args.filter in case[0]]
             for op, list_ in by_op.items()}
    by_op = {op: list_ for op, list_ in by_op.items() if list_}
    if args.subset:
        by_op = {op: list_ for op, list_ in by_op.items() if op in SUBSET or
                 own_cases.holds(list_)}
    failed = passed = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        def run_op(op):
            """Until one case passes; every case with --every."""
            lines = []
            for name, folder in by_op[op]:
                status, note = run_case(folder, args.bin_dir)
                lines.append((status, name, note))
                if status != "unsupported" and not args.every:
                    break
            return lines
        for op, lines in zip(sorted(by_op), pool.map(run_op, sorted(by_op))):
            for status, name, note in lines:
                failed += status == "failed"
                passed += status == "passed"
            status, name, note = next(
                (line for line in lines if line[0] == "failed"),
                next((line for line in lines if line[0] == "passed"),
                     lines[-1]))
            print(f"{status:<11} {op:<24} {name}: {note}", flush=True)
            if args.results:
                with open(args.results, "a", encoding="utf-8") as file:
                    file.write(f"{status}\t{op}\t{note}\n")
    shutil.rmtree(own, ignore_errors=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
