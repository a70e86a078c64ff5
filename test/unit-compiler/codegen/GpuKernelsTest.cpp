// What the code for GPUs is made of: barriers, instructions, threads of a row.
#include "test/unit-compiler/codegen/KernelCases.h"

namespace merak::codegen::test {
namespace {

// The code for GPUs with one barrier less: the interpreter must see a race, or
// threads that do not meet. Of 5003 elements a block has more than it holds.
TEST(KernelCompiler, EveryBarrierOfTheGpusCodeIsNeeded) {
  for (int64_t columns : {int64_t{1600}, int64_t{5003}}) {
    Kernels kernels(softmax(3, columns), "ptx");
    ASSERT_EQ(kernels.error, "");
    const std::string whole = kernels.object.object;
    Random random(1);
    const std::vector<Tensor> inputs = makeInputs(
        kernels.function("softmax"), [&](unsigned, mlir::Type element) {
          return smallNumber(random, element);
        });
    kernels.run("softmax", inputs, {});
    EXPECT_EQ(kernels.error, "");
    const std::string barrier = "bar.sync";
    for (size_t at = whole.find(barrier), next; at != std::string::npos;
         at = next) {
      // One behind the other they are one.
      size_t end = whole.find('\n', at);
      while ((next = whole.find(barrier, end)) != std::string::npos &&
             whole.find_first_not_of(" \t\n", end) == next)
        end = whole.find('\n', next);
      std::string cut = whole;
      cut.erase(at, end - at);
      auto parsed = ptx::Module::parse(cut);
      ASSERT_TRUE(parsed.ok()) << parsed.status().str();
      kernels.ptx = std::move(*parsed);
      kernels.error.clear();
      for (int i = 0; i < 2; ++i) // aligned or not: each has its code
        kernels.run("softmax", inputs, {});
      EXPECT_NE(kernels.error, "") << "the barrier at " << at;
    }
  }
}

// What a thread executes for an element of GPT-2's rows, by the PTX. Bounds are
// what it was when this was written (2026-11-26) and a tenth more.
TEST(KernelCompiler, InstructionsOfRowsOnGpus) {
  struct Counted {
    const char *name;
    std::string text;
    int64_t rows, columns;
    double most;
  };
  for (const Counted &c :
       {Counted{"layer_norm", layerNorm(16, 1600), 16, 1600, 19.6},
        Counted{"softmax", softmax(16, 1024), 16, 1024, 21.5},
        Counted{"softmax", softmax(2, 50257, strides({50304, 1}), ""), 2, 50257,
                36.8},
        Counted{"affine", affine(64, 1600, "", ""), 64, 1600, 14.1}}) {
    Kernels kernels(c.text, "ptx");
    ASSERT_EQ(kernels.error, "");
    Random random(1);
    ++kernels.runs; // aligned
    kernels.run(c.name,
                makeInputs(kernels.function(c.name),
                           [&](unsigned, mlir::Type element) {
                             return smallNumber(random, element);
                           }),
                std::string(c.name) == "affine"
                    ? std::vector<int64_t>{std::bit_cast<int64_t>(1.5)}
                    : std::vector<int64_t>{});
    EXPECT_EQ(kernels.error, "");
    const double each = double(kernels.executed) / double(c.rows * c.columns);
    EXPECT_LE(each, c.most) << c.name << " of " << c.columns;
  }
}

// A block has 48 KiB of shared memory, whatever surrounds its sums.
TEST(KernelCompiler, SumsOfAGroupShareABlocksMemory) {
  std::string mat = tensorType({64, 4096}, "f32");
  std::string column = tensorType({64}, "f32");
  Text t;
  std::string last = "%x";
  for (int i = 0; i < 40; ++i) {
    std::string e = t.empty(mat), next = "%v" + std::to_string(i);
    t.generic(next, 2, kPP, {{last, mat, "(d0, d1)"}}, {e, mat, "(d0, d1)"},
              "%a: f32, %o: f32",
              "%1 = arith.addf %a, %a : f32\nlinalg.yield %1 : f32");
    last = next;
  }
  for (const char *sum : {"%s", "%t"}) {
    std::string zero = t.filled(column, "f32", "0.0");
    t.generic(sum, 2, kPR, {{last, mat, "(d0, d1)"}}, {zero, column, "(d0)"},
              "%a: f32, %o: f32",
              "%1 = arith.addf %o, %a : f32\nlinalg.yield %1 : f32");
    last = "%v3";
  }
  Kernels kernels("func.func @chain(%x: " + mat + ") -> (" + column + ", " +
                      column + ") attributes {merak.kernel} {\n" + t.body +
                      "return %s, %t : " + column + ", " + column + "\n}\n",
                  "sm_80");
  ASSERT_EQ(kernels.error, "");
  const std::string &ptx = kernels.object.object;
  size_t at = ptx.find(".shared .align 8 .b8 ");
  ASSERT_NE(at, std::string::npos) << ptx;
  EXPECT_EQ(std::stoll(ptx.substr(ptx.find('[', at) + 1)), 256 * 8);
}

// How rows are shared out on a GPU: what a program of one thread says.
TEST(KernelCompiler, RowsOnAGpu) {
  auto compiled = [](const std::string &text) {
    Kernels kernels(text, "sm_80");
    EXPECT_EQ(kernels.error, "");
    return std::move(kernels.object.object);
  };
  // A warp for each row of three packs: no barrier; the packs of both operands
  // are loaded before the first sum, and none again.
  std::string ptx = compiled(residualNorm(16384, 768, ""));
  EXPECT_EQ(countOf(ptx, ".maxntid 64"), 1);
  EXPECT_EQ(countOf(ptx, "bar.sync") + countOf(ptx, "barrier.sync"), 0) << ptx;
  EXPECT_EQ(countOf(ptx, "ld.global.v4.b32"), 9); // and the bias
  const size_t first = ptx.find("ld.global.v4"),
               last = ptx.rfind("ld.global.v4");
  EXPECT_GT(ptx.find("shfl.sync", first), last);
  EXPECT_EQ(countOf(ptx, ".shared"), 0);
  // Conversions in pairs.
  EXPECT_EQ(countOf(ptx, "cvt.rn.bf16.f32"), 0);
  EXPECT_GT(countOf(ptx, "cvt.rn.bf16x2.f32"), 0);
  const std::string half = compiled(inF16(residualNorm(16384, 768, "")));
  // One by one only in the program for rows that are not aligned.
  EXPECT_GT(countOf(half, "cvt.rn.f16x2.f32"), 0);
  EXPECT_EQ(countOf(half, "cvt.rn.f16.f32"),
            2 * countOf(half, "cvt.rn.f16x2.f32"));
  EXPECT_EQ(countOf(half, "ld.global.v4.b32"), 9);
  // Four warps for a row of 1600: one barrier for its sum, in each program, and
  // none for its results, in whose place no operand can lie.
  ptx = compiled(residualNorm(8192, 1600, ""));
  EXPECT_EQ(countOf(ptx, ".maxntid 128"), 1);
  EXPECT_EQ(countOf(ptx, "barrier.sync") + countOf(ptx, "bar.sync"), 2) << ptx;
  // Few rows have more threads each.
  ptx = compiled(residualNorm(16, 1600, ""));
  EXPECT_EQ(countOf(ptx, ".maxntid 256"), 1);
  // Logits are read once, four packs in a round and the last two; the logit at
  // the label is loaded, no index is compared with it.
  ptx = compiled(crossEntropy(8192, 50257, "bf16", "i64", strides({50304, 1})));
  EXPECT_EQ(countOf(ptx, ".maxntid 128"), 1);
  EXPECT_EQ(countOf(ptx, "ld.global.v4.b32"), 6);
  EXPECT_GT(countOf(ptx, "ex2.approx.ftz.f32"), 32);
  EXPECT_EQ(countOf(ptx, "setp.eq.s64") + countOf(ptx, "setp.ne.s64") +
                countOf(ptx, "setp.eq.b64") + countOf(ptx, "setp.ne.b64"),
            1); // of the addresses' alignment
  // A ragged row element by element: all threads of a processor.
  ptx = compiled(lossGradient(8192, 50257, strides({50304, 1})));
  EXPECT_EQ(countOf(ptx, ".minnctapersm 8"), 1);
  EXPECT_EQ(countOf(ptx, "ld.global.v4.b32"), 1);
  EXPECT_EQ(countOf(ptx, "st.global.v4.b32"), 1);
}

} // namespace
} // namespace merak::codegen::test
