// Matrix product of f32 with any strides, on one thread.
//
// Each element of C is the sum over blocks of kDepth of fused chains in the
// order of k, so its bits depend neither on how rows and columns are cut into
// parts nor on the strides. The einsum kernel cuts C among threads; attention
// and convolution call it on their own blocks.
#pragma once

#include <cstdint>

namespace merak::cpu {

// C[m, n] = alpha * A[m, k] B[k, n] (+ C). Element (i, j) of X lies at
// x[i * xRow + j * xCol].
struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  const float *a = nullptr;
  int64_t aRow = 0, aCol = 1;
  const float *b = nullptr;
  int64_t bRow = 0, bCol = 1;
  float *c = nullptr;
  int64_t cRow = 0, cCol = 1;
  float alpha = 1;
  bool accumulate = false;
};

// Depth of a block of k: part of the definition of the result.
constexpr int64_t kDepth = 256;

void gemm(const Gemm &problem);

// Bytes of packed panels of A and B that a product of this size takes at most.
struct GemmWorkspace {
  int64_t a = 0, b = 0;
};
GemmWorkspace gemmWorkspace(int64_t n, int64_t k);

} // namespace merak::cpu
