#include "passes/CostModel/ClusterNodes.h"

#include <algorithm>
#include <map>

namespace merak::costmodel {

Cluster onDevices(const Cluster &cluster, const std::vector<int64_t> &devices) {
  Cluster out = cluster;
  out.count = int64_t(devices.size());
  out.nodeOf.clear();
  out.kindOf.clear();
  out.rateOf.clear();
  std::map<int64_t, int64_t> perNode;
  for (int64_t device : devices) {
    const int64_t node = cluster.node(device);
    ++perNode[node];
    out.nodeOf.push_back(int(node));
    if (!cluster.kindOf.empty())
      out.kindOf.push_back(cluster.kindOf[size_t(device)]);
    if (!cluster.rateOf.empty())
      out.rateOf.push_back(cluster.rateOf[size_t(device)]);
  }
  out.perNode = 1;
  for (const auto &[node, count] : perNode)
    out.perNode = std::max(out.perNode, count);
  return out;
}

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
  std::vector<int64_t> kept;
  int64_t next = 0; // device
  for (size_t node = 0; node < devices.size(); next += devices[node++])
    for (int64_t i = next; i < next + devices[node] && !without.count(node);
         ++i)
      kept.push_back(i);
  if (kept.empty())
    return std::nullopt;
  Cluster left = onDevices(cluster, kept);
  std::map<int, int> numbers; // of nodes
  for (int &node : left.nodeOf)
    node = numbers.try_emplace(node, int(numbers.size())).first->second;
  if (left.count == int64_t(numbers.size()) * left.perNode)
    left.nodeOf.clear(); // all are alike
  return left;
}

} // namespace merak::costmodel
