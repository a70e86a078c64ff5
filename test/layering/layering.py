#!/usr/bin/env python3
"""The layering of docs/Architecture.md, checked over #include lines, that nothing
decides by the name of an op, and that facts which once had several homes keep one.

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
COMPILER = r'^(dialects|onnx|passes|compiler|codegen)/'
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
     MLIR + '|' + COMPILER.replace('^(', '^(?!passes/(CostModel|Resharding|Stragglers)/)('),
     ("tools/merak-run/Bad.cpp", '#include <mlir/IR/MLIRContext.h>')),
    ("unit tests without LLVM", r'^test/unit/', MLIR,
     ("test/unit/plan/Bad.cpp", '#include "mlir/IR/Builders.h"')),
    ("Planning, Resharding, Stragglers and CostModel hold no MLIR type",
     r'^passes/(Planning|Resharding|Stragglers|CostModel)/', MLIR + r'|^dialects/(?!Support/)|\.h\.inc$',
     ("passes/Planning/Bad.cpp", '#include "dialects/Train/TrainOps.h"')),
    ("Resharding stands on layouts and the cost model alone", r'^passes/Resharding/',
     MLIR + r'|^(dialects|onnx|compiler|codegen)/|^passes/(?!Resharding/|CostModel/)',
     ("passes/Resharding/Bad.cpp", '#include "passes/Planning/Schedule.h"')),
    ("Stragglers stands on Resharding and the cost model alone",
     r'^passes/Stragglers/', MLIR + r'|^(dialects|onnx|compiler|codegen)/' \
     r'|^passes/(?!Stragglers/|Resharding/|CostModel/)',
     ("passes/Stragglers/Bad.cpp", '#include "passes/Planning/PlanSearch.h"')),
    ("support/ stands alone", r'^support/',
     MLIR + '|' + COMPILER + r'|^(runtime|tools)/|\.pb\.h$',
     ("support/Bad.cpp", '#include "runtime/core/Status.h"')),
    ("runtime/layout stands alone", r'^runtime/layout/',
     MLIR + r'|^google/|\.pb\.h$|^runtime/(?!layout/|core/Status\.h)',
     ("runtime/layout/Bad.cpp", '#include "runtime/plan/plan.pb.h"')),
    ("what is saved knows nothing of what is moved", r'^runtime/(checkpoint|plan|core)/',
     r'^runtime/(migration|launch)/',
     ("runtime/checkpoint/Bad.cpp", '#include "runtime/migration/Migration.h"')),
    ("dialects/ see no passes", r'^dialects/', r'^(onnx|passes|compiler|codegen)/',
     ("dialects/Train/Bad.cpp", '#include "passes/Graph/Passes.h"')),
    ("passes/ know no ONNX", r'^(passes|codegen)/', r'^(onnx|compiler)/',
     ("passes/Graph/Bad.cpp", '#include "onnx/Conversion/OnnxNode.h"')),
    ("onnx/ sees of passes only builders, planning's strategy and reverse mode",
     r'^onnx/', r'^passes/(?!Graph/(GraphBuilder|HostTensor|ReverseMode)\.h|Planning/)|^(compiler|codegen)/',
     ("onnx/Import/Bad.cpp", '#include "passes/Lowering/Passes.h"')),
    ("the compiler meets the runtime in plan, layout and report",
     r'^(dialects|onnx|passes|compiler|codegen|tools/(merakc|merak-opt|merak-lsp-server))/',
     RUNTIME_INTERNALS,
     ("codegen/PlanWriter/Bad.cpp", '#include "runtime/core/Executor.h"')),
    ("CUDA stays in its backend",
     r'^(?!runtime/backends/cuda/|runtime/comm/nccl/|test/gpu/|test/unit/driver/|bench/)',
     GPU,
     ("runtime/core/Bad.cpp", '#include <cuda_runtime.h>')),
    ("NCCL stays in its communicator", r'^(?!runtime/comm/nccl/|test/gpu/|test/unit/cuda/nccl/)',
     r'^nccl',
     ("runtime/backends/cuda/Bad.cpp", '#include <nccl.h>')),
    ("MPI stays in its communicator", r'^(?!runtime/comm/mpi/)', r'^mpi\.h',
     ("runtime/launch/Bad.cpp", '#include <mpi.h>')),
    ("OpenSSL stays in runtime/trust", r'^(?!runtime/trust/)', r'^openssl/',
     ("runtime/launch/Bad.cpp", '#include <openssl/hmac.h>')),
    ("includes start at the repository root", r'', r'^\.\.?/',
     ("runtime/core/Bad.cpp", '#include "../layout/Layout.h"')),
]
# Where code asks an op for its class or interface, never for its name: a pass
# that compares names has a list of ops of its own, which the next op is not in.
NO_OP_NAMES = r'^(codegen|passes)/'
# Dialects whose names stand for ops alone; ours name attributes too.
FOREIGN = r'(?:arith|math|linalg|tensor|scf|func|memref|vector|affine|gpu)'
OURS = r'(?:train|dist|pipe|plan)'
NAME_OF_OP = r'(?:getName\(\)\s*\.\s*(?:getStringRef|stripDialect|getIdentifier)' \
    r'\(\)|getOperationName\(\)|getDialectNamespace\(\))'
# (what is wrong, pattern over code without comments, examples)
OP_NAMES = [
    ("spells the name of an op", rf'"{FOREIGN}\.[a-z]\w*"',
     ['if (name == "math.exp")', 'OperationState state(loc, "arith.addf");',
      'StringSwitch<int>(n).Case("linalg.generic", 1)']),
    ("compares with the name of an op",
     rf'[=!]=\s*"{OURS}\.[a-z]\w*"|"{OURS}\.[a-z]\w*"\s*[=!]=|'
     rf'\.Cases?\("{OURS}\.[a-z]\w*"',
     ['if (name == "train.einsum")', 'return "dist.slice" != name;',
      'StringSwitch<int>(n).Case("train.add", 1)']),
    ("compares an op's name",
     rf'{NAME_OF_OP}\s*[=!]=|[=!]=\s*[\w:>.()-]*{NAME_OF_OP}|'
     rf'{NAME_OF_OP}\s*\.\s*(?:starts_with|ends_with|contains|find|compare)\(',
     ['if (op->getName().getStringRef() == text)',
      'return op->getName().getDialectNamespace() != "math";',
      'if (text == EinsumOp::getOperationName())',
      'op->getName().getStringRef().starts_with(prefix)']),
]
# Facts that have one home; elsewhere they would be a second list or a second way
# to compute them. (rule, where it holds, the home, patterns over code without
# comments, files with examples)
STRIDES = r'(?:\w+\.)*strides?'
ONE_HOME = [
    ("row-major strides are those of runtime/layout/Strides.h",
     r'^(onnx|dialects|passes|codegen|compiler|runtime)/',
     r'^runtime/layout/Strides\.cpp$',
     [rf'{STRIDES}\[(\w+)\] =\s*{STRIDES}\[\1 \+ 1\] \*',
      rf'{STRIDES}\[(\w+) - 1\] =\s*{STRIDES}\[\1\] \*',
      rf'{STRIDES}\[(\w+)\] = (\w+);\s*\2 \*= ',
      rf'\b(\w+) \*= (?:\w+\.)*(?:shape|dims)\[\w+\]\)\s*{STRIDES}\[\w+\] = \1'],
     [("passes/Graph/A.cpp", "strides[i] = strides[i + 1] * shape[i + 1];"),
      ("passes/Planning/A.cpp", "strides[i - 1] = strides[i] * shape[i];"),
      ("dialects/Plan/A.cpp", "strides[i] = stride;\n    stride *= shape[i];"),
      ("runtime/backends/cpu/A.cpp",
       "for (size_t d = n; d-- > 0; step *= shape[d])\n    strides[d] = step;")]),
    ("the class of a kernel's rates stands in runtime/plan/LibraryKernels.h",
     r'^(passes|codegen|tools)/', r'^$',
     [r'(?:\{\s*"(?:KERNEL)"\s*,[^{}]*\}\s*,?\s*){2}'],
     [("passes/CostModel/A.cpp", '{"einsum", "matmul"}, {"copy", "copy"},')]),
    ("an op says where it is defined in which operands it is linear",
     r'^dialects/Train/Rules\.cpp$', r'^$',
     [r'\b(?:isa|dyn_cast|cast)<[^>]*\w+Op\b[^>]*>\(op\)'],
     [("dialects/Train/Rules.cpp", "if (isa<AddOp, SubOp>(op))")]),
    ("what an op is to a product is its EpilogueOpInterface",
     r'^passes/(Lowering/Epilogues|Staging/PlanningGraph)\.', r'^$',
     [r'<(?:\w+::)*(?:Add|Gelu|GeluGrad|Cast)Op\b'],
     [("passes/Lowering/Epilogues.cpp", "if (isa<AddOp>(op))")]),
    ("kinds of torch's functions stand in onnx/Import/FoldedFunctions.cpp",
     r'^onnx/', r'^onnx/Import/FoldedFunctions\.cpp$',
     [r'StringSet<>[^;]*"permute"', r'\{[^{}]*"(?:permute|transpose)"[^{}]*"view"'],
     [("onnx/Import/A.cpp",
       'static const llvm::StringSet<> kViews = {"permute", "view"};')]),
]
# A variable that holds an op's name; comparing it is the same.
HOLDS_NAME = re.compile(rf'\b(\w+)\s*=\s*[^;=]*{NAME_OF_OP}\s*(?:\.str\(\))?;')
# Names of our ops without their dialect, as planning once kept them.
MNEMONIC = re.compile(r'\b(?:Train|Dist|Pipe|Plan)_\w+<"([a-z]\w*)"')
LIST_OF_NAMES = re.compile(r'\{\s*"[^{}"]*"(?:\s*,\s*"[^{}"]*"){2,}\s*,?\s*\}')
COMPARED_KERNEL = re.compile(r'\bkernel\s*[=!]=\s*"([a-z]\w*)"')
NO_FALSE_ALARM = [
    'const char *kRecompute[] = {"none", "full", "auto"};',
    'if (options.target == "native")', 'op->setAttr("train.recompute", unit);',
    '// as name == "math.exp" did', 'isa<math::ExpOp>(op)',
    'op->emitError() << "\'" << op->getName() << "\'";',
    'if (symbol.getName() == other.getName())']
COMMENT_OR_STRING = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
SOURCES = (".h", ".cpp", ".cu", ".cuh", ".td", ".inc")
TEXTS = SOURCES + (".txt", ".cmake", ".md", ".py", ".proto", ".json", ".mlir",
                   ".test", ".sh", "")
SKIPPED = {"build", "out", ".git", ".cache", "__pycache__"}


def without_comments(text):
    return COMMENT_OR_STRING.sub(
        lambda m: m[0] if m[0][0] == '"' else re.sub(r'[^\n]', ' ', m[0]), text)


def op_names(text, mnemonics=()):
    """Where a source decides by the name of an op: (position, sentence)."""
    code = without_comments(text)
    patterns = [(what, re.compile(pattern)) for what, pattern, _ in OP_NAMES]
    for name in {match[1] for match in HOLDS_NAME.finditer(code)}:
        patterns.append(("compares an op's name", re.compile(
            rf'\b{name}\s*[=!]=\s*"|"\s*[=!]=\s*{name}\b')))
    found = [(match.start(), f"{what} ('{match[0]}')")
             for what, pattern in patterns for match in pattern.finditer(code)]
    for match in LIST_OF_NAMES.finditer(code):
        names = re.findall(r'"([^"]*)"', match[0])
        if all(name in mnemonics for name in names):
            found.append((match.start(), "lists ops by name ('%s', ...)" %
                          names[0]))
    found += [(match.start(), f"compares an op's name ('{match[0]}')")
              for match in COMPARED_KERNEL.finditer(code)
              if match[1] in mnemonics]
    return found


def second_homes(path, text, kernels):
    """Where a source has a fact that has its home elsewhere: (rule, position)."""
    code = None
    for rule, folders, home, patterns, _ in ONE_HOME:
        if not re.search(folders, path) or re.search(home, path):
            continue
        code = code or without_comments(text)
        for pattern in patterns:
            pattern = pattern.replace("KERNEL", "|".join(kernels) or "einsum|copy")
            for match in re.finditer(pattern, code):
                yield rule, match.start()


def kernels_of(root):
    """The names of library kernels."""
    with open(os.path.join(root, "runtime/plan/LibraryKernels.h"),
              encoding="utf-8") as file:
        return re.findall(r'\{"(\w+)", RateClass::', file.read())


def mnemonics_of(root):
    """The names that the dialects define."""
    names = set()
    for path, text in files(os.path.join(root, "dialects")):
        if path.endswith(".td"):
            names.update(MNEMONIC.findall(text))
    return names


def problems(path, text, mnemonics=(), kernels=()):
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
    if path.endswith(SOURCES) and re.search(NO_OP_NAMES, path):
        for position, sentence in op_names(text, mnemonics):
            found.append(("no decision by an op's name", line(position),
                          sentence + "; ask for its class or interface"))
    if path.endswith(SOURCES):
        for rule, position in second_homes(path, text, kernels):
            found.append((rule, line(position), f"has a fact of its own, but {rule}"))
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


def unbuilt(names, listing):
    """Tests of a folder that its CMakeLists.txt leaves out: where it lists its
    sources, a file that is not listed is never compiled and never fails."""
    if "merak_unittest" not in listing or "*Test.cpp" in listing or \
            "SOURCES" not in listing:
        return []
    return [name for name in sorted(names)
            if name.endswith("Test.cpp") and name not in listing]


def unbuilt_of(root):
    for folder, _, names in sorted(os.walk(os.path.join(root, "test"))):
        if "CMakeLists.txt" not in names:
            continue
        with open(os.path.join(folder, "CMakeLists.txt"),
                  encoding="utf-8") as listing:
            for name in unbuilt(names, listing.read()):
                yield os.path.relpath(os.path.join(folder, name), root)


def selftest():
    """Sentences about rules that cannot fail, or fail where they should not."""
    wrong = []
    for name, _, _, (path, text) in RULES:
        if not any(rule == name for rule, _, _ in problems(path, text)):
            wrong.append(f"the rule '{name}' does not catch {path}: {text}")
    for name, _, _, _, examples in ONE_HOME:
        for path, text in examples:
            if not any(rule == name for rule, _, _ in problems(path, text)):
                wrong.append(f"'{name}' does not catch {path}: {text}")
    if not problems("docs/A.md", "see " + "/ho" + "me/someone/x"):
        wrong.append("paths of one machine are not caught")
    for what, _, examples in OP_NAMES:
        for text in examples:
            if not any(rule == "no decision by an op's name"
                       for rule, _, _ in problems("codegen/Kernels/A.cpp", text)):
                wrong.append(f"no rule catches that a pass {what}: {text}")
    listing = "merak_unittest(a SOURCES ATest.cpp)"
    if unbuilt(["ATest.cpp", "BTest.cpp", "C.cpp"], listing) != ["BTest.cpp"] or \
            unbuilt(["BTest.cpp"], "merak_unittest(a DEPS A)"):
        wrong.append("a test that is not built is not caught")
    held = 'auto name = op->getName().getStringRef();\nif (name == "exp") {}'
    if len(op_names(held)) != 1:
        wrong.append("an op's name in a variable is not caught")
    names = {"add", "mul", "slice", "einsum"}
    for text in ('static const std::set<std::string> k = {"add", "mul",\n "slice"};',
                 'if (op.kernel == "einsum")'):
        if len(op_names(text, names)) != 1:
            wrong.append(f"a list of ops by name is not caught: {text}")
    wrong += [f"false alarm: {text}: {sentence}" for text in NO_FALSE_ALARM
              for _, sentence in op_names(text, names)]
    good = [("runtime/plan/A.cpp", '#include "runtime/layout/Layout.h"'),
            ("codegen/PlanWriter/A.cpp", '#include "runtime/plan/plan.pb.h"'),
            ("passes/Graph/A.cpp", '#include "mlir/IR/Builders.h"'),
            ("runtime/backends/cuda/A.cpp", '#include <cuda_runtime.h>'),
            ("runtime/layout/Strides.cpp",
             "strides[i - 1] = strides[i] * shape[i];"),
            ("passes/Graph/A.cpp", "// strides[i] = strides[i + 1] * shape[i];"),
            ("passes/Graph/A.cpp", "strides[i] = view.strides[i] * steps[i];"),
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
    mnemonics, kernels = mnemonics_of(root), kernels_of(root)
    if len(kernels) < 30:
        wrong.append(f"only {len(kernels)} library kernels found")
        print(f"self-test: {wrong[-1]}")
    if len(mnemonics) < 50:
        wrong.append(f"only {len(mnemonics)} ops found in dialects/")
        print(f"self-test: {wrong[-1]}")
    for path in unbuilt_of(root):
        broken.add("tests are built")
        print(f"{path}: no CMakeLists.txt builds this test")
    for path, text in files(root):
        seen += 1
        for rule, number, sentence in problems(path, text, mnemonics, kernels):
            broken.add(rule)
            print(f"{path}:{number}: {sentence}")
    checks = len(RULES) + len(ONE_HOME) + 3
    failed = min(checks, len(broken) + len(wrong))
    print(f"layering: {seen} files, {checks} rules")
    print(f"{checks - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
