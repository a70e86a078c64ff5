// Sums down columns: a block takes neighbouring columns, one or a pack of them
// a lane, and shares out the rows among groups of lanes, whose sums it adds.
#pragma once

#include "runtime/backends/cuda/kernels/Loops.h"

namespace merak::cuda {

constexpr int kTileThreads = 256; // of a block, at most
constexpr int kTileLanes = 32;
// Elements that the threads of a block leave for each other: groups of lanes,
// padded to an odd number so that banks are hit evenly.
constexpr int kTileSlots = kTileThreads * 3 / 2;

// Of a device's blocks.
inline int64_t tileCount(int64_t columns) {
  return (columns + kTileLanes - 1) / kTileLanes;
}

struct Tile {
  int lanes = 1, groups = 1;
  int lane = 0, group = 0; // of this thread; idle from `groups` on

  // Of a block that looks at so many lanes' worth of columns altogether.
  template <typename Block>
  MERAK_HD static Tile of(const Block &block, int64_t columns) {
    Tile tile;
    const int most = block.threads() / 8;
    tile.lanes = most < 1 ? 1 : most > kTileLanes ? kTileLanes : most;
    if (columns < tile.lanes)
      tile.lanes = columns < 1 ? 1 : static_cast<int>(columns);
    tile.groups = block.threads() / tile.lanes;
    tile.lane = block.thread() % tile.lanes;
    tile.group = block.thread() / tile.lanes;
    return tile;
  }
  MERAK_HD int64_t count(int64_t columns) const {
    return (columns + lanes - 1) / lanes;
  }
};

// Folds what the groups have, in their order, and calls use(lane, k, result)
// for each lane and value on some thread.
template <int n, typename Value, typename Block, typename Fold, typename Use>
MERAK_HD void foldGroups(Block &block, const Tile &tile,
                         const Value (&values)[n], const Fold &fold,
                         const Use &use) {
  Value *all = block.template scratch<Value>();
  static_assert(n * kTileSlots * sizeof(Value) <= kScratchBytes);
  const int stride = tile.lanes | 1;
  if (tile.group < tile.groups)
    MERAK_UNROLL
  for (int k = 0; k < n; ++k)
    all[(k * tile.groups + tile.group) * stride + tile.lane] = values[k];
  block.sync();
  for (int i = block.thread(); i < n * tile.lanes; i += block.threads()) {
    const int lane = i / n, k = i % n;
    const Value *from = all + k * tile.groups * stride + lane;
    Value result = from[0];
    for (int group = 1; group < tile.groups; ++group)
      result = fold(result, from[group * stride]);
    use(lane, k, result);
  }
  block.sync(); // before the next writes
}

} // namespace merak::cuda
