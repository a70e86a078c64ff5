#include "codegen/Kernels/GridSchedule.h"

#include "codegen/Kernels/ScalarTable.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/SmallSet.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>

namespace merak::codegen {

static int64_t powerOfTwoFor(int64_t value) {
  return static_cast<int64_t>(
      llvm::PowerOf2Ceil(static_cast<uint64_t>(std::max<int64_t>(value, 1))));
}

static int64_t bytesOf(const KernelOperand &operand) {
  return std::max<int64_t>(operand.element.getIntOrFloatBitWidth() / 8, 1);
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
    const int64_t element = bytesOf(graph.operands[access.operand]);
    bytes = bytes ? std::min(bytes, element) : element;
  }
  return bytes;
}

// Neighbours that a thread takes at a time along the last dimension of those
// that threads share out, `length` points of them for each of `points`.
static int64_t packOf(const KernelGraph &graph, llvm::ArrayRef<int> dims,
                      int64_t points, int64_t length, int64_t manyThreads) {
  constexpr int64_t kMostPack = 8, kMostBytes = 16;
  // Of a last dimension with so many packs the last one may lack elements.
  constexpr int64_t kManyPacks = 64;
  if (dims.empty())
    return 1;
  const bool onlyOne = dims.size() == 1 || !graph.hasReduction();
  const int64_t row = graph.dims[dims.back()].size;
  for (int64_t pack = kMostPack; pack > 1; pack /= 2) {
    const int64_t bytes = packedBytes(graph, dims.back(), pack);
    const bool fills = row % pack == 0 || (onlyOne && row >= kManyPacks * pack);
    if (bytes > 0 && pack * bytes <= kMostBytes && fills &&
        points * length / pack >= manyThreads)
      return pack;
  }
  return 1;
}

// Operands that are read along the reduced dimensions and differ from point to
// point: what the memory has to deliver.
static int64_t streamsOf(const KernelGraph &graph) {
  llvm::SmallDenseSet<unsigned> streams;
  for (const Access &access : graph.accesses) {
    bool alongRow = false, ofPoint = false;
    for (auto [stride, dim] : llvm::zip(access.strides, graph.dims))
      (dim.reduced ? alongRow : ofPoint) |= stride != 0 && dim.size > 1;
    if (alongRow && ofPoint && access.operand < graph.firstOutput)
      streams.insert(access.operand);
  }
  return std::max<int64_t>(static_cast<int64_t>(streams.size()), 1);
}

// Of an element of a row in registers.
static int64_t widestBytes(const KernelGraph &graph) {
  int64_t bytes = 4;
  for (const Access &access : graph.accesses)
    for (auto [stride, dim] : llvm::zip(access.strides, graph.dims))
      if (dim.reduced && stride != 0)
        bytes = std::max(bytes, bytesOf(graph.operands[access.operand]));
  return bytes;
}

// The passes of all reductions. A sum that is rescaled needs none of its own.
static void findPasses(const KernelGraph &graph, GridSchedule &grid) {
  auto &known = grid.knownIn;
  grid.passes = 0;
  mlir::func::FuncOp function = graph.function;
  for (auto generic : function.getOps<mlir::linalg::GenericOp>()) {
    int level = 0;
    for (mlir::Value operand : generic->getOperands())
      level = std::max(level, known.lookup(operand));
    for (mlir::OpResult result : generic->getResults()) {
      known[result] = level;
      if (!graph.isReduction(result))
        continue;
      auto joined = grid.rescaled.find(result);
      known[result] = joined == grid.rescaled.end()
                          ? level + 1
                          : known.lookup(joined->second.maximum);
      grid.passOf[result] = known[result] - 1;
      grid.passes = std::max(grid.passes, known[result]);
    }
  }
  for (unsigned i = graph.firstOutput; i < graph.operands.size(); ++i) {
    mlir::Value value = graph.operands[i].value;
    if (graph.variesInReduction(value))
      grid.passes = std::max(grid.passes, known.lookup(value) + 1);
  }
}

// Of packs of one stream a processor needs all its threads to have enough loads
// under way, of more streams fewer. Where much is computed, values kept in
// registers matter more.
static int64_t blocksTogether(const KernelGraph &graph,
                              const GridSchedule &grid) {
  constexpr int64_t kBytesUnderWay = 32768, kThreads = 2048;
  constexpr double kMuch = 64;
  double instructions = 0;
  for (const auto &[op, loops] : graph.loops)
    op->walk([&](mlir::Operation *inner) {
      instructions += scalarOp(inner).instructions;
    });
  int64_t bytes = 0;
  for (const Access &access : graph.accesses)
    if (access.operand < graph.firstOutput && access.strides[grid.packed] == 1)
      bytes += grid.pack * bytesOf(graph.operands[access.operand]);
  if (bytes == 0 || instructions > kMuch)
    return 0;
  return std::clamp<int64_t>(kBytesUnderWay / bytes, kBlockThreads, kThreads) /
         kBlockThreads;
}

static void scheduleElementwise(const KernelGraph &graph, GridSchedule &grid,
                                int64_t manyThreads) {
  // Blocks that keep the largest device busy, before threads get more to do.
  constexpr int64_t kManyBlocks = 1024;
  for (grid.perThread = 4;
       grid.perThread > 1 &&
       grid.points < kManyBlocks * kBlockThreads * grid.perThread;)
    grid.perThread /= 2;
  const int64_t pack = packOf(graph, grid.kept, grid.points, 1, manyThreads);
  if (pack == 1)
    return;
  grid.pack = grid.perThread = pack;
  grid.packed = grid.kept.back();
  const int64_t row = graph.dims[grid.packed].size;
  grid.packsOfRow = (row + pack - 1) / pack;
  grid.packs = grid.points / row * grid.packsOfRow;
  grid.blocksTogether = blocksTogether(graph, grid);
}

static void scheduleColumns(GridSchedule &grid) {
  constexpr int64_t kManyPoints = 1024 * kWarp / 4;
  // Columns side by side: a sector of memory for elements of 2 bytes.
  constexpr int64_t kFewColumns = 16;
  grid.together = 4;
  const int64_t columns = grid.points >= kManyPoints ? kWarp : kFewColumns;
  grid.threads = std::clamp<int64_t>(
      powerOfTwoFor((grid.length + 3) / 4), 1,
      kBlockThreads / std::min(columns, powerOfTwoFor(grid.points)));
}

// The figures are what an H200 did best with, at rows of 768 to 4096 elements
// and of 50257 (docs/rationale/cuda-kernels.md).
static void scheduleRows(const KernelGraph &graph, GridSchedule &grid,
                         int64_t manyThreads) {
  // Steps of 4 bytes whose values a thread keeps in registers, at most and at
  // best.
  constexpr int64_t kMostSteps = 32, kBestSteps = 24;
  // Loads of 16 bytes that a thread has under way in a loop; of single
  // elements.
  constexpr int64_t kPacksUnderWay = 4, kStepsUnderWay = 8;
  // Threads with so many loads under way keep a device busy that needs more of
  // those with one.
  constexpr int64_t kLoadsOfThread = 4;
  // Narrow blocks start and end one by one.
  constexpr int64_t kFewThreads = 64, kLoopThreads = 128;
  grid.pack =
      packOf(graph, grid.reduced, grid.points, grid.length, manyThreads);
  if (grid.pack > 1)
    grid.packed = grid.reduced.back();
  grid.together = std::max<int64_t>(
      (grid.pack > 1 ? kPacksUnderWay : kStepsUnderWay) / streamsOf(graph), 1);
  grid.straightSteps = kMostSteps * 4 / widestBytes(graph);
  const int64_t best = kBestSteps * 4 / widestBytes(graph);
  const int64_t each = std::max<int64_t>(grid.pack, 4);
  grid.threads = std::clamp<int64_t>(
      powerOfTwoFor((grid.length + each - 1) / each), 1, kBlockThreads);
  auto stepsWith = [&](int64_t threads) {
    return (grid.packsOfLength() + threads - 1) / threads * grid.pack +
           (grid.length % grid.pack > 0 ? 1 : 0);
  };
  while (grid.threads > kWarp && stepsWith(grid.threads / 2) <= best &&
         grid.points * grid.threads / 2 >= manyThreads / kLoadsOfThread)
    grid.threads /= 2;
  if (grid.loopedPacks() > 0 && grid.points * kLoopThreads >= manyThreads)
    grid.threads = kLoopThreads;
  grid.blockThreads = std::max(grid.threads, kFewThreads);
}

// Sums that need no pass of their own. Where a row stays in registers another
// pass costs nothing to read, and rescaling would cost more exponentials.
static void findForms(const KernelGraph &graph, GridSchedule &grid) {
  if (!graph.hasReduction() || grid.columns)
    return;
  bool writesRows = false;
  for (unsigned i = graph.firstOutput; i < graph.operands.size(); ++i)
    writesRows |= graph.variesInReduction(graph.operands[i].value);
  for (auto [value, pass] : grid.passOf) {
    auto sum = cast<mlir::OpResult>(value);
    // Where rows are written, an operand that is updated in place could have
    // been already when another thread reads one element of it.
    if (auto picked = asPickedSum(graph, sum); picked && !writesRows)
      grid.picked[sum] = *picked;
    if (grid.loopedPacks() == 0)
      continue;
    if (auto rescaled = asRescaledSum(graph, sum))
      grid.rescaled[sum] = *rescaled;
  }
  if (!grid.rescaled.empty())
    findPasses(graph, grid);
}

GridSchedule scheduleGrid(const KernelGraph &graph,
                          const KernelSchedule &schedule, int64_t manyThreads) {
  GridSchedule grid;
  grid.range = schedule.range;
  grid.kept = schedule.kept;
  grid.reduced = schedule.outerReduced;
  grid.reduced.append(schedule.run.begin(), schedule.run.end());
  for (int dim : grid.kept)
    grid.points *= graph.dims[dim].size;
  for (int dim : grid.reduced)
    grid.length *= graph.dims[dim].size;
  findPasses(graph, grid);
  if (!graph.hasReduction()) {
    scheduleElementwise(graph, grid, manyThreads);
  } else if (schedule.lanesInKept()) {
    grid.columns = true;
    scheduleColumns(grid);
  } else {
    scheduleRows(graph, grid, manyThreads);
  }
  findForms(graph, grid);
  grid.blocks = grid.blocksFor();
  grid.range.rows = grid.blocks;
  grid.range.grain = 1;
  return grid;
}

} // namespace merak::codegen
