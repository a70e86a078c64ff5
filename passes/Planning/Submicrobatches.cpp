#include "passes/Planning/Submicrobatches.h"

#include <algorithm>
#include <fmt/format.h>
#include <set>

namespace merak::planning {

namespace {

bool isOver(const Conversion &conversion, const std::string &axis) {
  return hasAxisOn(conversion.axes, axis);
}

// Collectives on the way through the step, where the submicrobatches help.
bool isAwaited(const Conversion &conversion) {
  return conversion.kind != ConversionKind::Slice &&
         conversion.kind != ConversionKind::Accumulate &&
         conversion.phase != Phase::Update && isOver(conversion, kTensorAxis);
}

// Bytes of a microbatch.
struct Gain {
  double halved = 0, joined = 0;
  bool operator<(const Gain &other) const {
    return halved != other.halved ? halved < other.halved
                                  : joined > other.joined;
  }
};

Gain gainOf(const Graph &graph, const Outcome &outcome) {
  Gain gain;
  for (const Conversion &conversion : outcome.conversions) {
    if (isAwaited(conversion) && isSplitOver(conversion.to, kSubmicrobatchAxis))
      gain.halved += conversion.bytes;
    if (isOver(conversion, kSubmicrobatchAxis) &&
        conversion.kind != ConversionKind::Slice &&
        conversion.kind != ConversionKind::Accumulate)
      gain.joined += double(graph.tensors[conversion.tensor].bytes());
  }
  return gain;
}

} // namespace

bool isSplitOver(const layout::Layout &layout, const std::string &axis) {
  for (const layout::DimLayout &dim : layout.dims)
    for (const layout::Factor &factor : dim.factors)
      if (std::find(factor.axes.begin(), factor.axes.end(), axis) !=
          factor.axes.end())
        return true;
  return false;
}

bool isContracted(const Graph &graph, const Classes &classes, int cls) {
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    if (graph.ops[i].phase != Phase::Forward || !graph.ops[i].contraction)
      continue;
    for (const OpSlot &slot : classes.ops[i].slots)
      if (slot.cls == cls && slot.kind != FactorKind::Whole) {
        if (slot.kind == FactorKind::Sum)
          return true;
        break;
      }
  }
  return false;
}

bool isOfSubmicrobatch(const layout::Layout &layout) {
  return isSplitOver(layout, kSubmicrobatchAxis) ||
         std::find(layout.partial.begin(), layout.partial.end(),
                   kSubmicrobatchAxis) != layout.partial.end();
}

Result<Assignment> splitTokens(const Graph &graph, const Classes &classes,
                               const Assignment &base) {
  Result<Outcome> whole = apply(graph, classes, base);
  if (!whole.ok())
    return whole.status();
  std::set<int> candidates;
  for (const Conversion &conversion : whole->conversions)
    if (isAwaited(conversion))
      for (int cls : classes.tensors[conversion.tensor].atoms)
        if (classes.classes[cls].splittable &&
            classes.classes[cls].size % 2 == 0 && !base.axes.count(cls) &&
            !isContracted(graph, classes, cls))
          candidates.insert(cls);
  Assignment best;
  Gain most;
  for (int cls : candidates) {
    Assignment submicrobatches = base;
    submicrobatches.addAxis({kSubmicrobatchAxis, 2});
    submicrobatches.axes[cls] = {kSubmicrobatchAxis};
    Result<Outcome> outcome = apply(graph, classes, submicrobatches);
    if (!outcome.ok())
      continue;
    Gain gain = gainOf(graph, *outcome);
    if (most < gain) {
      most = gain;
      best = std::move(submicrobatches);
    }
  }
  if (most.halved == 0)
    return Status::error("no dimension besides the batch can be halved: none "
                         "of an even size is in a collective over tp");
  return best;
}

bool joinsSamples(const Graph &graph) {
  for (const GraphOp &op : graph.ops)
    for (const RuleFactor &factor : op.rule.factors)
      if (factor.kind == FactorKind::Samples && factor.size > 1)
        return true;
  return false;
}

Result<Assignment> splitBatch(const Graph &graph, const Classes &classes,
                              const std::vector<int> &batched,
                              const Assignment &base) {
  Assignment submicrobatches = base;
  submicrobatches.addAxis({kSubmicrobatchAxis, 2});
  std::set<int> split;
  Status status;
  for (int id : batched) {
    const TensorClasses &all = classes.tensors[id];
    if (all.dimBegin.size() < 2)
      continue; // assignBatch refuses it
    int found = -1;
    for (int i = all.dimBegin[0]; i < all.dimBegin[1] && found < 0; ++i) {
      const ClassInfo &info = classes.classes[all.atoms[i]];
      int64_t ways = 1;
      if (auto it = base.axes.find(all.atoms[i]); it != base.axes.end())
        for (const std::string &axis : it->second)
          ways *= base.sizeOf(axis);
      if (info.splittable && info.size / ways % 2 == 0)
        found = all.atoms[i];
    }
    if (found < 0)
      status.merge(Status::error(
          fmt::format("the batch of '{}', {}, cannot be halved",
                      graph.tensors[id].name, classes.dimStr(id, 0))));
    else if (split.insert(found).second)
      submicrobatches.axes[found].push_back(kSubmicrobatchAxis);
  }
  MERAK_RETURN_IF_ERROR(status);
  return submicrobatches;
}

} // namespace merak::planning
