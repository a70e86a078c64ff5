"""compile and open: what a Program is made of."""
import io
import json
import os
import sys
import tempfile

from . import _metadata
from ._plan import Manifest
from ._program import MODEL, NOTES, Program
from ._progress import Progress


def compile(model, inputs=None, *, loss=None, optimizer=None, cluster=None,
            global_batch=None, mode="train", freeze=(), constant_buffers=(),
            unbatched=(), opset=None, progress=True, **options):
    """Compiles a training step into a plan.

    model: a torch module, the path of an ONNX file, or a ModelProto.
    inputs: of a module: example tensors of one batch, a tuple (given by
        position) or a dict (given by name). Their first axis counts samples.
    loss: of a module: function(model, *inputs) or, with a dict,
        function(model, **inputs) that returns one number; None if the model
        returns its loss, as a number or as a field `loss`. Of an ONNX file:
        the name of the output that is the loss; None if there is just one.
    optimizer, cluster, global_batch and all other options are those of
        `merakc --help`, with _ for -: mesh="pp=2,dp=2,tp=2" or a dict,
        microbatch=4, schedule="1f1b", precision="bf16", devices=8 ...
    global_batch: samples a step; default: what `inputs` have.
    mode: "infer" compiles what the model returns, without a loss.
    freeze: names or globs of parameters that are not trained (of a module, its
        own names; requires_grad=False says the same).
    constant_buffers: names or globs of buffers that the module updates in each
        step and that may stay as they are.
    unbatched: names of inputs that are the same for all samples.
    progress: True, False, or a function that gets lines.

    Returns a Program. Raises CompileError with all problems at once."""
    freeze = [freeze] if isinstance(freeze, str) else list(freeze)
    if isinstance(constant_buffers, str):
        constant_buffers = [constant_buffers]
    given = dict(options, optimizer=optimizer, cluster=cluster,
                 global_batch=global_batch)
    if mode != "train":
        given["mode"] = mode
    shown = Progress(progress)
    folder = tempfile.TemporaryDirectory(prefix="merakc-")
    try:
        program = Program(folder.name, keep=folder, progress=progress)
        if _is_module(model):
            _export(program, model, inputs, loss, given, shown,
                    dict(train=mode == "train", freeze=freeze,
                         constant_buffers=constant_buffers,
                         unbatched=unbatched, opset=opset))
        else:
            _take_onnx(program, model, inputs, loss, given, freeze)
        program.options = {k: v for k, v in given.items() if v is not None}
        program._compile(shown)
    except BaseException:
        folder.cleanup()
        raise
    return program


def open(path, model=None):
    """A plan that was compiled or saved before. `model`: the module that it
    came from, for Result.state_dict in its types and with its buffers."""
    path = os.path.abspath(os.fspath(path))
    program = Program(path, plan=path)
    program.plan = Manifest(path)
    notes = {}
    try:
        with io.open(os.path.join(path, NOTES), encoding="utf-8") as file:
            notes = json.load(file)
    except OSError:
        pass
    program.model = model
    program.names = notes.get("names", {})
    program.counters = notes.get("counters", {})
    program.options = notes.get("options")
    program.warnings = notes.get("warnings", [])
    own = os.path.join(path, MODEL)
    program.model_path = own if os.path.exists(own) else os.path.join(
        program.plan.model_folder, os.path.basename(program.plan.model))
    entries, program.inputs = _metadata.try_read(program.model_path)
    if not program.names:
        program.names = _metadata.names_of(entries)
    return program


def _is_module(model):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def _export(program, model, inputs, loss, given, shown, how):
    from . import _export as exporter
    if inputs is None:
        raise TypeError("compile() of a module needs example inputs")
    if loss is not None and not callable(loss):
        raise TypeError("compile() of a module: loss is a function "
                        "(model, *inputs)")
    path = os.path.join(program.folder_of_model, MODEL)
    with shown.phase("exporting " + type(model).__name__):
        exported = exporter.export(
            model, inputs, path, loss=loss,
            global_batch=given["global_batch"], **how)
    given["global_batch"] = exported.batch
    given["shape"] = exported.shapes or None
    # Whatever is shared is shared in the module: nothing was merged.
    given["keep_shared"] = True
    program.model, program.model_path = model, path
    program.names, program.counters = exported.names, exported.counters
    program.inputs = exported.inputs
    program.owns_model = True


def _take_onnx(program, model, inputs, loss, given, freeze):
    if inputs is not None:
        raise TypeError("compile() of an ONNX model has its inputs from the "
                        "model; shape={...} binds open dimensions")
    if callable(loss):
        raise TypeError("compile() of an ONNX model: loss is the name of an "
                        "output")
    given["loss"] = loss
    if freeze:
        given["freeze"] = ",".join(freeze)
    if isinstance(model, (str, os.PathLike)):
        program.model_path = os.path.abspath(os.fspath(model))
    else:
        path = os.path.join(program.folder_of_model, MODEL)
        if hasattr(model, "SerializeToString"):
            with io.open(path, "wb") as file:
                file.write(model.SerializeToString())
        elif hasattr(model, "save"):  # torch.onnx.ONNXProgram
            model.save(path)
        else:
            raise TypeError("compile() takes a torch module, the path of an "
                            "ONNX file or a ModelProto, not " +
                            type(model).__name__)
        program.model_path, program.owns_model = path, True
    entries, program.inputs = _metadata.try_read(program.model_path)
    program.names = _metadata.names_of(entries)
