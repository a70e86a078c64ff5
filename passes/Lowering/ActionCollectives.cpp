// Collectives of an action. A collective over one factor of a dimension works
// on views in which that factor is a dimension of its own.
#include "dialects/Dist/Regather.h"
#include "dialects/Dist/Trim.h"
#include "dialects/Train/SparseAttributes.h"
#include "passes/Lowering/ActionLowering.h"

using namespace mlir;

namespace merak::lowering {

namespace {

// The view with dimension `dim` cut into major x factor x minor.
View split(const View &view, int64_t dim, int64_t major, int64_t minor) {
  View result = view;
  int64_t factor = view.shape[dim] / (major * minor);
  int64_t stride = view.strides[dim];
  result.shape[dim] = major;
  result.strides[dim] = stride * factor * minor;
  result.shape.insert(result.shape.begin() + dim + 1, {factor, minor});
  result.strides.insert(result.strides.begin() + dim + 1,
                        {stride * minor, stride});
  return result;
}

} // namespace

// Axes of size 1 hold one rank: nothing to exchange.
SmallVector<StringRef> ActionLowering::realAxes(ArrayAttr axes) {
  SmallVector<StringRef> real;
  for (Attribute axis : axes)
    if (StringRef name = cast<StringAttr>(axis).getValue();
        stage_.axisSize(name) > 1)
      real.push_back(name);
  return real;
}

void ActionLowering::collective(Operation *op, plan::Collective kind,
                                const View &from, const View &to,
                                ArrayRef<StringRef> axes,
                                std::optional<plan::Reduction> reduction,
                                int64_t dim, int64_t dim2) {
  MLIRContext *context = builder_.getContext();
  plan::CollectiveOp::create(
      builder_, op->getLoc(), plan::CollectiveAttr::get(context, kind),
      builder_.getI64IntegerAttr(stage_.groupOf(axes)),
      reduction ? plan::ReductionAttr::get(context, *reduction)
                : plan::ReductionAttr(),
      builder_.getI64IntegerAttr(dim), builder_.getI64IntegerAttr(dim2),
      viewArray({from}), viewArray({to}),
      builder_.getI64IntegerAttr(plan::kCollectiveStream),
      builder_.getF64FloatAttr(0), builder_.getF64FloatAttr(0));
  for (StringRef name :
       {StringRef(dist::kTrimAttr), StringRef(train::kDelayedAttr)})
    if (Attribute attribute = op->getAttr(name))
      procedure_.getBody().front().back().setAttr(name, attribute);
}

void ActionLowering::lowerAllReduce(dist::AllReduceOp op) {
  SmallVector<StringRef> axes = realAxes(op.getAxes());
  View from = viewOf(op.getX());
  if (axes.empty())
    return setView(op.getY(), from);
  // What the step before left is read by its step alone.
  View to = op->hasAttr(train::kDelayedAttr) ? from : outputFor(op.getY());
  collective(op, plan::Collective::all_reduce, from, to, axes,
             plan::symbolizeReduction(op.getReduction()));
  views_[op.getY()] = to;
}

void ActionLowering::lowerAllGather(dist::AllGatherOp op) {
  SmallVector<StringRef> axes = realAxes(op.getAxes());
  View from = viewOf(op.getX());
  if (axes.empty())
    return setView(op.getY(), from);
  View to = outputFor(op.getY());
  int64_t dim = op.getDim(), major = op.getMajor(), minor = op.getMinor();
  collective(op, plan::Collective::all_gather, split(from, dim, major, minor),
             split(to, dim, major, minor), axes, std::nullopt, dim + 1);
  if (op->hasAttr(dist::kRegatherAttr))
    procedure_.getBody().front().back().setAttr(dist::kRegatherAttr,
                                                builder_.getUnitAttr());
  views_[op.getY()] = to;
}

void ActionLowering::lowerReduceScatter(dist::ReduceScatterOp op) {
  SmallVector<StringRef> axes = realAxes(op.getAxes());
  View from = viewOf(op.getX());
  if (axes.empty())
    return setView(op.getY(), from);
  View to = outputFor(op.getY());
  int64_t dim = op.getDim(), major = op.getMajor(), minor = op.getMinor();
  collective(op, plan::Collective::reduce_scatter,
             split(from, dim, major, minor), split(to, dim, major, minor), axes,
             plan::Reduction::sum, dim + 1);
  views_[op.getY()] = to;
}

void ActionLowering::lowerAllToAll(dist::AllToAllOp op) {
  SmallVector<StringRef> axes = realAxes(op.getAxes());
  View from = viewOf(op.getX());
  if (axes.empty())
    return setView(op.getY(), from);
  View to = outputFor(op.getY());
  int64_t joined = op.getDim(), cut = op.getToDim();
  // Split the later dimension first, so that the earlier keeps its number.
  auto splitBoth = [&](View view) {
    auto one = [&](int64_t dim) {
      bool isJoined = dim == joined;
      view = split(view, dim, isJoined ? op.getMajor() : op.getToMajor(),
                   isJoined ? op.getMinor() : op.getToMinor());
    };
    one(std::max(joined, cut));
    one(std::min(joined, cut));
    return view;
  };
  int64_t joinedAt = joined + 1 + (cut < joined ? 2 : 0);
  int64_t cutAt = cut + 1 + (joined < cut ? 2 : 0);
  collective(op, plan::Collective::all_to_all, splitBoth(from), splitBoth(to),
             axes, std::nullopt, cutAt, joinedAt);
  views_[op.getY()] = to;
}

// The part begins at coordinate * size, which the plan of a class of ranks
// knows as a scalar only. One step per axis, major to minor.
void ActionLowering::lowerShardSlice(dist::ShardSliceOp op) {
  SmallVector<StringRef> axes = realAxes(op.getAxes());
  View from = viewOf(op.getX());
  if (axes.empty())
    return setView(op.getY(), from);
  int64_t dim = op.getDim(), major = op.getMajor(), minor = op.getMinor();
  auto type = cast<RankedTensorType>(op.getY().getType());
  SmallVector<int64_t> shape(from.shape.begin(), from.shape.end());
  for (StringRef axis : axes) {
    shape[dim] /= stage_.axisSize(axis);
    View to =
        axis == axes.back()
            ? outputFor(op.getY())
            : newBuffer(RankedTensorType::get(shape, type.getElementType()),
                        op.getLoc());
    View part = split(to, dim, major, minor);
    library(op.getLoc(), "slice", {split(from, dim, major, minor)}, {part},
            {builder_.getNamedAttr(
                "axis", builder_.getStringAttr(std::to_string(dim + 1)))},
            {offsetScalar(stage_.context(), axis, part.shape[dim + 1])});
    from = to;
  }
  views_[op.getY()] = from;
}

// The adjoint, which adds to a sum in place.
void ActionLowering::lowerPlace(dist::PlaceOp op) {
  SmallVector<StringRef> axes = realAxes(op.getAxes());
  View from = viewOf(op.getX());
  if (axes.empty())
    return setView(op.getY(), from);
  const int64_t dim = op.getDim(), major = op.getMajor(), minor = op.getMinor();
  auto type = cast<RankedTensorType>(op.getY().getType());
  SmallVector<int64_t> shape(from.shape.begin(), from.shape.end());
  for (StringRef axis : llvm::reverse(axes)) {
    const View part = split(from, dim, major, minor);
    shape[dim] *= stage_.axisSize(axis);
    const bool last = axis == axes.front();
    bool accumulate = false;
    View to =
        last ? outputsFor({op.getY()}, accumulate).front()
             : newBuffer(RankedTensorType::get(shape, type.getElementType()),
                         op.getLoc());
    library(op.getLoc(), "place", {part}, {split(to, dim, major, minor)},
            {builder_.getNamedAttr(
                "axis", builder_.getStringAttr(std::to_string(dim + 1)))},
            {offsetScalar(stage_.context(), axis, part.shape[dim + 1])},
            accumulate);
    from = to;
  }
  finishOutputs({op.getY()}, {from});
}

} // namespace merak::lowering
