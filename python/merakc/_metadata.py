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

# ModelProto.metadata_props, .graph; GraphProto.input
_MODEL_METADATA, _MODEL_GRAPH, _GRAPH_INPUT = 14, 7, 11


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
    """ModelProto.metadata_props of a file, and the names of the graph's
    inputs. Weights are skipped, not read."""
    import mmap
    with open(path, "rb") as file:  # ended with the last view of it
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    entries, inputs = {}, []
    for number, value in _wire.walk(view):
        if number == _MODEL_METADATA:
            entry = _wire.by_number(value)
            entries[_wire.text(entry.get(1))] = _wire.text(entry.get(2))
        elif number == _MODEL_GRAPH:
            inputs = [_wire.text(_wire.by_number(info).get(1))
                      for part, info in _wire.walk(value)
                      if part == _GRAPH_INPUT]
    return entries, inputs


def try_read(path):
    """Nothing for files in text form and what is no model, of which merakc
    says what is wrong."""
    try:
        return read(path)
    except (OSError, ValueError, IndexError, TypeError):
        return {}, []


def names_of(entries):
    """{initializer: [names in the source program]}."""
    if NAMES not in entries:
        return {}
    return {key: value if isinstance(value, list) else [value]
            for key, value in json.loads(entries[NAMES]).items()}
