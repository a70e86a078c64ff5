#include "dialects/Train/Builders.h"

using namespace mlir;
using namespace merak::train;

static Attribute literal(Builder &b, Type element, double value) {
  if (isa<FloatType>(element))
    return b.getFloatAttr(element, value);
  return b.getIntegerAttr(element, static_cast<int64_t>(value));
}

Value merak::train::scalarConstant(OpBuilder &b, Location loc, Type element,
                                   double value) {
  auto type = RankedTensorType::get({}, element);
  return ConstantOp::create(
      b, loc, DenseElementsAttr::get(type, literal(b, element, value)));
}

Value merak::train::zerosLike(OpBuilder &b, Location loc,
                              RankedTensorType type) {
  return ConstantOp::create(
      b, loc,
      DenseElementsAttr::get(type, literal(b, type.getElementType(), 0)));
}

Value merak::train::reduceSum(OpBuilder &b, Location loc, Value x,
                              ArrayRef<int64_t> axes, bool keepdims) {
  if (axes.empty())
    return x;
  return ReduceSumOp::create(b, loc, x, axes, keepdims);
}

Value merak::train::reshapeTo(OpBuilder &b, Location loc, Value x,
                              ArrayRef<int64_t> shape) {
  RankedTensorType type = tensorTypeOf(x);
  if (type.getShape() == shape)
    return x;
  return ReshapeOp::create(
      b, loc, RankedTensorType::get(shape, type.getElementType()), x);
}

Value merak::train::scale(OpBuilder &b, Location loc, Value x, double factor) {
  if (factor == 1)
    return x;
  return MulOp::create(
      b, loc, x,
      scalarConstant(b, loc, tensorTypeOf(x).getElementType(), factor));
}

Value merak::train::sliceAxis(OpBuilder &b, Location loc, Value x, int64_t axis,
                              int64_t start, int64_t size) {
  ArrayRef<int64_t> shape = tensorTypeOf(x).getShape();
  SmallVector<int64_t> starts(shape.size(), 0), sizes(shape),
      steps(shape.size(), 1);
  starts[axis] = start;
  sizes[axis] = size;
  return SliceOp::create(b, loc, x, starts, sizes, steps);
}

Value merak::train::reduceToType(OpBuilder &b, Location loc, Value grad,
                                 RankedTensorType type) {
  ArrayRef<int64_t> from = tensorTypeOf(grad).getShape();
  ArrayRef<int64_t> to = type.getShape();
  SmallVector<int64_t> axes;
  size_t lead = from.size() - to.size();
  for (size_t i = 0; i < from.size(); ++i)
    if (i < lead || (to[i - lead] == 1 && from[i] != 1))
      axes.push_back(static_cast<int64_t>(i));
  Type element = type.getElementType();
  // Sums are formed in f32.
  bool widens = !axes.empty() && isHalf(element);
  auto cast = [&](Value value, Type wanted) -> Value {
    return CastOp::create(b, loc, tensorTypeOf(value).clone(wanted), value);
  };
  if (widens)
    grad = cast(grad, b.getF32Type());
  grad = reshapeTo(b, loc, reduceSum(b, loc, grad, axes, true), to);
  return widens ? cast(grad, element) : grad;
}
