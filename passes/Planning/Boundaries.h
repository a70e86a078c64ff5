// Where values go from a stage to another one whose mesh is not the same.
#pragma once

#include "passes/Planning/FactorGraph.h"

#include <set>
#include <utility>
#include <vector>

namespace merak::planning {

// A use of a tensor: op, operand.
using Use = std::pair<int, int>;

// The uses of values that are made on one stage and used on another, which gets
// them in the form of this use. A sum over devices has to be complete there:
// its summands are the devices of one mesh. `stageOf`: of each op of the
// forward pass; the rest follows. What only the update reads is made on every
// stage that holds the parameter.
std::set<Use> crossingUses(const Graph &graph, const std::vector<int> &stageOf);

} // namespace merak::planning
