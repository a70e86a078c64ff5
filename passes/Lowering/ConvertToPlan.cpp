#include "passes/Lowering/Passes.h"
#include "passes/Lowering/StageLowering.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "llvm/ADT/StringSwitch.h"

using namespace mlir;

namespace merak {

#define GEN_PASS_DEF_CONVERTTOPLAN
#include "passes/Lowering/Passes.h.inc"

namespace {

struct ConvertToPlanPass : impl::ConvertToPlanBase<ConvertToPlanPass> {
  using ConvertToPlanBase::ConvertToPlanBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    if (!module->getAttrOfType<dist::MeshAttr>(dist::kMeshAttr)) {
      module.emitError("expected the attribute '") << dist::kMeshAttr << "'";
      return signalPassFailure();
    }
    const std::optional<lowering::Sends> when =
        llvm::StringSwitch<std::optional<lowering::Sends>>(sends)
            .Case("early", lowering::Sends::Early)
            .Case("late", lowering::Sends::Late)
            .Case("blocking", lowering::Sends::Blocking)
            .Default(std::nullopt);
    if (!when) {
      module.emitError("expected sends to be early, late or blocking, found ")
          << sends;
      return signalPassFailure();
    }
    auto transfers = lowering::collectTransfers(module, *when);
    if (failed(transfers))
      return signalPassFailure();
    lowering::KernelFactory kernels(module);
    bool ok = true;
    for (auto stage :
         llvm::make_early_inc_range(module.getOps<pipe::StageOp>()))
      ok &= succeeded(
          lowering::StageLowering(stage, module, kernels, *transfers, *when)
              .run());
    if (!ok)
      return signalPassFailure();
    for (auto transfer :
         llvm::make_early_inc_range(module.getOps<pipe::TransferOp>()))
      transfer.erase();
    module.walk([&](plan::LibraryOp op) { copies += op.getOp() == "copy"; });
  }
};

} // namespace
} // namespace merak
