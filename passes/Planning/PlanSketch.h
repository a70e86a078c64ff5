// The plans between which a search decides at last, priced by all of their
// tasks (StepSketch.h).
#pragma once

#include "passes/Planning/PlanSearch.h"

#include <optional>

namespace merak::planning {

// Seconds of a step; none: the plan has what no sketch has yet, overlapping
// submicrobatches, parameters stored in parts or sums that the backward pass
// waits for, or more tasks than are worth the time.
std::optional<double> sketchedSeconds(PlanSearch &search,
                                      const SearchInput &input,
                                      const PlanCandidate &candidate);

// Plans of `plans` with cuts moved to neighbouring positions, where their
// sketches are shorter so: a plan's cuts are chosen by sums over ops, which see
// neither launches nor messages nor what a schedule leaves idle. They carry the
// prices of their sums.
std::vector<PlanCandidate>
neighbouringCuts(PlanSearch &search, const SearchInput &input,
                 const std::vector<PlanCandidate> &plans);

// Gives plans these times where there are any, and sorts them by time.
void sketchPlans(PlanSearch &search, const SearchInput &input,
                 std::vector<PlanCandidate> &plans);

} // namespace merak::planning
