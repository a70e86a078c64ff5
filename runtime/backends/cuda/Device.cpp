#include "runtime/backends/cuda/Device.h"

#include <algorithm>

namespace merak::cuda {

namespace {

constexpr int64_t kWaves = 16;
constexpr int64_t kLeastOfPiece = 64; // elements
constexpr int64_t kMostPieces = 1024;
constexpr double kBusyEnough = 0.8; // of a device: more pieces cost more

int64_t roundUp(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

} // namespace

Grid itemGrid(int64_t items, const DeviceInfo &info) {
  if (items <= 0)
    return {};
  const int64_t blocks = (items + kItemThreads - 1) / kItemThreads;
  const int64_t most =
      info.processors * kWaves * (kResidentThreads / kItemThreads);
  return {std::min(blocks, most), kItemThreads};
}

Grid rowGrid(int64_t rows, int64_t size, const DeviceInfo &info) {
  if (rows <= 0)
    return {};
  const int threads = static_cast<int>(
      std::clamp<int64_t>(roundUp(size, 32), 32, kMaxRowThreads));
  const int64_t most = info.processors * kWaves * (kResidentThreads / threads);
  return {std::min(rows, most), threads};
}

int64_t pieceCount(int64_t results, int64_t size, int64_t threadsPerResult,
                   const DeviceInfo &info) {
  const int64_t wanted = 2 * info.processors * kResidentThreads;
  const int64_t have = std::max<int64_t>(1, results * threadsPerResult);
  const int64_t most = size / (kLeastOfPiece * threadsPerResult);
  return std::clamp<int64_t>(std::min(wanted / have, most), 1, kMostPieces);
}

int64_t tilePieceCount(int64_t tiles, int64_t rows, int64_t blocks,
                       const DeviceInfo &info) {
  const int64_t wanted = info.processors * blocks;
  const int64_t most =
      std::clamp<int64_t>(rows / kLeastOfPiece, 1, kMostPieces);
  if (tiles <= 0)
    return 1;
  const int64_t least = std::clamp<int64_t>(wanted / tiles, 1, most);
  // The part of the device that has work until all of it is done.
  const auto busy = [&](int64_t pieces) {
    const int64_t all = tiles * pieces, rounds = (all + wanted - 1) / wanted;
    return double(all) / double(rounds * wanted);
  };
  int64_t best = least;
  for (int64_t pieces = least;
       busy(best) < kBusyEnough && pieces <= std::min(most, 4 * least);
       ++pieces)
    if (busy(pieces) > busy(best))
      best = pieces;
  return best;
}

} // namespace merak::cuda
