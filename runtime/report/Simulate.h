// Predicts the timeline of a plan: runs its programs with the instruction
// times of a machine, respecting streams, events, call waits and
// blocking communication, exactly as the runtime would.
#pragma once

#include "runtime/plan/Plan.h"
#include "runtime/report/Costs.h"
#include "runtime/report/Timeline.h"

namespace merak::report {

struct Simulation {
  double stepSeconds = 0;
  // A row for each class of ranks that behave alike; on the compute stream one
  // span per uninterrupted stretch of a call.
  Timeline timeline;
  std::vector<RowUse> use; // by row
};

// `detailed`: one span per instruction instead. Requires verifyStructure and
// verifyMatching to have passed; a plan that gets stuck is an error.
Result<Simulation> simulate(const LoadedPlan &plan, const Costs &costs,
                            bool detailed = false);

} // namespace merak::report
