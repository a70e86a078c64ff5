// Texts of kernels, and batches of cases that run on every target.
#pragma once

#include "test/unit-compiler/codegen/KernelRunner.h"

#include <bit>
#include <cmath>
#include <gtest/gtest.h>

namespace merak::codegen::test {

using Dims = std::vector<int64_t>;

inline std::string tensorType(const Dims &shape, const std::string &element) {
  std::string text = "tensor<";
  for (int64_t size : shape)
    text += std::to_string(size) + "x";
  return text + element + ">";
}
inline std::string list(const Dims &values) {
  std::string text;
  for (int64_t v : values)
    text += (text.empty() ? "" : ", ") + std::to_string(v);
  return text;
}
inline std::string strides(const Dims &values) {
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

inline const std::vector<std::string> kPP = {"parallel", "parallel"};
inline const std::vector<std::string> kPR = {"parallel", "reduction"};
inline const std::vector<std::string> kRP = {"reduction", "parallel"};

inline std::vector<std::string> targets() {
  std::vector<std::string> names = {"grid", "ptx"};
  for (const char *name : {"x86-64", "x86-64-v3", "x86-64-v4"})
    if (KernelTarget::fromName(name)->runsHere())
      names.push_back(name);
  return names;
}

inline Number smallNumber(Random &random, mlir::Type element) {
  if (element.isInteger(1))
    return {0, random.below(2)};
  if (element.isInteger())
    return {0, random.below(41) - 20};
  double value = random.unit() * 4 - 2;
  return {element.isF64() ? value : static_cast<float>(value), 0};
}

inline bool sameBits(const Tensor &a, const Tensor &b) {
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
inline double worst(const Tensor &got, const Tensor &wanted, double floor) {
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

// A kernel of bf16 as one of f16.
inline std::string inF16(std::string text) {
  for (size_t at; (at = text.find("bf16")) != std::string::npos;)
    text.erase(at, 1);
  return text;
}

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

  // The oldest processors cannot convert f16.
  static bool runsOn(const std::string &target, const Case &c) {
    return target != "x86-64" || c.text.find("xf16") == std::string::npos;
  }

  void run() {
    for (const std::string &target : targets()) {
      SCOPED_TRACE(target);
      std::string all;
      for (const Case &c : cases)
        if (runsOn(target, c))
          all += c.text;
      Kernels kernels(all, target);
      ASSERT_TRUE(kernels.ok()) << kernels.error;
      for (Case &c : cases)
        if (runsOn(target, c))
          runCase(kernels, c,
                  target == "x86-64" || kernels.isApproximate(c.name) ? nullptr
                  : target == "grid" || target == "ptx" ? &c.ofGrids
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
inline std::string affine(int64_t m, int64_t n, const std::string &aAttr,
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

// Row softmax: max, exp of the difference, sum, quotient.
inline std::string softmax(int64_t m, int64_t n, const std::string &attr = "",
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

// Layer norm with scale and bias; also returns mean and 1 / deviation.
inline std::string layerNorm(int64_t m, int64_t n) {
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

// A residual in bf16, its sum with `x` and a bias, and the norm of that; the
// sum may take the residual's place.
inline std::string residualNorm(int64_t m, int64_t n, const std::string &attr) {
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

// The loss of rows of logits: their largest, the sum of exponentials relative
// to it, and the logit at the label; `order` says on which side of comparison
// and difference things are.
inline std::string crossEntropy(int64_t m, int64_t n,
                                const std::string &element,
                                const std::string &label,
                                const std::string &attr) {
  std::string mat = tensorType({m, n}, element), vec = tensorType({m}, "f32"),
              labels = tensorType({m}, label);
  Text t;
  std::string low = t.filled(vec, "f32", "0xFF800000"),
              zero = t.filled(vec, "f32", "0.0"), e = t.empty(vec);
  std::string wide = element == "f32"
                         ? "%x32 = arith.mulf %a, %a : f32\n"
                         : "%x32 = arith.extf %a : " + element + " to f32\n";
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

// (exp(x - lse) - (column == label)) * scale: rows of packs that end anywhere.
inline std::string lossGradient(int64_t m, int64_t n, const std::string &attr) {
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

} // namespace merak::codegen::test
