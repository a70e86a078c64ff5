// Generated kernels against a naive interpreter: shapes, layouts, reductions,
// cuts of the parallel range, targets.
#include "test/unit-compiler/codegen/KernelCases.h"

#include "mlir/Parser/Parser.h"

#include <cstring>

namespace merak::codegen::test {
namespace {

TEST(KernelCompiler, BroadcastsOfAllSizesAndLayouts) {
  Batch batch;
  std::vector<int64_t> scalars = {std::bit_cast<int64_t>(0.3)};
  for (auto [m, n] : std::vector<std::pair<int64_t, int64_t>>{{1, 1},
                                                              {1, 17},
                                                              {5, 1},
                                                              {3, 16},
                                                              {33, 47},
                                                              {7, 300},
                                                              {64, 96},
                                                              {2, 4099},
                                                              {517, 3}}) {
    batch.add(affine(m, n, "", ""), 0, m, scalars);
    batch.add(affine(m, n, strides({1, m}), ""), 0, m, scalars); // transposed
    batch.add(affine(m, n, "", strides({1, m})), 0, m, scalars);
    batch.add(affine(m, n, strides({0, 1}), ""), 0, m, scalars); // broadcast
    batch.add(affine(m, n, strides({3 * n, 3}), ""), 0, m, scalars); // a slice
    batch.add(affine(m, n, strides({1, m}), strides({1, m})), 0, m, scalars);
  }
}

TEST(KernelCompiler, EmptyTensors) {
  Batch batch;
  batch.add(affine(0, 5, "", ""), 0, 1, {0});
  batch.add(affine(4, 0, "", ""), 0, 1, {0});
}

// The gradient of bias and activation in one: dx = dy * (x > 0) and the sum of
// dx over rows, added to what is there.
std::string reluGrad(int64_t m, int64_t n, const std::string &attr) {
  std::string mat = tensorType({m, n}, "f32"), row = tensorType({n}, "f32");
  Text t;
  std::string zero = t.filled(row, "f32", "0.0"), e = t.empty(mat);
  t.generic("%dx", 2, kPP, {{"%x", mat, "(d0, d1)"}, {"%dy", mat, "(d0, d1)"}},
            {e, mat, "(d0, d1)"}, "%a: f32, %d: f32, %o: f32",
            "%z = arith.constant 0.0 : f32\n"
            "%1 = arith.cmpf ogt, %a, %z : f32\n"
            "%2 = arith.select %1, %d, %z : f32\nlinalg.yield %2 : f32");
  t.generic("%db", 2, kRP, {{"%dx", mat, "(d0, d1)"}}, {zero, row, "(d1)"},
            "%a: f32, %o: f32",
            "%1 = arith.addf %o, %a : f32\nlinalg.yield %1 : f32");
  return "func.func @relu_grad(%x: " + mat + ", %dy: " + mat + " " + attr +
         ") -> (" + mat + ", " + row +
         " {merak.accumulate}) attributes {merak.kernel} {\n" + t.body +
         "return %dx, %db : " + mat + ", " + row + "\n}\n";
}

TEST(KernelCompiler, ColumnSumsAccumulate) {
  Batch batch;
  for (auto [m, n] : std::vector<std::pair<int64_t, int64_t>>{{1, 1},
                                                              {3, 5},
                                                              {100, 16},
                                                              {65, 64},
                                                              {64, 129},
                                                              {300, 77},
                                                              {1000, 3},
                                                              {7, 768}})
    batch.add(reluGrad(m, n, ""), 1e-4, n);
  batch.add(reluGrad(50, 70, strides({1, 50})), 1e-4);
  batch.add(reluGrad(50, 70, strides({0, 0})), 1e-4);
}

// Sums whose terms are small integers are exact in any order: equal bits.
TEST(KernelCompiler, SumsOfIntegersAreExact) {
  Batch batch;
  for (auto [m, n] : std::vector<std::pair<int64_t, int64_t>>{
           {257, 129}, {3, 5000}, {5000, 3}})
    batch.add(reluGrad(m, n, ""), 0, 1, {},
              [](Random &random, unsigned, mlir::Type) {
                return Number{double(random.below(17) - 8), 0};
              });
}

// Sum over N, H and W of an N x C x H x W tensor, per channel.
TEST(KernelCompiler, ReducesAroundAKeptDimension) {
  Batch batch;
  for (Dims shape : {Dims{3, 4, 7, 7}, Dims{2, 3, 8, 4}, Dims{5, 1, 3, 5},
                     Dims{2, 2, 40, 40}}) {
    for (bool channelsLast : {false, true}) {
      std::string x = tensorType(shape, "f32"),
                  y = tensorType({shape[1]}, "f32"), attr;
      if (channelsLast)
        attr = strides(
            {shape[1] * shape[2] * shape[3], 1, shape[3] * shape[1], shape[1]});
      else if (shape[3] == 4) // rows with gaps: nothing merges
        attr = strides({shape[1] * shape[2] * 6, shape[2] * 6, 6, 1});
      Text t;
      std::string zero = t.filled(y, "f32", "0.0");
      t.generic("%y", 4, {"reduction", "parallel", "reduction", "reduction"},
                {{"%x", x, "(d0, d1, d2, d3)"}}, {zero, y, "(d1)"},
                "%a: f32, %o: f32",
                "%1 = arith.addf %o, %a : f32\nlinalg.yield %1 : f32");
      batch.add("func.func @channel_sum(%x: " + x + " " + attr + ") -> " + y +
                    " attributes {merak.kernel} {\n" + t.body +
                    "return %y : " + y + "\n}\n",
                1e-5);
    }
  }
}

// A run of two reduced dimensions that lie transposed: lanes cross rows.
TEST(KernelCompiler, TransposedRun) {
  Batch batch;
  for (auto [a, b] :
       std::vector<std::pair<int64_t, int64_t>>{{5, 7}, {3, 16}, {9, 33}}) {
    std::string x = tensorType({4, a, b}, "f32"), y = tensorType({4}, "f32");
    Text t;
    std::string zero = t.filled(y, "f32", "0.0"), e = t.empty(x);
    t.generic("%s", 3, {"parallel", "reduction", "reduction"},
              {{"%x", x, "(d0, d1, d2)"}, {"%w", x, "(d0, d1, d2)"}},
              {zero, y, "(d0)"}, "%a: f32, %b: f32, %o: f32",
              "%1 = arith.mulf %a, %b : f32\n"
              "%2 = arith.addf %o, %1 : f32\nlinalg.yield %2 : f32");
    t.generic("%y", 3, {"parallel", "parallel", "parallel"},
              {{"%x", x, "(d0, d1, d2)"}, {"%s", y, "(d0)"}},
              {e, x, "(d0, d1, d2)"}, "%a: f32, %b: f32, %o: f32",
              "%1 = arith.mulf %a, %b : f32\nlinalg.yield %1 : f32");
    batch.add("func.func @f(%x: " + x + " " + strides({a * b, 1, a}) +
                  ", %w: " + x + ") -> (" + x + " " + strides({a * b, 1, a}) +
                  ") attributes {merak.kernel} {\n" + t.body +
                  "return %y : " + x + "\n}\n",
              1e-4);
  }
}

// Integers, booleans and indices: a causal mask, ids compared with a scalar.
TEST(KernelCompiler, IntegersBooleansAndIndices) {
  Batch batch;
  for (auto [m, n] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {5, 7}, {16, 32}, {19, 50}}) {
    std::string ids = tensorType({m, n}, "i64"),
                mask = tensorType({m, n}, "i1"),
                real = tensorType({m, n}, "f32"),
                small = tensorType({n}, "i32");
    Text t;
    std::string e1 = t.empty(mask), e2 = t.empty(real), e3 = t.empty(ids);
    t.generic("%keep", 2, kPP,
              {{"%ids", ids, "(d0, d1)"}, {"%m", mask, "(d0, d1)"}},
              {e1, mask, "(d0, d1)"}, "%a: i64, %b: i1, %o: i1",
              "%i = linalg.index 0 : index\n%j = linalg.index 1 : index\n"
              "%i2 = arith.index_cast %i : index to i64\n"
              "%j2 = arith.index_cast %j : index to i64\n"
              "%1 = arith.cmpi sge, %i2, %j2 : i64\n"
              "%2 = arith.cmpi ne, %a, %pad : i64\n"
              "%3 = arith.andi %1, %2 : i1\n%4 = arith.ori %3, %b : i1\n"
              "linalg.yield %4 : i1");
    t.generic("%y", 2, kPP,
              {{"%keep", mask, "(d0, d1)"},
               {"%small", small, "(d1)"},
               {"%ids", ids, "(d0, d1)"}},
              {e2, real, "(d0, d1)"}, "%a: i1, %b: i32, %c: i64, %o: f32",
              "%1 = arith.sitofp %b : i32 to f32\n"
              "%2 = arith.sitofp %c : i64 to f32\n"
              "%3 = arith.select %a, %1, %2 : f32\nlinalg.yield %3 : f32");
    t.generic("%q", 2, kPP,
              {{"%ids", ids, "(d0, d1)"}, {"%small", small, "(d1)"}},
              {e3, ids, "(d0, d1)"}, "%a: i64, %b: i32, %o: i64",
              "%1 = arith.extsi %b : i32 to i64\n"
              "%2 = arith.divsi %a, %1 : i64\n"
              "%3 = arith.remsi %a, %1 : i64\n"
              "%4 = arith.muli %2, %3 : i64\n"
              "linalg.yield %4 : i64");
    batch.add("func.func @f(%ids: " + ids + ", %m: " + mask + ", %small: " +
                  small + ", %pad: i64 {merak.scalar}) -> (" + mask + ", " +
                  real + ", " + ids + ") attributes {merak.kernel} {\n" +
                  t.body + "return %keep, %y, %q : " + mask + ", " + real +
                  ", " + ids + "\n}\n",
              0, m, {3});
  }
}

TEST(KernelCompiler, SixteenBitsRoundEveryOperation) {
  Batch batch;
  for (int64_t n : {1, 16, 45}) {
    std::string x = tensorType({n}, "bf16"), y = tensorType({n}, "f32");
    Text t;
    std::string e1 = t.empty(x), e2 = t.empty(y);
    t.generic("%p", 1, kPP, {{"%x", x, "(d0)"}, {"%z", x, "(d0)"}},
              {e1, x, "(d0)"}, "%a: bf16, %b: bf16, %o: bf16",
              "%c = arith.constant 1.25 : bf16\n"
              "%1 = arith.mulf %a, %b : bf16\n%2 = arith.addf %1, %c : bf16\n"
              "linalg.yield %2 : bf16");
    t.generic("%q", 1, kPP, {{"%p", x, "(d0)"}}, {e2, y, "(d0)"},
              "%a: bf16, %o: f32",
              "%1 = arith.extf %a : bf16 to f32\n"
              "%2 = arith.mulf %1, %1 : f32\nlinalg.yield %2 : f32");
    const std::string text = "func.func @f(%x: " + x + ", %z: " + x + ") -> (" +
                             x + ", " + y + ") attributes {merak.kernel} {\n" +
                             t.body + "return %p, %q : " + x + ", " + y +
                             "\n}\n";
    const Fill fill = [](Random &random, unsigned, mlir::Type) {
      return Number{double(random.below(255) - 127) / 64, 0};
    };
    batch.add(text, 0, n, {}, fill);
    batch.add(inF16(text), 0, n, {}, fill);
  }
}

struct Function {
  const char *name;
  double low, high, tolerance;
  const char *element = "f32";
};
const Function kFunctions[] = {{"exp", -105, 90, 2e-7},
                               {"exp", -1, 1, 2e-7},
                               {"log", 1e-6, 50, 2e-7},
                               {"log", 0.5, 2, 2e-7},
                               {"tanh", -12, 12, 3e-7},
                               {"erf", -5, 5, 3e-7},
                               {"sqrt", 0, 100, 0},
                               {"rsqrt", 1e-3, 100, 2e-7},
                               {"sin", -50, 50, 2e-7},
                               {"cos", -50, 50, 2e-7},
                               {"tan", -1.5, 1.5, 2e-7},
                               {"exp2", -140, 127, 2e-7},
                               {"expm1", -5, 5, 2e-7},
                               {"log1p", -0.999, 30, 2e-7},
                               {"log2", 1e-6, 50, 2e-7},
                               {"log10", 1e-6, 50, 2e-7},
                               {"sinh", -10, 10, 2e-7},
                               {"cosh", -10, 10, 2e-7},
                               {"atan", -30, 30, 2e-7},
                               {"asin", -1, 1, 2e-7},
                               {"acos", -0.99, 0.99, 2e-7},
                               {"floor", -20, 20, 0},
                               {"ceil", -20, 20, 0},
                               {"trunc", -20, 20, 0},
                               {"round", -20, 20, 0},
                               {"roundeven", -20, 20, 0},
                               {"floor", -20, 20, 0, "f64"},
                               {"ceil", -20, 20, 0, "f64"},
                               {"trunc", -20, 20, 0, "f64"},
                               {"round", -20, 20, 0, "f64"},
                               {"roundeven", -20, 20, 0, "f64"},
                               {"exp", -700, 700, 1e-15, "f64"},
                               {"log", 1e-6, 50, 1e-15, "f64"},
                               {"tanh", -12, 12, 1e-15, "f64"}};

// The function over its range and at special values, against the C library in
// double.
void checkFunction(Kernels &kernels, const std::string &kernel,
                   const Function &f, int64_t n) {
  std::string name = f.name;
  bool isF32 = std::string(f.element) == "f32";
  const std::vector<double> special = {
      0.0,    -0.0,  1.0,  -1.0,  INFINITY, -INFINITY, NAN,  1e-30,
      -1e-30, 1e-40, 88.9, -87.5, -95.0,    -104.5,    3e38, -3e38};
  bool periodic = name == "sin" || name == "cos" || name == "tan";
  int64_t next = 0;
  std::vector<Tensor> inputs =
      makeInputs(kernels.function(kernel), [&](unsigned, mlir::Type) {
        int64_t i = next++;
        double v = i < static_cast<int64_t>(special.size())
                       ? special[i]
                       : f.low + (f.high - f.low) * i / n;
        if (periodic && std::fabs(v) > 1e8 && std::isfinite(v))
          v = 0.5;
        return Number{isF32 ? double(float(v)) : v, 0};
      });
  std::vector<Tensor> got = kernels.run(kernel, inputs, {});
  std::vector<Tensor> wanted = interpret(kernels.function(kernel), inputs, {});
  for (int64_t i = 0; i < n; ++i) {
    double a = got[0].data[i].f, b = wanted[0].data[i].f;
    // Below the normal range one unit in the last place is allowed.
    double slack = isF32 ? 1.5e-45 : 5e-324;
    if ((std::isnan(a) && std::isnan(b)) || a == b ||
        std::fabs(a - b) <= f.tolerance * std::fabs(b) + slack)
      continue;
    ADD_FAILURE() << name << " " << f.element << " (" << inputs[0].data[i].f
                  << ") = " << a << ", expected " << b << ", relative error "
                  << std::fabs(a - b) / std::fabs(b);
    return;
  }
}

TEST(KernelCompiler, ElementaryFunctions) {
  constexpr int64_t n = 20011;
  std::string text;
  for (auto [i, f] : llvm::enumerate(kFunctions)) {
    std::string element = f.element, x = tensorType({n}, element);
    Text t;
    std::string e = t.empty(x);
    t.generic("%y", 1, kPP, {{"%x", x, "(d0)"}}, {e, x, "(d0)"},
              "%a: " + element + ", %o: " + element,
              std::string("%1 = math.") + f.name + " %a : " + element +
                  "\nlinalg.yield %1 : " + element);
    text += "func.func @f" + std::to_string(i) + "(%x: " + x + ") -> " + x +
            " attributes {merak.kernel} {\n" + t.body + "return %y : " + x +
            "\n}\n";
  }
  for (const std::string &target : targets()) {
    SCOPED_TRACE(target);
    Kernels kernels(text, target);
    ASSERT_TRUE(kernels.ok()) << kernels.error;
    for (auto [i, f] : llvm::enumerate(kFunctions))
      checkFunction(kernels, "f" + std::to_string(i), f, n);
  }
}

// The nearest number with `digits` binary digits that is a multiple of
// 2^`lowest` and below 2^`top`, ties to even.
double nearest(double x, int digits, int lowest, int top) {
  if (x == 0 || !std::isfinite(x))
    return x;
  int exponent;
  std::frexp(x, &exponent);
  double unit = std::ldexp(1.0, std::max(exponent - digits, lowest));
  double y = std::nearbyint(x / unit) * unit;
  return std::fabs(y) < std::ldexp(1.0, top) ? y : std::copysign(INFINITY, x);
}

// From f64, where rounding to f32 on the way would make ties of what is none.
TEST(KernelCompiler, HalvesAreRoundedOnce) {
  constexpr int64_t n = 6000;
  Text t;
  std::string x = tensorType({n}, "f64"), y = tensorType({n}, "f32");
  for (const char *element : {"f16", "bf16"}) {
    std::string result = std::string("%") + element, type = element;
    std::string e = t.empty(y);
    t.generic(result, 1, kPP, {{"%x", x, "(d0)"}}, {e, y, "(d0)"},
              "%a: f64, %o: f32",
              "%1 = arith.truncf %a : f64 to " + type +
                  "\n%2 = arith.extf %1 : " + type +
                  " to f32\nlinalg.yield %2 : f32");
  }
  std::string text = "func.func @f(%x: " + x + ") -> (" + y + ", " + y +
                     ") attributes {merak.kernel} {\n" + t.body +
                     "return %f16, %bf16 : " + y + ", " + y + "\n}\n";
  // Midpoints of both types and their neighbours, limits, small numbers.
  std::vector<double> values = {0.0,       -0.0,     65519.99999999999,
                                65520.0,   -65520.,  1e300,
                                -1e300,    INFINITY, NAN,
                                -INFINITY, 0x1p-25,  0x1p-26,
                                1e-300,    5e-324,   -0x1.0000001p-25};
  Random random(11);
  while (static_cast<int64_t>(values.size()) < n) {
    int digits = random.below(2) ? 11 : 8;
    double whole = std::ldexp(1.0, digits) + random.below(1 << digits);
    double beside[] = {0, 1e-9, -1e-9, 0x1p-40, -0x1p-40, random.unit()};
    double value = std::ldexp(whole + beside[random.below(6)],
                              static_cast<int>(random.below(44)) - 38);
    values.push_back(random.below(2) ? value : -value);
  }
  for (const std::string &target : targets()) {
    if (target == "x86-64")
      continue; // has no conversions of f16
    SCOPED_TRACE(target);
    Kernels kernels(text, target);
    ASSERT_TRUE(kernels.ok()) << kernels.error;
    int64_t next = 0;
    std::vector<Tensor> inputs =
        makeInputs(kernels.function("f"), [&](unsigned, mlir::Type) {
          return Number{values[next++], 0};
        });
    std::vector<Tensor> got = kernels.run("f", inputs, {});
    for (int64_t i = 0; i < n; ++i) {
      double half = got[0].data[i].f, brain = got[1].data[i].f, v = values[i];
      if (std::isnan(v)) {
        EXPECT_TRUE(std::isnan(half) && std::isnan(brain));
        continue;
      }
      EXPECT_EQ(half, nearest(v, 11, -24, 16)) << "f16 of " << v;
      EXPECT_EQ(brain, nearest(v, 8, -133, 128)) << "bf16 of " << v;
    }
  }
}

TEST(KernelCompiler, EqualKernelsShareCode) {
  std::string two = affine(8, 8, "", "");
  std::string other = affine(8, 8, "", "");
  other.replace(other.find("@affine"), 7, "@again");
  std::string third = affine(8, 9, "", "");
  third.replace(third.find("@affine"), 7, "@third");
  Kernels kernels(two + other + third, "x86-64");
  ASSERT_TRUE(kernels.ok()) << kernels.error;
  EXPECT_EQ(kernels.object.statistics.kernelsAsked, 3u);
  EXPECT_EQ(kernels.object.statistics.kernelsCompiled, 2u);
  EXPECT_EQ(kernels.object.kernels["affine"].symbol,
            kernels.object.kernels["again"].symbol);
  EXPECT_NE(kernels.object.kernels["affine"].symbol,
            kernels.object.kernels["third"].symbol);
}

TEST(KernelCompiler, SaysWhichOperandsMayShareMemory) {
  Kernels same(affine(8, 20, "", ""), "x86-64");
  std::vector<std::pair<unsigned, unsigned>> first = {{0, 0}};
  EXPECT_EQ(same.object.kernels["affine"].inPlace, first);
  Kernels transposed(affine(8, 20, strides({1, 8}), ""), "x86-64");
  EXPECT_TRUE(transposed.object.kernels["affine"].inPlace.empty());
  // One row is one whatever the step to the next.
  Kernels row(affine(1, 20, strides({0, 1}), ""), "x86-64");
  EXPECT_EQ(row.object.kernels["affine"].inPlace, first);
  Kernels twice(affine(2, 20, strides({0, 1}), ""), "x86-64");
  EXPECT_TRUE(twice.object.kernels["affine"].inPlace.empty());
}

TEST(KernelCompiler, ReportsAllProblemsAtOnce) {
  auto errorsOf = [](const std::string &text) {
    Kernels kernels(text, "x86-64-v3");
    EXPECT_FALSE(kernels.ok());
    return kernels.error;
  };
  // Two kernels, each with a problem of its own.
  std::string text = R"(
    func.func @a(%x: tensor<4xf64>) -> tensor<4xf64> attributes {merak.kernel} {
      %e = tensor.empty() : tensor<4xf64>
      %y = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>,
          affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
          ins(%x : tensor<4xf64>) outs(%e : tensor<4xf64>) {
      ^bb0(%a: f64, %o: f64):
        %1 = math.erf %a : f64
        linalg.yield %1 : f64
      } -> tensor<4xf64>
      return %y : tensor<4xf64>
    }
    func.func @b(%x: tensor<4x4xf32>) -> tensor<4x4xf32>
        attributes {merak.kernel} {
      %e = tensor.empty() : tensor<4x4xf32>
      %y = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>,
          affine_map<(d0, d1) -> (d0, d1)>],
          iterator_types = ["parallel", "parallel"]}
          ins(%x : tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) {
      ^bb0(%a: f32, %o: f32):
        linalg.yield %a : f32
      } -> tensor<4x4xf32>
      %z = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>,
          affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0, d1)>],
          iterator_types = ["parallel", "parallel"]}
          ins(%y, %y : tensor<4x4xf32>, tensor<4x4xf32>)
          outs(%e : tensor<4x4xf32>) {
      ^bb0(%a: f32, %b: f32, %o: f32):
        %1 = arith.addf %a, %b : f32
        linalg.yield %1 : f32
      } -> tensor<4x4xf32>
      return %z : tensor<4x4xf32>
    })";
  std::string errors = errorsOf(text);
  EXPECT_NE(
      errors.find("'math.erf' has no implementation in kernels for 'f64'"),
      std::string::npos)
      << errors;
  EXPECT_NE(errors.find("uses one dimension in two of its loops"),
            std::string::npos)
      << errors;
  EXPECT_NE(KernelTarget::fromName("z80").status().str().find(
                "unknown kernel target 'z80'"),
            std::string::npos);
  Status link =
      linkSharedObject({"this is no object file"}, "/tmp/merak-kernels-bad.so");
  EXPECT_FALSE(link.ok());
  EXPECT_NE(link.str().find("linking with"), std::string::npos) << link.str();
  EXPECT_FALSE(linkSharedObject({}, "/nonexistent/directory/k.so").ok());
}

// Random chains of element-wise operations over random three-dimensional
// broadcasts and layouts: equal to the interpreter, bit for bit.
TEST(KernelCompiler, RandomElementwise) {
  Batch batch;
  Random random(7);
  const char *binary[] = {"arith.addf", "arith.subf", "arith.mulf",
                          "arith.maximumf", "arith.minimumf"};
  for (int round = 0; round < 40; ++round) {
    Dims shape;
    const int64_t sizes[] = {1, 2, 3, 7, 16, 17, 32, 40};
    for (int d = 0; d < 3; ++d)
      shape.push_back(sizes[random.below(8)]);
    std::string full = tensorType(shape, "f32");
    Text t;
    std::vector<std::string> names;
    std::string args;
    std::vector<Text::Use> uses;
    for (int a = 0; a < 4; ++a) {
      Dims mine, order = {0, 1, 2}, stride(3, 1);
      std::string map = "(";
      for (int d = 0; d < 3; ++d) {
        bool one = a > 0 && random.below(3) == 0;
        mine.push_back(one ? 1 : shape[d]);
        map += (d ? ", " : "") +
               (one ? std::string("0") : "d" + std::to_string(d));
      }
      std::swap(order[random.below(3)], order[random.below(3)]);
      int64_t step = 1 + random.below(2);
      for (int k = 2; k >= 0; --k) {
        stride[order[k]] = step;
        step *= mine[order[k]];
      }
      std::string type = tensorType(mine, "f32"),
                  name = "%a" + std::to_string(a);
      args += (a ? ", " : "") + name + ": " + type + " " + strides(stride);
      uses.push_back({name, type, map + ")"});
    }
    std::string value;
    for (int k = 0; k < 4; ++k) {
      std::string e = t.empty(full), name = "%v" + std::to_string(k);
      Text::Use left =
          k ? Text::Use{"%v" + std::to_string(k - 1), full, "(d0, d1, d2)"}
            : uses[0];
      t.generic(name, 3, {"parallel", "parallel", "parallel"},
                {left, uses[random.below(4)]}, {e, full, "(d0, d1, d2)"},
                "%x: f32, %y: f32, %o: f32",
                std::string("%1 = ") + binary[random.below(5)] +
                    " %x, %y : f32\nlinalg.yield %1 : f32");
    }
    batch.add("func.func @f(" + args + ") -> (" + full + ", " + full +
                  ") attributes {merak.kernel} {\n" + t.body +
                  "return %v3, %v1 : " + full + ", " + full + "\n}\n",
              0, round + 1);
  }
}

} // namespace
} // namespace merak::codegen::test
