// Gradients and decompositions of neural network ops.
#include "dialects/Train/Builders.h"

using namespace mlir;
using namespace merak::train;

#define GRADIENT(OpName)                                                       \
  void OpName::buildGradient(OpBuilder &b, ArrayRef<Value> resultGrads,        \
                             ArrayRef<bool> wanted,                            \
                             SmallVectorImpl<Value> &grads)
#define PRELUDE                                                                \
  Location loc = getLoc();                                                     \
  Value dy = resultGrads[0];                                                   \
  grads.assign((*this)->getNumOperands(), Value());                            \
  if (!dy)                                                                     \
    return;

GRADIENT(SoftmaxOp) {
  PRELUDE grads[0] = SoftmaxGradOp::create(b, loc, getY(), dy, getAxisAttr());
}

GRADIENT(LayerNormOp) {
  PRELUDE if (wanted[0]) grads[0] =
      LayerNormGradOp::create(b, loc, getX().getType(), dy, getX(), getMean(),
                              getRstd(), getScale(), getAxisAttr());
  bool wantScale = getScale() && wanted[1];
  bool wantBias = getBias() && wanted[getScale() ? 2 : 1];
  if (!wantScale && !wantBias)
    return;
  Type type = getScale() ? getScale().getType() : getBias().getType();
  auto op =
      LayerNormParamGradOp::create(b, loc, TypeRange{type, type}, dy, getX(),
                                   getMean(), getRstd(), getAxisAttr());
  if (wantScale)
    grads[1] = op.getDscale();
  if (wantBias)
    grads[getScale() ? 2 : 1] = op.getDbias();
}

GRADIENT(RmsNormOp) {
  PRELUDE if (wanted[0]) grads[0] =
      RmsNormGradOp::create(b, loc, getX().getType(), dy, getX(), getRstd(),
                            getScale(), getAxisAttr());
  if (getScale() && wanted[1])
    grads[1] = RmsNormParamGradOp::create(b, loc, getScale().getType(), dy,
                                          getX(), getRstd(), getAxisAttr());
}

GRADIENT(SoftmaxCrossEntropyOp) {
  PRELUDE grads[0] = SoftmaxCrossEntropyGradOp::create(
      b, loc, getLogits().getType(), getLogits(), getLabels(), getLse(), dy,
      getIgnoreIndexAttr(), StringAttr());
}
GRADIENT(PickOp) {
  PRELUDE grads[0] =
      PickGradOp::create(b, loc, getX().getType(), dy, getLabels(),
                         getIgnoreIndexAttr(), getSplitAxisAttr());
}

GRADIENT(AttentionOp) {
  PRELUDE auto op = AttentionGradOp::create(
      b, loc, TypeRange{getQ().getType(), getK().getType(), getV().getType()},
      getQ(), getK(), getV(), getOut(), getLse(), dy, getMask(), getScaleAttr(),
      getCausalAttr(), IntegerAttr(), StringAttr());
  for (int i = 0; i < 3; ++i)
    if (wanted[i])
      grads[i] = op->getResult(i);
}

GRADIENT(RotaryOp) {
  PRELUDE grads[0] = RotaryOp::create(
      b, loc, getX().getType(), dy, getCos(), getSin(), getInterleavedAttr(),
      getInverse() ? UnitAttr() : b.getUnitAttr());
}

GRADIENT(ConvOp) {
  PRELUDE if (wanted[0]) grads[0] = ConvGradInputOp::create(
      b, loc, getX().getType(), dy, getW(), getStridesAttr(), getPadsAttr(),
      getDilationsAttr(), getGroupAttr());
  if (wanted[1])
    grads[1] = ConvGradWeightOp::create(b, loc, getW().getType(), getX(), dy,
                                        getStridesAttr(), getPadsAttr(),
                                        getDilationsAttr(), getGroupAttr());
}
// The adjoint of a transposed convolution is the convolution itself.
GRADIENT(ConvGradInputOp) {
  PRELUDE if (wanted[0]) grads[0] =
      ConvOp::create(b, loc, getDy().getType(), dy, getW(), getStridesAttr(),
                     getPadsAttr(), getDilationsAttr(), getGroupAttr());
  if (wanted[1])
    grads[1] = ConvGradWeightOp::create(b, loc, getW().getType(), dy, getDy(),
                                        getStridesAttr(), getPadsAttr(),
                                        getDilationsAttr(), getGroupAttr());
}
// A symmetric map.
GRADIENT(BatchMeanOp) {
  PRELUDE grads[0] = BatchMeanOp::create(b, loc, getX().getType(), dy);
}
GRADIENT(MaxPoolOp) {
  PRELUDE grads[0] =
      MaxPoolGradOp::create(b, loc, getX().getType(), dy, getIndex());
}
// Each element from where it was put: one column of its plane.
GRADIENT(MaxPoolGradOp) {
  PRELUDE ArrayRef<int64_t> from = tensorTypeOf(dy).getShape();
  ArrayRef<int64_t> to = tensorTypeOf(getDy()).getShape();
  auto sizeOf = [](ArrayRef<int64_t> spatial) {
    int64_t size = 1;
    for (int64_t dim : spatial)
      size *= dim;
    return size;
  };
  int64_t plane = sizeOf(from.drop_front(2)), count = sizeOf(to.drop_front(2));
  Type element = tensorTypeOf(dy).getElementType();
  SmallVector<int64_t> labels{to[0], to[1], count};
  Value rows = ExpandOp::create(
      b, loc, RankedTensorType::get({to[0], to[1], count, plane}, element),
      reshapeTo(b, loc, dy, {to[0], to[1], 1, plane}));
  Value picked = PickOp::create(b, loc, RankedTensorType::get(labels, element),
                                rows, reshapeTo(b, loc, getIndex(), labels),
                                IntegerAttr(), StringAttr());
  grads[0] = reshapeTo(b, loc, picked, to);
}
GRADIENT(AvgPoolOp) {
  PRELUDE grads[0] = AvgPoolGradOp::create(
      b, loc, getX().getType(), dy, getKernelAttr(), getStridesAttr(),
      getPadsAttr(), getCountIncludePadAttr());
}

//===----------------------------------------------------------------------===//
// Decompositions, for a split reduction axis
//===----------------------------------------------------------------------===//

SmallVector<Value> SoftmaxOp::decompose(OpBuilder &b) {
  Location loc = getLoc();
  int64_t axis = getAxis();
  Value max =
      ReduceMaxOp::create(b, loc, getX(), ArrayRef<int64_t>{axis}, true);
  Value e = ExpOp::create(b, loc, SubOp::create(b, loc, getX(), max));
  Value sum = reduceSum(b, loc, e, {axis}, true);
  return {DivOp::create(b, loc, e, sum)};
}
SmallVector<Value> SoftmaxGradOp::decompose(OpBuilder &b) {
  Location loc = getLoc();
  Value product = MulOp::create(b, loc, getY(), getDy());
  Value sum =
      reduceSum(b, loc, product, {static_cast<int64_t>(getAxis())}, true);
  return {MulOp::create(b, loc, getY(), SubOp::create(b, loc, getDy(), sum))};
}

// loss = log(sum exp(x - max)) + max - x[label], rows without a label 0.
SmallVector<Value> SoftmaxCrossEntropyOp::decompose(OpBuilder &b) {
  Location loc = getLoc();
  int64_t axis = tensorTypeOf(getLogits()).getRank() - 1;
  Value logits = getLogits();
  Type element = tensorTypeOf(getLoss()).getElementType();
  if (tensorTypeOf(logits).getElementType() != element)
    logits =
        CastOp::create(b, loc, tensorTypeOf(logits).clone(element), logits);
  Value max =
      ReduceMaxOp::create(b, loc, logits, ArrayRef<int64_t>{axis}, true);
  Value e = ExpOp::create(b, loc, SubOp::create(b, loc, logits, max));
  Value sum = reduceSum(b, loc, e, {axis}, false);
  Value flatMax = reshapeTo(b, loc, max, tensorTypeOf(getLse()).getShape());
  Value lse = AddOp::create(b, loc, LogOp::create(b, loc, sum), flatMax);
  Value picked =
      PickOp::create(b, loc, getLoss().getType(), logits, getLabels(),
                     getIgnoreIndexAttr(), StringAttr());
  Value loss = SubOp::create(b, loc, lse, picked);
  if (getIgnoreIndex()) {
    Value ignored = scalarConstant(
        b, loc, tensorTypeOf(getLabels()).getElementType(),
        static_cast<double>(static_cast<int64_t>(*getIgnoreIndex())));
    Value counts =
        CompareOp::create(b, loc, ComparePredicate::ne, getLabels(), ignored);
    loss = SelectOp::create(
        b, loc, counts, loss,
        scalarConstant(b, loc, tensorTypeOf(loss).getElementType(), 0));
  }
  return {loss, lse};
}
