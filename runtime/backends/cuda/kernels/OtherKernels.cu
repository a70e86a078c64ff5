// Device entries; see Kernels.h.
#include "runtime/backends/cuda/kernels/DeviceBlock.cuh"
#include "runtime/backends/cuda/kernels/Kernels.h"

MERAK_CUDA_OTHER_KERNELS(MERAK_KERNEL_ENTRY)
