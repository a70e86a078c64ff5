"""What can go wrong, as exceptions. Each holds the tools' own sentences."""


class MerakcError(Exception):
    """`problems`: one sentence each, as the tools said them; `command`: what
    was run, to repeat it by hand; `internal`: a bug of merakc."""

    def __init__(self, problems, command=(), internal=False):
        if isinstance(problems, str):
            problems = [problems]
        self.problems = list(problems)
        self.command = list(command)
        self.internal = internal
        super().__init__("\n".join(self.problems))

    def _repr_pretty_(self, printer, cycle):
        printer.text(f"{type(self).__name__}: {self}")


class CompileError(MerakcError):
    """The model cannot be compiled."""


class RunError(MerakcError):
    """A plan cannot be run, read or shown."""


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C during a run. `result` is what was trained until then, or None
    if no step had been finished."""

    def __init__(self, result=None):
        super().__init__()
        self.result = result


class ModelWarning(UserWarning):
    """Something that merakc noticed about the model."""
