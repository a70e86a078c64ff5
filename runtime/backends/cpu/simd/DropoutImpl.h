// Philox4x32-10 for 64 neighbouring elements at a time, as loops over 16
// independent blocks. The reference and the order of elements stand in
// runtime/core/Philox.h.
#pragma once

#include "runtime/backends/cpu/simd/Simd.h"
#include "runtime/backends/cpu/simd/Vec.h"

namespace {
using merak::cpu::DropoutRow;

constexpr int kGroup = 64, kBlocks = 16;

// Word of each of the 64 elements of a group.
MERAK_INLINE void groupWords(uint32_t *words, uint64_t group,
                             const DropoutRow &row) {
  uint32_t *c0 = words, *c1 = words + kBlocks, *c2 = c1 + kBlocks,
           *c3 = c2 + kBlocks;
  const uint64_t block = group * kBlocks; // no carry inside a group
  for (int i = 0; i < kBlocks; ++i) {
    c0[i] = static_cast<uint32_t>(block) + static_cast<uint32_t>(i);
    c1[i] = static_cast<uint32_t>(block >> 32);
    c2[i] = row.op;
    c3[i] = row.step;
  }
  uint32_t k0 = static_cast<uint32_t>(row.seed);
  uint32_t k1 = static_cast<uint32_t>(row.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kBlocks; ++i) {
      const uint64_t p0 = uint64_t{0xD2511F53} * c0[i];
      const uint64_t p1 = uint64_t{0xCD9E8D57} * c2[i];
      c0[i] = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<uint32_t>(p1);
      c2[i] = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
}

void rowDropout(float *y, const float *x, int64_t n, uint64_t first,
                const DropoutRow &row) {
  uint32_t words[kGroup];
  const uint32_t threshold = row.threshold;
  const float scale = row.scale;
  for (int64_t done = 0; done < n;) {
    const uint64_t at = first + static_cast<uint64_t>(done);
    const int64_t skip = static_cast<int64_t>(at % kGroup);
    const int64_t rest = n - done;
    const int64_t count = rest < kGroup - skip ? rest : kGroup - skip;
    groupWords(words, at / kGroup, row);
    const uint32_t *word = words + skip;
    const float *from = x + done;
    float *to = y + done;
    if (count == kGroup)
      for (int i = 0; i < kGroup; ++i)
        to[i] = word[i] >= threshold ? from[i] * scale : 0.0f;
    else
      for (int64_t i = 0; i < count; ++i)
        to[i] = word[i] >= threshold ? from[i] * scale : 0.0f;
    done += count;
  }
}

} // namespace
