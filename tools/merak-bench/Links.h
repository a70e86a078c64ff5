// Times messages between the processes of a world, each a rank: the links of a
// cluster file, and what its formulas say of collectives.
#pragma once

#include "passes/CostModel/Calibrate.h"
#include "runtime/comm/World.h"
#include "runtime/core/Backend.h"

#include <optional>
#include <string>
#include <vector>

namespace merak::bench {

// Where the ranks are: the nodes in the order of their first ranks.
struct Places {
  std::vector<std::string> hosts; // of each node
  std::vector<int> nodeOf;        // by rank
  std::vector<int> on(int node) const;
};
// Asked on every rank. Error: ranks of one host that do not follow each other,
// which a cluster file cannot say.
Result<Places> findPlaces(runtime::Store &store);

struct MeasuredLinks {
  std::optional<costmodel::Link> intra, inter; // where there are such pairs
  // All ranks together; `work.name` is the collective, `work.bytes` as
  // costmodel::collectiveSeconds takes them.
  std::vector<costmodel::Sample> collectives;
};

// Every rank calls this, and gets the same. Transfers go there and back between
// two ranks of the first node, and between the first ranks of the first two
// nodes; a link that all pairs of a node use at once is shared if they are then
// slowed down in proportion. `quick`: fewer and smaller messages.
Result<MeasuredLinks> measureLinks(runtime::World &world,
                                   runtime::Backend &backend,
                                   const Places &places, bool quick);

} // namespace merak::bench
