// Verifiers of neural network ops: shapes that belong together.
#include "dialects/Train/Verifiers.h"

using namespace mlir;
using namespace merak::train;

LogicalResult SoftmaxOp::verify() {
  return verifyAxis(*this, getAxis(), getX());
}
LogicalResult SoftmaxGradOp::verify() {
  return verifyAxis(*this, getAxis(), getY());
}

//===----------------------------------------------------------------------===//
// Normalization
//===----------------------------------------------------------------------===//

namespace {
struct Named {
  StringRef name;
  Value value;
};
} // namespace

// `full` have x's shape, `rows` x[:axis], `normalized` x[axis:].
static LogicalResult verifyNorm(Operation *op, Value x, int64_t axis,
                                ArrayRef<Named> full, ArrayRef<Named> rows,
                                ArrayRef<Named> normalized) {
  if (failed(verifyAxis(op, axis, x)))
    return failure();
  auto verifyAll = [&](ArrayRef<Named> all, ArrayRef<int64_t> shape) {
    return success(llvm::all_of(all, [&](const Named &each) {
      return succeeded(verifyShape(op, each.name, each.value, shape));
    }));
  };
  ArrayRef<int64_t> shape = dimsOf(x);
  return success(succeeded(verifyAll(full, shape)) &&
                 succeeded(verifyAll(rows, shape.take_front(axis))) &&
                 succeeded(verifyAll(normalized, shape.drop_front(axis))));
}

LogicalResult LayerNormOp::verify() {
  if (failed(verifyNorm(*this, getX(), getAxis(), {{"y", getY()}},
                        {{"mean", getMean()}, {"rstd", getRstd()}},
                        {{"scale", getScale()}, {"bias", getBias()}})))
    return failure();
  return verifyOneElementType(*this, {getX(), getY()});
}
LogicalResult LayerNormGradOp::verify() {
  return verifyNorm(
      *this, getX(), getAxis(), {{"dy", getDy()}, {"dx", getDx()}},
      {{"mean", getMean()}, {"rstd", getRstd()}}, {{"scale", getScale()}});
}
LogicalResult LayerNormParamGradOp::verify() {
  return verifyNorm(*this, getX(), getAxis(), {{"dy", getDy()}},
                    {{"mean", getMean()}, {"rstd", getRstd()}},
                    {{"dscale", getDscale()}, {"dbias", getDbias()}});
}
LogicalResult RmsNormOp::verify() {
  if (failed(verifyNorm(*this, getX(), getAxis(), {{"y", getY()}},
                        {{"rstd", getRstd()}}, {{"scale", getScale()}})))
    return failure();
  return verifyOneElementType(*this, {getX(), getY()});
}
LogicalResult RmsNormGradOp::verify() {
  return verifyNorm(*this, getX(), getAxis(),
                    {{"dy", getDy()}, {"dx", getDx()}}, {{"rstd", getRstd()}},
                    {{"scale", getScale()}});
}
LogicalResult RmsNormParamGradOp::verify() {
  return verifyNorm(*this, getX(), getAxis(), {{"dy", getDy()}},
                    {{"rstd", getRstd()}}, {{"dscale", getDscale()}});
}

LogicalResult BatchMeanOp::verify() {
  if (dimsOf(getX()).empty())
    return emitOpError("expected a first dimension of samples, found ")
           << getX().getType();
  return success();
}

//===----------------------------------------------------------------------===//
// Rows of columns
//===----------------------------------------------------------------------===//

// `wide` is [rows..., columns], each of `rows` [rows...].
static LogicalResult verifyRowsOf(Operation *op, Value wide,
                                  ArrayRef<Named> rows) {
  if (dimsOf(wide).empty())
    return op->emitOpError("expected a last dimension of columns, found ")
           << wide.getType();
  for (const Named &each : rows)
    if (failed(
            verifyShape(op, each.name, each.value, dimsOf(wide).drop_back())))
      return failure();
  return success();
}

LogicalResult SoftmaxCrossEntropyOp::verify() {
  return verifyRowsOf(
      *this, getLogits(),
      {{"labels", getLabels()}, {"loss", getLoss()}, {"lse", getLse()}});
}
LogicalResult SoftmaxCrossEntropyGradOp::verify() {
  if (failed(verifyRowsOf(
          *this, getLogits(),
          {{"labels", getLabels()}, {"lse", getLse()}, {"dloss", getDloss()}})))
    return failure();
  return verifyShape(*this, "dlogits", getDlogits(), dimsOf(getLogits()));
}
LogicalResult PickOp::verify() {
  return verifyRowsOf(*this, getX(), {{"labels", getLabels()}, {"y", getY()}});
}
LogicalResult PickGradOp::verify() {
  return verifyRowsOf(*this, getDx(),
                      {{"labels", getLabels()}, {"dy", getDy()}});
}

//===----------------------------------------------------------------------===//
// Attention, rotary embedding
//===----------------------------------------------------------------------===//

// q [b, tq, h, d], k [b, tk, hk, d], v [b, tk, hk, e].
static LogicalResult verifyHeads(Operation *op, Value q, Value k, Value v) {
  for (Value each : {q, k, v})
    if (dimsOf(each).size() != 4)
      return op->emitOpError("expected [samples, time, heads, depth], found ")
             << each.getType();
  ArrayRef<int64_t> qs = dimsOf(q), ks = dimsOf(k);
  if (ks[2] == 0 || qs[2] % ks[2])
    return op->emitOpError("expected key heads that divide the ")
           << qs[2] << " query heads, found " << ks[2];
  if (failed(verifyShape(op, "k", k, {qs[0], ks[1], ks[2], qs[3]})))
    return failure();
  return verifyShape(op, "v", v, {ks[0], ks[1], ks[2], dimsOf(v)[3]});
}

// Broadcasts to the scores, [b, h, tq, tk].
static LogicalResult verifyMask(Operation *op, Value mask, Value q, Value k) {
  if (!mask)
    return success();
  ArrayRef<int64_t> qs = dimsOf(q), shape = dimsOf(mask);
  const int64_t scores[] = {qs[0], qs[2], qs[1], dimsOf(k)[1]};
  bool fits = shape.size() <= 4;
  for (size_t i = 0; fits && i < shape.size(); ++i)
    fits = shape[i] == 1 || shape[i] == scores[4 - shape.size() + i];
  if (fits)
    return success();
  InFlightDiagnostic error =
      op->emitOpError("expected a mask that broadcasts to [");
  llvm::interleaveComma(scores, error);
  return error << "], found " << mask.getType();
}

static LogicalResult verifyAttention(Operation *op, Value q, Value k, Value v,
                                     Value mask, Value out, Value lse) {
  if (failed(verifyHeads(op, q, k, v)) || failed(verifyMask(op, mask, q, k)))
    return failure();
  ArrayRef<int64_t> qs = dimsOf(q);
  if (failed(verifyShape(op, "out", out, {qs[0], qs[1], qs[2], dimsOf(v)[3]})))
    return failure();
  return verifyShape(op, "lse", lse, {qs[0], qs[2], qs[1]});
}

// A part of all queries.
template <typename Op> static LogicalResult verifyPart(Op op) {
  const int64_t here = dimsOf(op.getQ())[1];
  const std::optional<uint64_t> all = op.getQueries();
  if (all.has_value() != op.getSplitAxis().has_value() ||
      (all && !op.getCausal()))
    return op.emitOpError(
        "expected 'queries' and 'split_axis' together, with 'causal'");
  if (all && (here == 0 || int64_t(*all) % here != 0))
    return op.emitOpError("expected a part of ")
           << *all << " queries that divides them, found " << here;
  return success();
}

LogicalResult AttentionOp::verify() {
  if (failed(verifyAttention(*this, getQ(), getK(), getV(), getMask(), getOut(),
                             getLse())))
    return failure();
  return verifyPart(*this);
}
LogicalResult AttentionGradOp::verify() {
  if (failed(verifyAttention(*this, getQ(), getK(), getV(), getMask(), getOut(),
                             getLse())) ||
      failed(verifyPart(*this)) ||
      failed(verifyShape(*this, "dout", getDout(), dimsOf(getOut()))) ||
      failed(verifyShape(*this, "dq", getDq(), dimsOf(getQ()))) ||
      failed(verifyShape(*this, "dk", getDk(), dimsOf(getK()))))
    return failure();
  return verifyShape(*this, "dv", getDv(), dimsOf(getV()));
}

LogicalResult RotaryOp::verify() {
  ArrayRef<int64_t> x = dimsOf(getX());
  if (x.size() != 4 || x[3] % 2)
    return emitOpError("expected [samples, time, heads, even depth], found ")
           << getX().getType();
  // One table for all samples, or one for each.
  ArrayRef<int64_t> cos = dimsOf(getCos());
  const int64_t samples = cos.size() == 4 && cos[0] == 1 ? 1 : x[0];
  const int64_t table[] = {samples, x[1], 1, x[3] / 2};
  if (failed(verifyShape(*this, "cos", getCos(), table)) ||
      failed(verifyShape(*this, "sin", getSin(), table)) ||
      failed(verifyShape(*this, "y", getY(), x)))
    return failure();
  return verifyOneElementType(*this, {getX(), getY()});
}

//===----------------------------------------------------------------------===//
// Gradient clipping
//===----------------------------------------------------------------------===//

LogicalResult SquareSumOp::verify() {
  auto y = cast<RankedTensorType>(getY().getType());
  if (y.getNumElements() != 1)
    return emitOpError("expected a result of one element, found ") << y;
  return success();
}

LogicalResult ClipFactorOp::verify() {
  if (dimsOf(getSquares()).size() != 1)
    return emitOpError("expected a list of squares, found ")
           << getSquares().getType();
  if (double norm = getMaxNorm().convertToDouble(); !(norm > 0))
    return emitOpError("expected a norm above 0, found ") << norm;
  if (failed(verifyShape(*this, "norm", getNorm(), {})))
    return failure();
  return verifyShape(*this, "factor", getFactor(), {});
}
