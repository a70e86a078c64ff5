#include "codegen/Kernels/GridSchedule.h"

#include "llvm/Support/MathExtras.h"

#include <algorithm>

namespace merak::codegen {

static int64_t powerOfTwoFor(int64_t value) {
  return static_cast<int64_t>(
      llvm::PowerOf2Ceil(static_cast<uint64_t>(std::max<int64_t>(value, 1))));
}

// Bytes of the narrowest element that varies along the dimension; 0 if
// something that does has gaps there, or rows that begin at places no pack
// does.
static int64_t packedBytes(const KernelGraph &graph, int dim, int64_t pack) {
  int64_t bytes = 0;
  for (const Access &access : graph.accesses) {
    if (access.strides[dim] == 0)
      continue;
    if (access.strides[dim] != 1)
      return 0;
    for (auto [other, stride] : llvm::enumerate(access.strides))
      if (static_cast<int>(other) != dim && stride % pack != 0)
        return 0;
    const int64_t element = std::max<int64_t>(
        graph.operands[access.operand].element.getIntOrFloatBitWidth() / 8, 1);
    bytes = bytes ? std::min(bytes, element) : element;
  }
  return bytes;
}

// Neighbours that a thread takes at a time along the last dimension of those
// that threads share out, `length` points of them for each of `points`.
static int64_t packOf(const KernelGraph &graph, llvm::ArrayRef<int> dims,
                      int64_t points, int64_t length, int64_t manyThreads) {
  constexpr int64_t kMostPack = 8, kMostBytes = 16;
  if (dims.empty())
    return 1;
  const bool onlyOne = dims.size() == 1;
  for (int64_t pack = kMostPack; pack > 1; pack /= 2) {
    const int64_t bytes = packedBytes(graph, dims.back(), pack);
    // A reduction over one dimension takes the rest of it one by one.
    const bool fills = graph.dims[dims.back()].size % pack == 0 ||
                       (onlyOne && length >= 64 * pack);
    if (bytes > 0 && pack * bytes <= kMostBytes && fills &&
        points * length / pack >= manyThreads)
      return pack;
  }
  return 1;
}

GridSchedule scheduleGrid(const KernelGraph &graph,
                          const KernelSchedule &schedule, int64_t manyThreads) {
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
    const int64_t pack = packOf(graph, grid.kept, grid.points, 1, manyThreads);
    if (pack > 1)
      grid.pack = grid.perThread = pack;
  } else {
    grid.columns = schedule.lanesInKept();
    if (!grid.columns)
      grid.pack =
          packOf(graph, grid.reduced, grid.points, grid.length, manyThreads);
    int64_t each = std::max<int64_t>(grid.pack, 4);
    int64_t wanted = powerOfTwoFor((grid.length + each - 1) / each);
    int64_t most = kBlockThreads;
    if (grid.columns) {
      int64_t columns =
          grid.points >= kManyBlocks * kWarp / 4 ? kWarp : kFewColumns;
      most /= std::min(columns, powerOfTwoFor(grid.points));
    }
    grid.threads = std::clamp<int64_t>(wanted, 1, most);
  }
  if (grid.pack > 1)
    grid.packed = graph.hasReduction() ? grid.reduced.back() : grid.kept.back();
  int64_t ofBlock = grid.pointsOfBlock() * grid.perThread;
  grid.blocks = (grid.points + ofBlock - 1) / ofBlock;
  grid.range.rows = grid.blocks;
  grid.range.grain = 1;
  return grid;
}

} // namespace merak::codegen
