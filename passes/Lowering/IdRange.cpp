#include "passes/Lowering/IdRange.h"

#include "dialects/Dist/DistDialect.h"

#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace merak::train;

namespace merak::lowering {

namespace {

class Follower {
public:
  explicit Follower(llvm::function_ref<int64_t(StringRef)> axisSize)
      : axisSize(axisSize) {}

  void follow(Value value) {
    for (OpOperand &use : value.getUses())
      visit(use);
  }
  bool found = false;
  IdRange range;

private:
  void visit(OpOperand &use) {
    Operation *op = use.getOwner();
    unsigned index = use.getOperandNumber();
    llvm::TypeSwitch<Operation *>(op)
        .Case<ReshapeOp, TransposeOp, SliceOp, ExpandOp, dist::AllGatherOp,
              dist::ShardSliceOp>(
            [&](Operation *o) { follow(o->getResult(0)); })
        .Case([&](CastOp cast) {
          Type element = getElementTypeOrSelf(cast.getY().getType());
          if (isa<IntegerType>(element) && !element.isInteger(1))
            follow(cast.getY());
        })
        .Case([&](GatherOp gather) {
          if (index == 1)
            note(size(gather.getTable(), gather.getAxis(),
                      gather.getSplitAxis()),
                 gather.getRows(), std::nullopt);
        })
        .Case([&](ScatterAddOp scatter) {
          if (index == 1)
            note(size(scatter.getTable(), scatter.getAxis(),
                      scatter.getSplitAxis()),
                 scatter.getRows(), std::nullopt);
        })
        .Case([&](SoftmaxCrossEntropyOp loss) {
          if (index == 1)
            note(size(loss.getLogits(), -1, std::nullopt), std::nullopt,
                 loss.getIgnoreIndex());
        })
        .Case([&](PickOp pick) {
          if (index == 1)
            note(size(pick.getX(), -1, pick.getSplitAxis()), std::nullopt,
                 pick.getIgnoreIndex());
        });
  }

  int64_t size(Value table, int64_t axis, std::optional<StringRef> split) {
    auto shape = cast<RankedTensorType>(table.getType()).getShape();
    int64_t local = shape[axis < 0 ? axis + shape.size() : axis];
    return split ? local * axisSize(*split) : local;
  }

  void note(int64_t limit, std::optional<uint64_t> rows,
            std::optional<uint64_t> ignored) {
    if (rows)
      limit = static_cast<int64_t>(*rows);
    std::optional<int64_t> allowed;
    if (ignored)
      allowed = static_cast<int64_t>(*ignored);
    range.limit = found ? std::min(range.limit, limit) : limit;
    range.allowed =
        !found || range.allowed == allowed ? allowed : std::optional<int64_t>();
    found = true;
  }

  llvm::function_ref<int64_t(StringRef)> axisSize;
};

} // namespace

std::optional<IdRange>
idRangeOf(Value ids, llvm::function_ref<int64_t(StringRef)> axisSize) {
  Follower follower(axisSize);
  follower.follow(ids);
  if (!follower.found)
    return std::nullopt;
  return follower.range;
}

} // namespace merak::lowering
