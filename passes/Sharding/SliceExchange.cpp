#include "passes/Sharding/SliceExchange.h"

using namespace mlir;
using namespace merak::dist;
using namespace merak::pipe;

namespace merak {

StoreOp onlyStoreTo(StageOp stage, Value loaded) {
  auto load = loaded.getDefiningOp<LoadOp>();
  StoreOp found;
  if (!load)
    return {};
  for (auto action : stage.getOps<ActionOp>())
    for (auto store : action.getOps<StoreOp>())
      if (store.getValue() == load.getValue()) {
        if (found)
          return {};
        found = store;
      }
  return found;
}

Operation *sliceExchangeOf(Value stored) {
  if (auto place = stored.getDefiningOp<PlaceOp>())
    stored = place.getX();
  Operation *op = stored.getDefiningOp();
  if (!op || !op->hasOneUse())
    return nullptr;
  if (auto gather = dyn_cast<AllGatherOp>(op))
    return gather.getDim() == 0 && gather.getMajor() == 1 ? op : nullptr;
  if (auto exchange = dyn_cast<AllToAllOp>(op))
    return exchange.getDim() == 0 && exchange.getMajor() == 1 &&
                   exchange.getToDim() > 0
               ? op
               : nullptr;
  return nullptr;
}

} // namespace merak
