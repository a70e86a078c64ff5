// Memory of the host, where nothing is computed: what state passes through on
// its way between processes, whatever their ranks compute on.
#pragma once

#include "runtime/core/HostBackend.h"

namespace merak::runtime {

// Before the backend, which refers to it.
struct HostMemoryPool {
  ThreadPool pool{1};
};

class HostMemory final : private HostMemoryPool, public HostBackend {
public:
  HostMemory() : HostBackend(HostMemoryPool::pool) {}

protected:
  Result<std::unique_ptr<Prepared>>
  prepareLibrary(const planpb::Instruction &, std::span<const View>,
                 std::span<const View>) override {
    return computes();
  }
  Status runLibrary(const KernelCall &) override { return computes(); }

private:
  static Status computes() {
    return Status::error("nothing is computed in memory of the host alone");
  }
};

} // namespace merak::runtime
