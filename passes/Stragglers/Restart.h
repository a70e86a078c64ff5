// The uniform plans that a run has without planning for stragglers: go on as it
// is, or start again without the nodes that have some.
#pragma once

#include "passes/Stragglers/Plan.h"

#include <optional>

namespace merak::stragglers {

// The best uniform plan of the nodes with the fastest devices: for each number
// of nodes, each number of pipelines and of stages, of full groups with layers
// and microbatches as equal as they can be, that fits into memory. Nothing, if
// none does.
std::optional<Plan>
restartedPlan(const Problem &problem,
              int64_t mostPipelines = std::numeric_limits<int64_t>::max());

} // namespace merak::stragglers
