// A plan that does one resharding a step and nothing else, to be measured where
// it will run: merak-plan reshard --plan (docs/Resharding.md).
#pragma once

#include "passes/Resharding/Description.h"
#include "passes/Resharding/Resharding.h"
#include "runtime/plan/Plan.h"

namespace merak::resharding {

// Its ranks are the devices of both placements, ascending. Errors: those of
// messagesOf.
Result<LoadedPlan> planOf(const Boundary &boundary,
                          const Resharding &resharding,
                          const costmodel::Cluster &cluster);

} // namespace merak::resharding
