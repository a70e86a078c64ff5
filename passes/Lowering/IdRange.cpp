#include "passes/Lowering/IdRange.h"

#include "dialects/Dist/DistDialect.h"

#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace merak::train;

namespace merak::lowering {

namespace {

using Range = std::optional<IdRange>;

// What is in both ranges, or (of other elements each) in one of them.
void add(Range &range, const Range &other, bool both = true) {
  if (!other)
    return;
  if (!range) {
    range = other;
    return;
  }
  range->limit = both ? std::min(range->limit, other->limit)
                      : std::max(range->limit, other->limit);
  if (range->allowed != other->allowed)
    range->allowed = std::nullopt;
}

class Follower {
public:
  explicit Follower(llvm::function_ref<int64_t(StringRef)> axisSize)
      : axisSize(axisSize) {}

  // Of what all uses together say about each element. Columns of one value may
  // be ids of several tables, or no ids at all.
  Range rangeOf(Value value) {
    Range all, parts;
    int64_t covered = 0;
    const int64_t elements = elementsOf(value);
    for (OpOperand &use : value.getUses()) {
      auto slice = dyn_cast<SliceOp>(use.getOwner());
      if (!slice || elementsOf(slice.getY()) == elements) {
        add(all, rangeOf(use));
      } else if (Range part = rangeOf(slice.getY())) {
        add(parts, part, /*both=*/false);
        covered += elementsOf(slice.getY());
      }
    }
    if (covered >= elements)
      add(all, parts);
    return all;
  }

private:
  static int64_t elementsOf(Value value) {
    return cast<RankedTensorType>(value.getType()).getNumElements();
  }

  Range rangeOf(OpOperand &use) {
    Operation *op = use.getOwner();
    const unsigned index = use.getOperandNumber();
    return llvm::TypeSwitch<Operation *, Range>(op)
        .Case<ReshapeOp, TransposeOp, SliceOp, ExpandOp, dist::AllGatherOp,
              dist::ShardSliceOp>(
            [&](Operation *o) { return rangeOf(o->getResult(0)); })
        .Case([&](CastOp cast) {
          Type element = getElementTypeOrSelf(cast.getY().getType());
          return isa<IntegerType>(element) && !element.isInteger(1)
                     ? rangeOf(cast.getY())
                     : Range();
        })
        .Case<GatherOp, ScatterAddOp>([&](auto lookup) {
          return index == 1 ? note(size(lookup.getTable(), lookup.getAxis(),
                                        lookup.getSplitAxis()),
                                   lookup.getRows(), std::nullopt)
                            : Range();
        })
        .Case([&](SoftmaxCrossEntropyOp loss) {
          return index == 1 ? note(size(loss.getLogits(), -1, std::nullopt),
                                   std::nullopt, loss.getIgnoreIndex())
                            : Range();
        })
        .Case([&](PickOp pick) {
          return index == 1 ? note(size(pick.getX(), -1, pick.getSplitAxis()),
                                   std::nullopt, pick.getIgnoreIndex())
                            : Range();
        })
        .Default([](Operation *) { return Range(); });
  }

  int64_t size(Value table, int64_t axis, std::optional<StringRef> split) {
    auto shape = cast<RankedTensorType>(table.getType()).getShape();
    int64_t local = shape[axis < 0 ? axis + shape.size() : axis];
    return split ? local * axisSize(*split) : local;
  }

  static Range note(int64_t limit, std::optional<uint64_t> rows,
                    std::optional<uint64_t> ignored) {
    IdRange range;
    range.limit = rows ? static_cast<int64_t>(*rows) : limit;
    if (ignored)
      range.allowed = static_cast<int64_t>(*ignored);
    return range;
  }

  llvm::function_ref<int64_t(StringRef)> axisSize;
};

} // namespace

std::optional<IdRange>
idRangeOf(Value ids, llvm::function_ref<int64_t(StringRef)> axisSize) {
  return Follower(axisSize).rangeOf(ids);
}

} // namespace merak::lowering
