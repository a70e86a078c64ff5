// How the domain of a kernel is walked.
//
// Kept dimensions (those not reduced) are cut into items, the parallel range;
// an item loops over what is left of the kept dimensions and, at each of their
// points, makes one or more passes over the reduced dimensions:
//
//   for item in [begin, end)                  prefix of kept, and a block
//     for kept indices inside the item
//       for pass in passes                    e.g. softmax: max, sum, quotient
//         for outer reduced indices
//           for index in the run              the innermost reduced dimensions
//
// Sixteen lanes go along the run if the last dimension of the domain is
// reduced (row reductions), else along the last kept dimension (column
// reductions, element-wise kernels). This choice, and with it the order of
// every sum, depends on shapes only, never on strides or on what is fused.
#pragma once

#include "codegen/Kernels/KernelGraph.h"
#include "codegen/Kernels/KernelRange.h"

namespace merak::codegen {

inline constexpr int64_t kLanes = 16;
// Iterations of a run whose sum is formed on its own before it is added to the
// sum of the run: keeps the error of long sums small.
inline constexpr int64_t kChunk = 64;
// Vectors of a row sum that are added up apart.
inline constexpr int64_t kTurns = 4;

struct KernelSchedule {
  bool lanesInRun = false;
  llvm::SmallVector<int> kept;         // outer to inner
  llvm::SmallVector<int> outerReduced; // outer to inner
  llvm::SmallVector<int> run;          // outer to inner
  int64_t runLength = 1;
  bool emptyReduction = false; // a reduced dimension has size 0
  int passes = 0;
  // Items: all of kept[0..block) and blocks of `blockSize` of kept[block].
  unsigned block = 0;
  int64_t blockSize = 1;
  unsigned unroll = 1; // groups of lanes walked together (column reductions)
  KernelRange range;

  bool lanesInKept() const { return !lanesInRun && !kept.empty(); }
  int laneDim() const { return lanesInKept() ? kept.back() : -1; }
};

// Merges dimensions that lie one behind the other in all operands (in `graph`)
// and decides on the loops.
KernelSchedule scheduleKernel(KernelGraph &graph);

} // namespace merak::codegen
