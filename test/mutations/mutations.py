#!/usr/bin/env python3
"""Planted mutations: changes of one line that give plans which look right and
train something else. Each must fail a test.

    mutations.py --build build/release          whether each still has a place
    mutations.py --build build/release --all    builds each in a copy of the
                                                sources and runs its test, which
                                                passes without it

The copy lies in the build folder and is built through ccache: about as long as
compiling and linking the compiler for each of them.
"""
import argparse
import filecmp
import os
import shutil
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))


class Mutation:
    """`line` of `file` becomes `instead`; `test` is a script of test/e2e with
    the words that its cases are filtered by."""

    def __init__(self, name, file, line, instead, test):
        self.name, self.file, self.test = name, file, test
        self.line, self.instead = line, instead

    def problem(self, root):
        """Why it cannot be planted; None where it can."""
        with open(os.path.join(root, self.file), encoding="utf-8") as file:
            count = file.read().count(self.line)
        if count != 1:
            return (f"'{self.line}' stands {count} times in {self.file}, "
                    "expected once")
        return None

    def plant(self, root, back=False):
        path = os.path.join(root, self.file)
        old, new = self.line, self.instead
        if back:
            old, new = new, old
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(old, new))


MUTATIONS = [
    # A gradient that is written over kept logits has slots for its own life only,
    # so that logits of the next microbatch are written over them.
    Mutation("slots of what is written over", "passes/Lowering/WriteOverKept.cpp",
             "for (plan::BufferOp buffer : {in, out})",
             "for (plan::BufferOp buffer : {out})",
             ["identity.py", "order mlp-ce gpipe"]),
    # The norm of all gradients leaves out what other replicas hold.
    Mutation("norm over dp", "passes/Staging/StageUpdates.cpp",
             "for (StringRef whole : {kDataAxis, kTensorAxis})",
             "for (StringRef whole : {kTensorAxis})",
             ["seams.py", "exact adamw dp=2 off"]),
    # What is printed and clipped is the norm of scaled gradients.
    Mutation("loss scale in the norm", "runtime/backends/cpu/Optimizer.cpp",
             "double norm = std::sqrt(sum) / scale;",
             "double norm = std::sqrt(sum);",
             ["loss_scale.py", "unscaled gpt2-tiny none sgd"]),
    # Updates take gradients that are scaled.
    Mutation("loss scale in updates", "runtime/backends/cpu/Optimizer.cpp",
             "std::min(1.0, maxNorm / (norm + 1e-6)) / scale)",
             "std::min(1.0, maxNorm / (norm + 1e-6)))",
             ["loss_scale.py", "unscaled gpt2-tiny none sgd"]),
    # The scale falls in one process alone.
    Mutation("loss scale of one rank", "runtime/launch/NonFinite.cpp",
             "    lossScale_->learn(finite);",
             "    lossScale_->learn(finite || world_->ranks().front() > 0);",
             ["loss_scale.py", "processes mlp-ce dp=2"]),
    # A checkpoint forgets how many steps the scale has stood.
    Mutation("loss scale resumed", "runtime/core/LossScale.cpp",
             "  steps_ = steps;", "  steps_ = 0 * steps;",
             ["loss_scale.py", "resume mlp-ce none pp=2"]),
    # The first step applies what no step has left.
    Mutation("delayed gradient of no step", "passes/Sharding/DelayGradients.cpp",
             "std::numeric_limits<double>::quiet_NaN()", "1.0",
             ["delayed_gradients.py", "linear adamw dp=2"]),
    # A parameter is read before the step by what was left for it.
    Mutation("delayed gradient behind a reader", "passes/Lowering/PlaceDelayed.cpp",
             "static_cast<size_t>(at)]);",
             "static_cast<size_t>(std::min<int64_t>(at + 1, "
             "there.size() - 1))]);",
             ["delayed_gradients.py", "linear sgd dp=2"]),
    # Gradients in the type with more digits, the other factor in the one with more
    # range.
    Mutation("types of 8 bits", "dialects/Train/Gradients.cpp",
             "b.getTypeArrayAttr({range, digits})",
             "b.getTypeArrayAttr({digits, range})",
             ["fp8.py", "numbers mlp-ce"]),
    # The logits in 8 bits.
    Mutation("last product in 8 bits", "passes/Graph/RoundProducts.cpp",
             "if (!multiplied.contains(product))", "if (false)",
             ["fp8.py", "numbers mlp-ce"]),
    # Both factors in the type of the first.
    Mutation("second type of 8 bits", "runtime/backends/cpu/Einsum.cpp",
             "b_(types[1], ScratchSlot::RoundedB, inputs[1]),",
             "b_(types[0], ScratchSlot::RoundedB, inputs[1]),",
             ["fp8.py", "numbers mlp-ce"]),
    # What the optimizer writes beside a parameter is cut off, not rounded.
    Mutation("copy of a parameter", "runtime/backends/cpu/simd/RowsImpl.h",
             "(bits + 0x7fff + ((bits >> 16) & 1)) >> 16;", "bits >> 16;",
             ["precision.py", "kept sgd:lr=1e-2 bf16 none"]),
    # A part of the queries takes itself for the first one.
    Mutation("causal offset", "passes/Lowering/LibraryCalls.cpp",
             ".first(op.getSplitAxis(), sizeOf(op.getQ(), 1));",
             ".first(op.getSplitAxis(), 0);",
             ["seams.py", "recorded gpt2-tiny context"]),
    # Blocks over (tp, dp) without tp count as blocks over dp.
    Mutation("axis order", "passes/Planning/PartitionConvert.cpp",
             "    if ((from ^ to) & bit)\n      break;\n",
             "    if ((from ^ to) & bit)\n      continue;\n",
             ["seams.py", "row order"]),
    # Slices of one id are not added up: each but the first is lost.
    Mutation("sparse sum of an id", "runtime/backends/cpu/Coalesce.cpp",
             "for (++at; at != places.end() && at->first == id; ++at)",
             "for (++at; at == places.end() && at->first == id; ++at)",
             ["sparse.py", "exact lookup whole"]),
    # The norm is that of slices before they are summed by their ids.
    Mutation("sparse norm of slices", "passes/Staging/StageUpdates.cpp",
             "SquareSumOp::create(builder, loc, one, gradient), replicated);",
             "SquareSumOp::create(builder, loc, one,\n"
             "ids ? gradient.getDefiningOp()->getOperand(0) : gradient), "
             "replicated);",
             ["sparse.py", "exact clipped"]),
    # A step is taken on the row of padding.
    Mutation("sparse padding", "passes/Graph/SparseUpdates.cpp",
             "if (Value padding = paddingOf(lookup)) {",
             "if (Value padding; padding) {",
             ["sparse.py", "lazy padding"]),
    # Lazy updates where exact ones are asked for.
    Mutation("sparse lazy for exact", "passes/Graph/SparseUpdates.cpp",
             "    if (replays)\n      sparse->", "    if (false)\n      sparse->",
             ["sparse.py", "replayed rough lookup adamw"]),
    # Steps whose gradients were not finite are replayed.
    Mutation("sparse skipped steps", "runtime/backends/cpu/Optimizer.cpp",
             "{std::isnan(factor) ? 0.0f : 1.0f}", "{1.0f}",
             ["sparse.py", "replayed skipped adamw"]),
    # Rows that only other replicas looked up miss what they are owed.
    Mutation("sparse rows of replicas", "passes/Lowering/ActionLowering.cpp",
             "    createReplay(builder_, update.getLoc(), *table, tensors,\n"
             "                 {viewOf(update.getIds()), std::nullopt, "
             "scalars.back()});\n", "    (void)scalars.back();\n",
             ["sparse.py", "replayed sums adamw dp=2 whole"]),
    # Rows are looked up before they take what they are owed.
    Mutation("sparse lookups", "passes/Lowering/ActionLowering.cpp",
             "if (!table || table->isWholeEachStep)", "if (true) // planted",
             ["sparse.py", "replayed rough lookup adamw"]),
    # A lookup also takes the step that has yet to come, as what its place in the
    # ring of steps held before.
    Mutation("sparse step of a lookup", "runtime/backends/cpu/Requests.h",
             "return named ? step - 1 : step;", "return step;",
             ["sparse.py", "replayed long adamw"]),
    # Pipelines that go over all microbatches before their first forward are taken
    # to have the outputs of all.
    Mutation("outputs of a prologue", "runtime/launch/Session.cpp",
             "(proto.per_microbatch() && !own.contains(call.microbatch()))",
             "(proto.per_microbatch() && own.empty())",
             ["pipelines.py", "infer 19 deviation"]),
    # What a pipeline adds to a running mean counts as if its microbatches were the
    # last of the step.
    Mutation("statistics of pipelines", "passes/Staging/StageUpdates.cpp",
             "std::pow(keep, behind)", "std::pow(keep, 0 * behind)",
             ["batch_norm.py", "pipelines 1"]),
    # A checkpoint has rows that are behind.
    Mutation("sparse flush", "runtime/launch/Session.cpp",
             "runEntries(kFlushEntry)", "runEntries(\"none\")",
             ["sparse.py", "replayed sums adamw none"]),
    # After a checkpoint rows are owed all steps again.
    Mutation("sparse begin", "runtime/launch/SessionState.cpp",
             "  MERAK_RETURN_IF_ERROR(runEntries(kBeginEntry));\n"
             "  if (data_)\n    data_->setPosition(loaded.step, loaded.samples);",
             "  if (data_)\n    data_->setPosition(loaded.step, loaded.samples);",
             ["sparse.py", "replayed handed adamw exact"]),
    # What is remembered ends before rows have taken it.
    Mutation("sparse stripes", "runtime/backends/cpu/Replay.cpp",
             "const int64_t begin = step % r.stripes * r.stripeRows();",
             "const int64_t begin = 0 * step;",
             ["sparse.py", "replayed long adamw"]),
]


def run(command, **options):
    return subprocess.run(command, check=False, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, **options)


class Copy:
    """Sources and a build of their own."""

    def __init__(self, folder):
        # As far from each other as a build of the repository: what a compiler
        # is called with says where its files lie, and ccache compares it.
        self.root = os.path.join(folder, "source")
        self.build = os.path.join(self.root, "build", "release")
        listed = run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others",
                      "--exclude-standard"]).stdout
        leaves = {leaf for leaf in listed.split("\0")
                  if leaf and os.path.isfile(os.path.join(ROOT, leaf))}
        self.update(leaves)

    def update(self, leaves):
        """Writes what differs, a mutation of the last run too, so that it alone is
        built again; removes what is no more."""
        for folder, folders, files in os.walk(self.root):
            if folder == self.root and "build" in folders:
                folders.remove("build")
            for name in files:
                path = os.path.join(folder, name)
                if os.path.relpath(path, self.root) not in leaves:
                    os.remove(path)
        for leaf in leaves:
            source, target = (os.path.join(root, leaf) for root in (ROOT, self.root))
            if os.path.isfile(target) and filecmp.cmp(source, target, shallow=False):
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copyfile(source, target)
            shutil.copymode(source, target)

    def compile(self, jobs):
        """The last lines of what went wrong; None if nothing did."""
        for command in (["cmake", "--preset", "release", "-S", self.root, "-B",
                         self.build, "-DMERAK_CUDA=OFF"],
                        ["ninja", "-C", self.build, "-j", str(jobs), "merakc",
                         "merak-run", "merak-plan"]):
            done = run(command, cwd=self.root)
            if done.returncode:
                return "\n".join(done.stdout.splitlines()[-5:])
        return None

    def test(self, mutation, jobs):
        """Exit code and last line."""
        script, words = mutation.test
        done = run([sys.executable, os.path.join(self.root, "test/e2e", script),
                    "--bin-dir", os.path.join(self.build, "bin"), "--filter",
                    words, "--jobs", str(jobs)], cwd=self.root)
        return done.returncode, done.stdout.strip().splitlines()[-1:]


def caught(copy, mutation, jobs):
    """What is wrong; None if the test fails with it and passes without."""
    code, last = copy.test(mutation, jobs)
    if code != 0:
        return f"the test fails without it: {last}"
    mutation.plant(copy.root)
    try:
        if problem := copy.compile(jobs):
            return f"does not compile: {problem}"
        code, last = copy.test(mutation, jobs)
    finally:
        mutation.plant(copy.root, back=True)
    if code != 1:
        return f"no test fails with it: {last}"
    print(f"   {mutation.name}: {last[0]}", flush=True)
    return None


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="words of a mutation's name")
    args = parser.parse_args()
    chosen = [m for m in MUTATIONS if args.only in m.name]
    problems = {m.name: m.problem(ROOT) for m in chosen}
    if args.all and not any(problems.values()):
        copy = Copy(os.path.join(os.path.abspath(args.build), "mutations"))
        for mutation in chosen:
            problems[mutation.name] = (copy.compile(args.jobs) or
                                       caught(copy, mutation, args.jobs))
    for name, problem in problems.items():
        print(f"{'FAILED' if problem else 'ok    '} {name}  {problem or ''}")
    failed = sum(map(bool, problems.values()))
    print(f"{len(problems) - failed} passed, {failed} failed")
    return 1 if failed or not problems else 0


if __name__ == "__main__":
    sys.exit(main())
