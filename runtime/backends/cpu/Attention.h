// The shapes of attention, shared by its forward and backward kernels.
#pragma once

#include "runtime/backends/cpu/Kernel.h"

namespace merak::cpu {

// q, out: [b, tq, h, d]; k, v: [b, tk, hk, d]; lse: [b, h, tq].
struct AttentionShape {
  int64_t b = 0, tq = 0, h = 0, d = 0, tk = 0, hk = 0;
  // All queries, of which tq from `first` on are here.
  int64_t queries = 0, first = 0;
  float scale = 1;
  bool causal = false;
  enum class Mask { None, Bool, Float } mask = Mask::None;
  int64_t maskStrides[4] = {0, 0, 0, 0}; // b, h, tq, tk

  // Query rows handled at a time: their scores stay in the cache.
  static constexpr int64_t kBlock = 64;
  int64_t blocks() const { return (tq + kBlock - 1) / kBlock; }
  // Keys that the queries here before `end` may see: query i of all those with
  // j <= i + tk - queries. Of 8 queries and keys the second four, first = 4,
  // see 5 to 8 keys.
  int64_t keys(int64_t end) const;
  // With the part that a call has: its scalar 0 is the first query.
  AttentionShape of(const runtime::KernelCall &call) const;
};

// Checks q, k, v and the optional mask at input `maskAt`.
bool readAttention(Request &request, size_t maskAt, AttentionShape &shape);

// Applies the mask to scores [rows, keys] of queries starting at `query`.
// Scores hold scale * q k already.
void maskScores(const AttentionShape &shape, const View *mask, int64_t batch,
                int64_t head, int64_t query, int64_t rows, int64_t keys,
                float *scores);

KernelResult createAttentionGrad(Request &request);

} // namespace merak::cpu
