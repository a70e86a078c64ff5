// A plan's decisions in words, for whoever compares plans.
#pragma once

#include "passes/Planning/PlanDecision.h"

#include <string>
#include <vector>

namespace merak::planning {

// Degrees and microbatches, schedule, what is split, gathered and recomputed,
// where stages begin; only what the plan has. `sharding`: of its search, for
// examples of what tp divides.
std::vector<std::string> inWords(const PlanDecision &decision,
                                 const SearchReport &sharding);

} // namespace merak::planning
