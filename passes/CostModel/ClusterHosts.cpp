#include "passes/CostModel/ClusterHosts.h"

#include <fmt/format.h>

#include <algorithm>

namespace merak::costmodel {

// `planned` has rank r as device r.
static bool isOn(const Cluster &planned, const std::vector<int> &devices,
                 const Cluster &cluster) {
  if (planned.algorithm != cluster.algorithm ||
      planned.cores != cluster.cores || planned.threads != cluster.threads)
    return false;
  for (size_t a = 0; a < devices.size(); ++a) {
    if (planned.device(int64_t(a)) != cluster.device(devices[a]))
      return false;
    for (size_t b = 0; b < a; ++b) {
      const bool together =
          planned.node(int64_t(a)) == planned.node(int64_t(b));
      if (together != (cluster.node(devices[a]) == cluster.node(devices[b])) ||
          planned.between(int64_t(a), int64_t(b)) !=
              cluster.between(devices[a], devices[b]))
        return false;
    }
  }
  return true;
}

Status checkPlannedFor(const LoadedPlan &plan, const std::vector<int> &devices,
                       const Cluster &cluster, const std::string &name) {
  const auto planned =
      plan.file.cluster().empty()
          ? Result<Cluster>(defaultCluster(plan.file.ranks_size()))
          : parseCluster(plan.file.cluster(), "the plan's cluster");
  if (!planned)
    return planned.status();
  const int most = *std::max_element(devices.begin(), devices.end());
  if (most >= cluster.count)
    return Status::error(
        fmt::format("\"{}\" has {} device{}, the plan is for {}", name,
                    cluster.count, cluster.count == 1 ? "" : "s", most + 1));
  if (planned->count < int64_t(devices.size()) ||
      !isOn(*planned, devices, cluster))
    return Status::error(
        fmt::format("the plan was compiled for another machine than \"{}\" "
                    "describes: compile it with --cluster={}",
                    name, name));
  return {};
}

} // namespace merak::costmodel
