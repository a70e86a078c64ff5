#include "passes/CostModel/ClusterNodes.h"

#include <algorithm>

namespace merak::costmodel {

std::optional<Cluster> withoutNodes(const Cluster &cluster,
                                    const std::vector<int64_t> &devices,
                                    const std::set<size_t> &without) {
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < cluster.count; ++i) {
    sizes.resize(size_t(cluster.node(i)) + 1);
    ++sizes.back();
  }
  if (devices.size() > sizes.size() ||
      !std::equal(devices.begin(), devices.end(), sizes.begin()))
    return std::nullopt;
  Cluster left = cluster;
  left.count = left.perNode = 0;
  left.kindOf.clear();
  left.nodeOf.clear();
  left.rateOf.clear();
  int64_t next = 0, nodes = 0; // device of the cluster; nodes that are left
  for (size_t node = 0; node < devices.size(); next += devices[node++]) {
    if (without.count(node))
      continue;
    for (int64_t i = next; i < next + devices[node]; ++i) {
      if (!cluster.kindOf.empty())
        left.kindOf.push_back(cluster.kindOf[size_t(i)]);
      if (!cluster.rateOf.empty())
        left.rateOf.push_back(cluster.rateOf[size_t(i)]);
      left.nodeOf.push_back(int(nodes));
      ++left.count;
    }
    left.perNode = std::max(left.perNode, devices[node]);
    ++nodes;
  }
  if (nodes == 0)
    return std::nullopt;
  if (left.count == nodes * left.perNode)
    left.nodeOf.clear(); // all are alike
  return left;
}

} // namespace merak::costmodel
