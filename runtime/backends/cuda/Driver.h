// The device behind NVIDIA's driver. libcuda and cuBLASLt are opened at run
// time; the kernels of kernels/ are embedded in the program.
#pragma once

#include "runtime/backends/cuda/Device.h"

#include <memory>

namespace merak::cuda {

// Opens device `ordinal` of this machine. One sentence if there is no driver,
// no such device, or if driver or device are too old for the kernels.
Result<std::shared_ptr<Device>> openDevice(int ordinal);

// The ordinal that this process should use: MERAK_CUDA_DEVICE or LOCAL_RANK of
// the environment, else 0.
Result<int> deviceOrdinal();

// The oldest device with code in the program.
constexpr int kOldestMajor = 8, kOldestMinor = 0;

} // namespace merak::cuda
