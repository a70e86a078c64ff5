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
      checkTransfer(module, transfer, symbols);
    for (StageOp stage : module.getOps<StageOp>())
      checkStage(stage);
    if (failedAny)
      signalPassFailure();
  }

  InFlightDiagnostic fail(Operation *op) {
    failedAny = true;
    return op->emitError();
  }

  void checkTransfer(ModuleOp module, TransferOp transfer,
                     SymbolTableCollection &symbols) {
    auto find = [&](SymbolRefAttr path) {
      auto value =
          dyn_cast_or_null<ValueOp>(symbols.lookupSymbolIn(module, path));
      if (!value)
        fail(transfer) << "expected a value of a stage, found " << path;
      return value;
    };
    ValueOp source = find(transfer.getSource());
    ValueOp target = find(transfer.getTarget());
    if (!source || !target)
      return;
    if (source.getType() != target.getType())
      fail(transfer) << "transfer changes the type from " << source.getType()
                     << " to " << target.getType();
    if (!received.insert(target).second)
      fail(transfer) << "value " << transfer.getTarget()
                     << " is received twice";
  }

  void checkStage(StageOp stage) {
    llvm::StringMap<ValueOp> values;
    llvm::StringMap<int> plainStores, updates;
    for (ValueOp value : stage.getOps<ValueOp>())
      values[value.getSymName()] = value;
    llvm::SmallDenseSet<std::pair<int, int64_t>> kinds;
    for (ActionOp action : stage.getOps<ActionOp>()) {
      int64_t chunk = action.getChunk();
      if (!kinds.insert({static_cast<int>(action.getKind()), chunk}).second) {
        InFlightDiagnostic problem = fail(action);
        problem << "stage has two actions of kind " << letter(action.getKind());
        if (chunk)
          problem << " in chunk " << chunk;
      }
      action.walk([&](Operation *op) {
        if (auto load = dyn_cast<LoadOp>(op)) {
          checkAccess(op, values, load.getValue(), load.getType());
        } else if (auto store = dyn_cast<StoreOp>(op)) {
          checkAccess(op, values, store.getValue(),
                      store.getOperand().getType());
          if (!store.getAccumulate())
            ++plainStores[store.getValue()];
        } else if (auto update = dyn_cast<pipe::UpdateOp>(op)) {
          ++updates[update.getParameter()];
        }
      });
    }
    for (auto &entry : values) {
      ValueOp value = entry.second;
      bool arrives = received.contains(value);
      int stores = plainStores.lookup(entry.first());
      if (value.getKind() == ValueKind::activation && stores + arrives != 1)
        fail(value) << "expected activation '" << entry.first()
                    << "' to be stored or received once, found " << stores
                    << " stores and " << (arrives ? "a" : "no") << " transfer";
      if (value.getKind() == ValueKind::parameter &&
          updates.lookup(entry.first()) != 1)
        fail(value) << "expected parameter '" << entry.first()
                    << "' to be updated once, found "
                    << updates.lookup(entry.first()) << " updates";
    }
  }

  void checkAccess(Operation *op, const llvm::StringMap<ValueOp> &values,
                   StringRef name, Type type) {
    ValueOp value = values.lookup(name);
    if (!value)
      fail(op) << "expected a value of this stage, found '" << name << "'";
    else if (value.getType() != type)
      fail(op) << "expected type " << value.getType() << " of '" << name
               << "', found " << type;
  }

  llvm::DenseSet<Operation *> received;
  bool failedAny = false;
};

} // namespace
