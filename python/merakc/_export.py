"""From a torch module to an ONNX file that trains as the module would: the
exporter's flags that keep gradients right, and what ONNX cannot say as
metadata (docs/Metadata.md)."""
import contextlib
import fnmatch
import inspect
import operator
import os
import warnings

import torch

from . import _metadata
from ._errors import CompileError, ModelWarning

OPSET = 18
# Weights go into a file of their own above this; a protobuf message ends at
# 2 GiB.
INSIDE_BYTES = 1 << 30
# Long, and nothing reads them; stack traces name files of this machine.
DROPPED = ("pkg.torch.onnx.stack_trace", "namespace",
           "pkg.torch.onnx.class_hierarchy")
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
    if isinstance(inputs, torch.Tensor) or not isinstance(inputs, (list, tuple)):
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


# --------------------------------------------------------- what cannot be said


def module_problems(model, constant_buffers):
    """What export would lose without a word."""
    problems = []
    for name, part in model.named_modules():
        shown = name or type(model).__name__
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and \
                part.training and part.track_running_stats and \
                part.momentum is None:
            problems.append(
                f"{shown}: a batch norm with momentum=None averages over all "
                "steps, which ONNX cannot say; give it a momentum")
        if isinstance(part, torch.nn.modules.instancenorm._InstanceNorm) and \
                part.training and part.track_running_stats and not any(
                    fnmatch.fnmatchcase(f"{name}.running_mean".lstrip("."), p)
                    for p in constant_buffers):
            problems.append(
                f"{shown}: the running statistics of an instance norm are not "
                "updated by an exported model; leave out track_running_stats, "
                f"or name '{name}.*' in constant_buffers=[...] if they may "
                "stay as they are")
        if getattr(part, "_backward_hooks", None) or \
                getattr(part, "_backward_pre_hooks", None):
            problems.append(f"{shown}: has backward hooks, which are not part "
                            "of the exported model; remove them")
    owners, storages = {}, {}
    for name, value in model.named_parameters(remove_duplicate=False):
        if getattr(value, "_backward_hooks", None):
            problems.append(f"{name}: has gradient hooks, which are not part "
                            "of the exported model; remove them")
        if value.numel() == 0 or value.device.type == "meta":
            continue
        where = (value.device, value.untyped_storage().data_ptr())
        other = storages.setdefault(where, value)
        if other is not value and _overlap(other, value):
            problems.append(
                f"{name} and {owners[id(other)]}: two parameters in the same "
                "memory; assign one Parameter to both places to tie them")
        owners.setdefault(id(value), name)
    return problems


def _overlap(a, b):
    """Whether two dense tensors of one storage have memory in common."""
    def span(x):
        begin = x.storage_offset()
        return begin, begin + 1 + sum(
            (n - 1) * s for n, s in zip(x.shape, x.stride()))
    (a0, a1), (b0, b1) = span(a), span(b)
    return a0 < b1 and b0 < a1


class _Watch(torch.overrides.TorchFunctionMode):
    """Sees each operation while the module is traced: what it does that the
    traced graph will not show."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.problems = {}  # ordered, each once
        self.hints = {}     # only if tracing fails

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name == "detach_":
            self.problems["detach_() is lost by the exporter; write "
                          "x = x.detach()"] = True
        elif name == "register_hook":
            self.problems["register_hook() in forward is lost by the exporter; "
                          "hooks of gradients cannot be exported"] = True
        elif func == torch.Tensor.data.__get__:
            self.hints["x.data cannot be traced; write x.detach()"] = True
        for value in args:
            for x in value if isinstance(value, (list, tuple)) else (value,):
                if type(x) is torch.nn.Parameter and x.requires_grad:
                    self.foreign(x)
        return func(*args, **(kwargs or {}))

    def foreign(self, value):
        self.problems[
            f"a parameter of shape {list(value.shape)} that is not the "
            "model's is read by the model or the loss; make it a parameter "
            "of the model (self.x = ...)"] = True

    @contextlib.contextmanager
    def watching(self):
        """And what is no operation: torch.autograd.Functions, whose backward
        is Python, and inference mode."""
        function, original = torch.autograd.Function, \
            torch.autograd.Function.__dict__["apply"]
        mode, enter = torch.inference_mode, torch.inference_mode.__enter__

        def apply(cls, *args, **kwargs):
            self.problems[_FUNCTION.get(cls.__name__) or (
                f"{cls.__module__}.{cls.__qualname__} is a "
                "torch.autograd.Function: its backward is Python that ONNX "
                "cannot carry; write it in torch operations whose gradients "
                "are right (a straight-through estimator: "
                "x + (f(x) - x).detach())")] = True
            return original.__get__(None, cls)(*args, **kwargs)

        def enter_inference(this):
            if this.mode:
                self.problems["torch.inference_mode() in the model is lost by the "
                              "exporter; write torch.no_grad()"] = True
            return enter(this)

        function.apply = classmethod(apply)
        mode.__enter__ = enter_inference
        try:
            with self:
                yield
        finally:
            function.apply = original
            mode.__enter__ = enter


_FUNCTION = {"CheckpointFunction": "torch.utils.checkpoint with "
             "use_reentrant=True cannot be exported; use_reentrant=False can"}


def keep_no_grad(graph_module, problems):
    """Regions of torch.no_grad() are inlined when the program is decomposed;
    a detach on each of their results says the same."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or \
                "wrap_with_set_grad_enabled" not in str(node.target):
            continue
        enabled, region = node.args[0], node.args[1]
        inside = getattr(graph_module, region.target)
        if enabled:
            keep_no_grad(inside, problems)
            continue
        if any("wrap_with_set_grad_enabled" in str(n.target) and n.args[0]
               for n in inside.graph.nodes if n.op == "call_function"):
            problems.append(
                "torch.enable_grad() inside of torch.no_grad(): the gradient "
                "that it lets through cannot be told; compute that part "
                "outside of torch.no_grad()")
        for result in list(node.users):
            if result.target is operator.getitem:
                _stop(graph, result)
    graph_module.recompile()


def _stop(graph, value):
    if not isinstance(value.meta.get("val"), torch.Tensor) or \
            not value.meta["val"].is_floating_point():
        return
    with graph.inserting_after(value):
        stop = graph.call_function(torch.ops.aten.detach.default, (value,))
    stop.meta = dict(value.meta)
    value.replace_all_uses_with(stop, lambda user: user is not stop)


# ------------------------------------------------------------------ annotation


def _argument(node, position, name, otherwise=None):
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, otherwise)


def _packet(node):
    target = node.target
    packet = getattr(target, "overloadpacket", target)
    return str(packet).replace("aten.", "")


NORMS = ("_native_batch_norm_legit_functional", "_native_batch_norm_legit",
         "native_batch_norm")


class _Notes:
    """Reads what the graph of the exported program says of each node, and
    writes what ONNX has no place for."""

    def __init__(self):
        self.problems = []
        self.statistics = set()  # placeholders of running statistics

    def annotate(self, node, fx):
        kind = _packet(fx)
        rule = getattr(self, "on_" + kind, None)
        if kind in NORMS:
            self.on_batch_norm(node, fx)
        elif rule:
            rule(node, fx)

    def on_cross_entropy_loss(self, node, fx):
        if node.op_type != "SoftmaxCrossEntropyLoss":
            return
        target = fx.args[1].meta["val"]
        if target.is_floating_point():
            self.problems.append(
                "cross_entropy with class probabilities has no operator in "
                "ONNX; write -(target * log_softmax(x, 1)).sum(1).mean()")
        smoothing = float(_argument(fx, 5, "label_smoothing", 0.0) or 0.0)
        if smoothing:
            node.metadata_props[_metadata.LABEL_SMOOTHING] = repr(smoothing)

    def on_embedding(self, node, fx):
        if node.op_type != "Gather":
            return
        padding = _argument(fx, 2, "padding_idx", -1)
        if padding is not None and int(padding) >= 0:
            node.metadata_props[_metadata.PADDING_IDX] = str(int(padding))
        if _argument(fx, 3, "scale_grad_by_freq", False):
            self.problems.append(
                f"embedding of {fx.args[0]}: scale_grad_by_freq=True cannot "
                "be exported; leave it out")

    def on_detach(self, node, fx):
        node.metadata_props[_metadata.STOP_GRADIENT] = "1"

    on_detach_ = on_detach_copy = on_detach

    def on_native_dropout(self, node, fx):
        if node.op_type == "Dropout":
            train = _argument(fx, 2, "train", True)
            node.metadata_props[_metadata.TRAINING_MODE] = \
                "0" if train is False else "1"

    def on_dropout(self, node, fx):
        if node.op_type == "Dropout":
            node.metadata_props[_metadata.TRAINING_MODE] = \
                "1" if fx.args[2] else "0"

    def on_scaled_dot_product_attention(self, node, fx):
        # Its dropout is always on, and is written without a mode.
        if node.op_type == "Dropout":
            node.metadata_props[_metadata.TRAINING_MODE] = "1"

    def on_lstm(self, node, fx):
        if node.op_type == "Dropout":
            node.metadata_props[_metadata.TRAINING_MODE] = \
                "1" if _argument(fx, 6, "train") else "0"

    on_gru = on_rnn_tanh = on_rnn_relu = on_lstm

    def on_batch_norm(self, node, fx):
        if node.op_type != "BatchNormalization" or len(fx.args) < 8:
            return
        mean, variance, training = fx.args[3], fx.args[4], fx.args[5]
        if mean is None:  # statistics of the batch, computed by nodes
            return
        node.metadata_props[_metadata.TRAINING_MODE] = "1" if training else "0"
        if training:
            self.statistics |= {mean.name, variance.name}


def _all_nodes(model):
    import onnx_ir
    yield from onnx_ir.traversal.RecursiveGraphIterator(model.graph)
    for function in model.functions.values():
        yield from onnx_ir.traversal.RecursiveGraphIterator(function)


def annotate(onnx_program):
    notes = _Notes()
    for node in _all_nodes(onnx_program.model):
        fx = node.meta.get("node")
        if fx is not None and fx.op == "call_function":
            notes.annotate(node, fx)
        for key in DROPPED:
            node.metadata_props.pop(key, None)
    return notes


def _increment(node, place):
    """What is added to a counter that nothing else reads; or None."""
    total = 0
    while node is not place:
        if node.op != "call_function" or _packet(node) != "add" or \
                len(node.args) != 2 or not isinstance(node.args[1], int) or \
                any(user.op != "output" and _packet(user) != "add"
                    for user in node.users):
            return None
        total += node.args[1]
        node = node.args[0]
    return total


def mutated_buffers(program, notes, kept):
    """Counters {buffer: increment}; what else the model would update in each
    step is a problem, unless it is a running statistic or may stay as it
    is."""
    signature = program.graph_signature
    nodes = {node.name: node for node in program.graph.nodes}
    placeholder = {v: k for k, v in signature.inputs_to_buffers.items()}
    counters, problems = {}, []
    for output, buffer in signature.buffers_to_mutate.items():
        source = placeholder.get(buffer)
        if source in notes.statistics:
            continue
        count = _increment(nodes[output], nodes.get(source))
        if count is not None:
            counters[buffer] = count
            continue
        shown = buffer.removeprefix("model.")
        if not any(fnmatch.fnmatchcase(shown, p) for p in kept):
            problems.append(
                f"buffer {shown} is updated by the model in each step, which "
                "an exported model does not do; put the part that owns it into "
                "eval mode, or name it in constant_buffers=[...] if it may "
                "stay as it is")
    for kind in ("parameters_to_mutate",):
        for name in (getattr(signature, kind, None) or {}).values():
            problems.append(f"parameter {name.removeprefix('model.')} is "
                            "changed in place by the model (max_norm of an "
                            "embedding?), which an exported model does not do")
    return counters, problems


# ---------------------------------------------------------------------- export


def aliases(model):
    """{id of the parameter or buffer: its names}: of tied ones all."""
    found = {}
    for pairs in (model.named_parameters(remove_duplicate=False),
                  model.named_buffers(remove_duplicate=False)):
        for name, value in pairs:
            found.setdefault(id(value), []).append(name)
    return found


def _capture(step, tensors, watch):
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
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
    return [f"torch.export refused the model: {type(cause).__name__}: "
            f"{lines[0] if lines else 'without a word'}"]


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
    watch = _Watch(model) if train else None
    try:
        program = _capture(step, tensors, watch)
        problems += watch.problems if watch else []
        keep_no_grad(program.graph_module, problems)
        outputs = len(program.graph_signature.user_outputs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
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
