"""Protobuf messages without protobuf: what is read of a plan's manifest
(runtime/plan/plan.proto) and added to an ONNX file."""


def _varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def walk(data):
    """(number, value) of each field of a message: numbers, or views of the
    bytes of what has a length."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
        elif kind == 2:
            size, at = _varint(data, at)
            value, at = data[at:at + size], at + size
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, at = data[at:at + size], at + size
        else:
            raise ValueError("a damaged message")
        if at > len(data):
            raise ValueError("a message that was cut off")
        yield tag >> 3, value


def by_number(data):
    """{number: [values]}."""
    found = {}
    for number, value in walk(memoryview(data)):
        found.setdefault(number, []).append(value)
    return found


def numbers(values):
    """A repeated integer field, packed or not."""
    found = []
    for value in values:
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            found.append(number)
    return found


def text(values, otherwise=""):
    return bytes(values[-1]).decode(errors="replace") if values else otherwise


def _encode(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def block(number, data):
    """One field that has a length."""
    return _encode(number << 3 | 2) + _encode(len(data)) + data


def property_entry(number, key, value):
    """A StringStringEntryProto as field `number` of what holds it."""
    return block(number, block(1, key.encode()) + block(2, value.encode()))
