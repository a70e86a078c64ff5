"""What Python needs to know of a plan, from its manifest."""
import os
import struct

from . import _wire
from ._errors import RunError

# DType of plan.proto as numpy writes it; bf16 has no name there.
DTYPES = {1: "float32", 2: "int64", 3: "int32", 4: "bool", 5: "bfloat16",
          6: "float16", 7: "float64", 8: "uint8", 9: "int8", 10: "int16",
          11: "uint16", 12: "uint32", 13: "uint64"}
ROLES = ("parameter", "frozen", "optimizer", "constant", "statistic")


class Input:
    def __init__(self, data):
        entry = _wire.by_number(data)
        self.name = _wire.text(entry.get(1))
        self.dtype = DTYPES.get(entry.get(2, [0])[-1], "?")
        self.shape = tuple(_wire.numbers(entry.get(3, [])))
        self.batched = bool(entry.get(4, [0])[-1])

    def __repr__(self):
        return f"{self.name}: {self.dtype}{list(self.shape)}"


class Tensor:
    def __init__(self, data):
        entry = _wire.by_number(data)
        self.name = _wire.text(entry.get(1))
        self.shape = tuple(_wire.numbers(entry.get(3, [])))
        self.role = ROLES[entry.get(4, [0])[-1]]


def _axes(data):
    """{"pp": 2, "dp": 1, "tp": 2} of a list of axes."""
    parts = [_wire.by_number(axis) for axis in data]
    return {_wire.text(part.get(1)): part.get(2, [0])[-1] for part in parts}


class Manifest:
    """plan.pb."""

    def __init__(self, folder):
        path = os.path.join(folder, "plan.pb")
        try:
            with open(path, "rb") as file:
                entry = _wire.by_number(file.read())
        except OSError:
            raise RunError(f"{folder}: not a plan: it holds no plan.pb") \
                from None
        except (ValueError, IndexError):
            raise RunError(f"{path}: truncated, or not a plan") from None
        self.model = _wire.text(entry.get(3))
        self.model_folder = _wire.text(entry.get(4))
        self.mode = _wire.text(entry.get(5), "train")
        self.mesh = _axes(entry.get(6, []))
        # Of stages on meshes of their own, instead of `mesh`.
        self.meshes = [_axes(_wire.by_number(mesh).get(1, []))
                       for mesh in entry.get(31, [])]
        self.ranks = len(entry.get(7, []))
        self.tensors = [Tensor(data) for data in entry.get(9, [])]
        self.inputs = [Input(data) for data in entry.get(10, [])]
        self.global_batch = entry.get(12, [0])[-1]
        self.microbatches = entry.get(14, [1])[-1]
        self.schedule = _wire.text(entry.get(16))
        seconds = entry.get(18)
        self.predicted_seconds = \
            struct.unpack("<d", seconds[-1])[0] if seconds else 0.0
        self.device = _wire.text(entry.get(21), "cpu") or "cpu"
        decisions = _wire.by_number(entry[27][-1]) if 27 in entry else {}
        self.report = _wire.text(decisions.get(3))
