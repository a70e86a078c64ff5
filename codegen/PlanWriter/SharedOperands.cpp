#include "codegen/PlanWriter/SharedOperands.h"

using namespace mlir;

namespace merak {

using plan::ViewAttr;

// Overlaps of other views are for the verifier of plans.
static bool areOneView(ViewAttr a, ViewAttr b) {
  return a.getBuffer() == b.getBuffer() && a.getOffset() == b.getOffset() &&
         a.getNumElements() == b.getNumElements();
}

static LogicalResult checkCall(plan::KernelOp call,
                               const codegen::CompiledKernel &kernel) {
  for (auto [i, input] : llvm::enumerate(call.getInputs()))
    for (auto [o, output] : llvm::enumerate(call.getOutputs()))
      if (areOneView(cast<ViewAttr>(input), cast<ViewAttr>(output)) &&
          !llvm::is_contained(kernel.inPlace,
                              std::pair(unsigned(i), unsigned(o))))
        return call.emitOpError("internal error: output ")
               << o << " is written over input " << i
               << ", which the generated kernel may read later";
  return success();
}

LogicalResult
checkSharedOperands(ModuleOp module,
                    const llvm::StringMap<codegen::CompiledKernel> &kernels) {
  bool fails = false;
  module.walk([&](plan::KernelOp call) {
    auto kernel = kernels.find(call.getKernel());
    if (kernel != kernels.end())
      fails |= failed(checkCall(call, kernel->second));
  });
  return failure(fails);
}

} // namespace merak
