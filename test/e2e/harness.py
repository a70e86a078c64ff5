"""What the end-to-end tests share: running the tools, reading tensors,
comparing, and one table of results at the end. Python's standard library only.
"""
import argparse
import array
import concurrent.futures
import json
import math
import os
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
MODELS = os.path.join(ROOT, "test/data/models")
CODES = {"F32": "f", "F64": "d", "I64": "q", "I32": "i", "BOOL": "b", "U8": "B"}
DESCRS = {"<f4": "f", "<f8": "d", "<i8": "q", "<i4": "i", "|b1": "b"}


class Failed(Exception):
    """A check that did not hold; its text is shown in the table."""


# ------------------------------------------------------------------- tensors


class Tensor:
    """A dense array: dtype as in safetensors, shape, flat data."""

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, list(shape), data


def read_safetensors(path):
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        blob = file.read()
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        data = array.array(CODES[entry["dtype"]])
        data.frombytes(blob[begin:end])
        if len(data) != math.prod(entry["shape"]):
            raise Failed(f"{path}: {name} has {len(data)} elements, "
                         f"shape {entry['shape']}")
        tensors[name] = Tensor(entry["dtype"], entry["shape"], data)
    return tensors


def write_npy(path, descr, shape, values):
    """A C-order .npy file, version 1.0."""
    shape_text = "(" + "".join(f"{n}, " for n in shape).rstrip() + ")"
    header = (f"{{'descr': '{descr}', 'fortran_order': False, "
              f"'shape': {shape_text}, }}")
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)))
        file.write(header.encode())
        array.array(DESCRS[descr], values).tofile(file)


def generation(folder):
    """The generation of a folder of checkpoints that counts; the folder itself
    if it is one."""
    try:
        with open(os.path.join(folder, "latest"), encoding="utf-8") as file:
            return os.path.join(folder, file.read().split()[0])
    except FileNotFoundError:
        return folder


def read_checkpoint(folder):
    """All tensors of a checkpoint by global name, put together from the boxes
    that index.json lists as pieces."""
    folder = generation(folder)
    with open(os.path.join(folder, "index.json"), encoding="utf-8") as file:
        index = json.load(file)
    shards = {}
    whole = {}
    for name, entry in index["tensors"].items():
        shape = entry["shape"]
        tensor = Tensor(entry["dtype"], shape, None)
        count = math.prod(shape)
        tensor.data = array.array(CODES[entry["dtype"]], bytes(
            count * array.array(CODES[entry["dtype"]]).itemsize))
        covered = 0
        for box in entry["pieces"]:
            if box["file"] not in shards:
                shards[box["file"]] = read_safetensors(
                    os.path.join(folder, box["file"]))
            part = shards[box["file"]][box["key"]]
            copy_box(part.data, tensor, box["origin"], box["extent"])
            covered += len(part.data)
        if covered != count:
            raise Failed(f"{folder}: the boxes of {name} hold {covered} of "
                         f"{count} elements")
        whole[name] = tensor
    return whole, index


def copy_box(source, target, origin, extent):
    """Copies a dense box into its place of the global tensor."""
    if not extent:
        target.data[0] = source[0]
        return
    strides = [1] * len(extent)
    for d in range(len(extent) - 2, -1, -1):
        strides[d] = strides[d + 1] * target.shape[d + 1]
    row = extent[-1]
    for k in range(math.prod(extent[:-1])):
        position, rest = origin[-1], k
        for d in range(len(extent) - 2, -1, -1):
            rest, coordinate = divmod(rest, extent[d])
            position += (origin[d] + coordinate) * strides[d]
        target.data[position:position + row] = source[k * row:(k + 1) * row]


def relative_l2(found, expected, skip=()):
    """|found - expected| / |expected| and |found - expected|, without the
    flat index ranges in `skip`."""
    difference = total = 0.0
    begin = 0
    for start, end in sorted(skip) + [(len(expected), len(expected))]:
        a, b = found[begin:start], expected[begin:start]
        difference += sum((x - y) * (x - y) for x, y in zip(a, b))
        total += sum(y * y for y in b)
        begin = end
    difference = math.sqrt(difference)
    if not math.isfinite(difference):
        return math.inf, math.inf
    return (difference / math.sqrt(total) if total else difference), difference


# ------------------------------------------------------------------- running


class Tools:
    """The built tools, and a log of the commands of one case."""

    def __init__(self, bin_dir, folder, timeout=300):
        self.bin_dir, self.folder, self.timeout = bin_dir, folder, timeout
        self.commands = []
        self.extra = {}  # environment variables of this case
        self.program = "merak-run"  # what stands for it in this case

    def start(self, tool, *arguments):
        tool = self.program if tool == "merak-run" else tool
        command = [os.path.join(self.bin_dir, tool), *map(str, arguments)]
        extra = "".join(f"{k}={v} " for k, v in self.extra.items())
        self.commands.append(extra + shlex.join(command))
        return command

    def run(self, tool, *arguments, expect=0, cwd=None):
        """Runs a tool; returns (stdout, stderr). Fails on another exit code."""
        command = self.start(tool, *arguments)
        try:
            done = subprocess.run(command, capture_output=True, text=True,
                                  errors="replace", timeout=self.timeout,
                                  cwd=cwd,
                                  env={**os.environ, **self.extra})
        except subprocess.TimeoutExpired:
            raise Failed(f"{tool} did not end in {self.timeout} s") from None
        except OSError as error:
            raise Failed(f"{tool}: {error.strerror}") from None
        if expect is not None and done.returncode != expect:
            raise Failed(f"{tool} ended with {done.returncode}, expected "
                         f"{expect}: {last_lines(done.stderr or done.stdout)}")
        self.returncode = done.returncode
        return done.stdout, done.stderr

    def path(self, name):
        return os.path.join(self.folder, name)

    def changed_ir(self, model, phase, change, options):
        """The path of a model's IR behind a phase, with its text changed."""
        path = self.path("changed.mlir")
        self.run("merakc", model, f"--to={phase}", "-o", path, *options)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        new = change(text)
        if new == text:
            raise Failed("nothing was changed")
        with open(path, "w", encoding="utf-8") as file:
            file.write(new)
        return path


class WithOption:
    """Tools that give merakc one more option."""

    def __init__(self, tools, option):
        self.tools, self.option = tools, option

    def __getattr__(self, name):
        return getattr(self.tools, name)

    def run(self, tool, *arguments, **options):
        extra = [self.option] if tool == "merakc" else []
        return self.tools.run(tool, *arguments, *extra, **options)


def all_of(*checks):
    """Runs every check, so that one failure does not hide another; returns
    their numbers or fails with all their sentences."""
    notes, problems = [], []
    for check in checks:
        try:
            notes.append(f"{check.__name__} {check():.0e}")
        except Failed as failure:
            problems.append(str(failure))
    if problems:
        raise Failed("; ".join(problems))
    return "  ".join(notes)


def last_lines(text, count=3):
    return " | ".join(line for line in text.strip().splitlines()[-count:])


def fresh(path):
    """The path, without the file that may be there: a run that goes on (--load)
    would add to its log."""
    if os.path.exists(path):
        os.remove(path)
    return path


def read_log(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


# --------------------------------------------------------------------- cases


class Case:
    """`name` for the table, `body(tools) -> str` raises Failed or returns the
    numbers worth showing."""

    def __init__(self, name, body):
        self.name, self.body = name, body


def parser(description):
    p = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin-dir", default=os.path.join(ROOT, "build/release/bin"))
    p.add_argument("--all", action="store_true", help="the full matrix")
    p.add_argument("--short", action="store_true", help="for builds that are "
                   "slow: fewer cases, smaller graphs")
    p.add_argument("--filter", default="", help="only cases whose name has all "
                   "of these words")
    p.add_argument("--part", default="1/1", metavar="I/N",
                   help="the I-th of N parts of the cases, which are dealt out "
                   "by their names: a big matrix on several machines")
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--timeout", type=int, default=300)
    p.add_argument("--keep", metavar="DIR", help="leave the files of the cases")
    p.add_argument("--list", action="store_true", help="print the names only")
    return p


def one_of_each(names):
    """Few of the names with whatever a name says at its place: of each kind, their
    first words, every model, mesh, schedule and option. The same every time."""
    def says(name):
        words = name.split()
        return {(words[0], place, word) for place, word in enumerate(words)}

    left = {name: says(name) for name in names}
    wanted, chosen = set().union(*left.values()), set()
    while wanted:
        best = max(left, key=lambda name: len(left[name] & wanted))
        wanted -= left.pop(best)
        chosen.add(best)
    return chosen


def nothing_to_test(title, why):
    """Ends a suite of which this build or machine has nothing."""
    print(f"{title}: {why}")
    print("0 passed, 0 failed")
    return 0


def run_cases(title, cases, args):
    """Runs the cases, prints a table and `N passed, M failed`; exit code."""
    cases = [c for c in cases if all(w in c.name for w in args.filter.split())]
    if args.short:
        chosen = one_of_each([c.name for c in cases])
        cases = [c for c in cases if c.name in chosen]
    part, parts = map(int, args.part.split("/"))
    cases = [c for c in cases
             if zlib.crc32(c.name.encode()) % parts == part - 1]
    if args.list:
        print("\n".join(c.name for c in cases))
        return 0
    scratch = args.keep or tempfile.mkdtemp(prefix="merak-e2e-")
    width = max((len(c.name) for c in cases), default=0)
    lock = threading.Lock()
    failures = []
    done = 0
    began = time.monotonic()

    def run(number, case):
        nonlocal done
        folder = os.path.join(scratch, f"{number:04d}")
        os.makedirs(folder, exist_ok=True)
        tools = Tools(args.bin_dir, folder, args.timeout)
        start = time.monotonic()
        try:
            ok, note = True, case.body(tools) or ""
        except Failed as failure:
            ok, note = False, str(failure)
        except Exception as error:  # a bug of the harness or a strange file
            ok, note = False, f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - start
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
        with lock:
            done += 1
            print(f"{'ok    ' if ok else 'FAILED'} {case.name:<{width}} "
                  f"{seconds:6.1f} s  {note}", flush=True)
            if not ok:
                failures.append((case.name, note, tools.commands))
                for command in tools.commands:
                    print(f"         {command}", flush=True)
            elif done % 25 == 0:
                print(f"-- {title}: {done} of {len(cases)}", file=sys.stderr)

    with concurrent.futures.ThreadPoolExecutor(max(1, args.jobs)) as pool:
        list(pool.map(run, range(len(cases)), cases))
    if not args.keep:
        shutil.rmtree(scratch, ignore_errors=True)
    if failures:
        print(f"\n{title}: failed:")
        for name, note, _ in failures:
            print(f"  {name}: {note}")
    print(f"{title}: {len(cases)} cases in {time.monotonic() - began:.0f} s")
    print(f"{len(cases) - len(failures)} passed, {len(failures)} failed")
    # No case at all proves nothing.
    return 1 if failures or not cases else 0
