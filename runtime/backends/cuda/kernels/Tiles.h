// Sums down columns: a block takes neighbouring columns, one or a pack of them
// a lane, and shares out the rows among groups of lanes, whose sums it adds.
#pragma once

#include "runtime/backends/cuda/kernels/Loops.h"

namespace merak::cuda {

constexpr int kTileThreads = 256; // of a block, at most
constexpr int kTileLanes = 32;
// Of kernels that leave two values of a column for each other at most.
constexpr int kTileScratch = 2 * kTileThreads * 3 / 2 * int(sizeof(double));
// Of blocks whose lanes take packs: many rows at once by few blocks, since all
// that a block takes of a column is one piece for the second stage.
constexpr int kPackThreads = 512;
constexpr int kPackLanes = 16;

// Of a device's blocks.
inline int64_t tileCount(int64_t columns, int64_t lanes = kTileLanes) {
  return (columns + lanes - 1) / lanes;
}
// A second stage, which adds so many pieces of each column: as many groups, so
// that all pieces are under way at once.
constexpr int finishLanes(int64_t pieces) {
  return pieces > 16 ? 8 : pieces > 8 ? 16 : kTileLanes;
}

struct Tile {
  int lanes = 1, groups = 1;
  int lane = 0, group = 0; // of this thread; idle from `groups` on

  // Of a block that looks at so many lanes' worth of columns altogether, so
  // many of them at once.
  template <typename Block>
  MERAK_HD static Tile of(const Block &block, int64_t columns,
                          int lanes = kTileLanes) {
    Tile tile;
    const int most = block.threads() / 8;
    tile.lanes = most < 1 ? 1 : most > lanes ? lanes : most;
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

// Folds what the groups of a block, of so many threads at most, have, in their
// order, and calls use(lane, k, result) for each lane and value on some thread.
// `bytes` of scratch: the same for all types of a kernel, which share it.
template <int threads, int bytes, int n, typename Value, typename Block,
          typename Fold, typename Use>
MERAK_HD void foldGroups(Block &block, const Tile &tile,
                         const Value (&values)[n], const Fold &fold,
                         const Use &use) {
  // Groups of lanes, padded to an odd number so that banks are hit evenly.
  Value *all = block.template scratch<Value, bytes>();
  static_assert(n * threads * 3 / 2 * sizeof(Value) <= bytes);
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
