// Operations that a library runs as one kernel, where it has one for the shapes
// at hand: attention and convolution. Every user of these has another way.
#pragma once

#include "runtime/backends/cuda/kernels/Element.h"
#include "runtime/core/Status.h"

#include <cstdint>
#include <span>
#include <vector>

namespace merak::cuda {

struct FusedTensor {
  Type type = Type::F32;
  std::vector<int64_t> sizes, strides; // elements
};

// Attention on tensors [b, heads, t, d], whatever their order in memory; lse
// [b, heads, t, 1]. Key j is seen by query i if j <= i + tk - tq, with
// `causal`. Operands in this order:
//   forward   q, k, v, out, lse
//   backward  q, k, v, out, lse, dout, dq, dk, dv
struct FusedAttention {
  bool backward = false, causal = false;
  float scale = 1;
  FusedTensor q, k, v, out, lse, dout, dq, dk, dv;
};

// Convolution of x [n, c, spatial] and w [k, c / groups, spatial] to y
// [n, k, spatial]. Operands: x, w, y; the last named of them in `kind` is
// written.
struct FusedConvolution {
  enum Kind { Forward, GradInput, GradWeight } kind = Forward;
  FusedTensor x, w, y;
  std::vector<int64_t> padBegin, padEnd, strides, dilations;
};

// Addresses must be multiples of this.
constexpr uint64_t kFusedAlignment = 16;

class FusedPlan {
public:
  virtual ~FusedPlan() = default;
  uint64_t workspace = 0;
  // Enqueues. With an error nothing of the outputs can be relied on.
  virtual Status run(std::span<void *const> operands, void *workspace,
                     void *stream) = 0;
};

inline bool isAligned(std::span<void *const> operands) {
  for (const void *operand : operands)
    if (reinterpret_cast<uint64_t>(operand) % kFusedAlignment != 0)
      return false;
  return true;
}

} // namespace merak::cuda
