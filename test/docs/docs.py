#!/usr/bin/env python3
"""The documents are true: commands print what stands below them, names exist,
examples parse, generated pages and pictures equal their sources, links lead somewhere.

A block

    ```console
    $ command
    output
    ```

is executed from the repository root. Output is compared line by line: words
exactly, whole numbers exactly, decimal fractions within 5 % (floating point
differs between processors), and numbers with a unit of time or rate not at all, nor
the working memory of kernels, which depends on the processor's vectors.
A line `...` stands for any lines. `<!-- fractions within 70 % -->` above a block
widens its tolerance: a hundred steps of training amplify what the last bits of two
processors differ in.

    <!-- drawn by merak-plan draw PLAN -->
    ![text](picture.svg)

A picture is drawn again, of a plan that a command of the documents has made, and
compared in the same way.

    docs.py                     checks everything
    docs.py --update FILE...    writes the true output into the blocks, and pictures
"""
import argparse
import json
import os
import re
import subprocess
import sys

import environment
import names
import pages
from pages import ROOT, documents, read

sys.path.insert(0, os.path.join(ROOT, "scripts/lib"))
import dialect_pages  # noqa: E402
import plan_format  # noqa: E402

sys.path.insert(0, os.path.join(ROOT, "test/dialects"))
import specification  # noqa: E402

BLOCK = re.compile(r"(?:^<!-- fractions within (\d+) % -->\n+)?"
                   r"^```console\n(.*?)^```$", re.M | re.S)
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
# What stands before working memory, and before the sum that it is in.
WORKING_MEMORY = re.compile(r"(^allocated: |working memory )$")
# What follows or precedes a number that is a time or a rate.
TIME_AFTER = re.compile(r"\s*(ns|us|µs|ms|s|seconds|min|k?(?: ?tok(?:en)?s?)/s|"
                        r"[KMGT]?i?B/s|[KMGT]?FLOP/s|GFLOPS)(?![\w])")
TOLERANCE = 0.05
PICTURE = re.compile(r"<!-- drawn by (merak-plan (?:draw|reshard) .*?) -->\n!\[[^\]]*\]\((.*?)\)")
FIRST_LINE, FIRST_LENGTH = 25, 40  # of the README's first command, at most
CELL = 75  # characters of a cell of the README's tables, links as their text


def commands(block):
    """[(command, expected lines)] of a console block; a backslash at the end
    of a command's line continues it."""
    steps = []
    lines = block.splitlines()
    while lines:
        line = lines.pop(0)
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\") and lines:
                command += "\n" + lines.pop(0).removeprefix("> ")
            steps.append((command, []))
        elif steps:
            steps[-1][1].append(line)
    return steps


def split(line):
    """Words and numbers of a line: (text with '#' for numbers, numbers)."""
    numbers = []

    def take(match):
        is_free = TIME_AFTER.match(line, match.end()) or \
            WORKING_MEMORY.search(line[:match.start()])
        numbers.append(None if is_free else match[0])
        return "#"

    text = NUMBER.sub(take, line)
    return re.sub(r"[\s─-]+", " ", text).strip(), numbers


def same(expected, found, tolerance=TOLERANCE):
    """Whether a printed line is what the document says."""
    text_a, numbers_a = split(expected)
    text_b, numbers_b = split(found)
    if text_a != text_b or len(numbers_a) != len(numbers_b):
        return False
    for a, b in zip(numbers_a, numbers_b):
        if a is None or b is None:
            continue
        if "." in a or "." in b or "e" in a or "e" in b:
            # Differences of losses are rounding: 0 here, 1e-7 there.
            if abs(float(a) - float(b)) > max(
                    tolerance * max(abs(float(a)), abs(float(b))), 1e-5):
                return False
        elif a != b:
            return False
    return True


def match(expected, found, tolerance=TOLERANCE):
    """None, or (expected line, found line) of the first difference."""
    expected = [l.rstrip() for l in expected if l.strip()]
    found = [l.rstrip() for l in found if l.strip()]
    k = 0
    for n, line in enumerate(expected):
        if line == "...":
            rest = expected[n + 1:n + 2]
            if not rest:
                return None
            while k < len(found) and not same(rest[0], found[k], tolerance):
                k += 1
            continue
        if k >= len(found):
            return line, "(nothing more)"
        if not same(line, found[k], tolerance):
            return line, found[k]
        k += 1
    return None if k == len(found) else ("(nothing more)", found[k])


def run(command, bin_dir):
    environment = {**os.environ,
                   "PATH": bin_dir + os.pathsep + os.environ["PATH"],
                   "MERAK_BUILD_DIR": os.path.dirname(bin_dir)}
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", timeout=1800)
    return done.returncode, done.stdout.splitlines()


# -------------------------------------------------------------------- checks


def check_commands(bin_dir):
    """One result for each command of each document."""
    cache = {}
    for path in documents():
        name = os.path.relpath(path, ROOT)
        for percent, block in BLOCK.findall(read(path)):
            tolerance = int(percent) / 100 if percent else TOLERANCE
            for command, expected in commands(block):
                if command not in cache:
                    cache[command] = run(command, bin_dir)
                code, found = cache[command]
                difference = match(expected, found, tolerance)
                if code != 0 and "; echo $?" not in command:
                    tail = " | ".join(found[-3:])
                    yield name, f"'{command}' ended with {code}: {tail}"
                elif difference:
                    yield name, (f"'{command}' prints\n      {difference[1]}\n"
                                 f"    where the document has\n      "
                                 f"{difference[0]}")
                else:
                    yield name, None


def check_links():
    for path in documents():
        name = os.path.relpath(path, ROOT)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", read(path)):
            if re.match(r"[a-z]+:", target):
                continue
            where = os.path.join(os.path.dirname(path), target)
            yield name, (None if os.path.exists(where) else
                         f"the link to '{target}' leads nowhere")


def check_paths():
    """Files of the repository that documents name in backquotes exist."""
    tops = "|".join(sorted(n for n in os.listdir(ROOT) if os.path.isdir(
        os.path.join(ROOT, n)) and not n.startswith(".") and
        n not in ("build", "out")))
    pattern = re.compile(rf"`((?:{tops})/[\w./-]*[\w/])`")
    for path in documents():
        name = os.path.relpath(path, ROOT)
        for target in sorted(set(pattern.findall(read(path)))):
            yield name, (None if os.path.exists(os.path.join(ROOT, target)) else
                         f"'{target}' does not exist")


def json_problem(block):
    try:
        json.loads(block)
    except ValueError as error:
        return f"has a block that is no JSON: {error}"
    return None


def check_examples(bin_dir):
    """JSON and IR in documents parse; IR of generated pages is checked at its
    source."""
    tool = os.path.join(bin_dir, "merak-opt")
    for name, text in pages.texts():
        for block in pages.blocks(text, "json"):
            yield name, json_problem(block)
    for name, text in pages.texts():
        if pages.is_generated(text):
            continue
        for example in pages.blocks(text, "mlir"):
            why = specification.why_not_parsed(tool, example)
            yield name, why and f"has an example that does not parse: {why}"


def draw(command, target, bin_dir):
    """None, or what a drawing ended with."""
    code, lines = run(f"{command} --svg={target}", bin_dir)
    return None if code == 0 else f"'{command}' ended with {code}: {lines[-1:]}"


def check_pictures(bin_dir):
    fresh = os.path.join(ROOT, "out/picture.svg")
    for name, text in pages.texts():
        for command, target in PICTURE.findall(text):
            problem = draw(command, fresh, bin_dir)
            stored = os.path.join(ROOT, os.path.dirname(name), target)
            if not problem and (not os.path.exists(stored) or match(
                    read(stored).splitlines(), read(fresh).splitlines())):
                problem = f"'{target}' is not what '{command}' draws"
            yield name, problem


def readme_problems(text):
    lines = text.splitlines()
    if len(lines) > 150:
        yield f"has {len(lines)} lines, at most 150"
    first = next((k for k, l in enumerate(lines) if l.startswith("$ ")), None)
    if first is None or first >= FIRST_LINE:
        yield f"has its first command below line {FIRST_LINE}"
    elif len(lines[first]) > FIRST_LENGTH:
        yield f"has a first command of more than {FIRST_LENGTH} characters"
    for cell in re.findall(r"(?<=\|)[^|\n]+(?=\|)", text):
        if len(re.sub(r"\]\(.*?\)", "]", cell)) > CELL:
            yield f"has a cell of more than {CELL} characters: {cell.strip()}"


def check_readme():
    text = read(os.path.join(ROOT, "README.md"))
    problems = list(readme_problems(text))
    table = read(os.path.join(ROOT, "docs/Families.md"))
    families = len(re.findall(r"^\| [\w-]+ \|", table, re.M)) - 1  # without the head
    if f"[{families} model families]" not in text:
        problems.append(f"does not say that there are {families} model families")
    for problem in problems or [None]:
        yield "README.md", problem


def check_plan_format():
    fresh = os.path.exists(plan_format.PAGE) and \
        read(plan_format.PAGE) == plan_format.page()
    yield "docs/PlanFormat.md", (
        None if fresh else "differs from runtime/plan/plan.proto: run "
        "scripts/lib/plan_format.py --write")


def check_dialect_pages():
    for dialect in dialect_pages.DIALECTS:
        page = dialect_pages.path(dialect)
        fresh = os.path.exists(page) and read(page) == dialect_pages.page(dialect)
        yield os.path.relpath(page, ROOT), (
            None if fresh else f"differs from {dialect_pages.source(dialect)}: run "
            "scripts/lib/dialect_pages.py --write")


def selftest():
    """The comparison itself can fail."""
    cases = [("loss 4.51 in 3.2 ms", "loss 4.52 in 99 ms", True),
             ("loss 4.51 in 3.2 ms", "loss 5.51 in 3.2 ms", False),
             ("rank 3", "rank 4", False), ("a  b", "a b", True),
             ("12.5k tok/s", "80.1k tok/s", True), ("x", "y", False),
             ("4.44 0e+00", "4.44 2e-07", True),
             ("1e-03 1", "5e-03 1", False),
             ("allocated: 9 bytes, arenas of all ranks 4 and working memory 5 for",
              "allocated: 7 bytes, arenas of all ranks 4 and working memory 3 for",
              True),
             ("allocated: 9 bytes, arenas of all ranks 4",
              "allocated: 9 bytes, arenas of all ranks 3", False)]
    for a, b, equal in cases:
        yield "docs.py", (None if same(a, b) == equal else
                          f"compares '{a}' and '{b}' wrongly")
    yield "docs.py", (None if same("loss 4.5", "loss 5.5", 0.5) else
                      "does not widen the tolerance")
    for expected, found, equal in [
            (["a", "...", "c"], ["a", "b", "b", "c"], True),
            (["a"], ["a", "b"], False), (["a", "b"], ["a"], False),
            (["a", "..."], ["a", "b"], True),
            (["a", "...", "c"], ["a", "b"], False)]:
        yield "docs.py", (None if (match(expected, found) is None) == equal else
                          f"matches {expected} and {found} wrongly")
    bad = "\n" * 30 + "$ " + "x" * 50 + "\n|" + "y" * 80 + "|\n"
    yield "docs.py", (None if len(list(readme_problems(bad))) == 2 else
                      "does not see what is wrong with a README")
    yield "docs.py", None if json_problem("{x}") else "takes anything for JSON"
    for module in (names, environment):
        for what, works in module.selftest():
            yield module.__name__ + ".py", (None if works else
                                            f"the check that {what} does not")


def update(path, bin_dir):
    def block(found):
        out = ""
        for command, expected in commands(found[2]):
            code, lines = run(command, bin_dir)
            if code != 0:
                sys.exit(f"'{command}' ended with {code}:\n" +
                         "\n".join(lines[-20:]))
            out += "$ " + command + "\n"
            if "..." in [l.strip() for l in expected] and \
                    match(expected, lines) is None:
                lines = expected
            out += "".join(l.rstrip() + "\n" for l in lines)
        return found[0][:found.start(2) - found.start()] + out + "```"

    text = BLOCK.sub(block, read(path))
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    for command, target in PICTURE.findall(text):
        problem = draw(command, os.path.join(os.path.dirname(path), target), bin_dir)
        if problem:
            sys.exit(problem)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin-dir",
                        default=os.path.join(ROOT, "build/release/bin"))
    parser.add_argument("--update", nargs="+", metavar="FILE")
    args = parser.parse_args()
    bin_dir = os.path.abspath(args.bin_dir)
    os.makedirs(os.path.join(ROOT, "out"), exist_ok=True)
    if args.update:
        for path in args.update:
            update(path, bin_dir)
        return 0
    passed = failed = 0
    for check in (selftest(), check_links(), check_paths(), check_readme(),
                  check_plan_format(), check_dialect_pages(),
                  environment.check(), names.check(bin_dir),
                  check_examples(bin_dir), check_commands(bin_dir),
                  check_pictures(bin_dir)):
        for name, problem in check:
            if problem is None:
                passed += 1
            else:
                failed += 1
                print(f"FAILED {name}: {problem}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
