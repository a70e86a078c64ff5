#!/usr/bin/env python3
"""Writes docs/PlanFormat.md from the comments of runtime/plan/plan.proto.

    plan_format.py            prints the page
    plan_format.py --write    writes docs/PlanFormat.md
"""
import os
import re
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
PROTO = os.path.join(ROOT, "runtime/plan/plan.proto")
PAGE = os.path.join(ROOT, "docs/PlanFormat.md")
HEAD = """# Plan format

Generated from `runtime/plan/plan.proto` by `scripts/lib/plan_format.py --write`;
a test compares the two. `merak-plan print OUT.plan` shows a plan as text.

"""
FIELD = re.compile(r"(repeated )?(map<[^>]*>|[\w.]+) (\w+) = (\d+);")
VALUE = re.compile(r"(\w+) = (\d+);")


def cells(text):
    return text.replace("|", "\\|")


class Block:
    """A message, an enum or a oneof with the rows of its table."""

    def __init__(self, kind, name, comment):
        self.kind, self.name, self.comment = kind, name, comment
        self.rows = []

    def markdown(self):
        out = f"### {self.name}\n\n"
        if self.comment:
            out += " ".join(self.comment) + "\n\n"
        if not self.rows:
            return out
        if self.kind == "enum":
            out += "| value | number | meaning |\n|---|---|---|\n"
        else:
            out += "| field | type | number | meaning |\n|---|---|---|---|\n"
        for row in self.rows:
            meaning = cells(" ".join(row[-1]))
            out += "| " + " | ".join([f"`{row[0]}`", *row[1:-1], meaning]) + " |\n"
        return out + "\n"


def parse(text):
    """The page's parts in order: strings and Blocks."""
    parts, stack, comment, last = [], [], [], None
    lines = text.splitlines()
    head = []
    while lines and lines[0].startswith("//"):
        head.append(lines.pop(0)[2:].removeprefix(" "))
    out, inside = "", False
    for line in head:
        indented = line.startswith("  ")
        if indented != inside:
            out += "\n"  # an indented block stands between empty lines
        inside = indented
        out += ("    " + line.strip() if indented else line) + "\n"
    parts.append(out + "\n")
    for line in lines:
        code, _, note = line.partition("//")
        code, note = code.strip(), note.strip()
        if not code:
            section = re.fullmatch(r"-+ (.*)", note)
            if section:
                parts.append(f"## {section[1].capitalize()}\n\n")
                comment = []
            elif not note:
                comment, last = [], None
            elif last is not None and re.match(r"^\s{10,}//", line):
                last.append(note)  # a trailing comment goes on
            else:
                comment.append(note)
                last = None
            continue
        opened = re.match(r"(message|enum|oneof) (\w+) \{", code)
        fields = code[opened.end():] if opened else code
        if opened:
            if opened[1] == "oneof":
                stack.append(stack[-1])
            else:
                outer = [b.name for b in stack[-1:]]
                block = Block(opened[1], ".".join([*outer, opened[2]]), comment)
                parts.append(block)
                stack.append(block)
                comment = []
        found = [] if not stack else list(
            (VALUE if stack[-1].kind == "enum" else FIELD).finditer(fields))
        for k, m in enumerate(found):
            meaning = (comment + ([note] if note else [])
                       if k == len(found) - 1 else [])
            if stack[-1].kind == "enum":
                stack[-1].rows.append([m[1], m[2], meaning])
            else:
                kind = (m[1] or "") + m[2]
                stack[-1].rows.append([m[3], f"`{kind}`", m[4], meaning])
            comment, last = [], meaning
        if opened is None and not found:
            comment = []
        for _ in range(fields.count("}")):
            stack.pop()
    return parts


def page():
    with open(PROTO, encoding="utf-8") as file:
        parts = parse(file.read())
    return HEAD + "".join(
        p.markdown() if isinstance(p, Block) else p for p in parts).rstrip() + "\n"


def main():
    if sys.argv[1:] == ["--write"]:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(page())
    else:
        sys.stdout.write(page())


if __name__ == "__main__":
    main()
