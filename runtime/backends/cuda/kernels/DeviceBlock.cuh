// A block of a CUDA device as kernels see it; see Loops.h.
#pragma once

#include "runtime/backends/cuda/kernels/Loops.h"

#include <cstdint>

namespace merak::cuda {

struct DeviceBlock {
  __device__ int64_t block() const { return blockIdx.x; }
  __device__ int64_t blocks() const { return gridDim.x; }
  __device__ int thread() const { return threadIdx.x; }
  __device__ int threads() const { return blockDim.x; }
  __device__ void sync() { __syncthreads(); }

  template <typename T, int bytes> __device__ T *scratch() {
    return reinterpret_cast<T *>(memory<bytes>());
  }

  template <typename T> __device__ T sum(T value) {
    return reduce(value, [](T a, T b) { return a + b; });
  }
  template <typename T> __device__ T max(T value) {
    return reduce(value, [](T a, T b) { return b > a ? b : a; });
  }

  __device__ int before(bool flag, int &total) {
    __shared__ int counts[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned votes = __ballot_sync(0xffffffffu, flag);
    if (lane == 0)
      counts[warp] = __popc(votes);
    __syncthreads();
    int count = __popc(votes & ((1u << lane) - 1));
    total = 0;
    for (int i = 0; i < int(blockDim.x) / 32; ++i) {
      count += i < warp ? counts[i] : 0;
      total += counts[i];
    }
    __syncthreads(); // before the next counts
    return count;
  }

private:
  template <int bytes> __device__ char *memory() {
    static_assert(bytes <= kMostScratch);
    __shared__ __align__(16) char memory[bytes];
    return memory;
  }
  // Lanes of a warp, then warps, each as a tree: the order depends on the
  // number of threads alone. Blocks have whole warps, 32 at most.
  template <typename T, typename Op>
  __device__ T reduce(T value, const Op &op) {
    __shared__ T parts[32];
    __shared__ T result;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warps = blockDim.x / 32;
    for (int step = 16; step > 0; step /= 2)
      value = op(value, __shfl_down_sync(0xffffffffu, value, step));
    if (lane == 0)
      parts[warp] = value;
    __syncthreads();
    if (threadIdx.x == 0) {
      value = parts[0];
      for (int i = 1; i < warps; ++i)
        value = op(value, parts[i]);
      result = value;
    }
    __syncthreads();
    value = result;
    __syncthreads(); // before the next reduction writes
    return value;
  }
};

} // namespace merak::cuda

// The entries of a list of kernels.
#define MERAK_KERNEL_ENTRY(name, Args, body)                                   \
  MERAK_BOUNDED_ENTRY(name, Args, body, merak::cuda::kMostThreads)
#define MERAK_PACK_KERNEL_ENTRY(name, Args, body)                              \
  MERAK_BOUNDED_ENTRY(name, Args, body, merak::cuda::kPackThreads,             \
                      merak::cuda::Args::kBlocks)
#define MERAK_BOUNDED_ENTRY(name, Args, body, ...)                             \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__)                    \
      merak_##name(const __grid_constant__ merak::cuda::Args args) {           \
    using namespace merak::cuda;                                               \
    DeviceBlock block;                                                         \
    body(block, args);                                                         \
  }
