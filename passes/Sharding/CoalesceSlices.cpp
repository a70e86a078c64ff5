#include "dialects/Dist/StageMesh.h"
#include "dialects/Dist/Trim.h"
#include "dialects/Pipe/PipeDialect.h"
#include "dialects/Train/SparseAttributes.h"
#include "dialects/Train/TrainDialect.h"
#include "passes/Graph/TouchedAttribute.h"
#include "passes/Sharding/Passes.h"
#include "passes/Sharding/SliceExchange.h"

#include "mlir/Pass/Pass.h"

using namespace mlir;
using namespace merak;
using namespace merak::dist;
using namespace merak::pipe;
using namespace merak::train;

namespace merak {
#define GEN_PASS_DEF_COALESCESLICES
#include "passes/Sharding/Passes.h.inc"
} // namespace merak

namespace {

ArrayRef<int64_t> shapeOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getShape();
}

int64_t elementsOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getNumElements();
}

// One stage's exchanges of the slices of one table.
class Exchange {
public:
  Exchange(StageOp stage, CoalesceOp update) : stage(stage), update(update) {}

  // Whether there is one to be made smaller; it is, then.
  bool rewrite() {
    const auto touched = touchedRows(update);
    StoreOp store = touched ? onlyStoreTo(stage, update.getDy()) : StoreOp();
    Operation *exchange = store ? sliceExchangeOf(store.getOperand()) : nullptr;
    if (!exchange || exchange->getParentOp() != store->getParentOp())
      return false;
    Value slices = exchange->getOperand(0);
    // Sums of 16 bits would be rounded once more.
    if (!cast<RankedTensorType>(slices.getType()).getElementType().isF32())
      return false;
    Value ids = localIds(exchange);
    if (!ids || shapeOf(slices).take_front(shapeOf(ids).size()) != shapeOf(ids))
      return false;
    const double left = touched->sentShare(double(elementsOf(ids)));
    if (left == 1)
      return false;
    insert(exchange, slices, ids, left);
    return true;
  }

private:
  // The ids of this rank's slices, where the exchange is.
  Value localIds(Operation *exchange) {
    StoreOp store = onlyStoreTo(stage, update.getIds());
    if (!store)
      return {};
    Value stored = store.getOperand();
    if (auto place = stored.getDefiningOp<PlaceOp>())
      stored = place.getX();
    if (auto load = stored.getDefiningOp<LoadOp>()) // gathered for the lookup
      if (StoreOp before = onlyStoreTo(stage, load.getResult()))
        stored = before.getOperand();
    auto gather = stored.getDefiningOp<AllGatherOp>();
    if (!gather || gather.getDim() != 0 || gather.getMajor() != 1 ||
        gather.getAxes() != exchange->getAttr("axes"))
      return {};
    Value ids = gather.getX();
    if (gather->getBlock() == exchange->getBlock())
      return moveBehind(exchange, ids) ? ids : Value();
    return loadAgain(exchange, ids);
  }

  // Data that another action loads.
  Value loadAgain(Operation *exchange, Value ids) {
    auto load = ids.getDefiningOp<LoadOp>();
    auto value =
        load ? stage.lookupSymbol<ValueOp>(load.getValue()) : ValueOp();
    if (!value || value.getKind() != ValueKind::input)
      return {};
    OpBuilder builder(exchange);
    return builder.clone(*load)->getResult(0);
  }

  // The exchange and what stores its result, behind what makes the ids.
  static bool moveBehind(Operation *exchange, Value ids) {
    Operation *made = ids.getDefiningOp();
    if (!made || made->isBeforeInBlock(exchange))
      return made;
    Operation *last = made;
    for (Operation *op = exchange; op;) {
      Operation *user =
          op->getNumResults() && op->hasOneUse() ? *op->user_begin() : nullptr;
      op->moveAfter(last);
      last = op;
      op = user;
    }
    return true;
  }

  void insert(Operation *exchange, Value slices, Value ids, double left) {
    OpBuilder builder(exchange);
    auto sums = CoalesceOp::create(builder, exchange->getLoc(),
                                   TypeRange{slices.getType(), ids.getType()},
                                   slices, ids, update.getSize());
    sums->setAttr(kCompactAttr, builder.getUnitAttr());
    for (StringRef name : {StringRef(kRoleAttr), StringRef(kOfAttr)})
      if (Attribute attribute = exchange->getAttr(name))
        sums->setAttr(name, attribute);
    exchange->setOperand(0, sums.getRows());
    exchange->setAttr(kTrimAttr, builder.getF64FloatAttr(left));
    update->setAttr(kBlockAttr, builder.getI64IntegerAttr(elementsOf(ids)));
  }

  StageOp stage;
  CoalesceOp update;
};

struct CoalesceSlicesPass
    : merak::impl::CoalesceSlicesBase<CoalesceSlicesPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    ClusterAttr cluster = ClusterAttr::of(module);
    // Halves of a microbatch would have slices of their own.
    if (module->hasAttr(pipe::kOverlapAttr) || (cluster && cluster.isCuda()))
      return;
    for (auto stage : module.getOps<StageOp>())
      for (auto action : stage.getOps<ActionOp>()) {
        if (action.getKind() != pipe::Action::U)
          continue;
        SmallVector<CoalesceOp> updates(
            action.getBody().front().getOps<CoalesceOp>());
        for (CoalesceOp update : updates)
          exchanges += Exchange(stage, update).rewrite();
      }
  }
};

} // namespace
