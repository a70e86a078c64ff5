// The CPU backend: host memory, generated kernels from the plan's shared
// object (both from HostBackend) and the library kernels of this folder.
#pragma once

#include "runtime/core/HostBackend.h"

namespace merak::cpu {

class CpuBackend final : public runtime::HostBackend {
public:
  using HostBackend::HostBackend;

protected:
  Result<std::unique_ptr<runtime::Prepared>>
  prepareLibrary(const planpb::Instruction &instruction,
                 std::span<const runtime::View> inputs,
                 std::span<const runtime::View> outputs) override;
  Status runLibrary(const runtime::KernelCall &call) override;
};

} // namespace merak::cpu
