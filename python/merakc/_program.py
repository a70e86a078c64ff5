"""A compiled plan: looked at, saved, run."""
import io
import json
import os
import shlex
import shutil
import tempfile
import warnings

from . import _data, _report, _tools
from ._checkpoint import generation
from ._errors import CompileError, ModelWarning, RunError, RunInterrupted
from ._plan import Manifest
from ._progress import Progress
from ._result import Result, read_log

NOTES = "merakc.json"  # in a saved plan: what Python knows beside the plan
MODEL = "model.onnx"
# Where a program runs; a plan for other ranks is compiled without them.
PLACES = ("cluster", "devices", "mesh", "strategy", "target", "microbatch",
          "memory_limit", "schedule", "tp_overlap")


class Program:
    """A compiled plan. `plan`: its manifest (inputs, ranks, mesh, device);
    `folder`: where it lies; `warnings`: what merakc noticed about the model;
    `names`: {parameter in the plan: names in the module}; `inputs`: their
    names in the order of the model."""

    def __init__(self, folder, keep=None, progress=True, plan=None):
        self.folder_of_model = folder
        self.folder = plan or os.path.join(folder, "program.plan")
        self._keep = keep
        self.progress = progress
        self.plan = self.model = self.model_path = None
        self.owns_model = False
        self.names, self.counters, self.options = {}, {}, {}
        self.inputs = []  # names in the order of the model
        self.warnings = []
        self._others = {}

    # ------------------------------------------------------------- compiling

    def _arguments(self):
        options = dict(self.options)
        cluster = options.get("cluster")
        if isinstance(cluster, dict):
            path = os.path.join(os.path.dirname(self.folder), "cluster.json")
            with io.open(path, "w", encoding="utf-8") as file:
                json.dump(cluster, file)
            options["cluster"] = path
        return _tools.option_arguments(options)

    def _compile(self, shown):
        command = [_tools.tool("merakc"), self.model_path, "-o", self.folder,
                   *self._arguments()]
        with shown.phase("compiling"):
            done = _tools.check(_tools.execute(command), CompileError)
        self.plan = Manifest(self.folder)
        self.warnings = [line for line in done.err.splitlines() if line.strip()]
        for line in self.warnings:
            warnings.warn(line, ModelWarning, stacklevel=4)
        shown.say(f"merakc: {self._summary()}")

    def _summary(self):
        mesh = "; ".join(" ".join(f"{k}={v}" for k, v in axes.items())
                         for axes in self.plan.meshes or [self.plan.mesh])
        text = (f"{self.plan.ranks} rank{'s' * (self.plan.ranks > 1)} of "
                f"{self.plan.device}, {mesh}, {self.plan.microbatches} "
                f"microbatches of {self.plan.global_batch} samples in all")
        if self.plan.predicted_seconds:
            text += f", step {self.plan.predicted_seconds * 1e3:.3g} ms"
        return text

    def for_ranks(self, ranks, progress=None):
        """The same step for so many ranks of this machine's processor."""
        if ranks == self.plan.ranks and self.plan.device == "cpu":
            return self
        if ranks not in self._others:
            if self.options is None or not self.model_path:
                raise RunError(f"{self.folder}: a plan for {self.plan.ranks} "
                               f"ranks of {self.plan.device}; how it was "
                               "compiled is not noted there, so that it "
                               "cannot be compiled for others")
            keep = tempfile.TemporaryDirectory(prefix="merakc-")
            other = Program(keep.name, keep, self.progress)
            other.model, other.model_path = self.model, self.model_path
            other.names, other.counters = self.names, self.counters
            other.inputs = self.inputs
            other.options = {k: v for k, v in self.options.items()
                             if k not in PLACES}
            other.options["devices"] = ranks
            shown = Progress(self.progress if progress is None else progress)
            shown.say(f"merakc: the plan is for {self.plan.ranks} ranks of "
                      f"{self.plan.device}; compiling the step for {ranks} "
                      "of this processor")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ModelWarning)
                other._compile(shown)
            other._source = self  # its model file must stay
            self._others[ranks] = other
        return self._others[ranks]

    # --------------------------------------------------------------- looking

    def report(self):
        """A Report: shown in a notebook as a page, as a string what the
        compiler decided."""
        with tempfile.TemporaryDirectory(prefix="merakc-") as folder:
            page = os.path.join(folder, "report.html")
            _tools.call("merak-plan", "report", self.folder, "-o", page,
                        error=RunError)
            with io.open(page, encoding="utf-8") as file:
                return _report.Report(self.plan.report, file.read())

    def predict(self, cluster=None):
        """A Prediction of one step, on the machine that the plan is for or on
        another (a cluster file)."""
        extra = [f"--cluster={cluster}"] if cluster else []
        return _report.Prediction(_tools.call(
            "merak-plan", "simulate", self.folder, *extra, error=RunError).out)

    def draw(self, columns=100):
        """The predicted timeline as text."""
        return _tools.call("merak-plan", "draw", self.folder,
                           f"--columns={columns}", error=RunError).out

    def verify(self):
        """Proves that the plan is sound; raises RunError otherwise."""
        return _tools.call("merak-plan", "verify", self.folder,
                           error=RunError).out.strip()

    def __repr__(self):
        return f"<merakc.Program: {self._summary()}>"

    def _repr_html_(self):
        return self.report()._repr_html_()

    # ---------------------------------------------------------------- saving

    def save(self, path):
        """Writes the plan, with the exported model inside if it was exported
        here, for merakc.open and for merak-run. Returns the path."""
        path = os.path.abspath(os.fspath(path))
        if os.path.exists(path) and not os.path.exists(
                os.path.join(path, "plan.pb")) and not (
                os.path.isdir(path) and not os.listdir(path)):
            raise RunError(f"{path}: is there and is no plan, so it is left "
                           "alone")
        part = f"{path}.tmp-{os.getpid()}"
        old = f"{path}.old-{os.getpid()}"
        try:
            shutil.copytree(self.folder, part)
            if self.owns_model:
                for name in (MODEL, MODEL + ".data"):
                    source = os.path.join(self.folder_of_model, name)
                    if os.path.exists(source):
                        shutil.copy(source, os.path.join(part, name))
            with io.open(os.path.join(part, NOTES), "w",
                       encoding="utf-8") as file:
                json.dump({"version": 1, "names": self.names,
                           "counters": self.counters,
                           "options": self.options,
                           "warnings": self.warnings}, file, indent=1)
            if os.path.exists(path):
                os.rename(path, old)
            os.rename(part, path)
        except OSError as error:
            raise RunError(f"{path}: cannot be written: {error}") from error
        finally:
            shutil.rmtree(part, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)
        return path

    def result(self, checkpoint):
        """What a checkpoint folder of this program holds, of merak-run under
        a launcher for instance."""
        result = Result(self, checkpoint=os.path.abspath(checkpoint))
        result._open()
        return result

    # --------------------------------------------------------------- running

    def run(self, data=None, steps=1, *, ranks=None, load=None, save=None,
            save_every=None, seed=None, threads=None, trace=None,
            launcher=None, backend=None, on_step=None, progress=None,
            **options):
        """Trains (or infers) for so many steps; returns a Result.

        data: {input: array}, arrays in the order of the inputs, a folder of
            <input>.npy, a file of tokens or of SQLite, a folder of such
            shards, or "synthetic". The first axis counts samples; steps take
            them in order and begin again at the end. `shuffle=True` or
            `shuffle=SEED` takes them in another order in each epoch.
        ranks: so many ranks of this machine's processor, as threads. If the
            plan is for others, the step is compiled for them: losses do not
            depend on it. None: those of the plan.
        load: a Result or checkpoint folder to go on from.
        save: the folder of the checkpoint. None: a temporary one, which lives
            as long as the result; False: none.
        launcher: "mpirun -np 8": ranks are processes that it starts; folders
            must be shared.
        on_step: a function that gets the log entry of each step.
        Other options are those of `merak-run --help`.

        Ctrl-C ends the run after its step and raises RunInterrupted, whose
        `result` has what was trained until then."""
        if ranks is not None and launcher is None:
            program = self.for_ranks(ranks, progress)
            if program is not self:
                return program.run(data, steps, load=load, save=save,
                                   save_every=save_every, seed=seed,
                                   threads=threads, trace=trace,
                                   backend=backend, on_step=on_step,
                                   progress=progress, **options)
        infer = self.plan.mode == "infer"
        if isinstance(load, Result):
            load = load.checkpoint
        keep = tempfile.TemporaryDirectory(prefix="merakc-run-")
        log = os.path.join(keep.name, "log.jsonl")
        if save is None:
            save = os.path.join(keep.name, "checkpoint")
        elif save is not False:
            save = os.path.abspath(os.fspath(save))
        out = os.path.join(keep.name, "out") if infer else None
        if isinstance(launcher, str):
            launcher = shlex.split(launcher)
        command = [*(launcher or ()), _tools.run_tool(bool(launcher)),
                   self.folder, f"--steps={steps}", f"--log={log}"]
        if launcher:
            command.append("--ranks=env")
        given = dict(options, load=load, seed=seed, threads=threads,
                     trace=trace, save_every=save_every, out=out,
                     backend=backend or self.plan.device,
                     save=None if infer or save is False else save)
        if self.model_path:
            given.setdefault("model_dir", os.path.dirname(self.model_path))
        for key, value in given.items():
            if value is True:
                command.append("--" + key.replace("_", "-"))
            elif value is not None and value is not False:
                command.append(f"--{key.replace('_', '-')}={value}")
        arrays = os.path.join(keep.name, "data")
        try:
            if data is not None:
                if not isinstance(data, (str, os.PathLike)):
                    os.mkdir(arrays)
                    _data.write(data, self.inputs, self.plan.inputs,
                                arrays)
                    data = arrays
                command.append(f"--data={os.fspath(data)}")
            return self._run(command, keep, log, given["save"], out, on_step,
                             Progress(self.progress if progress is None
                                      else progress))
        except RunInterrupted as interrupted:
            if interrupted.result is None:
                keep.cleanup()
            raise
        except BaseException:
            keep.cleanup()
            raise
        finally:
            shutil.rmtree(arrays, ignore_errors=True)

    def _run(self, command, keep, log, save, out, on_step, shown):
        seen, position = [], 0

        def look():
            nonlocal position
            entries, position = read_log(log, position)
            seen.extend(entries)
            for entry in entries if on_step else ():
                on_step(entry)

        def on_line(line):
            shown.step(line, always=len(seen) < 3 or
                       not line.startswith("step "))
            look()

        def finish(done):
            look()
            saved = save and os.path.exists(
                os.path.join(generation(save), "index.json"))
            return Result(self, seen, save if saved else None, _outputs(out),
                          done.out, keep)

        try:
            done = _tools.execute(command, on_line, gently=True)
        except KeyboardInterrupt as interrupt:
            done = getattr(interrupt, "finished", None)
            result = finish(done) if done else None
            raise RunInterrupted(result if result and result.log
                                 else None) from None
        _tools.check(done, RunError)
        return finish(done)


def _outputs(folder):
    if not folder or not os.path.isdir(folder):
        return {}
    import numpy
    return {name[:-4]: numpy.load(os.path.join(folder, name))
            for name in sorted(os.listdir(folder)) if name.endswith(".npy")}
