"""What a run leaves: losses, and the trained state in the module's names."""
import json
import os

from . import _tools
from ._checkpoint import Checkpoint
from ._errors import RunError

# Entries of a log line that are no output of the model.
COUNTERS = ("step", "lr", "grad_norm", "replica_norm", "loss_scale", "skipped",
            "graph", "seconds", "tokens_per_second", "memory_bytes")


class Result:
    """`losses`, one a step; `log`, all that was noted of each step;
    `checkpoint`, the folder to go on from (load=); `outputs` of inference."""

    def __init__(self, program, log=(), checkpoint=None, outputs=None,
                 text="", keep=None):
        self.program = program
        self.log = list(log)
        self.checkpoint = checkpoint
        self.outputs = outputs or {}
        self.text = text
        self._keep = keep  # a temporary folder that ends with this object

    @property
    def losses(self):
        return [next(v for k, v in entry.items() if k not in COUNTERS)
                for entry in self.log]

    @property
    def steps(self):
        """Steps that the weights have seen, those of earlier runs too."""
        return self._open().step

    def _open(self):
        if not self.checkpoint:
            raise RunError("this run kept no state: run with save=FOLDER, or "
                           "leave save=None")
        return Checkpoint(self.checkpoint)

    def state_dict(self):
        """For model.load_state_dict: tensors (numpy arrays without torch)
        under the names of the module, of tied parameters all of them, in the
        module's types and on its device. A program that was opened without its
        module has what was trained only, in float32."""
        return state_dict(self.program, self._open())

    def optimizer_state_dict(self, optimizer):
        """For optimizer.load_state_dict: the moments of the run for a torch
        optimizer of the same kind over the module's parameters."""
        return optimizer_state(self.program, self._open(), optimizer)

    def parameters(self):
        """The trained tensors as numpy arrays, by their names in the plan."""
        opened = self._open()
        return {n: opened.read(n) for n in opened.names("parameter")}

    def export_onnx(self, path, external_data=False):
        """The model with the trained weights. Returns the path."""
        self._open()
        arguments = ["export-onnx", self.program.folder,
                     f"--load={self.checkpoint}", "-o", os.fspath(path)]
        if self.program.model_path:
            arguments.append(f"--model={self.program.model_path}")
        if external_data:
            arguments.append("--external-data")
        _tools.call("merak-plan", *arguments, error=RunError)
        return path

    def __repr__(self):
        if not self.log:
            return "<merakc.Result>"
        losses = self.losses
        return (f"<merakc.Result: {len(losses)} steps, loss {losses[0]:.6g} "
                f"to {losses[-1]:.6g}>")

    def _repr_html_(self):
        """The losses as a line, for notebooks."""
        import html
        import math
        points = [v for v in self.losses if math.isfinite(v)]
        if len(points) < 2:
            return f"<code>{html.escape(repr(self))}</code>"
        low, high = min(points), max(points)
        scale = 120 / ((high - low) or 1)
        line = " ".join(f"{600 * k / (len(points) - 1):.1f},"
                        f"{130 - (v - low) * scale:.1f}"
                        for k, v in enumerate(points))
        return (f"<div><code>{html.escape(repr(self))}</code><br><svg "
                'width="620" height="140" role="img" aria-label="losses">'
                '<polyline fill="none" stroke="#3567b0" stroke-width="1.5" '
                f'points="{line}"/></svg></div>')


def read_log(path, begin=0):
    """The complete lines of a log from a position on, and where they end."""
    try:
        with open(path, "rb") as file:
            file.seek(begin)
            text = file.read()
    except OSError:
        return [], begin
    end = text.rfind(b"\n") + 1
    return [json.loads(line) for line in text[:end].splitlines()], begin + end


def state_dict(program, opened):
    trained = {}
    for name in opened.names("parameter", "statistic", "frozen"):
        for alias in program.names.get(name, [name]):
            trained[alias] = name
    if program.model is not None:
        return _of_module(program, opened, trained)
    arrays, found = {}, {}
    for alias, name in trained.items():
        if name not in arrays:
            arrays[name] = _tensor(opened.read(name))
        found[alias] = arrays[name]
    return found


def _tensor(array):
    try:
        import torch
    except ImportError:
        return array
    return torch.from_numpy(array)


def _of_module(program, opened, trained):
    import torch
    found, tied = {}, {}
    for key, value in program.model.state_dict().items():
        name = trained.get(key)
        if name is not None:
            same = (name, value.dtype, value.device)
            if same not in tied:
                array = torch.from_numpy(opened.read(name))
                if array.shape != value.shape:
                    raise RunError(
                        f"'{key}': the module has {list(value.shape)}, the "
                        f"checkpoint {list(array.shape)}")
                tied[same] = array.to(value.device, value.dtype)
            found[key] = tied[same]
        elif key in program.counters:
            before, each = program.counters[key]
            count = before + each * opened.step * program.plan.microbatches
            found[key] = torch.full_like(value, count)
        else:
            found[key] = value.detach().clone() \
                if isinstance(value, torch.Tensor) else value
    absent = [n for n in opened.names("parameter")
              if not set(program.names.get(n, [n])) & set(found)]
    if absent:
        raise RunError([f"the module has no parameter '{n}'" for n in absent])
    return found


# Suffix in the plan -> name in torch.
MOMENTS = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq",
           "momentum": "momentum_buffer", "sum": "sum"}


def optimizer_state(program, opened, optimizer):
    import torch
    if program.model is None:
        raise RunError("the optimizer's state needs the module: "
                       "merakc.open(plan, model=module)")
    by_alias = {alias: name for name, aliases in program.names.items()
                for alias in aliases}
    plan_name = {id(value): by_alias.get(alias, alias) for alias, value in
                 program.model.named_parameters(remove_duplicate=False)}
    found = optimizer.state_dict()
    index = 0
    for group in optimizer.param_groups:
        for value in group["params"]:
            name = plan_name.get(id(value))
            entry = {}
            for suffix, key in MOMENTS.items():
                if f"{name}.{suffix}" in opened:
                    array = torch.from_numpy(opened.read(f"{name}.{suffix}"))
                    entry[key] = array.to(value.device, value.dtype)
            if entry and "momentum_buffer" not in entry:
                entry["step"] = torch.tensor(float(opened.step))
            if entry:
                found["state"][index] = entry
            index += 1
    return found
