// Where values go from a stage to another one whose mesh is not the same.
#pragma once

#include "passes/Planning/Seams.h"

#include <set>
#include <vector>

namespace merak::planning {

// The uses of values that are made on one stage and used on another, which gets
// them in the form of this use. A sum over devices has to be complete there:
// its summands are the devices of one mesh. `stageOf`: of each op of the
// forward pass; the rest follows. What only the update reads is made on every
// stage that holds the parameter.
std::set<TensorUse> crossingUses(const Graph &graph,
                                 const std::vector<int> &stageOf);

// The uses of gradients, and of other sums over microbatches, by what runs once
// a step: the update, and ops that are `late` (OpOutcome). With several
// pipelines each makes a part of the sum on its own meshes.
std::set<TensorUse> sumsOfStep(const Graph &graph,
                               const std::vector<char> &late);

} // namespace merak::planning
