// Sums down columns: a block takes neighbouring columns, one or a pack of them
// a lane, and shares out the rows among groups of lanes, whose sums it adds.
#pragma once

#include "runtime/backends/cuda/kernels/Loops.h"
#include "runtime/backends/cuda/kernels/Pack.h"

namespace merak::cuda {

constexpr int kTileThreads = 256; // of a block, at most
constexpr int kTileLanes = 32;
// Of kernels that leave two values of a column for each other at most.
constexpr int kTileScratch = 2 * kTileThreads * int(sizeof(double));
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
    if (columns > INT32_MAX - lanes)
      return (columns + lanes - 1) / lanes;
    return static_cast<int>(columns + lanes - 1) / lanes; // much cheaper
  }
};

// Folds what the groups of a block, of so many threads at most, have, in an
// order fixed by their number, and calls use(lane, k, result) for each lane and
// value on some thread. `bytes` of scratch: the same for all types of a kernel,
// which share it.
template <int threads, int bytes, int n, typename Value, typename Block,
          typename Fold, typename Use>
MERAK_HD void foldGroups(Block &block, const Tile &tile,
                         const Value (&values)[n], const Fold &fold,
                         const Use &use) {
  // What a group has lies together: threads read neighbours.
  Value *all = block.template scratch<Value, bytes>();
  static_assert(n * threads * sizeof(Value) <= bytes);
  const int results = n * tile.lanes;
  if (tile.group < tile.groups) {
    Value *own = all + tile.group * results + tile.lane * n;
    if constexpr (n * sizeof(Value) % kPackBytes == 0) {
      constexpr int kSize = kPackBytes / int(sizeof(Value));
      MERAK_UNROLL
      for (int k = 0; k < n; k += kSize) {
        Pack<Value, kSize> some;
        MERAK_UNROLL
        for (int u = 0; u < kSize; ++u)
          some.words[u] = values[k + u];
        sharePack(own + k, some);
      }
    } else {
      MERAK_UNROLL
      for (int k = 0; k < n; ++k)
        own[k] = values[k];
    }
  }
  block.sync();
  // Parts of the groups, into the place of each part's first, then these.
  const int most = block.threads() / results;
  const int parts = most < 1 ? 1 : most < tile.groups ? most : tile.groups;
  for (int i = block.thread(); i < results * parts; i += block.threads()) {
    const int first = i / results;
    Value result = all[i];
    for (int group = first + parts; group < tile.groups; group += parts)
      result = fold(result, all[group * results + i - first * results]);
    all[i] = result;
  }
  block.sync();
  for (int i = block.thread(); i < results; i += block.threads()) {
    Value result = all[i];
    for (int part = 1; part < parts; ++part)
      result = fold(result, all[part * results + i]);
    use(i / n, i % n, result);
  }
  block.sync(); // before the next writes
}

} // namespace merak::cuda
