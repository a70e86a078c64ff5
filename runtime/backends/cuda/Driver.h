// The device behind NVIDIA's driver. libcuda and cuBLASLt are opened at run
// time; the kernels of kernels/ are embedded in the program.
#pragma once

#include "runtime/backends/cuda/Device.h"

#include <memory>

namespace merak::cuda {

// Opens device `ordinal` of this machine, for the rest of the process: a
// context costs a good part of a second. One sentence if there is no driver, no
// such device, or if driver or device are too old for the kernels.
Result<std::shared_ptr<Device>> openDevice(int ordinal);

// The device for a process that is the `localRank`-th of its host: the
// environment's MERAK_CUDA_DEVICE if it is set. A process that sees a single
// device uses that one.
Result<int> deviceOrdinal(int localRank);

// The two together.
Result<std::shared_ptr<Device>> openLocalDevice(int localRank);

// The oldest device with code in the program.
constexpr int kOldestMajor = 8, kOldestMinor = 0;

} // namespace merak::cuda
