#include "passes/Sharding/OwnSummand.h"
#include "passes/Sharding/Passes.h"

#include "llvm/ADT/StringExtras.h"
#include <set>

using namespace mlir;
using namespace merak;
using namespace merak::dist;
using namespace merak::pipe;
using namespace merak::train;

namespace merak {
#define GEN_PASS_DEF_VERIFYSHARDS
#include "passes/Sharding/Passes.h.inc"
} // namespace merak

namespace {

using Axes = std::set<std::string>;

struct VerifyShardsPass : merak::impl::VerifyShardsBase<VerifyShardsPass> {
  void runOnOperation() override {
    failedAny = false;
    for (StageOp stage : getOperation().getOps<StageOp>()) {
      partial.clear();
      values.clear();
      for (ValueOp value : stage.getOps<ValueOp>())
        values[value.getSymName()] = value;
      stage.walk([&](Operation *op) { check(op); });
    }
    if (failedAny)
      signalPassFailure();
  }

  InFlightDiagnostic fail(Operation *op) {
    failedAny = true;
    return op->emitError();
  }
  static Axes axesOf(LayoutAttr layout) {
    Axes axes;
    if (layout)
      for (Attribute axis : layout.getPartial())
        axes.insert(cast<StringAttr>(axis).str());
    return axes;
  }
  static std::string str(const Axes &axes) { return llvm::join(axes, ", "); }

  void check(Operation *op) {
    if (auto load = dyn_cast<LoadOp>(op)) {
      partial[load.getResult()] =
          axesOf(values.lookup(load.getValue()).getLayoutAttr());
      return;
    }
    if (auto store = dyn_cast<StoreOp>(op)) {
      Axes axes = partial[store.getOperand()];
      // Accumulation sums over microbatches and their submicrobatches.
      if (store.getAccumulate()) {
        axes.erase(kMicrobatchAxis);
        axes.erase(kSubmicrobatchAxis);
      }
      if (axes != axesOf(values.lookup(store.getValue()).getLayoutAttr()))
        fail(op) << "store of a value that is partial over {" << str(axes)
                 << "} to '" << store.getValue() << "', which is not";
      return;
    }
    if (auto update = dyn_cast<pipe::UpdateOp>(op)) {
      if (Value ids = update.getIds(); ids && !partial[ids].empty())
        fail(op) << "ids of the rows of '" << update.getParameter()
                 << "' are still partial over {" << str(partial[ids]) << "}";
      if (!partial[update.getGradient()].empty())
        fail(op) << "gradient of '" << update.getParameter()
                 << "' is still partial over {"
                 << str(partial[update.getGradient()]) << "}";
      return;
    }
    if (!op->getNumResults())
      return;
    auto layouts = op->getAttrOfType<ArrayAttr>(kLayoutsAttr);
    for (OpResult result : op->getResults())
      if (layouts)
        partial[result] =
            axesOf(cast<LayoutAttr>(layouts[result.getResultNumber()]));
    if (isa<AllReduceOp, ReduceScatterOp>(op))
      return checkReduction(op);
    if (op->hasAttr(kOwnSummandAttr))
      return;
    if (auto ruled = dyn_cast<ShardingRuleOpInterface>(op))
      checkLinear(op, ruled.getShardingRule());
  }

  void checkReduction(Operation *op) {
    if (auto reduce = dyn_cast<AllReduceOp>(op);
        reduce && reduce.getReduction() != "sum")
      return;
    // Sums that outlining itself builds (the gradient norm) carry no partials.
    if (!op->hasAttr("dist.from"))
      return;
    for (Attribute axis : op->getAttrOfType<ArrayAttr>("axes")) {
      std::string name = cast<StringAttr>(axis).str();
      if (!partial[op->getOperand(0)].count(name))
        fail(op) << "sum over '" << name
                 << "' of a value that is not partial over it";
      if (partial[op->getResult(0)].count(name))
        fail(op) << "result of a sum over '" << name
                 << "' is still partial over it";
    }
  }

  void checkLinear(Operation *op, const ShardingRule &rule) {
    Axes all;
    for (Value operand : op->getOperands())
      all.insert(partial[operand].begin(), partial[operand].end());
    for (const std::string &axis : all) {
      std::vector<int> which;
      for (OpOperand &operand : op->getOpOperands())
        if (partial[operand.get()].count(axis))
          which.push_back(static_cast<int>(operand.getOperandNumber()));
      if (!llvm::is_contained(rule.linear, which)) {
        fail(op) << "'" << op->getName() << "' uses operand " << which.front()
                 << " while it is a partial sum over '" << axis << "'";
        continue;
      }
      for (Value result : op->getResults())
        if (!partial[result].count(axis))
          fail(op) << "result of '" << op->getName()
                   << "' lost the partial sum over '" << axis << "'";
    }
  }

  llvm::DenseMap<Value, Axes> partial;
  llvm::StringMap<ValueOp> values;
  bool failedAny = false;
};

} // namespace
