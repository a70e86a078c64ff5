"""From a torch module to an ONNX file that trains as the module would: the
exporter's flags that keep gradients right, and what ONNX cannot say as
metadata (docs/Metadata.md)."""
import contextlib
import fnmatch
import inspect
import io
import logging
import warnings

import torch

from . import _metadata
from ._errors import CompileError, ModelWarning
from ._notes import annotate, mutated_buffers
from ._trace import Watch, keep_no_grad, module_problems

OPSET = 18
# Weights go into a file of their own above this; a protobuf message ends at
# 2 GiB.
INSIDE_BYTES = 1 << 30
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"


class Exported:
    """What the file says in the module's terms."""

    def __init__(self, names, trainable, counters):
        self.names = names          # {initializer: [names in the module]}
        self.trainable = trainable  # initializers
        self.counters = counters    # {buffer: (value now, per microbatch)}
        self.inputs = []            # their names
        self.batch = None           # samples of the exported step
        self.shapes = {}            # {input that all samples share: its shape}


# -------------------------------------------------------------------- inputs


def named_inputs(model, inputs, loss):
    """[(name, value)]: of a dict its keys; of a tuple the parameters' names
    of the function that gets them."""
    if isinstance(inputs, dict):
        return list(inputs.items())
    if not isinstance(inputs, (list, tuple)):
        inputs = (inputs,)
    function = loss if loss is not None else model.forward
    skip = 1 if loss is not None else 0
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = [p.name for p in parameters[skip:] if p.kind in
             (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [plain[k] if k < len(plain) else f"input_{k}"
             for k in range(len(inputs))]
    return list(zip(names, inputs))


def at_batch(named, global_batch, unbatched):
    """Example tensors of the global batch: shapes are all that counts. The
    batch is the first axis of the first input; inputs that do not have it are
    the same for all samples."""
    tensors = [(n, x) for n, x in named if isinstance(x, torch.Tensor)]
    batched = [x for n, x in tensors if x.dim() > 0 and n not in unbatched]
    if not batched:
        raise CompileError("inputs: expected at least one tensor whose first "
                           "axis counts samples")
    batch = batched[0].shape[0]
    global_batch = global_batch or batch
    result, shared = [], {}
    for name, value in named:
        if isinstance(value, torch.Tensor) and name not in unbatched and \
                value.dim() > 0 and value.shape[0] == batch and \
                batch != global_batch:
            value = value.detach()
            value = value.new_zeros((global_batch, *value.shape[1:]))
        elif isinstance(value, torch.Tensor) and value.dim() > 0 and (
                name in unbatched or value.shape[0] != batch):
            shared[name] = list(value.shape)
            if value.shape[0] == global_batch:
                raise CompileError(
                    f"input {name}: all samples share it, but its first axis "
                    f"has {global_batch} like the batch; give it another axis "
                    "of one in front")
        result.append((name, value))
    return result, global_batch, shared


class _Step(torch.nn.Module):
    """What is exported: the loss of one global batch."""

    def __init__(self, model, loss, named, keywords):
        super().__init__()
        self.model = model
        self.__dict__["step"] = (loss, [n for n, _ in named], keywords,
                                 {n: v for n, v in named
                                  if not isinstance(v, torch.Tensor)})

    def forward(self, *tensors):
        loss, names, keywords, constants = self.__dict__["step"]
        given = iter(tensors)
        values = [constants[n] if n in constants else next(given)
                  for n in names]
        watch = self.__dict__.get("watch")
        with watch.watching() if watch else contextlib.nullcontext():
            return self.call(loss, names, values, keywords)

    def call(self, loss, names, values, keywords):
        function = self.model if loss is None else loss
        first = () if loss is None else (self.model,)
        if keywords:
            return function(*first, **dict(zip(names, values)))
        return function(*first, *values)


class _Loss(_Step):
    def forward(self, *tensors):
        value = super().forward(*tensors)
        if not isinstance(value, torch.Tensor):
            if isinstance(value, dict):
                value = value.get("loss")
            else:
                value = getattr(value, "loss", None)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            raise CompileError(
                "the loss: expected one number, found " +
                (f"a tensor of shape {list(value.shape)}"
                 if isinstance(value, torch.Tensor) else "none") +
                "; give loss=lambda model, *inputs: ..., or a model that "
                "returns its loss (or an output with a field 'loss')")
        if value.dtype in (torch.bfloat16, torch.float16):
            value = value.float()
        return value.reshape(()) if value.dim() else value


# ---------------------------------------------------------------------- export


def aliases(model):
    """{id of the parameter or buffer: its names}: of tied ones all."""
    found = {}
    for pairs in (model.named_parameters(remove_duplicate=False),
                  model.named_buffers(remove_duplicate=False)):
        for name, value in pairs:
            found.setdefault(id(value), []).append(name)
    return found


@contextlib.contextmanager
def _quietly():
    """torch warns, logs and prints much of what is of no use here: whole graphs
    when it refuses one."""
    before = logging.root.manager.disable
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


def _capture(step, tensors, watch):
    with torch.enable_grad(), _quietly():
        # Only while the model's own code runs: the exporter uses the same
        # operations for its purposes.
        step.__dict__["watch"] = watch
        try:
            return torch.export.export(step, tuple(tensors), strict=False)
        finally:
            step.__dict__["watch"] = None


def _sentence(error):
    """The first line of an exporter's error that says something."""
    cause = error
    while isinstance(cause.__cause__, Exception):
        cause = cause.__cause__
    if isinstance(cause, CompileError):
        return cause.problems
    lines = [l.strip() for l in str(cause).splitlines() if l.strip()]
    text = (f"torch.export refused the model: {type(cause).__name__}: "
            f"{lines[0] if lines else 'without a word'}")
    if "data-dependent" in text:
        text += ("; shapes and branches that depend on values cannot be "
                 "compiled: write them with masks, or a fixed number of rounds")
    return [text]


def export(model, inputs, path, *, loss=None, global_batch=None, train=True,
           freeze=(), constant_buffers=(), unbatched=(), opset=None):
    """Writes `path` (and `path`.data for large models)."""
    problems = module_problems(model, constant_buffers) if train else []
    named, global_batch, shared = at_batch(
        named_inputs(model, inputs, loss), global_batch, unbatched)
    step = (_Loss if train else _Step)(model, loss, named,
                                       isinstance(inputs, dict))
    step.training = model.training
    tensors = [x for _, x in named if isinstance(x, torch.Tensor)]
    input_names = [n for n, x in named if isinstance(x, torch.Tensor)]
    modes = {part: part.training for part in model.modules()}
    if problems:
        raise CompileError(problems)
    watch = Watch() if train else None
    try:
        program = _capture(step, tensors, watch)
        problems += watch.problems if watch else []
        keep_no_grad(program.graph_module, problems)
        outputs = len(program.graph_signature.user_outputs)
        with _quietly():
            onnx_program = torch.onnx.export(
                program, (), dynamo=True, optimize=False, verbose=False,
                opset_version=opset or OPSET, input_names=input_names,
                output_names=["loss"] if train else
                [f"output_{k}" if k else "output" for k in range(outputs)])
    except (KeyboardInterrupt, CompileError):
        raise
    except Exception as error:
        said = list(watch.problems) + list(watch.hints) if watch else []
        raise CompileError(said + _sentence(error)) from error
    finally:
        for part, mode in modes.items():
            part.training = mode
    notes = annotate(onnx_program)
    counters, more = mutated_buffers(onnx_program.exported_program, notes,
                                     constant_buffers)
    problems += notes.problems + (more if train else [])
    if problems:
        raise CompileError(problems)
    exported = _finish(model, onnx_program, path, counters, freeze, train)
    exported.inputs = input_names
    exported.batch, exported.shapes = global_batch, shared
    return exported


def _finish(model, onnx_program, path, counters, freeze, train):
    """Names, what is trained, the file."""
    graph = onnx_program.model.graph
    by_id = aliases(model)
    tensors = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    names, trainable, matched, seen = {}, [], set(), {}
    # It names tied parameters as if they were several; ours has them right.
    graph.metadata_props.pop(SIGNATURE, None)
    for initializer in graph.initializers:
        own = initializer.removeprefix("model.")
        value = tensors.get(own, buffers.get(own))
        if value is None:
            continue
        names[initializer] = by_id[id(value)]
        if seen.setdefault(id(value), initializer) != initializer:
            raise CompileError(f"{own}: this version of torch writes a tied "
                               "parameter twice; a newer one does not")
        patterns = [p for p in freeze if any(
            fnmatch.fnmatchcase(n, p) for n in names[initializer])]
        matched.update(patterns)
        if own in tensors and value.requires_grad and not patterns:
            trainable.append(initializer)
    for pattern in freeze:
        if pattern not in matched:
            raise CompileError(f"freeze: no parameter is called '{pattern}'")
    if train and not trainable:
        raise CompileError("nothing to train: no parameter that the loss "
                           "reads has requires_grad=True")
    onnx_program.model.metadata_props.update(_metadata.model_entries(
        trainable if train else None, names))
    size = sum(v.const_value.nbytes for v in graph.initializers.values()
               if v.const_value is not None)
    onnx_program.save(path, external_data=size > INSIDE_BYTES)
    if not model.training and train and any(
            isinstance(m, (torch.nn.modules.dropout._DropoutNd,
                           torch.nn.modules.batchnorm._BatchNorm))
            for m in model.modules()):
        warnings.warn("the model is in eval mode: dropout is off and batch "
                      "norms keep their statistics; model.train() before "
                      "merakc.compile changes that", ModelWarning, stacklevel=4)
    values = {n.removeprefix("model."): (int(buffers[n.removeprefix("model.")]),
                                         k) for n, k in counters.items()}
    return Exported(names, trainable, values)
