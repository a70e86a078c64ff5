"""Cases of operators whose gradients the node tests do not show: their inputs
are integers, they return more than the result, or they are of newer opsets than
Debian's package. In the form of the node tests: model.onnx and one data set.
"""
import math
import os
import random

import build
import wire

# Operator, opset, attributes, inputs, shapes of outputs. An input is a shape
# (of random floats), or (element type, shape, values).
INDICES = (7, [4, 3], [0, 2, 4, 2, 2, 0, 0, 4, 1, 4, 1, 3])
CASES = [
    ("Trilu", 14, dict(upper=0), [[3, 4, 5], (7, [], [1])], [[3, 4, 5]]),
    ("Trilu", 14, dict(), [[4, 4]], [[4, 4]]),
    ("Upsample", 9, dict(mode="linear"),
     [[1, 2, 2, 3], (1, [4], [1.0, 1.0, 2.0, 3.0])], [[1, 2, 4, 9]]),
    ("Upsample", 9, dict(mode="nearest"),
     [[1, 2, 2, 3], (1, [4], [1.0, 1.0, 2.0, 2.0])], [[1, 2, 4, 6]]),
    ("LayerNormalization", 17, dict(axis=-1), [[3, 2, 5], [5], [5]],
     [[3, 2, 5]]),
    ("LayerNormalization", 17, dict(axis=1, epsilon=0.125),
     [[3, 2, 5], [2, 5]], [[3, 2, 5]]),
    ("MaxUnpool", 11, dict(kernel_shape=[2, 2], strides=[2, 2]),
     [[1, 2, 2, 2], (7, [1, 2, 2, 2], [1, 6, 8, 15, 16, 23, 25, 31])],
     [[1, 2, 4, 4]]),
    ("MaxUnpool", 11, dict(kernel_shape=[2], strides=[2]),
     [[2, 1, 3], (7, [2, 1, 3], [0, 3, 4, 7, 8, 10]), (7, [3], [2, 1, 8])],
     [[2, 1, 8]]),
    *(("ScatterElements", 18, dict(axis=0, reduction=kind),
       [[5, 3], INDICES, [4, 3]], [[5, 3]])
      for kind in ("add", "mul", "max", "min")),
    *(("ScatterND", 18, dict(reduction=kind),
       [[5, 3], (7, [4, 1], [0, 2, 2, 4]), [4, 3]], [[5, 3]])
      for kind in ("mul", "max")),
    ("TensorScatter", 24, dict(axis=1, mode="circular"),
     [[2, 4, 3], [2, 2, 3], (7, [2], [1, 3])], [[2, 4, 3]]),
    ("Det", 11, dict(), [[2, 3, 3]], [[2]]),
    ("Det", 11, dict(), [[4, 4]], [[]]),
    ("Col2Im", 18, dict(strides=[2, 1], pads=[1, 0, 1, 0]),
     [[2, 8, 9], (7, [2], [5, 4]), (7, [2], [2, 2])], [[2, 2, 5, 4]]),
    ("DeformConv", 19, dict(pads=[1, 1, 1, 1], offset_group=2, group=2),
     [[1, 4, 3, 3], [2, 2, 2, 2], [1, 16, 4, 4], [2], [1, 8, 4, 4]],
     [[1, 2, 4, 4]]),
    ("RoiAlign", 16, dict(output_height=2, output_width=2, sampling_ratio=2,
                          spatial_scale=0.5),
     [[2, 2, 5, 5], (1, [2, 4], [0.3, 1.2, 6.1, 7.4, 2.2, 0.4, 9.1, 5.3]),
      (7, [2], [1, 0])], [[2, 2, 2, 2]]),
    *(("LinearAttention", 27,
       dict(q_num_heads=2, kv_num_heads=1, update_rule=rule),
       [[1, 3, 4], [1, 3, 2], [1, 3, 3], [1, 1, 2, 3], [1, 3, 2], [1, 3, 1]],
       [[1, 3, 6], [1, 1, 2, 3]]) for rule in ("gated_delta", "linear")),
    ("LSTM", 14, dict(hidden_size=2, direction="bidirectional"),
     [[3, 2, 2], [2, 8, 2], [2, 8, 2], [2, 16], (6, [2], [2, 3])],
     [[3, 2, 2, 2]]),
    ("GRU", 14, dict(hidden_size=2, clip=0.75),
     [[3, 2, 2], [1, 6, 2], [1, 6, 2]], [[3, 1, 2, 2]]),
]


def tensor(name, given, draw):
    if isinstance(given, list):
        given = (1, given, [draw.uniform(-1, 1) or 0.5
                            for _ in range(math.prod(given))])
    return given, build.tensor(name, *given)


def write(folder):
    """{operator: [(name, folder of the case)]}."""
    found = {}
    for number, (op, opset, attributes, inputs, outputs) in enumerate(CASES):
        name = f"own/node/own_{op.lower()}_{number}"
        case = os.path.join(folder, name)
        data = os.path.join(case, "test_data_set_0")
        os.makedirs(data)
        draw = random.Random(number)
        feeds, results = [], []
        for i, given in enumerate(inputs):
            given, made = tensor(f"in{i}", given, draw)
            feeds.append((f"in{i}", given[0], given[1]))
            with open(os.path.join(data, f"input_{i}.pb"), "wb") as file:
                file.write(made)
        for i, shape in enumerate(outputs):
            results.append((f"out{i}", 1, shape))
            with open(os.path.join(data, f"output_{i}.pb"), "wb") as file:
                file.write(build.tensor(f"out{i}", 1, shape,
                                        [0.0] * math.prod(shape)))
        graph = build.node(op, [one[0] for one in feeds],
                           [one[0] for one in results], **attributes)
        with open(os.path.join(case, "model.onnx"), "wb") as file:
            file.write(build.model(graph, opset, feeds, results))
        found.setdefault(op, []).append((name, case))
    return found


def holds(cases):
    return any(name.startswith("own/") for name, _ in cases)
