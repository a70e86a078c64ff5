#include "codegen/Kernels/GridSchedule.h"

#include "llvm/Support/MathExtras.h"

#include <algorithm>

namespace merak::codegen {

static int64_t powerOfTwoFor(int64_t value) {
  return static_cast<int64_t>(
      llvm::PowerOf2Ceil(static_cast<uint64_t>(std::max<int64_t>(value, 1))));
}

GridSchedule scheduleGrid(const KernelGraph &graph,
                          const KernelSchedule &schedule) {
  // Blocks that keep the largest device busy, before threads get more to do.
  constexpr int64_t kManyBlocks = 1024;
  // Columns side by side: a sector of memory for elements of 2 bytes.
  constexpr int64_t kFewColumns = 16;
  GridSchedule grid;
  grid.range = schedule.range;
  grid.kept = schedule.kept;
  grid.passes = schedule.passes;
  grid.reduced = schedule.outerReduced;
  grid.reduced.append(schedule.run.begin(), schedule.run.end());
  for (int dim : grid.kept)
    grid.points *= graph.dims[dim].size;
  for (int dim : grid.reduced)
    grid.length *= graph.dims[dim].size;
  if (!graph.hasReduction()) {
    for (grid.perThread = 4;
         grid.perThread > 1 &&
         grid.points < kManyBlocks * kBlockThreads * grid.perThread;)
      grid.perThread /= 2;
  } else {
    int64_t wanted = powerOfTwoFor((grid.length + 3) / 4);
    grid.columns = schedule.lanesInKept();
    int64_t most = kBlockThreads;
    if (grid.columns) {
      int64_t columns =
          grid.points >= kManyBlocks * kWarp / 4 ? kWarp : kFewColumns;
      most /= std::min(columns, powerOfTwoFor(grid.points));
    }
    grid.threads = std::clamp<int64_t>(wanted, 1, most);
  }
  int64_t ofBlock = grid.pointsOfBlock() * grid.perThread;
  grid.blocks = (grid.points + ofBlock - 1) / ofBlock;
  grid.range.rows = grid.blocks;
  grid.range.grain = 1;
  return grid;
}

} // namespace merak::codegen
