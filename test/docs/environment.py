"""docs/Environment.md has every environment variable that a source reads, none that
no source reads, and is the only document with a table of them.

What a source reads: `getenv("X")` in C++, or `setenv` of what is not set, and all
upper-case literals of a file that hands names on to a reader; `os.environ` in Python;
`${X}` in shell scripts; `$ENV{X}` in CMake, `env.X` in pyproject.toml.
"""
import os
import re

import pages

PAGE = os.path.join(pages.ROOT, "docs/Environment.md")
NAME = r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*"
# The variables that bash itself sets.
BASH = {"BASH_SOURCE", "SECONDS", "RANDOM"}
# Uppercase literals of files that hand names on, which name no variables.
LITERALS = {"B", "MB", "GB"}


def without_comments(text, mark):
    return re.sub(rf"(?m){mark}.*$", "", text)


def read_by_cpp(text):
    """C++: calls of getenv, and, where names are handed on, all literals that look
    like a variable."""
    text = without_comments(text, "(?<!:)//")
    found = set(re.findall(rf'getenv\("({NAME})"\)', text))
    found |= set(re.findall(rf'setenv\("({NAME})",[^;]*/\*replace=\*/0\)', text))
    if re.search(r"\bgetenv\((?!\")|EnvironmentReader &\w+\)", text):
        found |= set(re.findall(rf'"({NAME})"', text))
    return found - LITERALS


def read_by_python(text):
    """Python: os.environ that is not assigned to, and os.getenv."""
    found = set(re.findall(
        rf'(?:os\.environ|\benv)(?:\.get\(|\[)\s*"({NAME})"(?!\]\s*=[^=])', text))
    return found | set(re.findall(rf'os\.getenv\(\s*"({NAME})"', text))


def read_by_shell(text):
    """Shell: upper-case variables that the script does not set before."""
    text = without_comments(text, r"(?<![\w$\{\"])#")
    text = re.sub(r"'[^'\n]*'", "", text)
    # What is set of its own old value is read all the same.
    ours = set(re.findall(
        rf"(?:^|[\s;(])(?:export |local )?({NAME})=(?!\$\{{\1)(?!.*\$\1)", text))
    used = set(re.findall(rf"\$\{{?({NAME})\b", text))
    return used - ours - BASH


def read_by_cmake(text):
    return set(re.findall(rf"\$ENV\{{({NAME})\}}", without_comments(text, "#")))


def read_by_project(text):
    return {name for pair in re.findall(rf'\benv = "({NAME})"|\benv\.({NAME})', text)
            for name in pair if name}


def sources():
    """[(name, what it reads)] of all sources."""
    for name, text in pages.sources(".cpp", ".h", ".cu"):
        yield name, read_by_cpp(text)
    for name, text in pages.sources(".py"):
        if not __file__.endswith(name):
            yield name, read_by_python(text)
    for name, text in pages.sources(".cmake", "CMakeLists.txt", "CMakePresets.json"):
        yield name, read_by_cmake(text)
    for name, text in pages.sources("pyproject.toml"):
        yield name, read_by_project(text)
    for name, text in pages.shell_scripts():
        yield name, read_by_shell(text)


def is_test(name):
    return name.startswith("test/")


def tables(text):
    """(variables of the page, variables of its section on tests)."""
    users, _, tests = text.partition("\n## Tests\n")
    rows = [re.findall(r"^\| (`.*?) \|", part, re.M) for part in (users, tests)]
    return tuple({name for row in part for name in re.findall(rf"`({NAME})`", row)}
                 for part in rows)


def compare(read, page, tests):
    """What is wrong: `read` is [(source, variables)]."""
    ours = {name for source, names in read if not is_test(source) for name in names}
    theirs = {name for source, names in read if is_test(source) for name in names}
    where = {name: source for source, names in read for name in names}
    for name in sorted(ours - page - tests):
        yield f"lacks '{name}', which {where[name]} reads"
    for name in sorted(theirs - ours - page - tests):
        yield f"lacks '{name}' under Tests, which {where[name]} reads"
    for name in sorted(page - ours):
        yield f"has '{name}', which no source outside of test/ reads"
    for name in sorted(tests - ours - theirs):
        yield f"has '{name}' under Tests, which no source reads"
    for name in sorted(tests & page):
        yield f"has '{name}' twice"


def selftest():
    yield "reads C++", read_by_cpp(
        '// getenv("NO")\nauto a = getenv("ONE_A");\nf("TWO");') == {"ONE_A"}
    yield "reads names that are handed on", read_by_cpp(
        'for (auto n : {"ONE", "B"})\n getenv(n);') == {"ONE"}
    yield "reads Python", read_by_python(
        'os.environ["ONE"]; os.environ["TWO"] = x\nos.environ.get("THREE", 1)') == {
            "ONE", "THREE"}
    yield "reads shell", read_by_shell(
        "a=${ONE:-1}\nTWO=2\necho $TWO ${BASH_SOURCE[0]} # $NO\n"
        "export THREE=a:$THREE\n") == {"ONE", "THREE"}
    yield "reads CMake", read_by_cmake("x $ENV{ONE}/bin # $ENV{NO}") == {"ONE"}
    yield "reads pyproject.toml", read_by_project('x = {env = "ONE"}') == {"ONE"}
    yield "reads the tables", tables(
        "| `A_B`, `C` | x `D` |\n\n## Tests\n\n| `E` | y |\n") == ({"A_B", "C"}, {"E"})
    yield "compares both ways", list(compare(
        [("runtime/x", {"A", "E"}), ("test/y", {"B"})], {"C", "E"}, {"D", "E"})) == [
            "lacks 'A', which runtime/x reads",
            "lacks 'B' under Tests, which test/y reads",
            "has 'C', which no source outside of test/ reads",
            "has 'D' under Tests, which no source reads", "has 'E' twice"]


def check():
    wrong = list(compare(list(sources()), *tables(pages.read(PAGE))))
    for problem in wrong or [None]:
        yield "docs/Environment.md", problem
    for name, text in pages.texts():
        elsewhere = re.findall(r"^\| `(MERAKC?_[A-Z_]+)`", text, re.M)
        yield name, (f"has a row for '{elsewhere[0]}', which stands in "
                     "docs/Environment.md"
                     if elsewhere and not PAGE.endswith(name) else None)
