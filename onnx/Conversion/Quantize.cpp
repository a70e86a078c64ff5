// Chapter: arithmetic on quantized numbers, in float types that hold all sums
// exactly.
#include "onnx/Conversion/Conversion.h"

using namespace mlir;
using namespace merak;
using namespace merak::train;

// What another operator would give in this node's place.
static Value as(StringRef type, const OnnxNode &node, GraphBuilder &b,
                ArrayRef<Value> inputs) {
  if (llvm::is_contained(inputs, Value()))
    return {};
  OnnxNode other = node;
  other.type = type;
  other.inputs.assign(inputs.begin(), inputs.end());
  other.usedOutputs = {true};
  std::string reason;
  OnnxConversionFn convert = findConversion(other, reason);
  SmallVector<Value> results(1);
  if (!convert || failed(convert(other, b, results)))
    return {};
  return results[0];
}

static LogicalResult needsBytes(const OnnxNode &node, GraphBuilder &b,
                                ArrayRef<size_t> operands) {
  for (size_t i : operands) {
    Type element = tensorType(node.in(i)).getElementType();
    if (element.isInteger(8))
      continue;
    b.fail("expected tensors of 8-bit integers, found " +
           describeType(node.in(i).getType()));
    return failure();
  }
  return success();
}

// x - zero in `element`. Zero points are one number, or one for each entry of
// dimension `axis`.
static Value centered(GraphBuilder &b, Value x, Value zero, int64_t axis,
                      Type element) {
  x = b.cast(x, element);
  if (!zero)
    return x;
  int64_t count = tensorType(zero).getNumElements();
  zero = b.cast(zero, element);
  if (count == 1)
    return b.binary<SubOp>(x, b.reshape(zero, {}));
  if (rankOf(zero) > 1)
    return b.binary<SubOp>(x, zero); // already beside it
  Shape shape(rankOf(x), 1);
  shape[axis] = count;
  return b.binary<SubOp>(x, b.reshape(zero, shape));
}

// The same product of floats, exact up to 2^53.
static Value wholeProduct(const OnnxNode &node, GraphBuilder &b, Value l,
                          Value zeroL, Value r, Value zeroR) {
  Type f64 = b.builder.getF64Type();
  int64_t row = std::max<int64_t>(rankOf(l) - 2, 0);
  return as("MatMul", node, b,
            {centered(b, l, zeroL, row, f64),
             centered(b, r, zeroR, rankOf(r) - 1, f64)});
}

CONVERT(convertMatMulInteger) {
  if (failed(needsRank(node, b, 2, 1)) || failed(needsBytes(node, b, {0, 1})))
    return failure();
  Value product =
      wholeProduct(node, b, node.in(0), node.in(2), node.in(1), node.in(3));
  return give(results,
              product ? b.cast(product, b.builder.getI32Type()) : product);
}

// Windows are computed in f32, which holds whole numbers up to 2^24: longer
// sums are those of the upper and of the lower four bits.
static Value wholeWindow(const OnnxNode &node, GraphBuilder &b, Value x,
                         Value zeroX, Value weight, Value zeroW) {
  Type f32 = b.builder.getF32Type(), i32 = b.builder.getI32Type();
  x = centered(b, x, zeroX, 1, f32);
  weight = centered(b, weight, zeroW, 0, f32);
  if (!x || !weight)
    return {};
  constexpr int64_t kMost = int64_t(1) << 24, kLargest = 255;
  int64_t terms = 1;
  for (int64_t size : shapeOf(weight).drop_front())
    terms *= std::min<int64_t>(size, kMost);
  if (terms <= kMost / (kLargest * kLargest)) {
    Value y = as("Conv", node, b, {x, weight});
    return y ? b.cast(y, i32) : y;
  }
  if (terms > kMost / (kLargest * 16))
    return b.fail("expected at most " + llvm::Twine(kMost / (kLargest * 16)) +
                  " products in a sum, found " + llvm::Twine(terms));
  Value upper = b.unary<FloorOp>(b.binary<MulOp>(x, 1.0 / 16));
  Value lower = b.binary<SubOp>(x, b.binary<MulOp>(upper, 16.0));
  Value y = as("Conv", node, b, {upper, weight});
  Value rest = as("Conv", node, b, {lower, weight});
  if (!y || !rest)
    return {};
  y = b.cast(y, i32);
  return b.binary<AddOp>(b.binary<MulOp>(y, b.scalar(16, i32)),
                         b.cast(rest, i32));
}

CONVERT(convertConvInteger) {
  if (failed(needsRank(node, b, 2, 3)) || failed(needsBytes(node, b, {0, 1})))
    return failure();
  return give(results, wholeWindow(node, b, node.in(0), node.in(2), node.in(1),
                                   node.in(3)));
}

// The scale of whole numbers that are products, in f64; `axis` of rank `rank`
// where it is a vector.
static Value scaleBeside(GraphBuilder &b, Value scale, int64_t axis,
                         int64_t rank) {
  scale = b.cast(scale, b.builder.getF64Type());
  int64_t count = scale ? tensorType(scale).getNumElements() : 0;
  if (!scale || (count != 1 && rankOf(scale) > 1))
    return scale;
  Shape shape(count == 1 ? 0 : rank, 1);
  if (count != 1)
    shape[axis] = count;
  return b.reshape(scale, shape);
}

// Operands: a, its scale and zero point, b, its scale and zero point, and those
// of the result.
CONVERT(convertQLinearMatMul) {
  if (failed(needs(node, b, 8)) || failed(needsRank(node, b, 8, 1)) ||
      failed(needsBytes(node, b, {0, 3})))
    return failure();
  Value product =
      wholeProduct(node, b, node.in(0), node.in(2), node.in(3), node.in(5));
  if (!product)
    return failure();
  int64_t rank = rankOf(product);
  Value scale = b.binary<MulOp>(
      scaleBeside(b, node.in(1), std::max<int64_t>(rank - 2, 0), rank),
      scaleBeside(b, node.in(4), std::max<int64_t>(rank - 1, 0), rank));
  return give(results,
              as("QuantizeLinear", node, b,
                 {b.binary<MulOp>(product, scale), node.in(6), node.in(7)}));
}

// The same, and a bias in the scale of the products.
CONVERT(convertQLinearConv) {
  if (failed(needs(node, b, 8)) || failed(needsRank(node, b, 8, 3)) ||
      failed(needsBytes(node, b, {0, 3})))
    return failure();
  Value y =
      wholeWindow(node, b, node.in(0), node.in(2), node.in(3), node.in(5));
  if (!y)
    return failure();
  int64_t rank = rankOf(y);
  if (Value bias = node.in(8)) {
    Shape shape(rank, 1);
    shape[1] = tensorType(bias).getNumElements();
    y = b.binary<AddOp>(y, b.reshape(bias, shape));
  }
  if (!y)
    return failure();
  Value scale = b.binary<MulOp>(scaleBeside(b, node.in(1), 1, rank),
                                scaleBeside(b, node.in(4), 1, rank));
  y = b.cast(y, b.builder.getF64Type());
  return give(results, as("QuantizeLinear", node, b,
                          {b.binary<MulOp>(y, scale), node.in(6), node.in(7)}));
}

// The range of x, widened to hold 0, becomes [0, 255].
CONVERT(convertDynamicQuantize) {
  if (failed(needsFloat(node, b)))
    return failure();
  Value x = node.in(0);
  Shape all = dimsFrom(0, rankOf(x));
  Value high = b.binary<MaxOp>(b.reduce<ReduceMaxOp>(x, all, false), 0.0);
  Value low = b.binary<MinOp>(
      b.unary<NegOp>(b.reduce<ReduceMaxOp>(b.unary<NegOp>(x), all, false)),
      0.0);
  Value scale = b.binary<DivOp>(b.binary<SubOp>(high, low), 255.0);
  if (!scale)
    return failure();
  // Of zeros any scale is right.
  scale =
      b.select(b.compare(ComparePredicate::gt, scale, b.scalarLike(0, scale)),
               scale, b.scalarLike(1, scale));
  Value zero = b.unary<RoundOp>(b.unary<NegOp>(b.binary<DivOp>(low, scale)));
  zero = b.binary<MinOp>(b.binary<MaxOp>(zero, 0.0), 255.0);
  if (!zero)
    return failure();
  zero = b.cast(zero, b.builder.getIntegerType(8, false));
  Value y = as("QuantizeLinear", node, b, {x, scale, zero});
  if (results.size() > 1)
    results[1] = scale;
  if (results.size() > 2)
    results[2] = zero;
  return give(results, y);
}

namespace merak {
void addQuantizedConversions(OnnxTable &table) {
  table.add("MatMulInteger", 10, convertMatMulInteger);
  table.add("ConvInteger", 10, convertConvInteger);
  table.add("QLinearMatMul", 10, convertQLinearMatMul);
  table.add("QLinearConv", 10, convertQLinearConv);
  table.add("DynamicQuantizeLinear", 11, convertDynamicQuantize);
}
} // namespace merak
