#include "runtime/backends/cuda/Device.h"

#include <algorithm>

namespace merak::cuda {

namespace {

constexpr int64_t kWaves = 16;
constexpr int64_t kLeastOfPiece = 64; // elements
constexpr int64_t kMostPieces = 1024;

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
  return std::clamp<int64_t>(
      std::min(wanted / std::max<int64_t>(1, tiles), rows / kLeastOfPiece), 1,
      kMostPieces);
}

} // namespace merak::cuda
