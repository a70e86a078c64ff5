// Which host each node of a cluster file is (its field `host`), and whether a
// plan was compiled for that cluster. Who plans does not need names.
#pragma once

#include "passes/CostModel/Cluster.h"
#include "runtime/plan/Plan.h"

namespace merak::costmodel {

struct ClusterNode {
  std::string host; // empty: the file names none, of no node
  int64_t devices = 0;
};
struct ClusterHosts {
  Cluster cluster;
  std::vector<ClusterNode> nodes; // in the order of the devices
};

// As parseCluster and readCluster.
Result<ClusterHosts> parseClusterHosts(const std::string &json,
                                       const std::string &fileName);
Result<ClusterHosts> readClusterHosts(const std::string &path);

// Whether the plan's ranks, which are on these devices (by rank), are on those
// of the cluster as the plan knows them: their kinds, nodes and links, whatever
// their rates. Errors: they are not; `name` is the file's.
Status checkPlannedFor(const LoadedPlan &plan, const std::vector<int> &devices,
                       const Cluster &cluster, const std::string &name);

} // namespace merak::costmodel
