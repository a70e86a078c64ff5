// Generated kernels against a naive interpreter: shapes, layouts, reductions,
// cuts of the parallel range, targets.
#include "test/unit-compiler/codegen/KernelRunner.h"

#include "mlir/Parser/Parser.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>

namespace merak::codegen::test {
namespace {

using Dims = std::vector<int64_t>;

std::string tensorType(const Dims &shape, const std::string &element) {
  std::string text = "tensor<";
  for (int64_t size : shape)
    text += std::to_string(size) + "x";
  return text + element + ">";
}
std::string list(const Dims &values) {
  std::string text;
  for (int64_t v : values)
    text += (text.empty() ? "" : ", ") + std::to_string(v);
  return text;
}
std::string strides(const Dims &values) {
  return "{merak.strides = array<i64: " + list(values) + ">}";
}

// Writes linalg ops of a kernel; values are named by the caller.
struct Text {
  std::string body;
  int count = 0;

  struct Use {
    std::string value, type, map; // map: "(d0, d1)"
  };
  std::string empty(const std::string &type) {
    std::string name = "%e" + std::to_string(count++);
    body += name + " = tensor.empty() : " + type + "\n";
    return name;
  }
  std::string filled(const std::string &type, const std::string &element,
                     const std::string &value) {
    std::string c = "%c" + std::to_string(count++);
    body += c + " = arith.constant " + value + " : " + element + "\n";
    std::string from = empty(type), name = "%f" + std::to_string(count++);
    body += name + " = linalg.fill ins(" + c + " : " + element + ") outs(" +
            from + " : " + type + ") -> " + type + "\n";
    return name;
  }
  // `args`: names of the block arguments; `code` ends with linalg.yield.
  void generic(const std::string &result, int loops,
               const std::vector<std::string> &iterators,
               const std::vector<Use> &ins, const Use &out,
               const std::string &args, const std::string &code) {
    std::string domain;
    for (int i = 0; i < loops; ++i)
      domain += (i ? ", d" : "d") + std::to_string(i);
    body += result + " = linalg.generic {indexing_maps = [";
    for (const Use &use : ins)
      body += "affine_map<(" + domain + ") -> " + use.map + ">, ";
    body +=
        "affine_map<(" + domain + ") -> " + out.map + ">], iterator_types = [";
    for (int i = 0; i < loops; ++i)
      body += (i ? ", \"" : "\"") + iterators[i] + "\"";
    body += "]} ";
    if (!ins.empty()) {
      body += "ins(";
      for (size_t i = 0; i < ins.size(); ++i)
        body += (i ? ", " : "") + ins[i].value;
      body += " : ";
      for (size_t i = 0; i < ins.size(); ++i)
        body += (i ? ", " : "") + ins[i].type;
      body += ") ";
    }
    body += "outs(" + out.value + " : " + out.type + ") {\n^bb0(" + args +
            "):\n" + code + "\n} -> " + out.type + "\n";
  }
};

const std::vector<std::string> kPP = {"parallel", "parallel"};
const std::vector<std::string> kPR = {"parallel", "reduction"};
const std::vector<std::string> kRP = {"reduction", "parallel"};

std::vector<std::string> targets() {
  std::vector<std::string> names = {"grid", "ptx"};
  for (const char *name : {"x86-64", "x86-64-v3", "x86-64-v4"})
    if (KernelTarget::fromName(name)->runsHere())
      names.push_back(name);
  return names;
}

Number smallNumber(Random &random, mlir::Type element) {
  if (element.isInteger(1))
    return {0, random.below(2)};
  if (element.isInteger())
    return {0, random.below(41) - 20};
  double value = random.unit() * 4 - 2;
  return {element.isF64() ? value : static_cast<float>(value), 0};
}

bool sameBits(const Tensor &a, const Tensor &b) {
  if (a.data.size() != b.data.size())
    return false;
  for (size_t i = 0; i < a.data.size(); ++i)
    if (a.data[i].i != b.data[i].i ||
        (std::bit_cast<uint64_t>(a.data[i].f) !=
             std::bit_cast<uint64_t>(b.data[i].f) &&
         !(std::isnan(a.data[i].f) && std::isnan(b.data[i].f))))
      return false;
  return true;
}

// Largest |got - wanted| / (floor + |wanted|).
double worst(const Tensor &got, const Tensor &wanted, double floor) {
  double error = 0;
  for (size_t i = 0; i < got.data.size(); ++i) {
    if (got.data[i].i != wanted.data[i].i)
      return INFINITY;
    double a = got.data[i].f, b = wanted.data[i].f;
    if (a == b || (std::isnan(a) && std::isnan(b)))
      continue;
    double e = std::fabs(a - b) / (floor + std::fabs(b));
    error = std::isnan(e) ? INFINITY : std::max(error, e);
  }
  return error;
}

using Fill = std::function<Number(Random &, unsigned, mlir::Type)>;

// Kernels that are compiled together, once for each target.
class Batch {
public:
  ~Batch() { run(); }

  // `text` holds one function. Its result must be within `tolerance` of the
  // interpreter's, 0: equal; the same for all cuts of the range; and the same
  // on the targets that have FMA.
  void add(std::string text, double tolerance, uint64_t seed = 1,
           std::vector<int64_t> scalars = {}, Fill fill = {}) {
    size_t at = text.find('@') + 1, end = text.find('(', at);
    std::string name = text.substr(at, end - at) + std::to_string(cases.size());
    text.replace(at, end - at, name);
    cases.push_back({name, text, tolerance, seed, scalars, fill});
  }

private:
  struct Case {
    std::string name, text;
    double tolerance;
    uint64_t seed;
    std::vector<int64_t> scalars;
    Fill fill;
    // On processors with FMA; in grids, whose sums have another order.
    std::vector<std::vector<Tensor>> ofTarget, ofGrids;
  };

  void run() {
    std::string all;
    for (const Case &c : cases)
      all += c.text;
    for (const std::string &target : targets()) {
      SCOPED_TRACE(target);
      Kernels kernels(all, target);
      ASSERT_TRUE(kernels.ok()) << kernels.error;
      for (Case &c : cases)
        runCase(kernels, c,
                target == "x86-64" || kernels.isApproximate(c.name) ? nullptr
                : target == "grid" || target == "ptx"               ? &c.ofGrids
                                                      : &c.ofTarget);
    }
    for (const Case &c : cases)
      for (const auto *of : {&c.ofTarget, &c.ofGrids})
        for (const std::vector<Tensor> &outputs : *of)
          for (size_t i = 0; i < outputs.size(); ++i)
            EXPECT_TRUE(sameBits(of->front()[i], outputs[i]))
                << "targets differ\n"
                << c.text;
  }

  // What comes out is added to `keep`.
  static void runCase(Kernels &kernels, Case &c,
                      std::vector<std::vector<Tensor>> *keep) {
    mlir::func::FuncOp function = kernels.function(c.name);
    Random random(c.seed);
    std::vector<Tensor> inputs =
        makeInputs(function, [&](unsigned arg, mlir::Type element) {
          return c.fill ? c.fill(random, arg, element)
                        : smallNumber(random, element);
        });
    std::vector<Tensor> wanted = interpret(function, inputs, c.scalars);
    std::vector<Tensor> initial = wanted;
    for (auto [i, tensor] : llvm::enumerate(initial)) {
      for (Number &n : tensor.data)
        n = smallNumber(random, tensor.element);
      if (!function.getResultAttr(i, "merak.accumulate"))
        continue;
      for (size_t k = 0; k < tensor.data.size(); ++k) {
        wanted[i].data[k].f =
            static_cast<float>(wanted[i].data[k].f + tensor.data[k].f);
        wanted[i].data[k].i += tensor.data[k].i;
      }
    }
    auto run = [&](const std::vector<double> &cuts) {
      return kernels.run(c.name, inputs, c.scalars, cuts, &initial);
    };
    std::vector<Tensor> got = run({});
    EXPECT_EQ(kernels.error, "") << c.text;
    for (size_t i = 0; i < got.size(); ++i) {
      if (c.tolerance == 0)
        EXPECT_TRUE(sameBits(got[i], wanted[i])) << "result " << i << "\n"
                                                 << c.text;
      else
        EXPECT_LE(worst(got[i], wanted[i], 1e-2), c.tolerance)
            << "result " << i << "\n"
            << c.text;
    }
    for (const std::vector<double> &cuts :
         {std::vector<double>{0.5}, {0.1, 0.2, 0.7}, {0.34, 0.34, 0.99}}) {
      std::vector<Tensor> other = run(cuts);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(sameBits(got[i], other[i])) << "cut matters\n" << c.text;
    }
    if (keep)
      keep->push_back(std::move(got));
  }

  std::vector<Case> cases;
};

// y = (a + row) * col - s, with layouts of a and y as given.
std::string affine(int64_t m, int64_t n, const std::string &aAttr,
                   const std::string &yAttr) {
  std::string mat = tensorType({m, n}, "f32"), row = tensorType({n}, "f32"),
              col = tensorType({m, 1}, "f32");
  Text t;
  std::string e = t.empty(mat);
  t.body += "%s = arith.truncf %s0 : f64 to f32\n";
  t.generic("%y", 2, kPP,
            {{"%a", mat, "(d0, d1)"},
             {"%row", row, "(d1)"},
             {"%col", col, "(d0, 0)"}},
            {e, mat, "(d0, d1)"}, "%p: f32, %q: f32, %r: f32, %o: f32",
            "%1 = arith.addf %p, %q : f32\n%2 = arith.mulf %1, %r : f32\n"
            "%3 = arith.subf %2, %s : f32\nlinalg.yield %3 : f32");
  return "func.func @affine(%a: " + mat + " " + aAttr + ", %row: " + row +
         ", %col: " + col + ", %s0: f64 {merak.scalar}) -> (" + mat + " " +
         yAttr + ") attributes {merak.kernel} {\n" + t.body +
         "return %y : " + mat + "\n}\n";
}

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

// Row softmax: max, exp of the difference, sum, quotient.
std::string softmax(int64_t m, int64_t n, const std::string &attr = "",
                    const std::string &yAttr = "") {
  std::string mat = tensorType({m, n}, "f32"), vec = tensorType({m}, "f32");
  Text t;
  std::string low = t.filled(vec, "f32", "0xFF800000"),
              zero = t.filled(vec, "f32", "0.0"), e = t.empty(mat);
  t.generic("%max", 2, kPR, {{"%x", mat, "(d0, d1)"}}, {low, vec, "(d0)"},
            "%a: f32, %o: f32",
            "%1 = arith.maximumf %a, %o : f32\nlinalg.yield %1 : f32");
  t.generic("%exp", 2, kPP, {{"%x", mat, "(d0, d1)"}, {"%max", vec, "(d0)"}},
            {e, mat, "(d0, d1)"}, "%a: f32, %m: f32, %o: f32",
            "%1 = arith.subf %a, %m : f32\n%2 = math.exp %1 : f32\n"
            "linalg.yield %2 : f32");
  t.generic("%sum", 2, kPR, {{"%exp", mat, "(d0, d1)"}}, {zero, vec, "(d0)"},
            "%a: f32, %o: f32",
            "%1 = arith.addf %o, %a : f32\nlinalg.yield %1 : f32");
  t.generic("%y", 2, kPP, {{"%exp", mat, "(d0, d1)"}, {"%sum", vec, "(d0)"}},
            {e, mat, "(d0, d1)"}, "%a: f32, %s: f32, %o: f32",
            "%1 = arith.divf %a, %s : f32\nlinalg.yield %1 : f32");
  return "func.func @softmax(%x: " + mat + " " + attr + ") -> (" + mat + " " +
         yAttr + ") attributes {merak.kernel} {\n" + t.body +
         "return %y : " + mat + "\n}\n";
}

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

// Layer norm with scale and bias; also returns mean and 1 / deviation.
std::string layerNorm(int64_t m, int64_t n) {
  std::string mat = tensorType({m, n}, "f32"), vec = tensorType({m}, "f32"),
              row = tensorType({n}, "f32"), count = std::to_string(n) + ".0";
  Text t;
  std::string zero = t.filled(vec, "f32", "0.0"), ev = t.empty(vec),
              em = t.empty(mat);
  t.generic("%sum", 2, kPR, {{"%x", mat, "(d0, d1)"}}, {zero, vec, "(d0)"},
            "%a: f32, %o: f32",
            "%1 = arith.addf %o, %a : f32\nlinalg.yield %1 : f32");
  t.generic("%mean", 1, kPP, {{"%sum", vec, "(d0)"}}, {ev, vec, "(d0)"},
            "%a: f32, %o: f32",
            "%n = arith.constant " + count +
                " : f32\n%1 = arith.divf %a, %n : f32\nlinalg.yield %1 : f32");
  t.generic("%var", 2, kPR, {{"%x", mat, "(d0, d1)"}, {"%mean", vec, "(d0)"}},
            {zero, vec, "(d0)"}, "%a: f32, %m: f32, %o: f32",
            "%1 = arith.subf %a, %m : f32\n%2 = arith.mulf %1, %1 : f32\n"
            "%3 = arith.addf %o, %2 : f32\nlinalg.yield %3 : f32");
  t.generic("%rstd", 1, kPP, {{"%var", vec, "(d0)"}}, {ev, vec, "(d0)"},
            "%a: f32, %o: f32",
            "%n = arith.constant " + count +
                " : f32\n%eps = arith.constant 1.0e-05 : f32\n"
                "%1 = arith.divf %a, %n : f32\n%2 = arith.addf %1, %eps : f32\n"
                "%3 = math.rsqrt %2 : f32\nlinalg.yield %3 : f32");
  t.generic("%y", 2, kPP,
            {{"%x", mat, "(d0, d1)"},
             {"%mean", vec, "(d0)"},
             {"%rstd", vec, "(d0)"},
             {"%g", row, "(d1)"},
             {"%b", row, "(d1)"}},
            {em, mat, "(d0, d1)"},
            "%a: f32, %m: f32, %r: f32, %s: f32, %t: f32, %o: f32",
            "%1 = arith.subf %a, %m : f32\n%2 = arith.mulf %1, %r : f32\n"
            "%3 = arith.mulf %2, %s : f32\n%4 = arith.addf %3, %t : f32\n"
            "linalg.yield %4 : f32");
  return "func.func @layer_norm(%x: " + mat + ", %g: " + row + ", %b: " + row +
         ") -> (" + mat + ", " + vec + ", " + vec +
         ") attributes {merak.kernel} {\n" + t.body +
         "return %y, %mean, %rstd : " + mat + ", " + vec + ", " + vec + "\n}\n";
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

// A residual in bf16, its sum with `x` and a bias, and the norm of that; the
// sum may take the residual's place.
std::string residualNorm(int64_t m, int64_t n, const std::string &attr) {
  std::string mat = tensorType({m, n}, "bf16"), vec = tensorType({m}, "f32"),
              row = tensorType({n}, "bf16"), count = std::to_string(n) + ".0";
  Text t;
  std::string zero = t.filled(vec, "f32", "0.0"), ev = t.empty(vec),
              em = t.empty(mat);
  t.generic(
      "%s", 2, kPP,
      {{"%x", mat, "(d0, d1)"}, {"%b", row, "(d1)"}, {"%r", mat, "(d0, d1)"}},
      {em, mat, "(d0, d1)"}, "%p: bf16, %q: bf16, %c: bf16, %o: bf16",
      "%1 = arith.addf %p, %q : bf16\n%2 = arith.addf %1, %c : bf16\n"
      "linalg.yield %2 : bf16");
  t.generic("%sum", 2, kPR, {{"%s", mat, "(d0, d1)"}}, {zero, vec, "(d0)"},
            "%a: bf16, %o: f32",
            "%1 = arith.extf %a : bf16 to f32\n"
            "%2 = arith.addf %o, %1 : f32\nlinalg.yield %2 : f32");
  t.generic("%mean", 1, kPP, {{"%sum", vec, "(d0)"}}, {ev, vec, "(d0)"},
            "%a: f32, %o: f32",
            "%n = arith.constant " + count +
                " : f32\n%1 = arith.divf %a, %n : f32\nlinalg.yield %1 : f32");
  t.generic("%y", 2, kPP, {{"%s", mat, "(d0, d1)"}, {"%mean", vec, "(d0)"}},
            {em, mat, "(d0, d1)"}, "%a: bf16, %m: f32, %o: bf16",
            "%1 = arith.extf %a : bf16 to f32\n%2 = arith.subf %1, %m : f32\n"
            "%3 = arith.truncf %2 : f32 to bf16\nlinalg.yield %3 : bf16");
  return "func.func @residual_norm(%x: " + mat + " " + attr + ", %b: " + row +
         ", %r: " + mat + " " + attr + ") -> (" + mat + " " + attr + ", " +
         mat + " " + attr + ", " + vec + ") attributes {merak.kernel} {\n" +
         t.body + "return %s, %y, %mean : " + mat + ", " + mat + ", " + vec +
         "\n}\n";
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
           {3, 40}, {2, 768}, {3, 1601}, {2, 4096}, {2, 20000}})
    batch.add(lateResidual(m, n), 5e-3, n, {}, fill);
}

// The loss of rows of logits: their largest, the sum of exponentials relative
// to it, and the logit at the label; `order` says on which side of comparison
// and difference things are.
std::string crossEntropy(int64_t m, int64_t n, const std::string &element,
                         const std::string &label, const std::string &attr) {
  std::string mat = tensorType({m, n}, element), vec = tensorType({m}, "f32"),
              labels = tensorType({m}, label);
  Text t;
  std::string low = t.filled(vec, "f32", "0xFF800000"),
              zero = t.filled(vec, "f32", "0.0"), e = t.empty(vec);
  std::string wide = element == "f32" ? "%x32 = arith.mulf %a, %a : f32\n"
                                      : "%x32 = arith.extf %a : bf16 to f32\n";
  t.generic("%max", 2, kPR, {{"%x", mat, "(d0, d1)"}}, {low, vec, "(d0)"},
            "%a: " + element + ", %o: f32",
            wide + "%1 = arith.maximumf %o, %x32 : f32\nlinalg.yield %1 : f32");
  t.generic(
      "%picked", 2, kPR, {{"%x", mat, "(d0, d1)"}, {"%l", labels, "(d0)"}},
      {zero, vec, "(d0)"}, "%a: " + element + ", %k: " + label + ", %o: f32",
      wide +
          "%z = arith.constant 0.0 : f32\n%i = linalg.index 1 : index\n"
          "%j = arith.index_cast %i : index to " +
          label + "\n%h = arith.cmpi eq, %j, %k : " + label +
          "\n%1 = arith.select %h, %x32, %z : f32\n"
          "%2 = arith.addf %o, %1 : f32\nlinalg.yield %2 : f32");
  t.generic("%sum", 2, kPR, {{"%x", mat, "(d0, d1)"}, {"%max", vec, "(d0)"}},
            {zero, vec, "(d0)"}, "%a: " + element + ", %m: f32, %o: f32",
            wide + "%1 = arith.subf %x32, %m : f32\n%2 = math.exp %1 : f32\n"
                   "%3 = arith.addf %o, %2 : f32\nlinalg.yield %3 : f32");
  t.generic("%lse", 1, kPP, {{"%max", vec, "(d0)"}, {"%sum", vec, "(d0)"}},
            {e, vec, "(d0)"}, "%a: f32, %c: f32, %o: f32",
            "%1 = math.log %c : f32\n%2 = arith.addf %a, %1 : f32\n"
            "linalg.yield %2 : f32");
  return "func.func @cross_entropy(%x: " + mat + " " + attr +
         ", %l: " + labels + ") -> (" + vec + ", " + vec + ", " + vec +
         ") attributes {merak.kernel} {\n" + t.body +
         "return %max, %lse, %picked : " + vec + ", " + vec + ", " + vec +
         "\n}\n";
}

TEST(KernelCompiler, CrossEntropyRows) {
  Batch batch;
  for (auto [m, n] : std::vector<std::pair<int64_t, int64_t>>{
           {9, 5}, {3, 1000}, {3, 5001}, {3, 16391}, {2, 50257}})
    for (const char *element : {"f32", "bf16"})
      for (const char *label : {"i64", "i32"}) {
        // Some labels lie before or behind the row: nothing is picked.
        Fill fill = [n = n](Random &random, unsigned arg, mlir::Type type) {
          if (arg == 1)
            return Number{0, random.below(n + 3) - 1};
          const double value = random.unit() * 20 - 10;
          return Number{type.isBF16() ? std::floor(value * 8) / 8
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

// (exp(x - lse) - (column == label)) * scale: rows of packs that end anywhere.
std::string lossGradient(int64_t m, int64_t n, const std::string &attr) {
  std::string mat = tensorType({m, n}, "bf16"), vec = tensorType({m}, "f32"),
              labels = tensorType({m}, "i64");
  Text t;
  std::string e = t.empty(mat);
  t.generic(
      "%y", 2, kPP,
      {{"%x", mat, "(d0, d1)"}, {"%l", labels, "(d0)"}, {"%lse", vec, "(d0)"}},
      {e, mat, "(d0, d1)"}, "%a: bf16, %k: i64, %c: f32, %o: bf16",
      "%x32 = arith.extf %a : bf16 to f32\n"
      "%1 = arith.subf %x32, %c : f32\n%2 = math.exp %1 : f32\n"
      "%one = arith.constant 1.0 : f32\n%3 = arith.subf %2, %one : f32\n"
      "%i = linalg.index 1 : index\n"
      "%j = arith.index_cast %i : index to i64\n"
      "%h = arith.cmpi eq, %j, %k : i64\n"
      "%4 = arith.select %h, %3, %2 : f32\n"
      "%5 = arith.truncf %4 : f32 to bf16\nlinalg.yield %5 : bf16");
  return "func.func @loss_gradient(%x: " + mat + " " + attr +
         ", %l: " + labels + ", %lse: " + vec + ") -> (" + mat + " " + attr +
         ") attributes {merak.kernel} {\n" + t.body + "return %y : " + mat +
         "\n}\n";
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

TEST(KernelCompiler, Bf16RoundsEveryOperation) {
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
    batch.add("func.func @f(%x: " + x + ", %z: " + x + ") -> (" + x + ", " + y +
                  ") attributes {merak.kernel} {\n" + t.body +
                  "return %p, %q : " + x + ", " + y + "\n}\n",
              0, n, {}, [](Random &random, unsigned, mlir::Type) {
                return Number{double(random.below(255) - 127) / 64, 0};
              });
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

int64_t countOf(const std::string &text, const std::string &part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + 1))
    ++count;
  return count;
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

TEST(KernelCompiler, SaysWhichOperandsMayShareMemory) {
  Kernels same(affine(8, 20, "", ""), "x86-64");
  std::vector<std::pair<unsigned, unsigned>> first = {{0, 0}};
  EXPECT_EQ(same.object.kernels["affine"].inPlace, first);
  Kernels transposed(affine(8, 20, strides({1, 8}), ""), "x86-64");
  EXPECT_TRUE(transposed.object.kernels["affine"].inPlace.empty());
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
