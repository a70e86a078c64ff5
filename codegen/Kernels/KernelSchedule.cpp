#include "codegen/Kernels/KernelSchedule.h"

#include "codegen/Kernels/ScalarTable.h"

#include <algorithm>

using namespace mlir;

namespace merak::codegen {

namespace {

class Scheduler {
public:
  explicit Scheduler(KernelGraph &graph) : graph(graph) {}
  KernelSchedule run();

private:
  bool mergeable(int outer, int inner) const;
  void mergeAdjacent(llvm::SmallVector<int> &order);
  void orderElementwise();
  double laneCost(int dim) const;
  void findIndexUses();
  double flops() const;
  void chooseItems();
  int64_t size(int dim) const { return graph.dims[dim].size; }

  KernelGraph &graph;
  KernelSchedule schedule;
  llvm::SmallVector<bool> indexed; // dims whose index a body asks for
  double costPerElement = 1;
};

} // namespace

void Scheduler::findIndexUses() {
  indexed.assign(graph.dims.size(), false);
  for (auto &[op, loops] : graph.loops) {
    op->walk([&, loops = &loops](Operation *inner) {
      costPerElement += scalarOp(inner).cost;
      if (auto index = dyn_cast<linalg::IndexOp>(inner))
        if (int dim = (*loops)[index.getDim()]; dim >= 0)
          indexed[dim] = true;
    });
  }
}

bool Scheduler::mergeable(int outer, int inner) const {
  if (indexed[outer] || indexed[inner])
    return false;
  return llvm::all_of(graph.accesses, [&](const Access &access) {
    return access.strides[outer] == access.strides[inner] * size(inner);
  });
}

// The merged dimension takes the number of the inner one. The outer one keeps
// size 1, so that loops that name it still find an index (0).
void Scheduler::mergeAdjacent(llvm::SmallVector<int> &order) {
  llvm::SmallVector<int> merged;
  for (int dim : order) {
    if (!merged.empty() && mergeable(merged.back(), dim)) {
      graph.dims[dim].size *= size(merged.back());
      graph.dims[merged.back()].size = 1;
      for (Access &access : graph.accesses)
        access.strides[merged.back()] = 0;
      merged.back() = dim;
    } else {
      merged.push_back(dim);
    }
  }
  order = merged;
}

// What one element costs in memory operations if lanes go along `dim`.
double Scheduler::laneCost(int dim) const {
  double cost = 1;
  for (const Access &access : graph.accesses) {
    int64_t stride = access.strides[dim];
    bool isOutput = graph.operands[access.operand].isOutput;
    cost += stride == 0 ? 0.3 : stride == 1 ? 1 : isOutput ? 12 : 8;
  }
  double used = static_cast<double>(size(dim)) /
                ((size(dim) + kLanes - 1) / kLanes * kLanes);
  return cost / std::max(used, 1e-3);
}

// Without reductions the order is free: outer dimensions by falling stride of
// the first output, the best one for lanes last.
void Scheduler::orderElementwise() {
  llvm::SmallVector<int> &kept = schedule.kept;
  if (kept.size() < 2 || graph.outputAccess.empty())
    return;
  const auto &strides = graph.accesses[graph.outputAccess[0]].strides;
  std::stable_sort(kept.begin(), kept.end(),
                   [&](int a, int b) { return strides[a] > strides[b]; });
  mergeAdjacent(kept);
  auto best = std::min_element(kept.rbegin(), kept.rend(), [&](int a, int b) {
    return laneCost(a) < laneCost(b);
  });
  std::rotate(best.base() - 1, best.base(), kept.end());
}

// Each body as often as its own loops go round.
double Scheduler::flops() const {
  double sum = 0;
  for (auto &[op, loops] : graph.loops) {
    double body = 0, times = 1;
    op->walk([&](Operation *inner) { body += scalarOp(inner).instructions; });
    for (int dim : loops)
      times *= dim < 0 ? 1.0 : static_cast<double>(size(dim));
    sum += body * times;
  }
  return sum;
}

void Scheduler::chooseItems() {
  constexpr double kWorkOfItem = 8192;
  llvm::SmallVector<int> &kept = schedule.kept;
  double reducedSize = 1;
  for (const Dimension &dim : graph.dims)
    reducedSize *= dim.reduced ? dim.size : 1;
  double total = reducedSize * costPerElement;
  for (int dim : kept)
    total *= size(dim);
  schedule.range.flops = flops();
  for (const KernelOperand &operand : graph.operands) {
    double elements = 1;
    for (auto [size, stride] : llvm::zip(operand.shape, operand.strides))
      elements *= stride == 0 ? std::min<int64_t>(size, 1) : size;
    double width = operand.element.getIntOrFloatBitWidth() / 8.0;
    schedule.range.bytes +=
        elements * std::max(width, 1.0) * (operand.accumulate ? 2 : 1);
  }
  if (kept.empty()) {
    schedule.range.rows = 1;
    return;
  }

  // Column reductions hold up to four accumulators of sixteen lanes, fewer
  // where that would leave less than four items.
  if (graph.hasReduction() && schedule.lanesInKept()) {
    int64_t groups = (size(kept.back()) + kLanes - 1) / kLanes;
    int64_t most = costPerElement > 60 ? 1 : costPerElement > 30 ? 2 : 4;
    schedule.unroll = std::clamp<int64_t>(groups / 4, 1, most);
  }
  // From the inside out, until an item has enough to do.
  double inside = reducedSize * costPerElement;
  unsigned block = kept.size() - 1;
  while (block > 0 && inside * size(kept[block]) < kWorkOfItem)
    inside *= size(kept[block--]);
  int64_t all = size(kept[block]);
  int64_t blockSize =
      inside > 0 ? static_cast<int64_t>(kWorkOfItem / inside) + 1 : all;
  if (block + 1 == kept.size() && schedule.lanesInKept()) {
    int64_t step = kLanes * schedule.unroll;
    blockSize = (blockSize + step - 1) / step * step;
  }
  schedule.block = block;
  schedule.blockSize = std::min(blockSize, all);
  int64_t rows = 1;
  for (unsigned i = 0; i < block; ++i)
    rows *= size(kept[i]);
  bool isEmpty = llvm::any_of(kept, [&](int dim) { return size(dim) == 0; });
  if (isEmpty)
    rows = 0;
  else
    rows *= (all + schedule.blockSize - 1) / schedule.blockSize;
  schedule.range.rows = rows;
  if (rows > 0) {
    double workOfRow = std::max(total / rows, 1.0);
    schedule.range.grain =
        std::clamp<int64_t>(static_cast<int64_t>(131072 / workOfRow), 1, rows);
  }
}

KernelSchedule Scheduler::run() {
  findIndexUses();
  int n = graph.dims.size();
  for (int dim = 0; dim < n; ++dim)
    if (!graph.dims[dim].reduced)
      schedule.kept.push_back(dim);
  if (!graph.hasReduction()) {
    orderElementwise();
  } else {
    schedule.lanesInRun = graph.dims[n - 1].reduced;
    // The run is the last stretch of reduced dimensions.
    int end = n;
    while (!graph.dims[end - 1].reduced)
      --end;
    int begin = end;
    while (begin > 0 && graph.dims[begin - 1].reduced)
      --begin;
    for (int dim = 0; dim < n; ++dim) {
      if (!graph.dims[dim].reduced)
        continue;
      schedule.emptyReduction |= size(dim) == 0;
      (dim < begin ? schedule.outerReduced : schedule.run).push_back(dim);
    }
    for (int dim : schedule.run)
      schedule.runLength *= size(dim);
    mergeAdjacent(schedule.run);
  }
  mergeAdjacent(schedule.kept);
  for (OpResult result : [&] {
         llvm::SmallVector<OpResult> results;
         for (auto &[op, loops] : graph.loops)
           results.append(op->result_begin(), op->result_end());
         return results;
       }())
    if (graph.isReduction(result))
      schedule.passes = std::max(schedule.passes, graph.passOf(result) + 1);
  for (unsigned i = graph.firstOutput; i < graph.operands.size(); ++i) {
    Value value = graph.operands[i].value;
    if (graph.variesInReduction(value))
      schedule.passes = std::max(schedule.passes, graph.knownIn(value) + 1);
  }
  chooseItems();
  return schedule;
}

KernelSchedule scheduleKernel(KernelGraph &graph) {
  return Scheduler(graph).run();
}

} // namespace merak::codegen
