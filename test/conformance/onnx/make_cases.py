#!/usr/bin/env python3
"""Writes the backend tests of the installed `onnx` package as folders.

  make_cases.py OUT     OUT/<category>/<case>/model.onnx, test_data_set_0/...

The package makes its node tests in Python; the other categories lie in it as
files. Needs `onnx` and NumPy, and is run once: `cases.py` reads the folders
with the standard library alone.
"""
import json
import os
import shutil
import sys

import numpy
import onnx
from onnx import numpy_helper
from onnx.backend.test import loader


def to_proto(value, type_proto, name):
    if isinstance(value, onnx.TensorProto):
        return value
    if type_proto.HasField("map_type"):
        return numpy_helper.from_dict(value, name)
    if type_proto.HasField("sequence_type"):
        return numpy_helper.from_list(value, name)
    if type_proto.HasField("optional_type"):
        return numpy_helper.from_optional(value, name)
    return numpy_helper.from_array(numpy.asarray(value), name)


def write_set(folder, kind, values, infos):
    os.makedirs(folder, exist_ok=True)
    for i, (value, info) in enumerate(zip(values, infos)):
        with open(os.path.join(folder, f"{kind}_{i}.pb"), "wb") as file:
            file.write(to_proto(value, info.type,
                                info.name).SerializeToString())


def write_case(folder, case):
    os.makedirs(folder)
    with open(os.path.join(folder, "model.onnx"), "wb") as file:
        file.write(case.model.SerializeToString())
    with open(os.path.join(folder, "data.json"), "w", encoding="utf-8") as file:
        json.dump({"rtol": case.rtol, "atol": case.atol}, file)
    for i, (inputs, outputs) in enumerate(case.data_sets):
        where = os.path.join(folder, f"test_data_set_{i}")
        write_set(where, "input", inputs, case.model.graph.input)
        write_set(where, "output", outputs, case.model.graph.output)


def write_light(source, folder):
    """The light networks: all weights are made by nodes, the input is what the
    package's own runner makes: a ramp from 0 to 1."""
    for leaf in sorted(os.listdir(source)):
        if not leaf.endswith(".onnx"):
            continue
        name = leaf[:-len(".onnx")]
        model = onnx.load(os.path.join(source, leaf))
        made = {t.name for t in model.graph.initializer}
        infos = [i for i in model.graph.input if i.name not in made]
        inputs = []
        for info in infos:
            dims = [d.dim_value for d in info.type.tensor_type.shape.dim]
            count = int(numpy.prod(dims))
            ramp = numpy.arange(count).reshape(dims) / count
            inputs.append(ramp.astype("float32"))
        where = os.path.join(folder, "test_" + name)
        os.makedirs(where)
        shutil.copy(os.path.join(source, leaf),
                    os.path.join(where, "model.onnx"))
        data = os.path.join(where, "test_data_set_0")
        write_set(data, "input", inputs, infos)
        shutil.copy(os.path.join(source, name + "_output_0.pb"),
                    os.path.join(data, "output_0.pb"))


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    out = sys.argv[1]
    shutil.rmtree(out, ignore_errors=True)
    for case in loader.load_model_tests(kind="node"):
        write_case(os.path.join(out, "node", case.name), case)
    for kind in ("simple", "pytorch-operator", "pytorch-converted"):
        source = os.path.join(loader.DATA_DIR, kind)
        if os.path.isdir(source):
            shutil.copytree(source, os.path.join(out, kind),
                            ignore=shutil.ignore_patterns("*.py"))
    light = os.path.join(loader.DATA_DIR, "light")
    if os.path.isdir(light):
        write_light(light, os.path.join(out, "light"))
    with open(os.path.join(out, "version"), "w", encoding="utf-8") as file:
        file.write(onnx.__version__ + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
