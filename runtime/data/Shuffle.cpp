#include "runtime/data/Shuffle.h"

namespace merak::runtime {

namespace {
constexpr int kRounds = 6;
}

int64_t shuffledIndex(int64_t index, int64_t count, uint64_t seed,
                      uint64_t epoch) {
  int half = 1;
  while (half < 32 && (uint64_t{1} << (2 * half)) < uint64_t(count))
    ++half;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  const uint64_t key = mixBits(mixBits(seed) ^ epoch);
  uint64_t at = static_cast<uint64_t>(index);
  do {
    uint64_t left = at >> half, right = at & mask;
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t mixed =
          mixBits(key + uint64_t(round) * 0xd1342543de82ef95 + right);
      const uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    at = left << half | right;
  } while (at >= uint64_t(count));
  return static_cast<int64_t>(at);
}

} // namespace merak::runtime
