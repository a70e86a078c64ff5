"""Compiles a model into one executable training plan per rank, and runs it.

    program = merakc.compile(model, (x, y), loss=lambda model, x, y:
                             torch.nn.functional.cross_entropy(model(x), y),
                             optimizer="adamw:lr=1e-3", global_batch=512)
    result = program.run({"x": xs, "y": ys}, steps=100, ranks=4)
    model.load_state_dict(result.state_dict())

docs/FromPyTorch.md of the repository tells more."""
from ._compile import compile, open
from ._errors import (CompileError, MerakcError, ModelWarning, RunError,
                      RunInterrupted)
from ._program import Program
from ._report import Prediction, Report
from ._result import Result

__version__ = "0.1.0"
__all__ = ["CompileError", "MerakcError", "ModelWarning", "Prediction",
           "Program", "Report", "Result", "RunError", "RunInterrupted",
           "compile", "open"]
