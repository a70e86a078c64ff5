#!/usr/bin/env python3
"""Counts what tells the state of the sources: lines and comments of each room,
hand-kept lists of kinds of ops, passes without a text test, messages of verifiers
without a test.

    counts.py                  of this tree
    counts.py TREE TREE...     of other trees, side by side
    counts.py --list [TREE]    names what is counted
"""
import argparse
import glob
import os
import re
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
sys.path.insert(0, os.path.join(ROOT, "test/dialects"))
import specification  # noqa: E402

ROOMS = ("support", "onnx", "dialects", "passes/Planning", "passes/CostModel", "passes",
         "compiler", "codegen", "runtime", "tools", "bench", "test", "scripts")
CODE = (".cpp", ".h", ".td", ".cu", ".cuh", ".proto", ".py")
OP_CLASS = r"(?:\w+::)*\w+Op"
SEVERAL = 3  # ops that make a list


def files(tree, ends, top=""):
    for folder, names, leaves in os.walk(os.path.join(tree, top)):
        names[:] = [n for n in names if n not in
                    ("build", "out", ".git", "__pycache__") and
                    not os.path.join(folder, n).endswith("test/data")]
        for leaf in sorted(leaves):
            if leaf.endswith(ends):
                path = os.path.join(folder, leaf)
                with open(path, encoding="utf-8", errors="replace") as file:
                    yield os.path.relpath(path, tree), file.read()


def room_of(name):
    for room in ROOMS:
        if name.startswith(room + "/"):
            return room
    return None


def is_comment(line, name):
    return line.lstrip().startswith("#" if name.endswith(".py") else "//")


def rooms(tree):
    """{room: (lines that are not blank, of these comments)}"""
    counts = {}
    for name, text in files(tree, CODE):
        room = room_of(name)
        if not room:
            continue
        lines = [line for line in text.splitlines() if line.strip()]
        comments = sum(is_comment(line, name) for line in lines)
        before = counts.get(room, (0, 0))
        counts[room] = (before[0] + len(lines), before[1] + comments)
    return counts


CASTS = r"(?:\b(?:isa|isa_and_nonnull|isa_and_present|dyn_cast)|\.Case)"


def chains(text, link, between):
    """What the links of each chain of several name."""
    several = rf"{link}(?:\s*\|\|\s*{between}{link}){{{SEVERAL - 1},}}"
    return [re.findall(link, found[0]) for found in re.finditer(several, text)]


def lists_of(text, ops):
    """Places where a source names several ops as one kind: classes in a cast or a
    case, casts joined by ||, names of `ops` in braces or compared with."""
    text = re.sub(r"//.*", "", text)
    inside = re.findall(rf"{CASTS}<\s*({OP_CLASS}(?:\s*,\s*{OP_CLASS})+)\s*>", text)
    found = [[name.strip() for name in names.split(",")] for names in inside]
    found += chains(text, rf"isa<\s*({OP_CLASS})\s*>\(\w+\)", "")
    inside = re.findall(r'\{\s*("\w+"(?:\s*,\s*"\w+")+)\s*\}', text)
    named = [re.findall(r'"(.*?)"', names) for names in inside]
    named += chains(text, r'==\s*"(\w+)"', r"[\w.]+\s*")
    found += [names for names in named if ops and ops.issuperset(names)]
    return [names for names in found if len(set(names)) >= SEVERAL]


def op_lists(tree):
    ops = {name for _, text in files(tree, (".td",), "dialects") for name in
           re.findall(r'^def Train_\w+ : Train_\w+<"(\w+)"', text, re.M)}
    for top in ("dialects", "passes", "compiler", "codegen"):
        for name, text in files(tree, (".cpp", ".h"), top):
            # Import knows the names of others' ops.
            for names in lists_of(text, set() if top == "compiler" else ops):
                yield f"{name}: {', '.join(names)}"


def untested_passes(tree):
    """Flags of passes that no RUN line has."""
    runs = "\n".join(line for _, text in files(tree, (".mlir", ".test"), "test")
                     for line in text.splitlines() if "RUN:" in line)
    for name, text in files(tree, (".td",), "passes"):
        for flag in re.findall(r'Pass<\s*"([\w-]+)"', text):
            if not re.search(rf"(?:--|(?<![\w-])){flag}(?![\w-])", runs):
                yield f"{name}: {flag}"


def untested_messages(tree):
    tests = [text for _, text in files(tree, (".mlir",), "test")]
    sources = list(files(tree, (".cpp",), "dialects"))
    for path, message in specification.untested(sources, tests):
        yield f"{path}: {'...'.join(message)}"


def count(tree):
    """{what: [how much, the things]} in the order of the table."""
    table = {}
    for room, (lines, comments) in sorted(rooms(tree).items()):
        table[f"lines of {room}"] = (str(lines), [])
        table[f"comments of {room}"] = (f"{100 * comments / lines:.1f} %", [])
    for what, things in (("lists of three ops or more", op_lists(tree)),
                         ("passes without a text test", untested_passes(tree)),
                         ("messages of verifiers without a test",
                          untested_messages(tree))):
        things = list(things)
        table[what] = (str(len(things)), things)
    return table


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", default=[ROOT])
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    tables = [count(os.path.abspath(tree)) for tree in args.trees]
    rows = dict.fromkeys(what for table in tables for what in table)
    for what in rows:
        print(f"{what:<40}" + "".join(
            f"{table.get(what, ('-', []))[0]:>12}" for table in tables))
        if args.list:
            for table in tables:
                for thing in table.get(what, ("", []))[1]:
                    print("    " + thing)
    return 0


if __name__ == "__main__":
    sys.exit(main())
