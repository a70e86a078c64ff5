"""The vocabulary of docs/Metadata.md: what an exporter can tell the importer
that ONNX itself has no place for."""
import json

from . import _wire

TRAINABLE = "org.merak.trainable"
NAMES = "org.merak.names"
LABEL_SMOOTHING = "org.merak.label_smoothing"
PADDING_IDX = "org.merak.padding_idx"
STOP_GRADIENT = "org.merak.stop_gradient"
TRAINING_MODE = "org.merak.training_mode"

_MODEL_METADATA = 14  # ModelProto.metadata_props


def model_entries(trainable=None, names=None):
    """{key: value} for ModelProto.metadata_props."""
    entries = {}
    if trainable is not None:
        entries[TRAINABLE] = json.dumps(sorted(trainable))
    if names is not None:
        entries[NAMES] = json.dumps({
            key: value[0] if len(value) == 1 else list(value)
            for key, value in sorted(names.items())})
    return entries


def append(path, entries):
    """Adds entries to an ONNX file: fields of a message may come in any order,
    so they go behind the last."""
    data = b"".join(_wire.property_entry(_MODEL_METADATA, key, value)
                    for key, value in entries.items())
    with open(path, "ab") as file:
        file.write(data)


def read(path):
    """ModelProto.metadata_props of a file. The graph is skipped, not read."""
    import mmap
    with open(path, "rb") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found, at = {}, 0
            while at < len(data):
                tag, at = _wire._varint(data, at)
                if tag & 7 == 2:
                    size, at = _wire._varint(data, at)
                    if tag >> 3 == _MODEL_METADATA:
                        entry = _wire.by_number(data[at:at + size])
                        found[_wire.text(entry.get(1))] = \
                            _wire.text(entry.get(2))
                    at += size
                elif tag & 7 == 0:
                    _, at = _wire._varint(data, at)
                else:
                    at += 8 if tag & 7 == 1 else 4
            return found


def names_of(entries):
    """{initializer: [names in the source program]}."""
    if NAMES not in entries:
        return {}
    return {key: value if isinstance(value, list) else [value]
            for key, value in json.loads(entries[NAMES]).items()}
