// Parts of a cluster: some of its devices, or what is left without some nodes.
#pragma once

#include "passes/CostModel/Cluster.h"

#include <optional>
#include <set>

namespace merak::costmodel {

// The devices in this order, numbered anew; they keep their nodes' numbers.
Cluster onDevices(const Cluster &cluster, const std::vector<int64_t> &devices);

// The first nodes of a cluster, which have so many devices each, without some
// of them; nothing: they have others, or none is left. Devices and nodes that
// are left are numbered anew, in their order.
std::optional<Cluster> withoutNodes(const Cluster &cluster,
                                    const std::vector<int64_t> &devices,
                                    const std::set<size_t> &without);

} // namespace merak::costmodel
