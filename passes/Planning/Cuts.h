// Where a model is cut into consecutive parts without a search: equal numbers
// of blocks, or parts whose heaviest one is as light as possible. The search
// for cuts (PipelinePlan.h) starts from both.
#pragma once

#include "passes/Planning/StageProblem.h"
#include "runtime/core/Status.h"

#include <functional>
#include <vector>

namespace merak::planning {

// How a system cuts that does not search: the positions of so many parts, one
// more than parts. Error: why it cannot.
using Cutter =
    std::function<Result<std::vector<int>>(const StageModel &model, int parts)>;
// Equal numbers of blocks, uniform_floor of Merak.
Result<std::vector<int>> equalLayers(const StageModel &model, int parts);
// The heaviest part as light as possible, at positions that a search tries; a
// model answers the same question only once. `slowness`: see balance().
Result<std::vector<int>> balanced(const StageModel &model, int parts,
                                  const std::vector<double> &slowness = {});
// The same on the stages of `shape`, each as slow as it is, where they have
// meshes of their own by the times of these.
Result<std::vector<int>> balanced(const StageModel &model, int parts,
                                  const PipelineShape &shape);

// Boundaries of n blocks on p stages: the remainder goes to stages 1, 2, ...
// With fewer blocks than stages some are empty. 10 blocks on 4 stages have 2,
// 3, 3 and 2: boundaries 0, 2, 5, 8, 10.
std::vector<int> uniformFloor(int n, int p);
// Boundaries of consecutive weights in `parts` not empty parts, the heaviest as
// light as possible: 3 1 1 5 in two parts are 3 1 1 | 5. Part q weighs
// slowness[q % its size] times as much, if there is any: on a stage that takes
// three times as long, 3 | 1 1 5.
std::vector<int> balance(const std::vector<double> &weights, int parts,
                         const std::vector<double> &slowness = {});
// The same where weights are others in each part: part q has weights[q % their
// number], of one length.
std::vector<int> balance(const std::vector<std::vector<double>> &weights,
                         int parts);

} // namespace merak::planning
