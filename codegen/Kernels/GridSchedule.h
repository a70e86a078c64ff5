// How a kernel is walked by a grid of blocks of threads (GPUs).
//
// A kernel without reductions gives every thread `perThread` points of the
// kept dimensions, a block's width apart, so that threads side by side touch
// memory side by side. A kernel with reductions gives every kept point to
// `threads` threads of one block, which share the points of the reduced
// dimensions and combine their sums in a fixed order:
//
//   last dimension reduced   threads of a point lie side by side
//   last dimension kept      points lie side by side (columns)
//
// Where all that varies along the last dimension lies without gaps in it, a
// thread takes `pack` neighbours at a time, points or steps: 16 bytes of 2-byte
// elements, which it loads and stores at once if their addresses allow it.
//
// No kernel communicates between blocks; the grid has one dimension. All of
// this, and with it the order of every sum, depends on shapes alone.
#pragma once

#include "codegen/Kernels/KernelSchedule.h"

namespace merak::codegen {

inline constexpr int64_t kBlockThreads = 256; // of every launch
inline constexpr int64_t kWarp = 32;
// Steps of a reduction that a thread takes without a loop; values of these
// stay in registers from one pass to the next.
inline constexpr int64_t kStraightSteps = 8;
inline constexpr int64_t kUnroll = 4; // steps of a loop taken together

struct GridSchedule {
  llvm::SmallVector<int> kept;    // outer to inner
  llvm::SmallVector<int> reduced; // outer to inner
  int64_t points = 1;             // of the kept dimensions
  int64_t length = 1;             // points of the reduced dimensions
  int passes = 0;
  bool columns = false;  // points side by side
  int64_t threads = 1;   // of a point, a power of two
  int64_t perThread = 1; // points of a thread, without reductions
  int64_t pack = 1;      // a power of two up to 8; perThread without reductions
  int packed = -1;       // the dimension of these neighbours
  int64_t blocks = 0;
  KernelRange range; // rows: blocks

  int64_t pointsOfBlock() const { return kBlockThreads / threads; }
  // Of a loop, in one round of it.
  int64_t packsTogether() const { return std::max<int64_t>(kUnroll / pack, 1); }
  // Packs of the reduced dimensions; the last steps may fill none.
  int64_t packsOfLength() const { return length / pack; }
  // Of these a thread takes so many in loops, in each pass anew.
  int64_t loopedPacks() const {
    const int64_t most = (packsOfLength() + threads - 1) / threads;
    return most * pack <= kStraightSteps
               ? 0
               : packsOfLength() / threads / packsTogether() * packsTogether();
  }
  // Sums of one point after threads of a warp have combined theirs.
  int64_t partials() const {
    return columns ? threads : std::max<int64_t>(threads / kWarp, 1);
  }
};

// From the loops decided for processors, whose merged dimensions are in
// `graph`.
// Packs leave at least `manyThreads` threads; the default keeps the largest
// device busy.
GridSchedule scheduleGrid(const KernelGraph &graph,
                          const KernelSchedule &schedule,
                          int64_t manyThreads = 132 * 2048);

} // namespace merak::codegen
