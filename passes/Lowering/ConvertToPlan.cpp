#include "passes/Lowering/Passes.h"
#include "passes/Lowering/StageLowering.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"

using namespace mlir;

namespace merak {

#define GEN_PASS_DEF_CONVERTTOPLAN
#include "passes/Lowering/Passes.h.inc"

namespace {

struct ConvertToPlanPass : impl::ConvertToPlanBase<ConvertToPlanPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    if (!module->getAttrOfType<dist::MeshAttr>(dist::kMeshAttr)) {
      module.emitError("expected the attribute '") << dist::kMeshAttr << "'";
      return signalPassFailure();
    }
    auto transfers = lowering::collectTransfers(module);
    if (failed(transfers))
      return signalPassFailure();
    lowering::KernelFactory kernels(module);
    bool ok = true;
    for (auto stage :
         llvm::make_early_inc_range(module.getOps<pipe::StageOp>()))
      ok &= succeeded(
          lowering::StageLowering(stage, module, kernels, *transfers).run());
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
