#!/usr/bin/env python3
"""The definitions of the dialects are their specification, and the tests hold
all of it.

Each op has a description with its constraints and an example that merak-opt
parses, and stands in a round trip (a text of test/dialects that is checked with
FileCheck). Each
message of a verifier or parser in dialects/ is expected by a text test, and so
is some message of each op that has a verifier of its own. The checks are first
shown able to fail, on invented texts.

    specification.py [--bin-dir DIR]    `N passed, M failed`
"""
import argparse
import glob
import os
import re
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
sys.path.insert(0, os.path.join(ROOT, "scripts/lib"))
import dialect_pages  # noqa: E402

LITERAL = r'"((?:[^"\\]|\\.)*)"'
EXAMPLE = re.compile(r"^ *```mlir\n(.*?)^ *```", re.M | re.S)
EXPECTED = re.compile(r"expected-error\s*(?:@\S+\s*)?(?:re)?\s*\{\{(.*?)\}\}")
# Lines of an example that stand in the module; the others stand in a function.
OUTSIDE = re.compile(r"\s*(train\.parameter|module|func\.|pipe\.stage|plan\.program|\}|//)")


# ------------------------------------------------------------------- messages


def messages(text):
    """The messages of a source: for each the literals of which it is made."""
    found = []
    for call in re.finditer(r"\bemit(?:Op|Optional)?Error\(", text):
        statement = re.match(rf"(?:{LITERAL}|[^;\"])*;", text[call.end():], re.S)
        pieces = []
        end = -1
        for literal in re.finditer(LITERAL, statement[0]):
            between = statement[0][end:literal.start()] if end >= 0 else "x"
            value = literal[1].replace('\\"', '"').replace("\\n", "\n")
            if between.strip():
                pieces.append(value)
            else:
                pieces[-1] += value
            end = literal.end()
        if pieces:  # else the message comes from elsewhere
            found.append(tuple(pieces))
    return found


def is_expected(message, expected):
    """Whether an expected error quotes all of a message."""
    pattern = re.compile(".*".join(re.escape(piece.strip()) for piece in message))
    return any(pattern.search(text) for text in expected)


def untested(sources, tests):
    """[(file, message)] that no test expects."""
    expected = [text for test in tests for text in EXPECTED.findall(test)]
    return [(path, message) for path, text in sources
            for message in messages(text) if not is_expected(message, expected)]


# ------------------------------------------------------------------------ ops


def code_of(text):
    return "\n".join(line.split("//")[0] for line in text.splitlines())


def not_in_round_trip(names, tests):
    code = "\n".join(code_of(test) for test in tests)
    return [name for name in names
            if not re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", code)]


def never_refused(ops, tests):
    """Ops with a verifier of their own of which no test expects a message."""
    expected = "\n".join(text for test in tests for text in EXPECTED.findall(test))
    return [op.name for op in ops if op.has_verifier and
            not op.shares_verifier and f"'{op.name}'" not in expected]


def lacks(description):
    """What a description lacks of a specification."""
    missing = [] if description.strip() else ["description"]
    if "*Constraints:*" not in description:
        missing.append("constraints")
    if not EXAMPLE.search(description):
        missing.append("example")
    return missing


# ------------------------------------------------------------------- examples


def free_values(lines):
    """Values that are used and not defined, in order."""
    defined = {name for line in lines for left in re.findall(
        r"^\s*(%[\w, %:]+?)\s*=", line) for name in re.findall(r"%\w+", left)}
    used = dict.fromkeys(re.findall(r"%\w+", "\n".join(lines)))
    return [name for name in used if name not in defined]


def wrapped(example, types):
    """A module with the example: values that it does not define are arguments,
    or, while their types are not known, defined as none behind their use."""
    lines = example.splitlines()
    outside = [line for line in lines if OUTSIDE.match(line)]
    inside = [line for line in lines if not OUTSIDE.match(line)]
    if any(line.strip().endswith("{") for line in lines):
        return example
    free = free_values(inside)
    known = ", ".join(f"{name}: {types[name]}" for name in free if name in types)
    unknown = [f'{name} = "example.value"() : () -> none' for name in free
               if name not in types]
    return "\n".join([*outside, f"func.func @example({known}) {{", *inside,
                      *unknown, "return", "}"])


def parse(tool, text):
    return subprocess.run([tool, "--allow-unregistered-dialect", "-"], input=text,
                          text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE)


def why_not_parsed(tool, example):
    """None, or what merak-opt says against an example. It tells the types of
    values that the example only uses, one a run."""
    types = {}
    while True:
        done = parse(tool, wrapped(example, types))
        told = re.search(r"definition of SSA value '(%\w+)#0' has type 'none'.*?"
                         r"previously used here with type '(.*?)'\n",
                         done.stderr, re.S)
        if not told or told[1] in types:
            return done.stderr.strip() if done.returncode else None
        types[told[1]] = told[2]


# --------------------------------------------------------------------- checks


def read_all(pattern):
    found = []
    for path in sorted(glob.glob(os.path.join(ROOT, pattern), recursive=True)):
        with open(path, encoding="utf-8") as file:
            found.append((os.path.relpath(path, ROOT), file.read()))
    return found


def selftest(tool):
    """Each check can fail."""
    source = ('return emitOpError("expected \\"a\\" of ")\n << n << "; found "'
              '\n  "b";\nemitOptionalError(location, "no ", x);')
    yield "reads messages", messages(source) == [
        ('expected "a" of ', "; found b"), ("no ",)]
    yield "reads messages of attributes", messages(
        'parser.emitError(at, "odd ") << x; emitError() << "even " << y;'
        'emitError(at, problem.text);') == [("odd ",), ("even ",)]
    good = '// expected-error @+1 {{expected "a" of 3; found b}}'
    yield "finds an untested message", untested([("A.cpp", source)], [good]) == [
        ("A.cpp", ("no ",))]
    yield "wants all of a message", len(untested(
        [("A.cpp", source)], ['// expected-error {{expected "a" of}}'])) == 2
    yield "finds an op without round trip", not_in_round_trip(
        ["train.add", "train.ad"], ["%0 = train.add %x // train.ad"]) == ["train.ad"]
    op = dialect_pages.Op("train.x", "bit hasVerifier = 1;")
    yield "finds an op that is never refused", never_refused(
        [op], ["// expected-error {{'train.y' op}}"]) == ["train.x"]
    yield "finds what a description lacks", \
        lacks("  Some *Constraints:* none.\n") == ["example"]
    yield "parses an example", why_not_parsed(
        tool, "%y = train.exp %x : tensor<2xf32>") is None
    yield "refuses a wrong example", "do not broadcast" in str(why_not_parsed(
        tool, "%y = train.add %x, %z : tensor<2xf32>, tensor<3xf32>"))
    yield "refuses an invented op", why_not_parsed(
        tool, "%y = train.invented %x : tensor<2xf32>") is not None


def findings(tool):
    """(kind, what, sentence or None) for each thing that is checked."""
    tests = [text for _, text in read_all("test/**/*.mlir")]
    trips = [text for _, text in read_all("test/dialects/**/*.mlir")
             if re.search(r"RUN:.*FileCheck", text)]
    for dialect in dialect_pages.DIALECTS:
        ops = dialect_pages.ops(dialect)
        without = not_in_round_trip([op.name for op in ops], trips)
        unrefused = never_refused(ops, tests)
        for op in ops:
            missing = lacks(op.description)
            yield "specification", op.name, (
                f"has no {' and no '.join(missing)}" if missing else None)
            yield "round trip", op.name, (
                "stands in no round trip of test/dialects"
                if op.name in without else None)
            if op.has_verifier:
                yield "refused", op.name, (
                    "has a verifier, but no test expects its message"
                    if op.name in unrefused else None)
            for example in EXAMPLE.findall(op.description):
                why = why_not_parsed(tool, example)
                yield "example", op.name, why and f"has an example: {why}"
        sources = read_all(f"dialects/{dialect}/*.cpp")
        wrong = untested(sources, tests)
        for path, text in sources:
            for message in messages(text):
                yield "message", message[0], (
                    f"'{'...'.join(message)}' of {path} is in no expected-error"
                    if (path, message) in wrong else None)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin-dir",
                        default=os.path.join(ROOT, "build/release/bin"))
    parser.add_argument("--jobs")
    tool = os.path.join(parser.parse_args().bin_dir, "merak-opt")
    passed = failed = 0
    for name, works in selftest(tool):
        passed += works
        failed += not works
        if not works:
            print(f"FAILED self-test: the check that {name} does not")
    for kind, what, problem in findings(tool):
        passed += problem is None
        failed += problem is not None
        if problem:
            print(f"FAILED {kind}: {what} {problem}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
