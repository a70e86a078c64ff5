"""Just enough of protobuf's wire format to read ONNX tests without a package:
fields of a message, tensors, names and types of a graph's inputs. A model is
changed only by adding fields, so that what is not understood stays as it is.
"""
import array
import math
import struct

# ONNX element type: name, array code, NumPy's name. 16-bit floats and what
# array has no code for are decoded apart.
TYPES = {1: ("f32", "f", "<f4"), 2: ("u8", "B", "|u1"), 3: ("i8", "b", "|i1"),
         4: ("u16", "H", "<u2"), 5: ("i16", "h", "<i2"), 6: ("i32", "i", "<i4"),
         7: ("i64", "q", "<i8"), 8: ("string", None, None),
         9: ("bool", "b", "|b1"), 10: ("f16", "H", "<f2"),
         11: ("f64", "d", "<f8"), 12: ("u32", "I", "<u4"),
         13: ("u64", "Q", "<u8"), 14: ("complex64", None, None),
         15: ("complex128", None, None), 16: ("bf16", "H", "<V2")}


def type_name(code):
    return TYPES[code][0] if code in TYPES else f"type {code}"


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def signed(value):
    return value - (1 << 64) if value >> 63 else value


def fields(data):
    """(number, value) of each field: an int, or bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 2:
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        else:
            size = 8 if kind == 1 else 4
            value, at = data[at:at + size], at + size
        yield key >> 3, value


def first(data, number, fallback=None):
    return next((v for n, v in fields(data) if n == number), fallback)


def every(data, number):
    return [v for n, v in fields(data) if n == number]


def put_varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def put(number, value):
    """One length-delimited field."""
    return put_varint(number << 3 | 2) + put_varint(len(value)) + value


def packed(data, number):
    """A repeated integer field, packed or not."""
    values = []
    for n, value in fields(data):
        if n != number:
            continue
        if isinstance(value, int):
            values.append(signed(value))
            continue
        at = 0
        while at < len(value):
            one, at = varint(value, at)
            values.append(signed(one))
    return values


class Tensor:
    """Element type (ONNX's code), shape, and flat values in an array; 16-bit
    floats as their bits."""

    def __init__(self, code, shape, data):
        self.code, self.shape, self.data = code, list(shape), data

    def numbers(self):
        """The values as Python numbers."""
        if self.code == 10:
            return [v[0] for v in struct.iter_unpack("<e", self.data.tobytes())]
        if self.code == 16:
            wide = b"".join(b"\0\0" + struct.pack("<H", v) for v in self.data)
            return [v[0] for v in struct.iter_unpack("<f", wide)]
        return self.data


def read_tensor(data):
    """A TensorProto; data is None for types that have no array."""
    shape, code = packed(data, 1), first(data, 2, 0)
    element = TYPES.get(code, (None, None, None))[1]
    if element is None:
        return Tensor(code, shape, None)
    values = array.array(element)
    raw = first(data, 9)
    if raw is not None:
        values.frombytes(raw)
    elif code in (1, 11):
        for value in every(data, 4 if code == 1 else 10):
            values.frombytes(value)
    else:
        number = 7 if code == 7 else 11 if code in (12, 13) else 5
        bits = 8 * values.itemsize
        top = 0 if element.isupper() else 1 << (bits - 1)
        values.extend(((v + top) & ((1 << bits) - 1)) - top
                      for v in packed(data, number))
    if len(values) != math.prod(shape):
        return Tensor(code, shape, None)
    return Tensor(code, shape, values)


def with_name(data, name):
    """The same TensorProto under another name (the last one counts)."""
    return data + put(8, name.encode())


class Node:
    def __init__(self, data):
        self.inputs = [v.decode() for v in every(data, 1)]
        self.outputs = [v.decode() for v in every(data, 2)]
        self.op_type = first(data, 4, b"").decode()
        self.domain = first(data, 7, b"").decode()


class Info:
    """An input or output: kind is "tensor", "sequence", "map", "optional" or
    "sparse tensor"; shape is None if the file has none, -1 where open."""

    KINDS = {1: "tensor", 4: "sequence", 5: "map", 8: "sparse tensor",
             9: "optional"}

    def __init__(self, data):
        self.name = first(data, 1, b"").decode()
        self.kind, self.code, self.shape = "untyped", 0, None
        for number, value in fields(first(data, 2, b"")):
            self.kind = self.KINDS.get(number, self.kind)
            if number == 1:
                self.code = first(value, 1, 0)
                shape = first(value, 2)
                if shape is not None:
                    self.shape = [signed(first(dim, 1, (1 << 64) - 1))
                                  for dim in every(shape, 1)]


class Model:
    def __init__(self, data):
        self.data = data
        graph = first(data, 7, b"")
        self.nodes = [Node(v) for v in every(graph, 1)]
        self.inputs = [Info(v) for v in every(graph, 11)]
        self.outputs = [Info(v) for v in every(graph, 12)]
        self.made = {read_name(v) for v in every(graph, 5)}

    def feeds(self):
        """Inputs that no initializer gives."""
        return [info for info in self.inputs if info.name not in self.made]

    def with_initializers(self, tensors):
        """The model's bytes with more initializers (TensorProto bytes)."""
        out = b""
        for number, value in fields(self.data):
            if number == 7:
                value += b"".join(put(5, tensor) for tensor in tensors)
            if isinstance(value, int):
                out += put_varint(number << 3) + put_varint(value)
            else:
                out += put(number, value)
        return out


def read_name(tensor):
    return first(tensor, 8, b"").decode()
