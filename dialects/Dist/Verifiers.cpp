// Verifiers of conversions: axes, the dimension that changes and the extents
// around the factor in it. They hold for global types, which are equal, and
// for local ones, of which one is a part of the other.
#include "dialects/Dist/DistDialect.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace merak::dist;

namespace {
// Dimension `dim` = major x factor x minor.
struct Factor {
  uint64_t dim, major, minor;
};
} // namespace

static ArrayRef<int64_t> shapeOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getShape();
}

static LogicalResult verifyAxes(Operation *op, ArrayAttr axes) {
  llvm::StringSet<> seen;
  for (auto axis : axes.getAsRange<StringAttr>())
    if (!seen.insert(axis.getValue()).second)
      return op->emitOpError("expected each axis once, found ") << axes;
  if (axes.empty())
    return op->emitOpError("expected at least one axis");
  return success();
}

// Only the dimensions of `factors` may differ.
static LogicalResult verifyDims(Operation *op, Value x, Value y,
                                ArrayRef<Factor> factors) {
  for (const Factor &factor : factors)
    if (factor.dim >= shapeOf(x).size())
      return op->emitOpError("expected a dimension of ")
             << x.getType() << ", found " << factor.dim;
  SmallVector<int64_t> shape(shapeOf(x));
  bool fits = shape.size() == shapeOf(y).size();
  for (const Factor &factor : factors)
    if (fits)
      shape[factor.dim] = shapeOf(y)[factor.dim];
  auto type = cast<RankedTensorType>(x.getType()).clone(shape);
  if (type != y.getType())
    return op->emitOpError("expected a result like ")
           << x.getType() << " but for the dimension that is converted, found "
           << y.getType();
  return success();
}

// The extents around the factor divide the dimension of the tensor that has
// the part.
static LogicalResult verifyExtents(Operation *op, Value part, Factor factor) {
  auto [dim, major, minor] = factor;
  const int64_t size = shapeOf(part)[dim];
  const auto around = static_cast<int64_t>(major * minor);
  if (static_cast<int64_t>(major) >= 1 && static_cast<int64_t>(minor) >= 1 &&
      size % around == 0)
    return success();
  return op->emitOpError("expected extents that divide dimension ")
         << dim << " of " << part.getType() << ", found major "
         << static_cast<int64_t>(major) << " and minor "
         << static_cast<int64_t>(minor);
}

// The dimension of `whole` is made of parts of the size of `part`.
static LogicalResult verifyParts(Operation *op, Value part, Value whole,
                                 uint64_t dim) {
  const int64_t size = shapeOf(part)[dim], all = shapeOf(whole)[dim];
  if (size == all || (size > 0 && all % size == 0))
    return success();
  return op->emitOpError("expected parts that make up dimension ")
         << dim << " of size " << all << ", found parts of size " << size;
}

// A conversion between `part` and `whole`, one of which is the operand.
template <typename OpTy>
static LogicalResult verifyFactor(OpTy op, Value part, Value whole) {
  Factor factor{op.getDim(), op.getMajor(), op.getMinor()};
  if (failed(verifyAxes(op, op.getAxes())) ||
      failed(verifyDims(op, op.getX(), op.getY(), factor)) ||
      failed(verifyParts(op, part, whole, factor.dim)))
    return failure();
  return verifyExtents(op, part, factor);
}

LogicalResult AllReduceOp::verify() { return verifyAxes(*this, getAxes()); }
LogicalResult AllGatherOp::verify() {
  return verifyFactor(*this, getX(), getY());
}
LogicalResult ReduceScatterOp::verify() {
  return verifyFactor(*this, getY(), getX());
}
LogicalResult ShardSliceOp::verify() {
  return verifyFactor(*this, getY(), getX());
}

LogicalResult AllToAllOp::verify() {
  Factor from{getDim(), getMajor(), getMinor()};
  Factor to{getToDim(), getToMajor(), getToMinor()};
  if (failed(verifyAxes(*this, getAxes())) ||
      failed(verifyDims(*this, getX(), getY(), {from, to})))
    return failure();
  auto x = cast<RankedTensorType>(getX().getType()),
       y = cast<RankedTensorType>(getY().getType());
  if (x.getNumElements() != y.getNumElements())
    return emitOpError("expected as many elements before and after, found ")
           << x << " and " << y;
  if (from.dim != to.dim &&
      failed(verifyParts(*this, getX(), getY(), from.dim)))
    return failure();
  if (failed(verifyExtents(*this, getX(), from)))
    return failure();
  return verifyExtents(*this, getY(), to);
}
