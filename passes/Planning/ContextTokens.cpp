#include "passes/Planning/ContextTokens.h"

#include "passes/Planning/Submicrobatches.h"

#include <fmt/format.h>
#include <set>

namespace merak::planning {

namespace {

// Classes in results of forward products that are made of inputs. A class that
// a product sums, or that it has from its weights, is a width.
std::set<int> candidates(const Graph &graph, const Classes &classes,
                         const Assignment &base, int64_t tp) {
  std::vector<char> varies(graph.tensors.size(), 0);
  for (size_t t = 0; t < graph.tensors.size(); ++t)
    varies[t] = graph.tensors[t].input;
  std::set<int> found, widths;
  for (const GraphOp &op : graph.ops) {
    bool any = false;
    for (int id : op.operands)
      any |= bool(varies[size_t(id)]);
    if (op.contraction && op.phase == Phase::Forward)
      for (int id : op.operands)
        if (!varies[size_t(id)])
          for (int cls : classes.tensors[size_t(id)].atoms)
            widths.insert(cls);
    for (int id : op.results) {
      varies[size_t(id)] = any;
      if (op.contraction && any && op.phase == Phase::Forward)
        for (int cls : classes.tensors[size_t(id)].atoms)
          found.insert(cls);
    }
  }
  std::erase_if(found, [&](int cls) {
    const ClassInfo &info = classes.classes[size_t(cls)];
    return widths.count(cls) > 0 || !info.splittable || info.size % tp != 0 ||
           base.axes.count(cls) || base.samples.count(info.root) ||
           isContracted(graph, classes, cls);
  });
  return found;
}

} // namespace

Result<int> contextTokens(const Graph &graph, const Classes &classes,
                          const Assignment &base, int64_t tp) {
  const double whole = costOf(graph, classes, base).contractionFlops;
  int best = -1;
  PartitionCost least;
  for (int cls : candidates(graph, classes, base, tp)) {
    Assignment split = base;
    split.addAxis({kTensorAxis, tp});
    split.axes[cls].push_back(kTensorAxis);
    const PartitionCost cost = costOf(graph, classes, split);
    if (!cost.feasible || cost.contractionFlops >= whole)
      continue;
    if (best < 0 || cost.contractionFlops < least.contractionFlops ||
        (cost.contractionFlops == least.contractionFlops &&
         cost.communicatedBytes < least.communicatedBytes)) {
      best = cls;
      least = cost;
    }
  }
  if (best >= 0)
    return best;
  return Status::error(fmt::format(
      "context parallelism finds no dimension of tokens that tp={} divides: "
      "none besides the batch divides the work of products without being "
      "summed by one",
      tp));
}

} // namespace merak::planning
