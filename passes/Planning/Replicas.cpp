#include "passes/Planning/Replicas.h"

#include "passes/Planning/DeviceClasses.h"

#include <algorithm>

namespace merak::planning {

bool hasSlowDevices(const costmodel::Cluster &cluster) {
  if (cluster.rateOf.empty())
    return false;
  const auto [slowest, fastest] =
      std::minmax_element(cluster.rateOf.begin(), cluster.rateOf.end());
  return *fastest / *slowest >= kSlow;
}

bool hasSeveralKinds(const costmodel::Cluster &cluster) {
  return std::any_of(cluster.kindOf.begin(), cluster.kindOf.end(),
                     [&](int kind) { return kind != cluster.kindOf.front(); });
}

std::vector<PipelineStages> replicasOf(const Degrees &d) {
  std::vector<PipelineStages> replicas;
  for (int64_t r = 0; r < d.dp; ++r) {
    PipelineStages &replica = replicas.emplace_back();
    for (int64_t s = 0; s < d.pp; ++s) {
      PipelineStages::Stage &stage = replica.stages.emplace_back();
      stage.tp = d.tp;
      for (int64_t i = 0; i < d.tp; ++i)
        stage.devices.push_back((s * d.dp + r) * d.tp + i);
    }
  }
  return replicas;
}

std::vector<int64_t> nodesOf(const PipelineStages &pipeline,
                             const costmodel::Cluster &machine) {
  std::vector<int64_t> nodes, seen;
  for (const PipelineStages::Stage &stage : pipeline.stages)
    for (int64_t device : stage.devices) {
      const int64_t node = machine.node(device);
      const auto it = std::find(seen.begin(), seen.end(), node);
      nodes.push_back(it - seen.begin());
      if (it == seen.end())
        seen.push_back(node);
    }
  return nodes;
}

bool areAlike(const PipelineStages &a, const PipelineStages &b,
              const costmodel::Cluster &machine) {
  PipelineStages moved = b;
  moved.spares = a.spares;
  if (a.stages.size() != b.stages.size())
    return false;
  const auto of = [](const auto &values, int64_t device) {
    return values.empty() ? 0 : values[size_t(device)];
  };
  for (size_t s = 0; s < a.stages.size(); ++s) {
    const std::vector<int64_t> &here = a.stages[s].devices;
    std::vector<int64_t> &there = moved.stages[s].devices;
    if (here.size() != there.size())
      return false;
    for (size_t i = 0; i < here.size(); ++i)
      if (of(machine.kindOf, here[i]) != of(machine.kindOf, there[i]) ||
          of(machine.rateOf, here[i]) != of(machine.rateOf, there[i]))
        return false;
    there = here;
  }
  return moved == a && nodesOf(a, machine) == nodesOf(b, machine);
}

std::vector<PipelineStages>
joinedReplicas(const std::vector<PipelineStages> &replicas,
               const costmodel::Cluster &machine) {
  std::vector<PipelineStages> all, first; // the first replica of each
  for (const PipelineStages &replica : replicas) {
    size_t of = 0;
    while (of < first.size() && !areAlike(first[of], replica, machine))
      ++of;
    if (of == first.size()) {
      first.push_back(replica);
      all.push_back(replica);
      continue;
    }
    for (size_t s = 0; s < replica.stages.size(); ++s) {
      PipelineStages::Stage &stage = all[of].stages[s];
      const std::vector<int64_t> &more = replica.stages[s].devices;
      stage.devices.insert(stage.devices.end(), more.begin(), more.end());
      stage.dp += replica.stages[s].dp;
    }
  }
  return all;
}

} // namespace merak::planning
