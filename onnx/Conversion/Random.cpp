// Chapter: random numbers. They are made of the masks of dropout, functions of
// the run's seed, the step, the node and the element, so that layouts,
// recomputation and runs that go on draw the same.
#include "onnx/Conversion/Conversion.h"

#include "llvm/ADT/StringSwitch.h"

#include <cmath>
#include <numbers>

using namespace mlir;
using namespace merak;
using namespace merak::train;

namespace {
constexpr int kBits = 24; // of a uniform number: all that f32 holds

// Masks of one node. Those of dropout nodes have ids below 2^31.
class Draws {
public:
  Draws(const OnnxNode &node, GraphBuilder &b, RankedTensorType type)
      : b(b), type(type.clone(b.builder.getF32Type())) {
    uint64_t kind = llvm::StringSwitch<uint64_t>(node.type)
                        .Case("Bernoulli", 0)
                        .Case("RandomUniform", 1)
                        .Case("RandomUniformLike", 2)
                        .Case("RandomNormal", 3)
                        .Default(4);
    next = (uint64_t(1) << 31) | kind << 28 |
           (static_cast<uint64_t>(node.number) * 64 & ((1 << 28) - 1));
  }

  // `value` with a chance of 1 - ratio, else 0.
  Value keep(double value, double ratio) {
    Value x = b.constant(DenseElementsAttr::get(
        type,
        b.builder.getFloatAttr(type.getElementType(), value * (1 - ratio))));
    return DropoutOp::create(b.builder, b.loc, type, x,
                             b.builder.getF64FloatAttr(ratio),
                             b.builder.getI64IntegerAttr(next++), nullptr,
                             nullptr, nullptr, nullptr);
  }

  // Evenly distributed multiples of 2^-24 in [0, 1).
  Value uniform() {
    Value sum;
    for (int bit = 1; bit <= kBits; ++bit) {
      Value digit = keep(std::ldexp(1.0, -bit), 0.5);
      sum = sum ? b.binary<AddOp>(sum, digit) : digit;
    }
    return sum;
  }

  // Box and Muller's transform.
  Value normal() {
    Value open = b.binary<AddOp>(b.unary<NegOp>(uniform()), 1.0); // (0, 1]
    Value radius = b.unary<SqrtOp>(b.binary<MulOp>(b.unary<LogOp>(open), -2.0));
    Value angle = b.binary<MulOp>(uniform(), 2 * std::numbers::pi);
    return b.binary<MulOp>(radius, b.unary<CosOp>(angle));
  }

private:
  GraphBuilder &b;
  RankedTensorType type;
  uint64_t next;
};
} // namespace

// The type that the attribute dtype names, else `fallback`.
static Type elementOf(const OnnxNode &node, GraphBuilder &b, Type fallback,
                      bool needsFloat) {
  Type element = fallback;
  if (node.hasAttribute("dtype"))
    element = onnxElement(node.integer("dtype", 0), b.builder.getContext());
  if (element && (!needsFloat || isa<FloatType>(element)))
    return element;
  b.fail("unsupported element type of the result");
  return {};
}

static LogicalResult draw(const OnnxNode &node, GraphBuilder &b,
                          Results &results, RankedTensorType like,
                          Type fallback) {
  Type element = elementOf(node, b, fallback, true);
  if (!element)
    return failure();
  if (like.getNumElements() == 0) {
    b.fail("expected a shape with elements");
    return failure();
  }
  Draws draws(node, b, like);
  bool isNormal = node.type.starts_with("RandomNormal");
  double offset = isNormal ? node.real("mean", 0) : node.real("low", 0);
  double scale =
      isNormal ? node.real("scale", 1) : node.real("high", 1) - offset;
  Value y = isNormal ? draws.normal() : draws.uniform();
  y = b.binary<AddOp>(b.binary<MulOp>(y, scale), offset);
  return give(results, y ? b.cast(y, element) : y);
}

CONVERT(drawLike) {
  if (failed(needs(node, b, 1)))
    return failure();
  RankedTensorType type = tensorType(node.in(0));
  return draw(node, b, results, type, type.getElementType());
}

CONVERT(drawShape) {
  std::optional<Shape> shape = node.integers("shape");
  if (!shape || !isSaneShape(*shape)) {
    b.fail("expected a shape of sizes that are not negative");
    return failure();
  }
  Type f32 = b.builder.getF32Type();
  return draw(node, b, results, RankedTensorType::get(*shape, f32), f32);
}

// 1 with the chance that the operand names, else 0.
CONVERT(convertBernoulli) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  Type element = elementOf(node, b, tensorType(x).getElementType(), false);
  if (!element)
    return failure();
  Draws draws(node, b, tensorType(x));
  Value hit;
  std::optional<double> chance = splatOf(x);
  if (chance && *chance > 0 && *chance <= 1) {
    Value drawn = draws.keep(1, 1 - *chance);
    hit = b.compare(ComparePredicate::gt, drawn, b.scalarLike(0, drawn));
  } else {
    Value drawn = draws.uniform();
    if (tensorType(x).getElementType().isF64())
      drawn = b.cast(drawn, b.builder.getF64Type());
    else
      x = b.cast(x, b.builder.getF32Type());
    hit = b.compare(ComparePredicate::lt, drawn, x);
  }
  return give(results, hit ? b.cast(hit, element) : hit);
}

namespace merak {
void addRandomConversions(OnnxTable &table) {
  table.add("Bernoulli", 15, convertBernoulli);
  table.add("RandomUniform", 1, drawShape);
  table.add("RandomNormal", 1, drawShape);
  table.add("RandomUniformLike", 1, drawLike);
  table.add("RandomNormalLike", 1, drawLike);
}
} // namespace merak
