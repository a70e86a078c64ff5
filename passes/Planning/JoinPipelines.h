// One decision of those of several pipelines, which were made one by one with
// the same layouts: stages and lists of actions stand one behind the other, and
// what the update reads is complete over the devices of each pipeline, so that
// it can be summed over the pipelines.
#pragma once

#include "passes/Planning/PlanDecision.h"

namespace merak::planning {

// `of`: of each pipeline of `pinned`, in order; `classes`: of their layouts.
// Errors: what several pipelines cannot do yet.
Result<PlanDecision> joinPipelines(const Graph &graph, const Classes &classes,
                                   const Strategy &pinned,
                                   std::vector<PlanDecision> of);

} // namespace merak::planning
