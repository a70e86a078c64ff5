"""Names in documents exist: ops and attributes of the dialects, options of
programs, passes, identifiers and files of the sources.

Each check is a function of texts and of what exists, so that a self-test can show
it an invented name.
"""
import os
import re
import subprocess
import sys

import pages
from pages import ROOT

sys.path.insert(0, os.path.join(ROOT, "scripts/lib"))
import dialect_pages  # noqa: E402
import suites  # noqa: E402

CODE = (".cpp", ".h", ".cu", ".td", ".proto", ".py", ".cmake", "CMakeLists.txt", ".js",
        "CMakePresets.json", ".mlir", ".css")

COMPILER = ("dialects/", "passes/", "compiler/", "codegen/")

# ------------------------------------------------------------------------ ops

OP = re.compile(r"(?<![\w./-])(?:train|dist|pipe|plan|merak)\.[a-z]\w*")
FILE_ENDS = ("json", "md", "pb", "proto", "py")


def unknown_ops(text, known):
    """Names that look like an op, an attribute or a type and are none."""
    return sorted({name for name in OP.findall(text)
                   if name not in known and name.split(".")[1] not in FILE_ENDS})


def known_ops():
    """Ops, attributes and types, and the attributes that passes put on ops, which
    stand in the sources as strings."""
    known = set()
    for dialect in dialect_pages.DIALECTS:
        known |= {op.name for op in dialect_pages.ops(dialect)}
    for name, text in pages.sources(".td", ".h", ".cpp", tops=COMPILER):
        known |= set(re.findall(rf'"({OP.pattern})"', text))
        if name.endswith(".td"):
            dialect = name.split(os.sep)[1].lower()
            known |= {f"{dialect}.{mnemonic}" for mnemonic in
                      re.findall(r'mnemonic = "(\w+)"', text)}
            known |= {f"{dialect}.{mnemonic}" for mnemonic in re.findall(
                r'(?:Attr|Type)<\s*"?\w+"?,\s*"(\w+)"', text)}
    return known


# -------------------------------------------------------------------- options

OPTION = re.compile(r"(?<![\w`-])--[a-z][\w-]*")
# Programs of others that documents show, with the options that they show of them.
OTHERS = {
    "cmake": {"--build", "--install", "--preset", "--target"},
    "mpirun": {"--host"},
    "srun": {"--ntasks-per-node"},
    "LLVM": {"--debug-only", "--mlir-print-ir-after-all"},
    "Google Benchmark": {"--benchmark_filter"},
    "GoogleTest": {"--gtest_filter"},
}
COMPILED = ("merakc", "merak-run", "merak-plan", "merak-bench", "merak-opt",
            "import-fuzz")
# Programs that an ordinary build lacks, by their sources.
SOURCES = {"merak-table": "bench/MerakTable.cpp"}
SHELL = re.compile(r"&&|\|\||[|;]")


def help_of(bin_dir, *command):
    if not os.path.exists(os.path.join(bin_dir, command[0])):
        sys.exit(f"{command[0]} is not built in {bin_dir}; scripts/check builds it")
    done = subprocess.run([os.path.join(bin_dir, command[0]), *command[1:], "--help"],
                          text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=60)
    return done.stdout


def options_of_help(text):
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) | {"--help"}


def options_of_program(bin_dir, name):
    """What --help names, of subcommands too."""
    text = help_of(bin_dir, name)
    listed = re.search(r"^(?:Subcommands|SUBCOMMANDS):\n((?:  .*\n?)+)", text, re.M)
    for line in listed[1].splitlines() if listed else ():
        if re.match(r"  \w", line):
            text += help_of(bin_dir, name, line.split()[0])
    return options_of_help(text)


def options_of_script(text, neighbours):
    """What a script takes, by its source and by those of the neighbours that it
    imports: `add_argument` of Python, patterns of a `case` of a shell."""
    found = set(re.findall(r"^\s+(?:--[\w=* |-]+\| *)?(--[\w-]+)=?\*?(?: *\|[^)]*)?\)",
                           text, re.M))
    for line in re.findall(r"^ +(-[\w=* |-]+)\)", text, re.M):
        found |= set(re.findall(r"--[\w-]+", line))
    for call in re.findall(r"add_argument\(([^)]*)", text):
        found |= set(re.findall(r'"(--[\w-]+)"', call))
    for line in re.findall(r".*sys\.argv.*", text):
        found |= set(re.findall(r'"(--[\w-]+)"', line))
    for name in re.findall(r"^(?:from|import) (\w+)", text, re.M):
        if name in neighbours:
            rest = {k: v for k, v in neighbours.items() if k != name}
            found |= options_of_script(neighbours[name], rest)
    return found | {"--help"}


def known_options(bin_dir):
    """{program: its options}; scripts by path and by name."""
    known = {name: options_of_program(bin_dir, name) for name in COMPILED}
    for name, path in SOURCES.items():
        text = pages.read(os.path.join(ROOT, path))
        known[name] = {"--" + option for option in
                       re.findall(r"cl::\w+<[^;]*?>\s*\w+\(\s*\"([\w-]+)\"", text)}
    python = pages.sources(".py", tops=("scripts/", "test/", "samples/", "bench/"))
    for name, text in [*python, *pages.shell_scripts()]:
        folder, leaf = os.path.split(name)
        beside = {os.path.basename(other)[:-3]: text for other, text in python
                  if os.path.dirname(other) == folder}
        known[name] = options_of_script(text, beside)
        known[leaf] = known.get(leaf, set()) | known[name]
    return {**known, **OTHERS}


def takes(options, option):
    """Whether an option is one of these; of `--phase-NAME` what precedes NAME."""
    placeholder = re.match(r"(--[a-z-]+-)(?:[A-Z]+)?$", option)
    return option in options or placeholder is not None and any(
        known.startswith(placeholder[1]) for known in options)


def wrong_options(line, known):
    """(option, program) of a command line where a program that is known does not
    take an option, (option, None) where no program does."""
    wrong = []
    anywhere = set().union(*known.values())
    for part in SHELL.split(line):
        program = None
        for word in part.split():
            name = word.removeprefix("./").strip("'\"()[]")
            short = os.path.basename(name)
            if (name in known or short in known) and (
                    program is None or program in OTHERS):
                program = name if name in known else short
            option = OPTION.match(word.strip("'\"()[]{},"))
            if not option or option[0] in OTHERS["LLVM"]:
                continue
            if not takes(known[program] if program else anywhere, option[0]):
                wrong.append((option[0], program))
    return wrong


def command_lines(text):
    """The command lines of a page: of its blocks, and spans that are one."""
    for block in pages.blocks(text, "sh", "bash", "console"):
        is_console = "$ " in block
        for line in re.sub(r"\\\n(?:> )?", " ", block).splitlines():
            if line.startswith("$ ") or not is_console:
                yield line.removeprefix("$ ").split(" #")[0]
    yield from pages.indented(text)
    yield from pages.spans(text)


def unknown_options(text, known):
    anywhere = set().union(*known.values())
    wrong = [f"'{option}' is no option of {program or 'any program'}"
             for line in command_lines(text)
             for option, program in wrong_options(line, known)]
    wrong += [f"'{option}' is no option of any program" for option in
              OPTION.findall(re.sub(r"`[^`]*`", "", pages.prose(text)))
              if not takes(anywhere, option)]
    return sorted(set(wrong))


# ---------------------------------------------------- identifiers, files, passes

# More than one word: PascalCase, camelBack, a::scope, snake_case, a-flag, A_VARIABLE.
IDENTIFIER = re.compile(
    r"(?:\w+::)+\w+|[A-Za-z]+[a-z0-9][A-Z]\w*|[A-Z][a-z0-9]+[A-Z]\w*|"
    r"[a-z]\w*_\w+|[a-z][a-z0-9]+(?:-[a-z0-9]{2,})+|[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
# Identifiers of others, and the styles of names that CONTRIBUTING.md speaks of.
THEIRS = {"AlwaysSpeculatableImplTrait", "ConditionallySpeculatable", "DT_RPATH",
          "DT_RUNPATH", "PushLimit", "THP_MEM_ALLOC_ENABLE", "affine-super-vectorize",
          "cuModuleLoadData", "dnnl_sgemm", "kPascalCase", "py3-none"}
FILE = re.compile(r"[\w-]+\.(?:h|cpp|cu|td|py|proto|mlir)")
CASE = re.compile(r"[A-Z]\w+\.[A-Z]\w+")
PASS = re.compile(r"merak-[a-z][\w-]*")


def unknown_identifiers(text, known):
    wrong = []
    for span in pages.spans(text):
        name = span.split("=")[0].removesuffix("()")
        if IDENTIFIER.fullmatch(name):
            wrong += [name] if not known.issuperset(name.split("::")) else []
    return sorted(set(wrong) - THEIRS)


def unknown_files(text, known):
    return sorted({span for span in pages.spans(text)
                   if FILE.fullmatch(span) and span not in known})


def unknown_passes(text, known):
    return sorted({name for span in pages.spans(text)
                   for name in PASS.findall(span) if PASS.fullmatch(span.split()[0])
                   and name not in known})


def unknown_cases(text, known):
    return sorted({span for span in pages.spans(text)
                   if CASE.fullmatch(span) and span not in known})


def known_cases():
    """Cases of gtest."""
    return {".".join(case) for _, text in pages.sources(".cpp", tops=("test/",))
            for case in re.findall(r"TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)", text)}


def known_words():
    """The words of the sources, with and without hyphens; not those of comments, which
    may be as stale as a document."""
    found = set()
    for name, text in [*pages.sources(*CODE), *pages.shell_scripts()]:
        if not name.endswith((".py", ".sh", ".txt")):
            text = re.sub(r"(?<!:)//.*", "", text)
        found |= set(re.findall(r"\w+(?:-\w+)+", text)) | set(re.findall(r"\w+", text))
    return found


def known_files():
    return {os.path.basename(name) for name in pages.files()}


def known_passes():
    """Flags of passes, and programs."""
    found = set()
    for name, text in pages.sources(".td", "CMakeLists.txt"):
        found |= set(re.findall(r'"(merak-[\w-]+)"', text))
        found |= set(re.findall(r"merak_tool\((merak-[\w-]+)", text))
    return found


# ------------------------------------------------------------------- glossary

GLOSSARY = os.path.join(ROOT, "docs/Glossary.md")
DECLARED = re.compile(r"\b(?:class|struct|enum(?: class)?|using|concept|message|def)"
                      r"\s+(\w+)")


def undeclared(text, types):
    """What the glossary names as a type and no source declares."""
    wrong = []
    for span in pages.spans(text):
        name = span.split("::")[-1]
        if re.fullmatch(r"(?:\w+::)*[A-Z][a-z]\w*", span) and name not in types:
            wrong.append(span)
    return sorted(set(wrong))


def known_types():
    found = set()
    for _, text in pages.sources(".h", ".td", ".proto", ".cpp"):
        found |= set(DECLARED.findall(text))
        found |= {name + kind for kind, name in
                  re.findall(r'(Attr|Type)Def<\w+, "(\w+)"', text)}
    return found


# ------------------------------------------------------- schedules and suites


def missing_schedules(page, usage):
    """Schedules that have a section and that the help of --schedule does not name."""
    described = re.search(r"--schedule\b(.*?)\n +-", usage, re.S)
    return [name for name in re.findall(r"^### (\S+)$", page, re.M)
            if name not in re.findall(r"\w+", described[1] if described else "")]


def wrong_suites(table, usage, known):
    """Suites that a table (names in its first column) or a usage text lacks, or has
    and there are none of."""
    rows = set(re.findall(r"^\| `([\w-]+)` \|", table, re.M))
    words = set(re.findall(r"[\w-]+", usage))
    return sorted(set(known) ^ rows), sorted(set(known) - words)


# --------------------------------------------------------------------- checks


def selftest():
    known = {"a-tool": {"--here"}, "b-tool": {"--there"}, "LLVM": set(), **OTHERS}
    yield "finds an invented op", unknown_ops(
        "`train.exp`, `train.invented`, see plan.json and x/plan.foo",
        {"train.exp"}) == ["train.invented"]
    yield "finds an option of no program", unknown_options(
        "with --nowhere and `--here`", known) == [
            "'--nowhere' is no option of any program"]
    yield "finds an option of another program", unknown_options(
        "```sh\nmpirun a-tool b-tool --there=1  # --no\nb-tool \\\n  --there\n```\n",
        known) == [
            "'--there' is no option of a-tool"]
    yield "knows placeholders", (takes({"--phase-a"}, "--phase-NAME"),
                                 takes({"--phase-a"}, "--step-NAME")) == (True, False)
    yield "reads the options of a shell script", options_of_script(
        "case $a in\n  --one=*) x ;;\n  --two | --three) y ;;\n", {}) == {
            "--one", "--two", "--three", "--help"}
    yield "reads the options of what a script imports", options_of_script(
        "import other\n", {"other": 'p.add_argument("-x", "--one")\n'}) == {
            "--one", "--help"}
    yield "finds an invented identifier", unknown_identifiers(
        "`aName`, `TheName`, `T::name`, `a_name`, `the-name`, `A_B=1`, `word` `a b`",
        {"aName", "T"}) == ["A_B", "T::name", "TheName", "a_name", "the-name"]
    yield "finds a file that is gone", unknown_files(
        "`A.h` and `B.cpp`", {"A.h"}) == ["B.cpp"]
    yield "finds a unit test that is gone", unknown_cases(
        "`Ab.Works` and `Ab.Gone`", {"Ab.Works"}) == ["Ab.Gone"]
    yield "finds a pass that is gone", unknown_passes(
        "`merak-run x` and `merak-gone`", {"merak-run"}) == ["merak-gone"]
    yield "finds a type that nothing declares", undeclared(
        "`Stage`, `plan::Plan`, `train.exp`", {"Stage"}) == ["plan::Plan"]
    yield "finds a schedule that --help lacks", missing_schedules(
        "### a\n### b\n", "  --schedule TEXT  a,\n     c\n  --next b\n") == ["b"]
    yield "finds a suite that is not documented", wrong_suites(
        "| `a` | x |\n| `c` | y |\n", "some: a b", ["a", "b", "d"]) == (
            ["b", "c", "d"], ["d"])
    yield "reads a command over several lines", list(command_lines(
        "```console\n$ a \\\n> b\nc\n```\n")) == ["a  b"]


def check(bin_dir):
    """(page, what is wrong or None) for each page and kind of name."""
    kinds = [(unknown_ops, known_ops(), "'{}' is no op, attribute or type"),
             (unknown_options, known_options(bin_dir), "{}"),
             (unknown_identifiers, known_words(), "'{}' is in no source"),
             (unknown_files, known_files(), "there is no file '{}'"),
             (unknown_cases, known_cases(), "'{}' is no case of a unit test"),
             (unknown_passes, known_passes(), "'{}' is no pass and no program")]
    for name, text in pages.texts():
        for unknown, known, says in kinds:
            # A nested message of the schema looks like a case.
            if unknown is unknown_cases and pages.is_generated(text):
                continue
            wrong = unknown(text, known)
            yield name, "; ".join(says.format(w) for w in wrong) or None
    wrong = undeclared(pages.read(GLOSSARY), known_types())
    yield "docs/Glossary.md", "; ".join(
        f"'{w}' is no type of the sources" for w in wrong) or None
    lacking = missing_schedules(pages.read(os.path.join(ROOT, "docs/Schedules.md")),
                                help_of(bin_dir, "merakc"))
    yield "docs/Schedules.md", "; ".join(
        f"merakc --help does not name '{name}'" for name in lacking) or None
    usage = pages.read(os.path.join(ROOT, "scripts/check")).split("set -euo")[0]
    table = pages.read(os.path.join(ROOT, "docs/Testing.md"))
    for page, wrong in zip(("docs/Testing.md", "scripts/check"),
                           wrong_suites(table, usage, suites.SUITES)):
        yield page, "; ".join(f"the suite '{w}' is in one place only, expected in "
                              "suites.py and here" for w in wrong) or None
