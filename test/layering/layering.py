#!/usr/bin/env python3
"""The layering of docs/Architecture.md, checked over #include lines.

Each rule names the folders it holds for and the includes it forbids there. The
test first proves on invented files that every rule can fail.

    layering.py [ROOT]      prints one line a problem and `N passed, M failed`
"""
import os
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)
# Absolute paths of a developer's machine have no place in the repository.
MACHINE_PATH = re.compile(r'(?<![\w.$/}-])/(?:home|work|Users)/[\w.-]+')

MLIR = r'^(llvm|mlir|llvm-c|mlir-c)/'
COMPILER = r'^(dialects|passes|compiler|codegen)/'
# What the compiler may see of the runtime.
RUNTIME_INTERNALS = r'^runtime/(?!plan/|layout/|report/|core/Status\.h)'
GPU = r'^(cuda|cublas|cudnn|cusparse|curand|nvrtc|nvToolsExt|nvtx3/)'

# (name, folders as a pattern, forbidden includes, an example that must fail)
RULES = [
    ("runtime/ sees no LLVM", r'^runtime/', MLIR,
     ("runtime/core/Bad.cpp", '#include "llvm/ADT/StringRef.h"')),
    ("runtime/ sees no compiler", r'^runtime/', COMPILER,
     ("runtime/plan/Bad.h", '#include "passes/Planning/Strategy.h"')),
    ("runtime tools see no LLVM", r'^tools/(merak-run|merak-plan|merak-bench)/',
     MLIR + '|' + COMPILER.replace('^(', '^(?!passes/CostModel/)('),
     ("tools/merak-run/Bad.cpp", '#include <mlir/IR/MLIRContext.h>')),
    ("unit tests without LLVM", r'^test/unit/', MLIR,
     ("test/unit/plan/Bad.cpp", '#include "mlir/IR/Builders.h"')),
    ("Planning and CostModel hold no MLIR type",
     r'^passes/(Planning|CostModel)/', MLIR + r'|^dialects/(?!Support/)|\.h\.inc$',
     ("passes/Planning/Bad.cpp", '#include "dialects/Train/TrainOps.h"')),
    ("runtime/layout stands alone", r'^runtime/layout/',
     MLIR + r'|^google/|\.pb\.h$|^runtime/(?!layout/|core/Status\.h)',
     ("runtime/layout/Bad.cpp", '#include "runtime/plan/plan.pb.h"')),
    ("dialects/ see no passes", r'^dialects/', r'^(passes|compiler|codegen)/',
     ("dialects/Train/Bad.cpp", '#include "passes/Graph/Passes.h"')),
    ("the compiler meets the runtime in plan, layout and report",
     r'^(dialects|passes|compiler|codegen|tools/(merakc|merak-opt|merak-lsp-server))/',
     RUNTIME_INTERNALS,
     ("codegen/PlanWriter/Bad.cpp", '#include "runtime/core/Executor.h"')),
    ("CUDA stays in its backend",
     r'^(?!runtime/backends/cuda/|runtime/comm/nccl/|test/gpu/|test/unit/driver/|bench/)',
     GPU,
     ("runtime/core/Bad.cpp", '#include <cuda_runtime.h>')),
    ("NCCL stays in its communicator", r'^(?!runtime/comm/nccl/|test/gpu/)',
     r'^nccl',
     ("runtime/backends/cuda/Bad.cpp", '#include <nccl.h>')),
    ("MPI stays in its communicator", r'^(?!runtime/comm/mpi/)', r'^mpi\.h',
     ("runtime/launch/Bad.cpp", '#include <mpi.h>')),
    ("includes start at the repository root", r'', r'^\.\.?/',
     ("runtime/core/Bad.cpp", '#include "../layout/Layout.h"')),
]
SOURCES = (".h", ".cpp", ".cu", ".cuh", ".td", ".inc")
TEXTS = SOURCES + (".txt", ".cmake", ".md", ".py", ".proto", ".json", ".mlir",
                   ".test", ".sh", "")
SKIPPED = {"build", "out", ".git", ".cache", "__pycache__"}


def problems(path, text):
    """All broken rules of one file: (rule, line number, sentence)."""
    found = []

    def line(position):
        return text.count("\n", 0, position) + 1

    if path.endswith(SOURCES):
        for match in INCLUDE.finditer(text):
            for name, folders, forbidden, _ in RULES:
                if re.search(folders, path) and re.search(forbidden, match[1]):
                    found.append((name, line(match.start()),
                                  f"includes '{match[1]}', but {name}"))
    for match in MACHINE_PATH.finditer(text):
        found.append(("no paths of one machine", line(match.start()),
                      f"mentions '{match[0]}', a path of one machine"))
    return found


def files(root):
    for folder, names, leaves in os.walk(root):
        names[:] = sorted(n for n in names if n not in SKIPPED)
        leaves = [n for n in leaves if n not in SKIPPED]
        for leaf in sorted(leaves):
            if os.path.splitext(leaf)[1] in TEXTS:
                path = os.path.join(folder, leaf)
                try:
                    with open(path, encoding="utf-8") as file:
                        yield os.path.relpath(path, root), file.read()
                except UnicodeDecodeError:
                    pass


def selftest():
    """Sentences about rules that cannot fail, or fail where they should not."""
    wrong = []
    for name, _, _, (path, text) in RULES:
        if not any(rule == name for rule, _, _ in problems(path, text)):
            wrong.append(f"the rule '{name}' does not catch {path}: {text}")
    if not problems("docs/A.md", "see " + "/ho" + "me/someone/x"):
        wrong.append("paths of one machine are not caught")
    good = [("runtime/plan/A.cpp", '#include "runtime/layout/Layout.h"'),
            ("codegen/PlanWriter/A.cpp", '#include "runtime/plan/plan.pb.h"'),
            ("passes/Graph/A.cpp", '#include "mlir/IR/Builders.h"'),
            ("runtime/backends/cuda/A.cpp", '#include <cuda_runtime.h>'),
            ("docs/A.md", "https://host/home/page and ./Users/x")]
    for path, text in good:
        wrong += [f"false alarm in {path}: {sentence}"
                  for _, _, sentence in problems(path, text)]
    return wrong


def main():
    root = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else
                           os.path.join(os.path.dirname(__file__), "../.."))
    for sentence in (wrong := selftest()):
        print(f"self-test: {sentence}")
    broken = set()
    seen = 0
    for path, text in files(root):
        seen += 1
        for rule, number, sentence in problems(path, text):
            broken.add(rule)
            print(f"{path}:{number}: {sentence}")
    checks = len(RULES) + 1
    failed = min(checks, len(broken) + len(wrong))
    print(f"layering: {seen} files, {checks} rules")
    print(f"{checks - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
