// Verifiers of meshes, layouts and conversions. Of conversions: axes, the
// dimension that changes and the extents around the factor in it. They hold for
// global types, which are equal, and for local ones, of which one is a part of
// the other.
#include "dialects/Dist/DistDialect.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace merak::dist;

//===----------------------------------------------------------------------===//
// Meshes and layouts
//===----------------------------------------------------------------------===//

using EmitError = llvm::function_ref<InFlightDiagnostic()>;

LogicalResult MeshAttr::verify(EmitError emitError, ArrayRef<StringAttr> axes,
                               ArrayRef<int64_t> sizes) {
  llvm::StringSet<> seen;
  for (auto [axis, size] : llvm::zip(axes, sizes)) {
    if (!seen.insert(axis.getValue()).second)
      return emitError() << "expected each axis of a mesh once, found " << axis
                         << " again";
    if (size < 1)
      return emitError() << "expected a size of at least 1 of mesh axis "
                         << axis << ", found " << size;
  }
  return success();
}

// Adds axes of a layout to those that were seen.
static LogicalResult addAxes(EmitError emitError, ArrayRef<Attribute> axes,
                             llvm::StringSet<> &seen) {
  for (Attribute axis : axes)
    if (!seen.insert(cast<StringAttr>(axis).getValue()).second)
      return emitError() << "expected each axis of a layout once, found "
                         << axis << " again";
  return success();
}

LogicalResult LayoutAttr::verify(EmitError emitError, ArrayAttr dims,
                                 ArrayAttr partial) {
  llvm::StringSet<> seen;
  for (auto dim : dims.getAsRange<ArrayAttr>())
    for (auto factor : dim.getAsRange<ArrayAttr>()) {
      int64_t size = cast<IntegerAttr>(factor[0]).getInt();
      if (size < 0)
        return emitError() << "expected a factor of at least 0, found " << size;
      if (failed(addAxes(emitError, factor.getValue().drop_front(), seen)))
        return failure();
    }
  return addAxes(emitError, partial.getValue(), seen);
}

// Whether a dimension is made of parts of the size.
static bool isMadeOf(int64_t whole, int64_t part) {
  return whole == part || (part > 0 && whole % part == 0);
}

LogicalResult merak::dist::verifyLayout(Operation *op, ShapedType type,
                                        LayoutAttr layout) {
  if (!layout)
    return success();
  std::vector<int64_t> global = layout.getLayout().globalShape();
  if (static_cast<int64_t>(global.size()) != type.getRank())
    return op->emitOpError("expected a layout of ")
           << type.getRank() << " dimensions, found " << layout;
  for (auto [dim, sizes] : llvm::enumerate(llvm::zip(global, type.getShape())))
    if (auto [whole, part] = sizes; !isMadeOf(whole, part))
      return op->emitOpError("expected a layout of which dimension ")
             << dim << " is a multiple of " << part << ", found " << layout;
  return success();
}

//===----------------------------------------------------------------------===//
// Conversions
//===----------------------------------------------------------------------===//

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
  if (isMadeOf(all, size))
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
LogicalResult PlaceOp::verify() { return verifyFactor(*this, getX(), getY()); }
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
