// Train ops to kernels: what is grouped, and that the kernels of a block
// compute what the ops mean.
#include "test/unit-compiler/codegen/KernelRunner.h"

#include "dialects/Plan/PlanDialect.h"
#include "dialects/Train/TrainDialect.h"
#include "passes/Lowering/FusionGroups.h"
#include "passes/Lowering/Iteration.h"
#include "passes/Lowering/KernelCalls.h"

#include "mlir/Parser/Parser.h"

#include <cmath>
#include <dlfcn.h>
#include <filesystem>
#include <gtest/gtest.h>
#include <unistd.h>

using namespace mlir;
using namespace merak::train;

namespace merak::codegen::test {
namespace {

using Values = llvm::DenseMap<Value, std::vector<double>>;

std::vector<int64_t> shapeOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getShape().vec();
}
int64_t countOf(const std::vector<int64_t> &shape) {
  int64_t count = 1;
  for (int64_t size : shape)
    count *= size;
  return count;
}

// Index into a tensor of `shape` for loop indices `at` of `loops`.
int64_t offset(const std::vector<int64_t> &shape,
               const lowering::DimLoops &loops,
               const std::vector<int64_t> &at) {
  int64_t index = 0;
  for (size_t d = 0; d < shape.size(); ++d)
    index =
        index * shape[d] + (loops[d] == lowering::kNoLoop ? 0 : at[loops[d]]);
  return index;
}

// Straightforward double-precision meaning of the ops, written for this test.
class Reference {
public:
  explicit Reference(Values &values) : values(values) {}

  void run(Operation &op) {
    it = *lowering::iterationOf(&op);
    for (Value result : op.getResults())
      values[result].assign(countOf(shapeOf(result)), 0);
    if (auto sum = dyn_cast<ReduceSumOp>(op))
      return forAll([&](auto &at) { result(op, 0, at) += in(op, 0, at); });
    if (isa<ReduceMaxOp>(op)) {
      for (double &v : values[op.getResult(0)])
        v = -INFINITY;
      return forAll([&](auto &at) {
        result(op, 0, at) = std::max(result(op, 0, at), in(op, 0, at));
      });
    }
    if (isa<SoftmaxOp>(op)) {
      Row sum = row([&](auto &at) { return std::exp(in(op, 0, at)); });
      return forAll([&](auto &at) {
        result(op, 0, at) = std::exp(in(op, 0, at)) / sum[key(at)];
      });
    }
    if (isa<SoftmaxGradOp>(op)) {
      Row dot = row([&](auto &at) { return in(op, 0, at) * in(op, 1, at); });
      return forAll([&](auto &at) {
        result(op, 0, at) = in(op, 0, at) * (in(op, 1, at) - dot[key(at)]);
      });
    }
    if (auto norm = dyn_cast<LayerNormOp>(op))
      return layerNorm(norm);
    if (isa<LayerNormGradOp, RmsNormGradOp>(op))
      return normGrad(op);
    if (isa<LayerNormParamGradOp>(op))
      return forAll([&](auto &at) {
        double xhat = (in(op, 1, at) - in(op, 2, at)) * in(op, 3, at);
        result(op, 0, at) += in(op, 0, at) * xhat;
        result(op, 1, at) += in(op, 0, at);
      });
    if (isa<RmsNormParamGradOp>(op))
      return forAll([&](auto &at) {
        result(op, 0, at) += in(op, 0, at) * in(op, 1, at) * in(op, 2, at);
      });
    if (auto norm = dyn_cast<RmsNormOp>(op)) {
      double n = double(it.countOf(true));
      Row square = row([&](auto &at) { return std::pow(in(op, 0, at), 2); });
      double epsilon = norm.getEpsilon().convertToDouble();
      return forAll([&](auto &at) {
        double rstd = 1 / std::sqrt(square[key(at)] / n + epsilon);
        result(op, 0, at) =
            in(op, 0, at) * rstd * (norm.getScale() ? in(op, 1, at) : 1);
        result(op, 1, at) = rstd;
      });
    }
    if (auto loss = dyn_cast<SoftmaxCrossEntropyOp>(op)) {
      Row sum = row([&](auto &at) { return std::exp(in(op, 0, at)); });
      return forAll([&](auto &at) {
        double lse = std::log(sum[key(at)]);
        result(op, 1, at) = lse;
        if (in(op, 1, at) == at.back())
          result(op, 0, at) = lse - in(op, 0, at);
      });
    }
    if (auto loss = dyn_cast<SoftmaxCrossEntropyGradOp>(op))
      return forAll([&](auto &at) {
        double hot = in(op, 1, at) == at.back();
        bool ignored = loss.getIgnoreIndex() &&
                       in(op, 1, at) == int64_t(*loss.getIgnoreIndex());
        result(op, 0, at) =
            ignored ? 0
                    : (std::exp(in(op, 0, at) - in(op, 2, at)) - hot) *
                          in(op, 3, at);
      });
    forAll([&](auto &at) { result(op, 0, at) = scalar(op, at); });
  }

private:
  using At = std::vector<int64_t>;
  using Row = std::map<At, double>;

  template <typename Visit> void forAll(Visit visit) {
    At at(it.sizes.size(), 0);
    for (int64_t n = countOf({it.sizes.begin(), it.sizes.end()}); n > 0; --n) {
      visit(at);
      for (size_t d = at.size(); d-- > 0;) {
        if (++at[d] < it.sizes[d])
          break;
        at[d] = 0;
      }
    }
  }
  // The loops that are not reduced.
  At key(const At &at) {
    At kept;
    for (size_t d = 0; d < at.size(); ++d)
      if (!it.reduced[d])
        kept.push_back(at[d]);
    return kept;
  }
  template <typename Term> Row row(Term term) {
    Row sums;
    forAll([&](auto &at) { sums[key(at)] += term(at); });
    return sums;
  }
  double in(Operation &op, unsigned i, const At &at) {
    Value value = op.getOperand(i);
    return values[value][offset(shapeOf(value), it.operands[i], at)];
  }
  double &result(Operation &op, unsigned i, const At &at) {
    Value value = op.getResult(i);
    return values[value][offset(shapeOf(value), it.results[i], at)];
  }

  void layerNorm(LayerNormOp norm) {
    Operation &op = *norm;
    double n = double(it.countOf(true));
    Row sum = row([&](auto &at) { return in(op, 0, at); });
    Row square = row([&](auto &at) {
      return std::pow(in(op, 0, at) - sum[key(at)] / n, 2);
    });
    double epsilon = norm.getEpsilon().convertToDouble();
    forAll([&](auto &at) {
      double mean = sum[key(at)] / n;
      double rstd = 1 / std::sqrt(square[key(at)] / n + epsilon);
      double y = (in(op, 0, at) - mean) * rstd;
      unsigned next = 1;
      if (norm.getScale())
        y *= in(op, next++, at);
      if (norm.getBias())
        y += in(op, next, at);
      result(op, 0, at) = y;
      result(op, 1, at) = mean;
      result(op, 2, at) = rstd;
    });
  }
  // By the chain rule from xhat = (x - mean) rstd (mean 0 for RMS).
  void normGrad(Operation &op) {
    bool layer = isa<LayerNormGradOp>(op);
    unsigned rstdAt = layer ? 3 : 2, scaleAt = rstdAt + 1;
    double n = double(it.countOf(true));
    auto g = [&](auto &at) {
      return in(op, 0, at) *
             (op.getNumOperands() > scaleAt ? in(op, scaleAt, at) : 1);
    };
    auto xhat = [&](auto &at) {
      return (in(op, 1, at) - (layer ? in(op, 2, at) : 0)) * in(op, rstdAt, at);
    };
    Row sum = row([&](auto &at) { return g(at); });
    Row dot = row([&](auto &at) { return g(at) * xhat(at); });
    forAll([&](auto &at) {
      double mean = layer ? sum[key(at)] / n : 0;
      result(op, 0, at) =
          in(op, rstdAt, at) * (g(at) - mean - xhat(at) * dot[key(at)] / n);
    });
  }

  double scalar(Operation &op, const At &at) {
    auto x = [&](unsigned i) { return in(op, i, at); };
    llvm::StringRef name = op.getName().stripDialect();
    auto cdf = [](double v) { return 0.5 * std::erfc(-v / std::sqrt(2)); };
    if (name == "neg")
      return -x(0);
    if (name == "exp")
      return std::exp(x(0));
    if (name == "log")
      return std::log(x(0));
    if (name == "sqrt")
      return std::sqrt(x(0));
    if (name == "reciprocal")
      return 1 / x(0);
    if (name == "abs")
      return std::fabs(x(0));
    if (name == "sin")
      return std::sin(x(0));
    if (name == "cos")
      return std::cos(x(0));
    if (name == "tanh")
      return std::tanh(x(0));
    if (name == "erf")
      return std::erf(x(0));
    if (name == "sigmoid")
      return 1 / (1 + std::exp(-x(0)));
    if (name == "relu")
      return std::max(x(0), 0.0);
    if (name == "not")
      return !x(0);
    if (name == "add")
      return x(0) + x(1);
    if (name == "sub")
      return x(0) - x(1);
    if (name == "mul")
      return x(0) * x(1);
    if (name == "div")
      return x(0) / x(1);
    if (name == "pow")
      return std::pow(x(0), x(1));
    if (name == "max")
      return std::max(x(0), x(1));
    if (name == "min")
      return std::min(x(0), x(1));
    if (name == "and")
      return x(0) && x(1);
    if (name == "or")
      return x(0) || x(1);
    if (name == "select")
      return x(0) ? x(1) : x(2);
    if (auto cast = dyn_cast<CastOp>(op)) {
      Type to = getElementTypeOrSelf(cast.getY().getType());
      if (to.isInteger(1))
        return x(0) != 0;
      return isa<FloatType>(to) ? x(0) : std::trunc(x(0));
    }
    if (auto compare = dyn_cast<CompareOp>(op))
      switch (compare.getPredicate()) {
      case ComparePredicate::eq:
        return x(0) == x(1);
      case ComparePredicate::ne:
        return x(0) != x(1);
      case ComparePredicate::lt:
        return x(0) < x(1);
      case ComparePredicate::le:
        return x(0) <= x(1);
      case ComparePredicate::gt:
        return x(0) > x(1);
      case ComparePredicate::ge:
        return x(0) >= x(1);
      }
    double k = std::sqrt(2 / M_PI);
    if (auto gelu = dyn_cast<GeluOp>(op)) {
      double v = x(0);
      return gelu.getTanh()
                 ? 0.5 * v * (1 + std::tanh(k * (v + 0.044715 * v * v * v)))
                 : v * cdf(v);
    }
    if (auto gelu = dyn_cast<GeluGradOp>(op)) {
      double v = x(1), h = 1e-5;
      auto f = [&](double u) {
        return gelu.getTanh()
                   ? 0.5 * u * (1 + std::tanh(k * (u + 0.044715 * u * u * u)))
                   : u * cdf(u);
      };
      return x(0) * (f(v + h) - f(v - h)) / (2 * h);
    }
    ADD_FAILURE() << "the reference does not know " << name.str();
    return NAN;
  }

  Values &values;
  lowering::Iteration it;
};

struct Parsed {
  MLIRContext context;
  OwningOpRef<ModuleOp> module;
  Block *block = nullptr;

  explicit Parsed(const std::string &body) {
    DialectRegistry registry;
    registerKernelDialects(registry);
    registry.insert<TrainDialect, plan::PlanDialect>();
    context.appendDialectRegistry(registry);
    context.loadAllAvailableDialects();
    module = parseSourceString<ModuleOp>(body, &context);
    if (module)
      for (auto function : module->getOps<func::FuncOp>())
        block = &function.getBody().front();
  }
  // Names of the ops of each group, e.g. "add mul".
  std::vector<std::string> groups(const lowering::FusionOptions &options = {}) {
    std::vector<std::string> names;
    for (const auto &group : lowering::formFusionGroups(*block, options)) {
      std::string text;
      for (Operation *op : group)
        text += (text.empty() ? "" : " ") + op->getName().stripDialect().str();
      names.push_back(text);
    }
    return names;
  }
};

// Compiles the groups of the block, runs them in order and compares what the
// block returns with the reference. Returns the results.
std::vector<std::vector<double>>
checkBlock(const std::string &text, const lowering::FusionOptions &options,
           double tolerance,
           std::function<double(Random &, unsigned)> fill = {},
           const char *target = "native") {
  Parsed parsed(text);
  if (!parsed.block) {
    ADD_FAILURE() << "cannot parse " << text;
    return {};
  }
  Block &block = *parsed.block;
  Values wanted, got;
  Random random(5);
  for (BlockArgument arg : block.getArguments()) {
    auto &data = wanted[arg];
    bool whole = isa<IntegerType>(getElementTypeOrSelf(arg.getType()));
    bool isBool = getElementTypeOrSelf(arg.getType()).isInteger(1);
    for (int64_t i = countOf(shapeOf(arg)); i > 0; --i)
      data.push_back(fill     ? fill(random, arg.getArgNumber())
                     : isBool ? random.below(2)
                     : whole  ? random.below(5)
                              : float(random.unit() * 4 - 2));
  }
  got = wanted;
  for (Operation &op : block.without_terminator()) {
    if (auto constant = dyn_cast<train::ConstantOp>(op)) {
      auto splat = cast<SplatElementsAttr>(constant.getValue());
      double value = isa<FloatType>(splat.getElementType())
                         ? splat.getSplatValue<APFloat>().convertToDouble()
                         : splat.getSplatValue<APInt>().getSExtValue();
      wanted[constant.getResult()].assign(
          countOf(shapeOf(constant.getResult())), value);
      continue;
    }
    Reference(wanted).run(op);
  }
  auto groups = lowering::formFusionGroups(block, options);
  lowering::KernelFactory factory(*parsed.module);
  struct Step {
    func::FuncOp function;
    lowering::KernelOperands operands;
  };
  std::vector<Step> steps;
  for (const auto &group : groups) {
    lowering::KernelOperands operands =
        lowering::kernelOperandsOf(group, [](Value) { return false; });
    auto views = [&](ArrayRef<Value> values) {
      llvm::SmallVector<lowering::View> list;
      for (Value value : values)
        list.push_back(lowering::View::dense(
            StringAttr::get(&parsed.context, "b"), shapeOf(value)));
      return list;
    };
    auto function = factory.get(group, operands, views(operands.inputs),
                                views(operands.outputs), /*accumulate=*/false);
    if (failed(function)) {
      ADD_FAILURE();
      return {};
    }
    steps.push_back({*function, operands});
  }
  std::string kernelText;
  llvm::raw_string_ostream stream(kernelText);
  for (auto function : parsed.module->getOps<func::FuncOp>())
    if (function->hasAttr("merak.kernel"))
      function.print(stream);
  Kernels kernels(kernelText, target);
  if (!kernels.ok()) {
    ADD_FAILURE() << kernels.error << "\n" << kernelText;
    return {};
  }
  auto toTensor = [&](Value value) {
    Tensor tensor{Type(), shapeOf(value), {}};
    for (double v : got[value])
      tensor.data.push_back({v, static_cast<int64_t>(v)});
    return tensor;
  };
  for (Step &step : steps) {
    std::string name = step.function.getName().str();
    func::FuncOp function = kernels.function(name);
    std::vector<Tensor> inputs;
    for (auto [value, type] :
         llvm::zip(step.operands.inputs, function.getArgumentTypes())) {
      inputs.push_back(toTensor(value));
      inputs.back().element = getElementTypeOrSelf(type);
    }
    std::vector<Tensor> outputs = kernels.run(name, inputs, {});
    for (auto [value, tensor] : llvm::zip(step.operands.outputs, outputs)) {
      auto &data = got[value];
      data.clear();
      bool isFloat = isa<FloatType>(tensor.element);
      for (const Number &n : tensor.data)
        data.push_back(isFloat ? n.f : double(n.i));
    }
  }
  std::vector<std::vector<double>> results;
  for (Value value : block.getTerminator()->getOperands()) {
    const auto &a = got[value], &b = wanted[value];
    EXPECT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size() && i < b.size(); ++i)
      if (!(std::fabs(a[i] - b[i]) <= tolerance * (0.1 + std::fabs(b[i])))) {
        ADD_FAILURE() << "element " << i << " of a result of "
                      << value.getDefiningOp()->getName().getStringRef().str()
                      << ": " << a[i] << ", expected " << b[i];
        break;
      }
    results.push_back(a);
  }
  return results;
}

// Fused and op by op: within the tolerance of the reference, and equal bits.
void check(const std::string &text, double tolerance,
           std::function<double(Random &, unsigned)> fill = {}) {
  for (const char *target : {"native", "grid", "ptx"}) {
    SCOPED_TRACE(target);
    auto fused = checkBlock(text, {}, tolerance, fill, target);
    lowering::FusionOptions single;
    single.maxOps = 1;
    auto apart = checkBlock(text, single, tolerance, fill, target);
    EXPECT_EQ(fused, apart) << "fusion changes results";
  }
}

const char *kMlp = R"(
func.func @f(%x: tensor<6x40xf32>, %b: tensor<40xf32>, %dy: tensor<6x40xf32>)
    -> (tensor<6x40xf32>, tensor<6x40xf32>, tensor<40xf32>) {
  %h = train.add %x, %b : tensor<6x40xf32>, tensor<40xf32>
  %y = train.gelu tanh %h : tensor<6x40xf32>
  %dh = train.gelu_grad tanh %dy, %h : tensor<6x40xf32>
  %db = train.reduce_sum %dh axes [0] keepdims false : tensor<6x40xf32>
  return %y, %dh, %db : tensor<6x40xf32>, tensor<6x40xf32>, tensor<40xf32>
})";

TEST(Fusion, ProducersAndConsumersOfOneSpaceJoin) {
  Parsed parsed(kMlp);
  ASSERT_TRUE(parsed.block);
  EXPECT_EQ(parsed.groups(),
            std::vector<std::string>{"add gelu gelu_grad reduce_sum"});
  check(kMlp, 1e-5);
}

TEST(Fusion, OpsOfAnotherSpaceStayApart) {
  // The sum over columns is used over all rows again: a second kernel, since
  // one kernel reduces one set of dimensions.
  Parsed parsed(R"(
func.func @f(%x: tensor<12x12xf32>) -> tensor<12x12xf32> {
  %r = train.reduce_sum %x axes [1] keepdims true : tensor<12x12xf32>
  %y = train.sub %x, %r : tensor<12x12xf32>, tensor<12x1xf32>
  %c = train.reduce_sum %y axes [0] keepdims true : tensor<12x12xf32>
  %z = train.mul %y, %c : tensor<12x12xf32>, tensor<1x12xf32>
  %t = train.reduce_sum %z axes [0] keepdims false : tensor<12x12xf32>
  %u = train.add %z, %t : tensor<12x12xf32>, tensor<12xf32>
  return %u : tensor<12x12xf32>
})");
  ASSERT_TRUE(parsed.block);
  EXPECT_EQ(parsed.groups(),
            (std::vector<std::string>{"reduce_sum sub",
                                      "reduce_sum mul reduce_sum add"}));
}

TEST(Fusion, NoDiagonals) {
  // Column sums of a square matrix used as a column: the same dimension twice.
  const char *text = R"(
func.func @f(%x: tensor<9x9xf32>) -> tensor<9x9xf32> {
  %c = train.reduce_sum %x axes [0] keepdims false : tensor<9x9xf32>
  %d = train.reshape %c : tensor<9xf32> to tensor<9x1xf32>
  %z = train.mul %x, %d : tensor<9x9xf32>, tensor<9x1xf32>
  return %z : tensor<9x9xf32>
})";
  Parsed parsed(text);
  ASSERT_TRUE(parsed.block);
  EXPECT_EQ(parsed.groups(), (std::vector<std::string>{"reduce_sum", "mul"}));
}

TEST(Fusion, NobodyWaitsForAGroup) {
  // The product with w needs %a before the later add can run.
  Parsed parsed(R"(
func.func @f(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %a = train.exp %x : tensor<8x8xf32>
  %m = train.einsum "ij,jk->ik" %a, %w : tensor<8x8xf32>, tensor<8x8xf32>
  %b = train.add %a, %m : tensor<8x8xf32>, tensor<8x8xf32>
  %c = train.relu %b : tensor<8x8xf32>
  return %c : tensor<8x8xf32>
})");
  ASSERT_TRUE(parsed.block);
  EXPECT_EQ(parsed.groups(), (std::vector<std::string>{"exp", "add relu"}));
}

TEST(Fusion, ReductionsWithoutParallelismStayLibraryKernels) {
  Parsed parsed(R"(
func.func @f(%x: tensor<300x300xf32>, %y: tensor<20xf32>)
    -> (tensor<f32>, tensor<f32>) {
  %a = train.reduce_sum %x axes [0, 1] keepdims false : tensor<300x300xf32>
  %b = train.reduce_sum %y axes [0] keepdims false : tensor<20xf32>
  return %a, %b : tensor<f32>, tensor<f32>
})");
  ASSERT_TRUE(parsed.block);
  EXPECT_EQ(parsed.groups(), std::vector<std::string>{"reduce_sum"});
}

TEST(Fusion, ElementwiseOps) {
  check(R"(
func.func @f(%x: tensor<3x1x5xf32>, %y: tensor<4x1xf32>, %m: tensor<4x5xi1>)
    -> (tensor<3x4x5xf32>, tensor<3x4x5xi1>, tensor<3x4x5xi64>) {
  %one = train.constant dense<1.0> : tensor<f32>
  %two = train.constant dense<2.0> : tensor<f32>
  %a = train.exp %x : tensor<3x1x5xf32>
  %b = train.add %a, %y : tensor<3x1x5xf32>, tensor<4x1xf32>
  %c = train.sigmoid %b : tensor<3x4x5xf32>
  %d = train.abs %b : tensor<3x4x5xf32>
  %e = train.add %d, %one : tensor<3x4x5xf32>, tensor<f32>
  %l = train.log %e : tensor<3x4x5xf32>
  %s = train.sqrt %e : tensor<3x4x5xf32>
  %r = train.reciprocal %e : tensor<3x4x5xf32>
  %q = train.div %l, %s : tensor<3x4x5xf32>, tensor<3x4x5xf32>
  %p = train.pow %e, %two : tensor<3x4x5xf32>, tensor<f32>
  %t = train.tanh %b : tensor<3x4x5xf32>
  %er = train.erf %t : tensor<3x4x5xf32>
  %sn = train.sin %b : tensor<3x4x5xf32>
  %cs = train.cos %b : tensor<3x4x5xf32>
  %n = train.neg %r : tensor<3x4x5xf32>
  %g = train.compare gt %sn, %cs : tensor<3x4x5xf32>, tensor<3x4x5xf32>
  %h = train.and %g, %m : tensor<3x4x5xi1>, tensor<4x5xi1>
  %i = train.not %h : tensor<3x4x5xi1>
  %o = train.or %i, %g : tensor<3x4x5xi1>, tensor<3x4x5xi1>
  %v = train.select %h, %q, %er : tensor<3x4x5xi1>, tensor<3x4x5xf32>, tensor<3x4x5xf32>
  %w = train.max %v, %n : tensor<3x4x5xf32>, tensor<3x4x5xf32>
  %z = train.min %w, %p : tensor<3x4x5xf32>, tensor<3x4x5xf32>
  %k = train.mul %z, %c : tensor<3x4x5xf32>, tensor<3x4x5xf32>
  %u = train.sub %k, %t : tensor<3x4x5xf32>, tensor<3x4x5xf32>
  %re = train.relu %u : tensor<3x4x5xf32>
  %ca = train.cast %p : tensor<3x4x5xf32> to tensor<3x4x5xi64>
  return %re, %o, %ca : tensor<3x4x5xf32>, tensor<3x4x5xi1>, tensor<3x4x5xi64>
})",
        2e-5);
  check(R"(
func.func @f(%x: tensor<70xf32>, %dy: tensor<70xf32>) -> (tensor<70xf32>, tensor<70xf32>) {
  %a = train.gelu %x : tensor<70xf32>
  %b = train.gelu_grad %dy, %x : tensor<70xf32>
  return %a, %b : tensor<70xf32>, tensor<70xf32>
})",
        1e-5);
}

TEST(Fusion, Normalizations) {
  for (int64_t n : {5, 32, 50}) {
    std::string x = "tensor<3x4x" + std::to_string(n) + "xf32>",
                s = "tensor<" + std::to_string(n) + "xf32>",
                r = "tensor<3x4xf32>";
    auto f = [&](const std::string &args, const std::string &results,
                 const std::string &body, const std::string &names) {
      check("func.func @f(" + args + ") -> (" + results + ") {\n" + body +
                "\nreturn " + names + " : " + results + "\n}\n",
            1e-4);
    };
    f("%r: " + x + ", %x0: " + x + ", %g: " + s + ", %b: " + s,
      x + ", " + x + ", " + r + ", " + r,
      "%x = train.add %r, %x0 : " + x + ", " + x +
          "\n%y, %m, %d = train.layer_norm %x scale %g bias %b axis 2 epsilon "
          "1.0e-5 : " +
          x + ", " + s + ", " + s + " -> " + x + ", " + r + ", " + r,
      "%x, %y, %m, %d");
    f("%dy: " + x + ", %x: " + x + ", %m: " + r + ", %d: " + r + ", %g: " + s,
      x + ", " + s + ", " + s,
      "%dx = train.layer_norm_grad %dy, %x, %m, %d scale %g axis 2 : " + x +
          ", " + x + ", " + r + ", " + r + ", " + s + " -> " + x +
          "\n%dg, %db = train.layer_norm_param_grad %dy, %x, %m, %d axis 2 : " +
          x + ", " + x + ", " + r + ", " + r + " -> " + s + ", " + s,
      "%dx, %dg, %db");
    f("%dy: " + x + ", %x: " + x + ", %d: " + r + ", %g: " + s,
      x + ", " + r + ", " + x + ", " + s,
      "%y, %e = train.rms_norm %x scale %g axis 2 epsilon 1.0e-5 : " + x +
          ", " + s + " -> " + x + ", " + r +
          "\n%dx = train.rms_norm_grad %dy, %x, %d scale %g axis 2 : " + x +
          ", " + x + ", " + r + ", " + s + " -> " + x +
          "\n%dg = train.rms_norm_param_grad %dy, %x, %d axis 2 : " + x + ", " +
          x + ", " + r + " -> " + s,
      "%y, %e, %dx, %dg");
  }
}

TEST(Fusion, SoftmaxAndCrossEntropy) {
  check(R"(
func.func @f(%x: tensor<3x7x20xf32>, %dy: tensor<3x7x20xf32>)
    -> (tensor<3x7x20xf32>, tensor<3x7x20xf32>, tensor<3x7x20xf32>) {
  %y = train.softmax %x axis 2 : tensor<3x7x20xf32>
  %dx = train.softmax_grad %y, %dy axis 2 : tensor<3x7x20xf32>
  %z = train.softmax %dy axis 1 : tensor<3x7x20xf32>
  return %y, %dx, %z : tensor<3x7x20xf32>, tensor<3x7x20xf32>, tensor<3x7x20xf32>
})",
        1e-5);
  check(R"(
func.func @f(%x: tensor<2x5x19xf32>, %l: tensor<2x5xi64>, %d: tensor<2x5xf32>)
    -> (tensor<2x5xf32>, tensor<2x5xf32>, tensor<2x5x19xf32>) {
  %loss, %lse = train.softmax_cross_entropy %x, %l ignore -100
      : tensor<2x5x19xf32>, tensor<2x5xi64> -> tensor<2x5xf32>, tensor<2x5xf32>
  %g = train.softmax_cross_entropy_grad %x, %l, %lse, %d ignore -100
      : tensor<2x5x19xf32>, tensor<2x5xi64>, tensor<2x5xf32>, tensor<2x5xf32> -> tensor<2x5x19xf32>
  return %loss, %lse, %g : tensor<2x5xf32>, tensor<2x5xf32>, tensor<2x5x19xf32>
})",
        1e-5, [](Random &random, unsigned arg) {
          if (arg == 1)
            return random.below(4) == 0 ? -100.0 : double(random.below(19));
          return double(float(random.unit() * 4 - 2));
        });
}

} // namespace
} // namespace merak::codegen::test
