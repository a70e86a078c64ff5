"""ONNX messages written field by field; Python's standard library only."""
import array
import struct

import wire


def text(number, value):
    return wire.put(number, value.encode())


def integer(number, value):
    return wire.put_varint(number << 3) + wire.put_varint(value & (1 << 64) - 1)


def node(op, inputs, outputs, **attributes):
    """A node; attributes are numbers, lists of whole numbers, or texts."""
    data = b"".join(text(1, name) for name in inputs)
    data += b"".join(text(2, name) for name in outputs)
    data += text(4, op) + text(3, "gradient_" + outputs[0])
    for name, value in attributes.items():
        attribute = text(1, name)
        if isinstance(value, list):
            attribute += b"".join(integer(8, v) for v in value)
            attribute += integer(20, 7)
        elif isinstance(value, str):
            attribute += text(4, value) + integer(20, 3)
        elif isinstance(value, float):
            attribute += wire.put_varint(2 << 3 | 5) + struct.pack("<f", value)
            attribute += integer(20, 1)
        else:
            attribute += integer(3, value) + integer(20, 2)
        data += wire.put(5, attribute)
    return wire.put(1, data)


def tensor(name, code, shape, values):
    data = b"".join(integer(1, dim) for dim in shape) + integer(2, code)
    kind = {1: "f", 6: "i", 7: "q", 11: "d"}[code]
    data += wire.put(9, array.array(kind, values).tobytes())
    return data + text(8, name)


def info(number, name, code, shape):
    dims = b"".join(wire.put(1, integer(1, dim)) for dim in shape)
    kind = wire.put(1, integer(1, code) + wire.put(2, dims))
    return wire.put(number, text(1, name) + wire.put(2, kind))


def model(graph, opset, inputs, outputs):
    """A model of nodes and initializers; (name, code, shape) of the others."""
    graph += text(2, "own")
    graph += b"".join(info(11, *one) for one in inputs)
    graph += b"".join(info(12, *one) for one in outputs)
    return integer(1, 8) + wire.put(7, graph) + wire.put(8, integer(2, opset))
