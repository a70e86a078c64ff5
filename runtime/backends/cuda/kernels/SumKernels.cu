// Device entries; see Kernels.h.
#include "runtime/backends/cuda/kernels/DeviceBlock.cuh"
#include "runtime/backends/cuda/kernels/Kernels.h"

MERAK_CUDA_SUM_KERNELS(MERAK_KERNEL_ENTRY)
MERAK_CUDA_PACK_KERNELS(MERAK_PACK_KERNEL_ENTRY)
