// Verifiers of convolutions and pools: each gradient has the shapes of its
// forward op, so one check serves all of a family.
#include "dialects/Train/Verifiers.h"

using namespace mlir;
using namespace merak::train;

namespace {
struct Window {
  ArrayRef<int64_t> kernel, strides, pads, dilations; // no dilations: all 1

  int64_t dilation(size_t i) const {
    return dilations.empty() ? 1 : dilations[i];
  }
  // Windows along spatial dimension i of size `size`.
  int64_t count(size_t i, int64_t size) const {
    const int64_t reach = (kernel[i] - 1) * dilation(i) + 1;
    const int64_t padded = size + pads[i] + pads[i + kernel.size()];
    return (padded - reach) / strides[i] + 1;
  }
};
} // namespace

// [samples, channels, spatial...].
static LogicalResult verifyPlanes(Operation *op, Value x) {
  if (dimsOf(x).size() >= 3)
    return success();
  return op->emitOpError("expected [samples, channels, spatial...], found ")
         << x.getType();
}

// An entry of each list for each of n spatial dimensions, two of pads.
static LogicalResult verifyEntries(Operation *op, const Window &w, size_t n) {
  if (w.kernel.size() != n || w.strides.size() != n || w.pads.size() != 2 * n ||
      (!w.dilations.empty() && w.dilations.size() != n))
    return op->emitOpError("expected a window of ")
           << n << " spatial dimensions, found " << w.kernel.size()
           << " of the kernel, " << w.strides.size() << " strides, "
           << w.pads.size() << " pads and " << w.dilations.size()
           << " dilations";
  auto isPositive = [](int64_t entry) { return entry >= 1; };
  if (!llvm::all_of(w.strides, isPositive) ||
      !llvm::all_of(w.dilations, isPositive) ||
      !llvm::all_of(w.pads, [](int64_t pad) { return pad >= 0; }))
    return op->emitOpError("expected strides and dilations of at least 1 and "
                           "pads that are not negative");
  return success();
}

// y [samples of x, channels, windows...].
static LogicalResult verifyWindows(Operation *op, Value x, StringRef name,
                                   Value y, int64_t channels, const Window &w) {
  Dims shape{dimsOf(x)[0], channels};
  for (auto [i, size] : llvm::enumerate(dimsOf(x).drop_front(2)))
    shape.push_back(w.count(i, size));
  return verifyShape(op, name, y, shape);
}

//===----------------------------------------------------------------------===//
// Convolutions
//===----------------------------------------------------------------------===//

// x [N, G * C, spatial...], w [G * O, C, kernel...].
static LogicalResult verifyGroups(Operation *op, Value x, Value w,
                                  int64_t group) {
  if (group < 1)
    return op->emitOpError("expected at least one group, found ") << group;
  ArrayRef<int64_t> xs = dimsOf(x), ws = dimsOf(w);
  if (ws.size() != xs.size() || ws[1] * group != xs[1] || ws[0] % group)
    return op->emitOpError("expected a weight for ")
           << group << " groups of the channels of " << x.getType()
           << ", found " << w.getType();
  return success();
}

template <typename OpTy>
static LogicalResult verifyConv(OpTy op, Value x, Value w, StringRef name,
                                Value y) {
  if (failed(verifyPlanes(op, x)) ||
      failed(verifyGroups(op, x, w, op.getGroup())))
    return failure();
  Window window{dimsOf(w).drop_front(2), op.getStrides(), op.getPads(),
                op.getDilations()};
  if (failed(verifyEntries(op, window, dimsOf(x).size() - 2)))
    return failure();
  return verifyWindows(op, x, name, y, dimsOf(w)[0], window);
}

LogicalResult ConvOp::verify() {
  return verifyConv(*this, getX(), getW(), "y", getY());
}
LogicalResult ConvGradInputOp::verify() {
  return verifyConv(*this, getDx(), getW(), "dy", getDy());
}
LogicalResult ConvGradWeightOp::verify() {
  return verifyConv(*this, getX(), getDw(), "dy", getDy());
}

//===----------------------------------------------------------------------===//
// Pools
//===----------------------------------------------------------------------===//

static LogicalResult verifyPool(Operation *op, Value x, StringRef name, Value y,
                                const Window &window) {
  if (failed(verifyPlanes(op, x)) ||
      failed(verifyEntries(op, window, dimsOf(x).size() - 2)))
    return failure();
  if (!llvm::all_of(window.kernel, [](int64_t size) { return size >= 1; }))
    return op->emitOpError("expected a kernel of at least one element");
  return verifyWindows(op, x, name, y, dimsOf(x)[1], window);
}

LogicalResult MaxPoolOp::verify() {
  Window window{getKernel(), getStrides(), getPads(), getDilations()};
  if (failed(verifyPool(*this, getX(), "y", getY(), window)))
    return failure();
  return verifyShape(*this, "index", getIndex(), dimsOf(getY()));
}
LogicalResult MaxPoolGradOp::verify() {
  if (failed(verifyPlanes(*this, getDx())) ||
      failed(verifyShape(*this, "index", getIndex(), dimsOf(getDy()))))
    return failure();
  ArrayRef<int64_t> dx = dimsOf(getDx()), dy = dimsOf(getDy());
  if (dx.size() != dy.size() || dx.take_front(2) != dy.take_front(2))
    return emitOpError("expected the samples and channels of ")
           << getDy().getType() << ", found " << getDx().getType();
  return success();
}
LogicalResult AvgPoolOp::verify() {
  return verifyPool(*this, getX(), "y", getY(),
                    {getKernel(), getStrides(), getPads(), {}});
}
LogicalResult AvgPoolGradOp::verify() {
  return verifyPool(*this, getDx(), "dy", getDy(),
                    {getKernel(), getStrides(), getPads(), {}});
}
