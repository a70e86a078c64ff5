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
// A row whose values fit the registers of a warp belongs to one: its threads
// need no barrier. Longer rows belong to several warps of a block, and those
// whose values fit no registers are walked in loops, once for each pass.
//
// No kernel communicates between blocks; the grid has one dimension. All of
// this, and with it the order of every sum, depends on shapes alone.
#pragma once

#include "codegen/Kernels/GridPatterns.h"
#include "codegen/Kernels/KernelSchedule.h"

namespace merak::codegen {

inline constexpr int64_t kBlockThreads = 256; // of a block at most
inline constexpr int64_t kWarp = 32;
// Steps whose values are combined pair by pair before a sum takes them.
inline constexpr int64_t kTree = 8;

struct GridSchedule {
  llvm::SmallVector<int> kept;    // outer to inner
  llvm::SmallVector<int> reduced; // outer to inner
  int64_t points = 1;             // of the kept dimensions
  int64_t length = 1;             // points of the reduced dimensions
  int passes = 0;
  bool columns = false; // points side by side
  int64_t blockThreads = kBlockThreads;
  // Blocks that must fit on a processor at once, which bounds the registers of
  // a thread; 0: as many as do.
  int64_t blocksTogether = 0;
  int64_t threads = 1;   // of a point, a power of two
  int64_t perThread = 1; // points of a thread, without reductions
  int64_t pack = 1;      // a power of two up to 8; divides perThread
  int packed = -1;       // the dimension of these neighbours
  // Without reductions: packs along that dimension, of which the last may have
  // less than `pack` points, and all of them.
  int64_t packsOfRow = 1, packs = 0;
  // Steps of a reduction that a thread takes without a loop; values of these
  // stay in registers from one pass to the next.
  int64_t straightSteps = 8;
  int64_t together = 1; // packs that a loop takes in one round
  int64_t blocks = 0;
  KernelRange range; // rows: blocks
  // Sums that join the pass of a maximum, or are a value at one place.
  llvm::DenseMap<mlir::Value, RescaledSum> rescaled;
  llvm::DenseMap<mlir::Value, PickedSum> picked;
  // The pass over the reduced dimensions that computes a reduction; the first
  // one in which a value is known.
  llvm::DenseMap<mlir::Value, int> passOf, knownIn;

  int64_t pointsOfBlock() const { return blockThreads / threads; }
  int64_t blocksFor() const {
    const int64_t all = packs > 0 ? packs : points;
    const int64_t each = packs > 0 ? perThread / pack : perThread;
    return (all + pointsOfBlock() * each - 1) / (pointsOfBlock() * each);
  }
  // Packs of the reduced dimensions; the last steps may fill none.
  int64_t packsOfLength() const { return length / pack; }
  // Of these a thread takes so many in loops, in each pass anew.
  int64_t loopedPacks() const {
    const int64_t most = (packsOfLength() + threads - 1) / threads;
    return most * pack <= straightSteps
               ? 0
               : packsOfLength() / threads / together * together;
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
