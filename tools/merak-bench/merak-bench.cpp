// merak-bench: measures the machine it stands on.
#include "tools/merak-bench/BenchTool.h"
#ifdef MERAK_HAS_CUDA
#include "runtime/backends/cuda/CudaBackend.h"
#include "runtime/backends/cuda/Driver.h"
#endif

using namespace merak;

namespace {

Result<std::unique_ptr<runtime::Backend>> openDevice() {
#ifdef MERAK_HAS_CUDA
  auto device = cuda::openLocalDevice(/*localRank=*/0);
  if (!device)
    return device.status();
  return std::unique_ptr<runtime::Backend>(
      std::make_unique<cuda::CudaBackend>(*device));
#else
  return Status::error("this merak-bench was built without the CUDA toolkit");
#endif
}

} // namespace

int main(int argc, char **argv) {
  return bench::benchToolMain(argc, argv, openDevice);
}
