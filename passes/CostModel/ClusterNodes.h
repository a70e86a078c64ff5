// A cluster of which some nodes are lost.
#pragma once

#include "passes/CostModel/Cluster.h"

#include <optional>
#include <set>

namespace merak::costmodel {

// The first nodes of a cluster, which have so many devices each, without some
// of them; nothing: they have others, or none is left. Devices that are left
// are numbered anew, in their order.
std::optional<Cluster> withoutNodes(const Cluster &cluster,
                                    const std::vector<int64_t> &devices,
                                    const std::set<size_t> &without);

} // namespace merak::costmodel
