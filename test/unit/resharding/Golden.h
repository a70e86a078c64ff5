// The golden vectors of test/data/golden/resharding.json as placements.
#pragma once

#include "passes/Resharding/Resharding.h"

#include <nlohmann/json.hpp>

namespace merak::resharding {

const nlohmann::json &golden();
// A placement of `entry` ({mesh, spec}): the tensor cut by the axes h (hosts)
// and d (devices of a host), on the devices from `first` on.
Placement goldenPlacement(const nlohmann::json &entry,
                          const std::vector<int64_t> &shape, int64_t first);
// Source and target of a case. Hosts have `goldenHost` devices: targets start
// at the next host.
struct GoldenCase {
  Placement source, target;
  int64_t elementBytes = 1;
  costmodel::Cluster cluster; // 1 byte a second between hosts, no latency
  int64_t host(int64_t device) const { return cluster.node(device); }
};
GoldenCase goldenCase(const nlohmann::json &entry);
// Hosts of `perHost` devices with one interface each.
costmodel::Cluster hostCluster(int64_t hosts, int64_t perHost, double bandwidth,
                               double latency, double inside = 1e18,
                               double insideLatency = 0);

} // namespace merak::resharding
