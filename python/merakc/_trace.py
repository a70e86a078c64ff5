"""What tracing a module with torch.export would lose without a word: looked for
in the module before, seen while its code runs, or kept in the traced graph."""
import contextlib
import fnmatch
import operator

import torch


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


class Watch(torch.overrides.TorchFunctionMode):
    """Sees each operation while the module is traced: what it does that the
    traced graph will not show."""

    def __init__(self):
        super().__init__()
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
        function = torch.autograd.Function
        original = function.__dict__["apply"]
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
                self.problems["torch.inference_mode() in the model is lost by "
                              "the exporter; write torch.no_grad()"] = True
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
