"""What a run reads: arrays become one .npy for each input of the plan."""
import os

from ._errors import RunError


def _array(value):
    """numpy's form of what the user gave: an array, a torch tensor, a list."""
    import numpy
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
        return value.numpy()
    return numpy.asarray(value)


def _fitted(array, wanted):
    """Numbers of the same kind in the type of the input; other kinds stay, so
    that the runtime says what is wrong."""
    import numpy
    if wanted == "bfloat16" or array.dtype == wanted:
        return array
    kinds = {"float": "f", "int": "iu", "uint": "iu"}
    kind = kinds.get(wanted.rstrip("0123456789"))
    if kind is None or array.dtype.kind not in kind:
        return array
    fitted = array.astype(wanted)
    if kind == "iu" and not numpy.array_equal(fitted, array):
        raise RunError(f"data: numbers beyond the range of {wanted}")
    return fitted


def write(data, order, inputs, folder):
    """`data`: {name: array}, or arrays in `order`, that of the model's inputs;
    those that the plan reads are written."""
    import numpy
    read = {x.name for x in inputs}
    names = [n for n in order if n in read] if set(order) >= read else \
        [x.name for x in inputs]
    known = list(order) if set(order) >= read else names
    if not isinstance(data, dict):
        if not isinstance(data, (list, tuple)):
            data = (data,)
        if len(data) != len(known):
            raise RunError(f"data: expected {len(known)} arrays "
                           f"({', '.join(known)}), found {len(data)}")
        data = dict(zip(known, data))
    missing = [n for n in names if n not in data]
    unknown = [n for n in data if n not in known]
    if missing or unknown:
        said = [f"data has no '{n}'" for n in missing]
        said += [f"the program has no input '{n}'" for n in unknown]
        raise RunError([f"{s}; the inputs are {', '.join(known)}"
                        for s in said])
    for entry in inputs:
        array = _fitted(_array(data[entry.name]), entry.dtype)
        path = os.path.join(folder, entry.name.replace("/", "_") + ".npy")
        numpy.save(path, numpy.ascontiguousarray(array)
                   if array.ndim else array)
