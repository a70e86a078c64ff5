// Random numbers as a function: Philox4x32-10, a bijection of a 128-bit counter
// under a 64-bit key whose values pass statistical tests of randomness.
// J. Salmon, M. Moraes, R. Dror, D. Shaw: "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011. A value depends on nothing but its counter, so any rank
// can compute any element's number, again and again.
//
// The mask of a dropout op keeps element e of the global tensor if
//
//   words(e / 64 * 16 + e % 16)[e % 64 / 16] >= threshold(ratio)
//
// where words(block) = philox({block's low and high 32 bits, op, step}, seed).
// So 64 neighbours take 16 neighbouring blocks, and vectors of 16 need no
// shuffle.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace merak::philox {

using Counter = std::array<uint32_t, 4>;
using Key = std::array<uint32_t, 2>;

inline constexpr uint32_t kMultiply0 = 0xD2511F53, kMultiply1 = 0xCD9E8D57;
inline constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
inline constexpr int kRounds = 10;

constexpr Counter philox4x32(Counter c, Key k) {
  for (int round = 0; round < kRounds; ++round) {
    uint64_t p0 = uint64_t{kMultiply0} * c[0];
    uint64_t p1 = uint64_t{kMultiply1} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0],
         static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1],
         static_cast<uint32_t>(p0)};
    k = {k[0] + kWeyl0, k[1] + kWeyl1};
  }
  return c;
}

// What a mask is drawn from, but for the element.
struct Stream {
  uint64_t seed = 0;
  uint32_t op = 0, step = 0;
};

constexpr uint32_t wordOf(const Stream &stream, uint64_t element) {
  uint64_t block = element / 64 * 16 + element % 16;
  return philox4x32(
      {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
       stream.op, stream.step},
      {static_cast<uint32_t>(stream.seed),
       static_cast<uint32_t>(stream.seed >> 32)})[element % 64 / 16];
}

// Words below it are dropped. Requires 0 <= ratio < 1.
inline uint32_t thresholdOf(double ratio) {
  double words = std::nearbyint(ratio * 4294967296.0);
  return words > 4294967295.0 ? 0xFFFFFFFF : static_cast<uint32_t>(words);
}

} // namespace merak::philox
