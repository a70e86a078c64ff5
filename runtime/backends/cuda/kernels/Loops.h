// Strided index spaces as kernel arguments: what cpu::Nest is on the host.
#pragma once

#include "runtime/backends/cuda/kernels/Element.h"

namespace merak::cuda {

constexpr int kMaxDims = 8;            // after merging
constexpr int kMostThreads = 512;      // of a block
constexpr int kMostScratch = 48 << 10; // bytes

// Dimensions with a stride (in elements) in each of N operands.
template <int N> struct Loops {
  int32_t rank = 0;
  int64_t count = 1; // product of sizes
  int64_t sizes[kMaxDims] = {};
  int64_t strides[N][kMaxDims] = {};

  // Offsets of the index-th point, row major.
  MERAK_HD void at(int64_t index, int64_t *offsets) const {
    for (int o = 0; o < N; ++o)
      offsets[o] = 0;
    if (rank == 1) {
      for (int o = 0; o < N; ++o)
        offsets[o] = index * strides[o][0];
      return;
    }
    if (count <= 0x7fffffff) { // divisions of 32 bits are much cheaper
      uint32_t rest = static_cast<uint32_t>(index);
      for (int d = rank; d-- > 1;) {
        const uint32_t size = static_cast<uint32_t>(sizes[d]);
        const uint32_t next = rest / size, here = rest - next * size;
        for (int o = 0; o < N; ++o)
          offsets[o] += here * strides[o][d];
        rest = next;
      }
      for (int o = 0; o < N; ++o) // the outermost: nothing to divide by
        offsets[o] += rest * strides[o][0];
      return;
    }
    for (int d = rank; d-- > 0;) {
      const int64_t next = index / sizes[d], here = index - next * sizes[d];
      for (int o = 0; o < N; ++o)
        offsets[o] += here * strides[o][d];
      index = next;
    }
  }
  MERAK_HD int64_t at(int64_t index) const { // N == 1
    int64_t offset[N];
    at(index, offset);
    return offset[0];
  }
};

// How a kernel sees its block. Kernels are written for any number of blocks
// and threads: work i of n is done by `for (i = first; i < n; i += step)`.
//
// A block has: block(), blocks(), thread(), threads(); sum(v) and max(v) over
// the threads of the block, in an order fixed by their number, the same result
// on all of them (every thread must call); before(flag, total), of how many
// threads before this one the flag is set, and of how many at all; sync();
// scratch<T, bytes>(), which its threads share, kMostScratch at most.
template <typename Block> MERAK_HD int64_t firstItem(const Block &block) {
  return block.block() * int64_t(block.threads()) + block.thread();
}
template <typename Block> MERAK_HD int64_t itemStep(const Block &block) {
  return block.blocks() * int64_t(block.threads());
}

} // namespace merak::cuda
