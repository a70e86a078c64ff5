#include "runtime/backends/cpu/CpuBackend.h"

#include "runtime/backends/cpu/Kernel.h"

namespace merak::cpu {

Result<std::unique_ptr<runtime::Prepared>>
CpuBackend::prepareLibrary(const planpb::Instruction &instruction,
                           std::span<const View> inputs,
                           std::span<const View> outputs) {
  KernelResult kernel = prepareKernel(instruction, inputs, outputs);
  if (!kernel.ok())
    return kernel.status();
  return std::unique_ptr<runtime::Prepared>(std::move(*kernel));
}

Status CpuBackend::runLibrary(const KernelCall &call) {
  return static_cast<Kernel *>(call.prepared)->run(call, pool());
}

} // namespace merak::cpu
