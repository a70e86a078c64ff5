// Element-wise ONNX ops that are not activations: trigonometry, rounding,
// bits, tests of single numbers, and quantization to a grid.
#include "onnx/Conversion/Conversion.h"

#include <cmath>
#include <limits>

using namespace mlir;
using namespace merak;
using namespace merak::train;

template <typename OpTy> CONVERT(unaryFloat) {
  if (failed(needsFloat(node, b)))
    return failure();
  return give(results, b.unary<OpTy>(node.in(0)));
}

// `near` where |x| < limit, else `far`.
static Value nearZero(GraphBuilder &b, Value x, double limit, Value near,
                      Value far) {
  return b.select(b.compare(ComparePredicate::lt, b.unary<AbsOp>(x),
                            b.scalarLike(limit, x)),
                  near, far);
}

// sum of coefficients[i] * x^(2i+1).
static Value oddSeries(GraphBuilder &b, Value x,
                       std::initializer_list<double> coefficients) {
  Value square = b.binary<MulOp>(x, x), sum;
  for (double c : llvm::reverse(coefficients))
    sum = sum ? b.binary<AddOp>(b.binary<MulOp>(sum, square), c)
              : b.scalarLike(c, x);
  return b.binary<MulOp>(sum, x);
}

// sign(x) log(|x| + sqrt(x^2 + 1)); near zero its series.
CONVERT(convertAsinh) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0), size = b.unary<AbsOp>(x);
  Value root = b.unary<SqrtOp>(b.binary<AddOp>(b.binary<MulOp>(x, x), 1.0));
  Value far = b.unary<LogOp>(b.binary<AddOp>(size, root));
  Value isNegative = b.compare(ComparePredicate::lt, x, b.scalarLike(0, x));
  far = b.select(isNegative, b.unary<NegOp>(far), far);
  Value near = oddSeries(b, x, {1, -1.0 / 6, 3.0 / 40, -15.0 / 336});
  return give(results, nearZero(b, x, 0.2, near, far));
}

// log(x + sqrt(x^2 - 1)).
CONVERT(convertAcosh) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  Value root = b.unary<SqrtOp>(
      b.binary<MulOp>(b.binary<SubOp>(x, 1.0), b.binary<AddOp>(x, 1.0)));
  return give(results, b.unary<LogOp>(b.binary<AddOp>(x, root)));
}

// log((1 + x) / (1 - x)) / 2; near zero its series.
CONVERT(convertAtanh) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  Value up = b.binary<AddOp>(x, 1.0);
  Value down = b.binary<SubOp>(b.scalarLike(1, x), x);
  Value far = b.binary<MulOp>(b.unary<LogOp>(b.binary<DivOp>(up, down)), 0.5);
  Value near = oddSeries(b, x, {1, 1.0 / 3, 1.0 / 5, 1.0 / 7});
  return give(results, nearZero(b, x, 0.2, near, far));
}

CONVERT(convertCeil) {
  if (failed(needsFloat(node, b)))
    return failure();
  return give(results,
              b.unary<NegOp>(b.unary<FloorOp>(b.unary<NegOp>(node.in(0)))));
}

CONVERT(convertSign) {
  if (failed(needs(node, b, 1)))
    return failure();
  Value x = node.in(0), zero = b.scalarLike(0, x), one = b.scalarLike(1, x);
  bool isUnsigned = tensorType(x).getElementType().isUnsignedInteger();
  Value below = isUnsigned ? zero
                           : b.select(b.compare(ComparePredicate::lt, x, zero),
                                      b.scalarLike(-1, x), zero);
  return give(results,
              b.select(b.compare(ComparePredicate::gt, x, zero), one, below));
}

CONVERT(convertIsNan) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  return give(results, b.compare(ComparePredicate::ne, x, x));
}

CONVERT(convertIsInf) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  double infinity = std::numeric_limits<double>::infinity();
  bool up = node.integer("detect_positive", 1);
  bool down = node.integer("detect_negative", 1);
  if (!up && !down)
    return give(results,
                b.compare(ComparePredicate::lt, x, b.scalarLike(-infinity, x)));
  Value tested = up && down ? b.unary<AbsOp>(x) : x;
  return give(results, b.compare(ComparePredicate::eq, tested,
                                 b.scalarLike(up ? infinity : -infinity, x)));
}

// a - b * floor(a / b), or with fmod a - b * trunc(a / b).
CONVERT(convertMod) {
  if (failed(needs(node, b, 2)))
    return failure();
  Value l = node.in(0), r = node.in(1);
  bool truncates = node.integer("fmod", 0);
  Value quotient = b.binary<DivOp>(l, r);
  if (!quotient)
    return failure();
  Value rest;
  if (isFloat(l)) {
    // Truncated; what is smaller than the divisor stays, also if that is inf.
    Value zero = b.scalarLike(0, quotient);
    Value whole = b.unary<FloorOp>(b.unary<AbsOp>(quotient));
    Value isSmall = b.compare(ComparePredicate::eq, whole, zero);
    whole = b.select(b.compare(ComparePredicate::lt, quotient, zero),
                     b.unary<NegOp>(whole), whole);
    rest = b.select(isSmall, l, b.binary<SubOp>(l, b.binary<MulOp>(r, whole)));
  } else {
    rest = b.binary<SubOp>(l, b.binary<MulOp>(r, quotient));
  }
  if (truncates || tensorType(l).getElementType().isUnsignedInteger())
    return give(results, rest);
  // The sign of the divisor.
  Value zero = b.scalarLike(0, rest);
  Value apart =
      b.binary<AndOp>(b.compare(ComparePredicate::ne, rest, zero),
                      b.compare(ComparePredicate::ne,
                                b.compare(ComparePredicate::lt, rest, zero),
                                b.compare(ComparePredicate::lt, r, zero)));
  return give(results, b.select(apart, b.binary<AddOp>(rest, r), rest));
}

static LogicalResult needsInteger(const OnnxNode &node, GraphBuilder &b,
                                  size_t count) {
  if (failed(needs(node, b, count)))
    return failure();
  if (isa<IntegerType>(tensorType(node.in(0)).getElementType()))
    return success();
  b.fail("expected an integer tensor, found " +
         describeType(node.in(0).getType()));
  return failure();
}

template <typename OpTy> CONVERT(bitwise) {
  if (failed(needsInteger(node, b, 2)))
    return failure();
  return give(results, b.binary<OpTy>(node.in(0), node.in(1)));
}

CONVERT(convertBitwiseNot) {
  if (failed(needsInteger(node, b, 1)))
    return failure();
  Value x = node.in(0);
  return give(results, b.binary<XorOp>(x, b.scalarLike(-1, x)));
}

CONVERT(convertBitShift) {
  if (failed(needsInteger(node, b, 2)))
    return failure();
  StringRef direction = node.string("direction", "");
  if (direction != "LEFT" && direction != "RIGHT") {
    b.fail("expected direction LEFT or RIGHT, found '" + direction + "'");
    return failure();
  }
  return give(results, direction == "LEFT"
                           ? b.binary<ShiftLeftOp>(node.in(0), node.in(1))
                           : b.binary<ShiftRightOp>(node.in(0), node.in(1)));
}

CONVERT(convertThresholdedRelu) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  Value above = b.compare(ComparePredicate::gt, x,
                          b.scalarLike(node.real("alpha", 1.0), x));
  return give(results, b.select(above, x, b.scalarLike(0, x)));
}

CONVERT(convertShrink) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  double lambd = node.real("lambd", 0.5), bias = node.real("bias", 0.0);
  Value low = b.compare(ComparePredicate::lt, x, b.scalarLike(-lambd, x));
  Value high = b.compare(ComparePredicate::gt, x, b.scalarLike(lambd, x));
  Value inner = b.select(high, b.binary<SubOp>(x, bias), b.scalarLike(0, x));
  return give(results, b.select(low, b.binary<AddOp>(x, bias), inner));
}

// max(0, x) + min(0, alpha (exp(x / alpha) - 1)).
CONVERT(convertCelu) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  double alpha = node.real("alpha", 1.0);
  Value part = b.binary<MulOp>(b.binary<MinOp>(x, 0.0), 1 / alpha);
  Value below =
      b.binary<MulOp>(b.binary<SubOp>(b.unary<ExpOp>(part), 1.0), alpha);
  return give(results, b.binary<AddOp>(b.unary<ReluOp>(x), below));
}

// Swish(A) * B.
CONVERT(convertSwiGlu) {
  if (failed(needsFloat(node, b, 2)))
    return failure();
  Value x = node.in(0);
  double alpha = node.real("alpha", 1.0);
  Value gate = b.unary<SigmoidOp>(alpha == 1 ? x : b.binary<MulOp>(x, alpha));
  return give(results, b.binary<MulOp>(b.binary<MulOp>(x, gate), node.in(1)));
}

//===----------------------------------------------------------------------===//
// Quantization
//===----------------------------------------------------------------------===//

// Scale or zero point beside x: one number, one a slice of `axis`, or one a
// block of it.
static Value besideAxis(const OnnxNode &node, GraphBuilder &b, Value x,
                        Value parameter) {
  if (tensorType(parameter).getNumElements() == 1)
    return b.reshape(parameter, {});
  std::optional<int64_t> axis = wrapAxis(node.integer("axis", 1), rankOf(x), b);
  if (!axis)
    return {};
  if (rankOf(parameter) == 1) {
    Shape shape(rankOf(x), 1);
    shape[*axis] = shapeOf(parameter)[0];
    return b.reshape(parameter, shape);
  }
  int64_t block = node.integer("block_size", 0);
  if (block < 1 || rankOf(parameter) != rankOf(x) ||
      shapeOf(parameter)[*axis] * block != shapeOf(x)[*axis])
    return b.fail("expected a scale a tensor, a slice or a block, found " +
                  describeType(parameter.getType()) + " for " +
                  describeType(x.getType()));
  Shape apart(shapeOf(parameter)), wide, joined(shapeOf(x));
  apart.insert(apart.begin() + *axis + 1, 1);
  wide = apart;
  wide[*axis + 1] = block;
  return b.reshape(b.expand(b.reshape(parameter, apart), wide), joined);
}

CONVERT(convertDequantize) {
  if (failed(needs(node, b, 2)))
    return failure();
  Value x = node.in(0), scale = node.in(1);
  Type element = tensorType(scale).getElementType();
  Value value = b.cast(x, element);
  scale = besideAxis(node, b, x, scale);
  if (Value zero = node.in(2))
    value =
        b.binary<SubOp>(value, besideAxis(node, b, x, b.cast(zero, element)));
  return give(results, b.binary<MulOp>(value, scale));
}

CONVERT(convertQuantize) {
  if (failed(needsFloat(node, b, 2)))
    return failure();
  Value x = node.in(0), scale = node.in(1), zero = node.in(2);
  Type element = tensorType(x).getElementType();
  int64_t code = node.integer("output_dtype", 0);
  Type stored = zero        ? tensorType(zero).getElementType()
                : code != 0 ? onnxElement(code, b.builder.getContext())
                            : Type(b.builder.getIntegerType(8, false));
  auto integer = dyn_cast_or_null<IntegerType>(stored);
  if (!integer) {
    b.fail("unsupported type of the result, expected integers");
    return failure();
  }
  Value y = b.unary<RoundOp>(
      b.binary<DivOp>(x, besideAxis(node, b, x, b.cast(scale, element))));
  if (zero)
    y = b.binary<AddOp>(y, besideAxis(node, b, x, b.cast(zero, element)));
  unsigned width = integer.getWidth();
  bool isUnsigned = integer.isUnsigned();
  double low = isUnsigned ? 0 : -std::ldexp(1.0, width - 1);
  double high = std::ldexp(1.0, isUnsigned ? width : width - 1) - 1;
  y = b.binary<MinOp>(b.binary<MaxOp>(y, low), high);
  return give(results, y ? b.cast(y, stored) : y);
}

void merak::addMathConversions(OnnxTable &table) {
  table.add("Tan", 7, unaryFloat<TanOp>);
  table.add("Asin", 7, unaryFloat<AsinOp>);
  table.add("Acos", 7, unaryFloat<AcosOp>);
  table.add("Atan", 7, unaryFloat<AtanOp>);
  table.add("Sinh", 9, unaryFloat<SinhOp>);
  table.add("Cosh", 9, unaryFloat<CoshOp>);
  table.add("Asinh", 9, convertAsinh);
  table.add("Acosh", 9, convertAcosh);
  table.add("Atanh", 9, convertAtanh);
  table.add("Floor", 1, unaryFloat<FloorOp>);
  table.add("Ceil", 1, convertCeil);
  table.add("Round", 11, unaryFloat<RoundOp>);
  table.add("Sign", 9, convertSign);
  table.add("IsNaN", 9, convertIsNan);
  table.add("IsInf", 10, convertIsInf);
  table.add("Mod", 10, convertMod);
  table.add("BitwiseAnd", 18, bitwise<AndOp>);
  table.add("BitwiseOr", 18, bitwise<OrOp>);
  table.add("BitwiseXor", 18, bitwise<XorOp>);
  table.add("BitwiseNot", 18, convertBitwiseNot);
  table.add("BitShift", 11, convertBitShift);
  table.add("ThresholdedRelu", 10, convertThresholdedRelu);
  table.add("Shrink", 9, convertShrink);
  table.add("Celu", 12, convertCelu);
  table.add("SwiGLU", 28, convertSwiGlu);
  table.add("QuantizeLinear", 10, convertQuantize);
  table.add("DequantizeLinear", 10, convertDequantize);
}
