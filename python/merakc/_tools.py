"""The compiled tools as child processes: where they are, how they are run,
interrupted and understood. See docs/rationale/python-package.md for why they
are processes."""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

from ._errors import CompileError, MerakcError

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = ("merakc", "merak-run", "merak-plan")


def folder():
    """The wheel's tools, those that MERAKC_BIN_DIR names, those of a build of
    the repository that this file lies in, or those of PATH."""
    named = os.environ.get("MERAKC_BIN_DIR")
    built = os.path.join(HERE, "..", "..", "build", "release", "bin")
    found = shutil.which("merak-plan")
    for path in (named, os.path.join(HERE, "bin"), built,
                 found and os.path.dirname(found)):
        if path and os.access(os.path.join(path, "merak-plan"), os.X_OK):
            return os.path.abspath(path)
    raise MerakcError(
        "merakc's tools are not installed: install the wheel, or set "
        "MERAKC_BIN_DIR to the bin folder of a build")


def tool(name):
    return os.path.join(folder(), name)


def environment():
    """The wheel brings a linker for machines without one; what the machine
    has goes first."""
    env = dict(os.environ)
    path = env.get("PATH") or os.defpath
    env["PATH"] = path + os.pathsep + folder()
    return env


class Finished:
    def __init__(self, command, code, out, err):
        self.command, self.code, self.out, self.err = command, code, out, err


def _stop(process, gently):
    """Ends a child. Gently: it may finish its step and save; a second Ctrl-C,
    or half a minute, ends its patience."""
    if gently:
        try:
            process.send_signal(signal.SIGINT)
            process.wait(30)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            pass
    if process.poll() is None:
        process.kill()
        process.wait()


def execute(command, on_line=None, gently=False):
    """Runs a command; `on_line` gets each line of its output as it comes.
    Ctrl-C ends the child, then goes on as KeyboardInterrupt, with the finished
    child in its `finished`."""
    # A session of its own: the terminal's Ctrl-C reaches Python only, which
    # tells the child once, as it does where there is no terminal (notebooks).
    # If Python is killed, the child's output ends it.
    with tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=err, env=environment(), text=True, errors="replace",
            start_new_session=True)
        lines, raised = [], []

        def read():
            for line in process.stdout:
                lines.append(line)
                try:
                    if on_line and not raised:
                        on_line(line.rstrip("\n"))
                except BaseException as error:  # of what the user gave
                    raised.append(error)
                    process.kill()

        # A thread reads, so that a signal finds this one in an interruptible
        # wait, also while the child prints nothing.
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        interrupt = None
        try:
            process.wait()
        except BaseException as error:
            interrupt = error
            _stop(process, gently)
        reader.join(5)
        process.stdout.close()
        err.seek(0)
        done = Finished(command, process.returncode, "".join(lines),
                        err.read().decode(errors="replace"))
        if interrupt is not None:
            interrupt.finished = done
            raise interrupt
        if raised:
            raise raised[0]
        return done


_PREFIX = re.compile(r"^(?:merakc|merak-run|merak-plan|merak-bench): "
                     r"(?:error: )?|^error: ")


def problems(text):
    """The sentences of a tool's error output: one for each error, with the
    notes that follow it."""
    found = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("note: "):
            continue
        if line.startswith("  ") and found:
            found[-1] += "\n" + line.rstrip()
        else:
            found.append(_PREFIX.sub("", line.rstrip()))
    return found


def _died(code):
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended with {code}"


def check(done, error):
    """Raises `error` unless the child ended well."""
    if done.code == 0:
        return done
    said = problems(done.err) or problems(done.out)
    name = os.path.basename(done.command[0])
    if not said or done.code < 0:
        said.append(f"{name} {_died(done.code)}")
    raise error(said, done.command, internal=done.code == 70)


def call(name, *arguments, error=MerakcError):
    """Runs a tool to its end."""
    return check(execute([tool(name), *map(str, arguments)]), error)


def main(name):
    """A command of the wheel: becomes the tool."""
    processes = any(a in ("--ranks=env", "env") for a in sys.argv[1:])
    path = run_tool(processes) if name == "merak-run" else tool(name)
    os.execve(path, [name, *sys.argv[1:]], environment())


# Options of merakc that make something else than a plan.
_OTHER = {"check", "from", "help", "operators", "output", "quiet", "to",
          "version"}


def _known_options():
    text = call("merakc", "--help", error=CompileError).out
    return set(re.findall(r"^ +(?:-\w,)?--([a-z][a-z-]*)", text, re.M)) - _OTHER


def option_arguments(options):
    """merakc's options from keywords: grad_clip=1 is --grad-clip=1. What it
    does not know is a TypeError that names what is near."""
    if not options:
        return []
    known = _known_options()
    arguments = []
    for key, value in options.items():
        name = key.replace("_", "-")
        if name not in known:
            import difflib
            near = difflib.get_close_matches(name, known, 3, 0.5)
            near = [n.replace("-", "_") for n in near]
            raise TypeError(
                f"compile() has no option '{key}'" +
                (f"; did you mean {' or '.join(near)}?" if near else ""))
        if value is None or value is False:
            continue
        if value is True:
            arguments.append(f"--{name}")
            continue
        arguments.append(f"--{name}={_text(name, value)}")
    return arguments


def _text(name, value):
    if isinstance(value, dict):
        pairs = []
        for key, entry in value.items():
            if isinstance(entry, (list, tuple)):
                entry = "x".join("?" if n is None else str(n) for n in entry)
            pairs.append(f"{key}={entry}")
        return ",".join(pairs)
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def run_tool(as_processes):
    """merak-run. For ranks as processes it is linked to MPI, which is the
    machine's; the wheel has another that starts without."""
    local = tool("merak-run-local")
    return local if not as_processes and os.path.exists(local) else \
        tool("merak-run")


def merakc_main():
    main("merakc")


def merak_run_main():
    main("merak-run")


def merak_plan_main():
    main("merak-plan")
