// Kernels that reduce rows: softmax, norms, losses, on every target.
#include "test/unit-compiler/codegen/KernelCases.h"

#include <cstring>

namespace merak::codegen::test {
namespace {

TEST(KernelCompiler, SoftmaxRows) {
  Batch batch;
  for (auto [m, n] : std::vector<std::pair<int64_t, int64_t>>{{1, 1},
                                                              {3, 5},
                                                              {4, 16},
                                                              {9, 64},
                                                              {5, 100},
                                                              {3, 1024},
                                                              {2, 5003},
                                                              {2, 40000}})
    batch.add(softmax(m, n), 2e-6, n);
  batch.add(softmax(12, 33, strides({1, 12})), 2e-6);
  // Rows that begin where packs of neighbours do, and end anywhere.
  for (int64_t n : {1, 12, 515, 1600, 5003}) {
    const std::string padded = strides({(n + 15) / 8 * 8, 1});
    batch.add(softmax(3, n, padded, padded), 2e-6, n);
  }
  batch.add(softmax(1, 5003), 2e-6, 5003);
}

TEST(KernelCompiler, LayerNorm) {
  Batch batch;
  for (auto [m, n] : std::vector<std::pair<int64_t, int64_t>>{{1, 2},
                                                              {6, 16},
                                                              {5, 37},
                                                              {33, 128},
                                                              {3, 768},
                                                              {2, 1600},
                                                              {2, 3000},
                                                              {1, 3001},
                                                              {3, 5000},
                                                              {2, 12000},
                                                              {1, 20001}})
    batch.add(layerNorm(m, n), 1e-4, n);
}

TEST(KernelCompiler, ResidualAndNorm) {
  Batch batch;
  // bf16 numbers that sums of two keep, so that any order of a sum will do.
  Fill fill = [](Random &random, unsigned, mlir::Type) {
    return Number{static_cast<double>(random.below(65) - 32) / 32, 0};
  };
  for (auto [m, n] : std::vector<std::pair<int64_t, int64_t>>{
           {3, 40}, {2, 768}, {5, 1600}, {3, 1601}, {2, 4096}, {2, 20000}}) {
    batch.add(residualNorm(m, n, ""), 5e-3, n, {}, fill);
    batch.add(inF16(residualNorm(m, n, "")), 1e-3, n, {}, fill);
    batch.add(residualNorm(m, n, strides({(n + 63) / 64 * 64, 1})), 5e-3, n, {},
              fill);
  }
}

// `y` is known before the mean is, and may lie where `r` does, which is read
// after it.
std::string lateResidual(int64_t m, int64_t n) {
  std::string wide = tensorType({m, n}, "f32"),
              mat = tensorType({m, n}, "bf16"), vec = tensorType({m}, "f32");
  Text t;
  std::string zero = t.filled(vec, "f32", "0.0"), e = t.empty(mat);
  t.generic("%sum", 2, kPR, {{"%x", wide, "(d0, d1)"}}, {zero, vec, "(d0)"},
            "%a: f32, %o: f32",
            "%1 = arith.addf %o, %a : f32\nlinalg.yield %1 : f32");
  t.generic("%y", 2, kPP, {{"%x", wide, "(d0, d1)"}}, {e, mat, "(d0, d1)"},
            "%a: f32, %o: bf16",
            "%1 = arith.truncf %a : f32 to bf16\nlinalg.yield %1 : bf16");
  t.generic("%z", 2, kPP, {{"%r", mat, "(d0, d1)"}, {"%sum", vec, "(d0)"}},
            {e, mat, "(d0, d1)"}, "%a: bf16, %s: f32, %o: bf16",
            "%1 = arith.extf %a : bf16 to f32\n%2 = arith.addf %1, %s : f32\n"
            "%3 = arith.truncf %2 : f32 to bf16\nlinalg.yield %3 : bf16");
  return "func.func @late_residual(%x: " + wide + ", %r: " + mat + ") -> (" +
         mat + ", " + mat + ") attributes {merak.kernel} {\n" + t.body +
         "return %y, %z : " + mat + ", " + mat + "\n}\n";
}

TEST(KernelCompiler, ResultsInPlaceOfWhatIsReadLater) {
  Batch batch;
  Fill fill = [](Random &random, unsigned, mlir::Type) {
    return Number{static_cast<double>(random.below(65) - 32) / 32, 0};
  };
  for (auto [m, n] : std::vector<std::pair<int64_t, int64_t>>{
           {3, 40}, {2, 768}, {3, 1601}, {2, 4096}, {2, 20000}}) {
    batch.add(lateResidual(m, n), 5e-3, n, {}, fill);
    batch.add(inF16(lateResidual(m, n)), 1e-3, n, {}, fill);
  }
}

TEST(KernelCompiler, CrossEntropyRows) {
  Batch batch;
  for (auto [m, n] : std::vector<std::pair<int64_t, int64_t>>{
           {9, 5}, {3, 1000}, {3, 5001}, {3, 16391}, {2, 50257}})
    for (const char *element : {"f32", "bf16", "f16"})
      for (const char *label : {"i64", "i32"}) {
        // Some labels lie before or behind the row: nothing is picked.
        Fill fill = [n = n](Random &random, unsigned arg, mlir::Type type) {
          if (arg == 1)
            return Number{0, random.below(n + 3) - 1};
          const double value = random.unit() * 20 - 10;
          return Number{type.getIntOrFloatBitWidth() == 16
                            ? std::floor(value * 8) / 8
                            : static_cast<float>(value),
                        0};
        };
        const std::string padded = strides({(n + 63) / 64 * 64, 1});
        batch.add(crossEntropy(m, n, element, label, ""), 4e-6, n, {}, fill);
        batch.add(crossEntropy(m, n, element, label, padded), 4e-6, n, {},
                  fill);
      }
}

// Where all or the largest logits are infinite, or one is no number, the sum of
// exponentials is what it is by definition.
TEST(KernelCompiler, CrossEntropyOfInfinities) {
  constexpr int64_t m = 7, n = 40003;
  const std::string text = crossEntropy(m, n, "bf16", "i64", "");
  auto fill = [](int64_t i) {
    const int64_t row = i / n, column = i % n;
    const double usual = static_cast<double>(i % 17) - 8;
    switch (row) {
    case 0:
      return -static_cast<double>(INFINITY);
    case 1: // the first half
      return column < n / 2 ? -static_cast<double>(INFINITY) : usual;
    case 2: // but for the last one
      return column + 1 < n ? -static_cast<double>(INFINITY) : 3.0;
    case 3:
      return column == 777 ? static_cast<double>(INFINITY) : usual;
    case 4:
      return column == 39000 ? static_cast<double>(NAN) : usual;
    case 5: // far apart, growing
      return static_cast<double>(column / 256) * 4 - 300;
    default:
      return usual;
    }
  };
  auto outputs = [&](const std::string &target) {
    Kernels kernels(text, target);
    EXPECT_TRUE(kernels.handle) << kernels.error;
    int64_t next = 0;
    std::vector<Tensor> inputs = makeInputs(
        kernels.function("cross_entropy"), [&](unsigned arg, mlir::Type) {
          return arg == 1 ? Number{0, 3} : Number{fill(next++), 0};
        });
    return kernels.run("cross_entropy", inputs, {});
  };
  const std::vector<Tensor> wanted = outputs("x86-64"), got = outputs("grid");
  for (size_t i = 0; i < wanted.size(); ++i)
    for (int64_t row = 0; row < m; ++row) {
      const double a = got[i].data[row].f, b = wanted[i].data[row].f;
      EXPECT_TRUE((std::isnan(a) && std::isnan(b)) || a == b ||
                  std::fabs(a - b) <= 1e-6 * std::fabs(b))
          << "result " << i << " of row " << row << ": " << a << ", expected "
          << b;
    }
  // Of a row without numbers above minus infinity, and with infinity.
  EXPECT_TRUE(std::isnan(got[1].data[0].f));
  EXPECT_TRUE(std::isnan(got[1].data[3].f));
}

TEST(KernelCompiler, RaggedRowsOfPacks) {
  Batch batch;
  for (auto [m, n] : std::vector<std::pair<int64_t, int64_t>>{
           {3, 511}, {3, 512}, {3, 513}, {5, 1601}, {2, 5003}}) {
    Fill fill = [n = n](Random &random, unsigned arg, mlir::Type) {
      return arg == 1
                 ? Number{0, random.below(n)}
                 : Number{static_cast<double>(random.below(33) - 32) / 8, 0};
    };
    for (int64_t pitch : {n, (n + 7) / 8 * 8, (n + 63) / 64 * 64})
      batch.add(lossGradient(m, n, strides({pitch, 1})), 8e-3, n, {}, fill);
  }
}

// More sums than an exchange between warps takes at once.
TEST(KernelCompiler, ManySumsOfOneRow) {
  constexpr int64_t m = 3, n = 6001;
  std::string mat = tensorType({m, n}, "f32"), vec = tensorType({m}, "f32");
  Text t;
  std::string names, types;
  for (int i = 0; i < 37; ++i) {
    std::string zero = t.filled(vec, "f32", "0.0"),
                name = "%s" + std::to_string(i);
    t.generic(name, 2, kPR, {{"%x", mat, "(d0, d1)"}}, {zero, vec, "(d0)"},
              "%a: f32, %o: f32",
              "%c = arith.constant " + std::to_string(i) +
                  ".0 : f32\n%1 = arith.mulf %a, %c : f32\n"
                  "%2 = arith.addf %o, %1 : f32\nlinalg.yield %2 : f32");
    names += (i ? ", " : "") + name;
    types += (i ? ", " : "") + vec;
  }
  Batch batch;
  batch.add("func.func @sums(%x: " + mat + ") -> (" + types +
                ") attributes {merak.kernel} {\n" + t.body + "return " + names +
                " : " + types + "\n}\n",
            1e-4);
}

} // namespace
} // namespace merak::codegen::test
