// Packing of buffers that live for a known interval into one stretch of memory
// (dynamic storage allocation). Plain C++: no MLIR, no protobuf.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace merak::memory {

// A buffer that must keep its bytes from position `first` to position `last`,
// both included. Positions count instructions.
struct LiveRange {
  int64_t bytes = 0;
  int64_t first = 0, last = 0;
};

struct ArenaPlan {
  std::vector<int64_t> offsets; // one per range, multiples of the alignment
  int64_t bytes = 0;            // extent of the arena
  int64_t lowerBound = 0;       // most bytes live at any one position
};

inline constexpr int64_t kArenaAlignment = 64;

inline int64_t alignUp(int64_t bytes, int64_t alignment = kArenaAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// Best fit, larger buffers first: each takes the smallest gap that is free
// during its life. No two ranges that are live at one position overlap.
ArenaPlan planArena(const std::vector<LiveRange> &ranges,
                    int64_t alignment = kArenaAlignment);

// Bytes [begin, end) of a buffer that keeps them from position `first` to
// position `last`, both included. Neither is empty.
struct PlacedRange {
  int64_t begin = 0, end = 0;
  int64_t first = 0, last = 0;
};

// Pairs of ranges (by index, the one that begins later in memory second) that
// share bytes at a position. Every range that shares any with one that begins
// before it is in some pair, unless that one is in a pair itself; so no pair
// means that nothing overlaps. Sorts and sweeps: O(n log n) without overlaps.
std::vector<std::pair<std::size_t, std::size_t>>
findOverlaps(const std::vector<PlacedRange> &ranges);

// Indices of the ranges that are live where most bytes are, largest first.
std::vector<std::size_t> liveAtPeak(const std::vector<LiveRange> &ranges);

} // namespace merak::memory
