// Orders of samples that need no memory: where a sample goes is computed.
#pragma once

#include <cstdint>

namespace merak::runtime {

// A well mixed 64-bit word for each counter (Steele et al., SplitMix).
inline uint64_t mixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The image of `index` under a permutation of [0, count) that depends on seed
// and epoch: a Feistel network over the next even number of bits, walked until
// it is back inside (Black and Rogaway 2002, cycle walking: fewer than four
// rounds on average).
int64_t shuffledIndex(int64_t index, int64_t count, uint64_t seed,
                      uint64_t epoch);

} // namespace merak::runtime
