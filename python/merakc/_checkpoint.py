"""Checkpoints: generations of index.json and the shards that each rank wrote."""
import json
import os
import re
import struct

from ._errors import RunError

# bf16 comes as its upper half of a float32.
TYPES = {"F64": "f8", "F32": "f4", "F16": "f2", "BF16": "u2", "I64": "i8",
         "I32": "i4", "I16": "i2", "I8": "i1", "U64": "u8", "U32": "u4",
         "U16": "u2", "U8": "u1", "BOOL": "?"}


def _widen(array, kind):
    if kind != "BF16":
        return array
    return (array.astype("u4") << 16).view("f4")


class _Shard:
    """A .safetensors file, mapped."""

    def __init__(self, path):
        with open(path, "rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            self.entries = json.loads(file.read(size))
        self.begin = 8 + size
        self.path = path

    def read(self, key):
        import numpy
        entry = self.entries[key]
        begin, end = entry["data_offsets"]
        kind = numpy.dtype("<" + TYPES[entry["dtype"]])
        count = (end - begin) // kind.itemsize
        data = numpy.fromfile(self.path, kind, count, offset=self.begin + begin)
        return data.reshape(entry["shape"])


def generation(folder):
    """What merak-run takes of a folder of checkpoints: the generation that
    `latest` names, or the folder itself if it is one, or the newest."""
    def whole(path):
        return os.path.isfile(os.path.join(path, "index.json"))

    try:
        with open(os.path.join(folder, "latest"), encoding="utf-8") as file:
            named = os.path.join(folder, file.read().split(" ")[0])
        if whole(named):
            return named
    except OSError:
        pass
    if whole(folder) or not os.path.isdir(folder):
        return folder
    steps = [int(name[5:]) for name in os.listdir(folder)
             if re.fullmatch("step-[0-9]+", name) and
             whole(os.path.join(folder, name))]
    return os.path.join(folder, f"step-{max(steps)}") if steps else folder


class Checkpoint:
    """`step`, `samples`, and the tensors by their names in the plan."""

    def __init__(self, folder):
        self.folder = generation(os.path.abspath(folder))
        path = os.path.join(self.folder, "index.json")
        try:
            with open(path, encoding="utf-8") as file:
                index = json.load(file)
            self.step, self.samples = index["step"], index["samples"]
            self._tensors = index["tensors"]
        except OSError:
            raise RunError(f"{folder}: not a checkpoint: it holds no "
                           "index.json") from None
        except (ValueError, KeyError, TypeError):
            raise RunError(f"{path}: not the index of a checkpoint") from None
        self._shards = {}

    def names(self, *roles):
        return [name for name, entry in self._tensors.items()
                if not roles or entry["role"] in roles]

    def __contains__(self, name):
        return name in self._tensors

    def read(self, name):
        """One whole tensor, put together from the boxes of the ranks."""
        import numpy
        entry = self._tensors[name]
        kind = entry["dtype"]
        whole = numpy.zeros(entry["shape"], "<" + TYPES[kind])
        covered = 0
        for piece in entry["pieces"]:
            shard = self._shards.get(piece["file"])
            if shard is None:
                shard = _Shard(os.path.join(self.folder, piece["file"]))
                self._shards[piece["file"]] = shard
            box = tuple(slice(o, o + n) for o, n in
                        zip(piece["origin"], piece["extent"]))
            part = shard.read(piece["key"])
            whole[box] = part
            covered += part.size
        if covered != whole.size:
            raise RunError(f"{self.folder}: the pieces of '{name}' hold "
                           f"{covered} of {whole.size} numbers")
        return _widen(whole, kind)
