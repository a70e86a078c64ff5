#include "dialects/Train/SparseAttributes.h"
#include "passes/Staging/Passes.h"

#include "dialects/Train/TrainDialect.h"

using namespace mlir;
using namespace merak;
using namespace merak::pipe;

namespace merak {
#define GEN_PASS_DEF_VERIFYSTAGES
#include "passes/Staging/Passes.h.inc"
} // namespace merak

namespace {

struct VerifyStagesPass : merak::impl::VerifyStagesBase<VerifyStagesPass> {
  void runOnOperation() override {
    failedAny = false;
    ModuleOp module = getOperation();
    received.clear();
    SymbolTableCollection symbols;
    for (TransferOp transfer : module.getOps<TransferOp>())
      checkTransfer(transfer, symbols);
    for (StageOp stage : module.getOps<StageOp>())
      checkStage(stage);
    if (failedAny)
      signalPassFailure();
  }

  InFlightDiagnostic fail(Operation *op) {
    failedAny = true;
    return op->emitError();
  }

  void checkTransfer(TransferOp transfer, SymbolTableCollection &symbols) {
    auto target = symbols.lookupNearestSymbolFrom<ValueOp>(
        transfer, transfer.getTarget());
    if (!received.insert(target).second)
      fail(transfer) << "value " << transfer.getTarget()
                     << " is received twice";
  }

  void checkStage(StageOp stage) {
    llvm::StringMap<int> plainStores, updates;
    stage.walk([&](Operation *op) {
      if (auto store = dyn_cast<StoreOp>(op))
        plainStores[store.getValue()] += !store.getAccumulate();
      else if (auto update = dyn_cast<pipe::UpdateOp>(op))
        // What is delayed of rows is not all of a step.
        updates[update.getParameter()] +=
            !(update->hasAttr(train::kDelayedAttr) && update.getIds());
    });
    for (ValueOp value : stage.getOps<ValueOp>()) {
      StringRef name = value.getSymName();
      bool arrives = received.contains(value);
      int stores = plainStores.lookup(name);
      if (value.getKind() == ValueKind::activation && stores + arrives != 1)
        fail(value) << "expected activation '" << name
                    << "' to be stored or received once, found " << stores
                    << " stores and " << (arrives ? "a" : "no") << " transfer";
      if (value.getKind() == ValueKind::parameter && updates.lookup(name) != 1)
        fail(value) << "expected parameter '" << name
                    << "' to be updated once, found " << updates.lookup(name)
                    << " updates";
    }
  }

  llvm::DenseSet<Operation *> received;
  bool failedAny = false;
};

} // namespace
