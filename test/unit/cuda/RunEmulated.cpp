// merak-run for plans of CPUs, whose kernels the emulated device can call, on
// the CUDA backend: streams, events, staging, workspaces and communication of
// ranks that share a device, without one.
#include "runtime/backends/cuda/CudaBackend.h"
#include "runtime/launch/RunMain.h"
#include "test/unit/cuda/EmulatedDevice.h"

int main(int argc, char **argv) {
  using namespace merak;
  auto device = std::make_shared<cuda::EmulatedDevice>();
  runtime::BackendRegistry backends;
  backends["cpu"] =
      [device](
          runtime::ThreadPool &) -> Result<std::unique_ptr<runtime::Backend>> {
    return std::unique_ptr<runtime::Backend>(
        std::make_unique<cuda::CudaBackend>(device));
  };
  return runtime::runMain(argc, argv, backends);
}
