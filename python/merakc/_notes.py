"""What an exported program knows of its nodes and ONNX cannot say: read from
the arguments of each node, written as metadata (docs/Metadata.md) at the ONNX
nodes that the exporter made of it."""
import fnmatch

from . import _metadata

# Long, and nothing reads them; stack traces name files of this machine.
DROPPED = ("pkg.torch.onnx.stack_trace", "namespace",
           "pkg.torch.onnx.class_hierarchy")


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
