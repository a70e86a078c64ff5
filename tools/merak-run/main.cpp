// merak-run: executes a plan. The work is in runtime/launch; here the backends
// of this build are put together.
#include "runtime/backends/cpu/CpuBackend.h"
#include "runtime/launch/RunMain.h"

#include <memory>

using namespace merak;

int main(int argc, char **argv) {
  runtime::BackendRegistry backends;
  backends["cpu"] = [](runtime::ThreadPool &pool)
      -> Result<std::unique_ptr<runtime::Backend>> {
    return std::unique_ptr<runtime::Backend>(
        std::make_unique<cpu::CpuBackend>(pool));
  };
  return runtime::runMain(argc, argv, backends);
}
