// A plan's decisions in words, for whoever compares plans.
#pragma once

#include "passes/Planning/PlanDecision.h"

#include <string>
#include <vector>

namespace merak::planning {

// Degrees and microbatches, schedule, techniques, how much is recomputed; only
// what the plan has.
std::vector<std::string> decisionsOf(const PlanDecision &decision);

// Where: what tp splits, where stages begin. `sharding`: of its search.
std::vector<std::string> placesOf(const PlanDecision &decision,
                                  const SearchReport &sharding);

} // namespace merak::planning
