// Where the values come from that an action reads of another one's
// (ActionOps.h).
#pragma once

#include "passes/Planning/ActionOps.h"

#include <map>

namespace merak::planning {

struct ValueOrigin {
  ListOf list = ListOf::F;
  int value = 0; // of that list
};
// By list: its values that another action of the microbatch, or of the step's
// microbatches, has made.
using ValueOrigins = std::array<std::map<int, ValueOrigin>, kLists>;

// actionOps, with the origins of its values. `once`: by op, see convertedOnce;
// its results lie in memory.
std::array<ActionOps, kLists>
actionOps(const Graph &graph, const Outcome &outcome,
          const layout::AxisMap &mesh, const std::vector<int> &home,
          bool joinPads, const std::vector<char> &once, ValueOrigins &origins);

} // namespace merak::planning
