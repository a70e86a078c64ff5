// The stage phase: decide, write layouts, outline stages.
#pragma once

#include "passes/Staging/OutlineStages.h"
#include "passes/Staging/Planner.h"

namespace merak {

// Turns @step into stage programs; degrees in `outline` come from the decision.
// Sets `dist.mesh` on the module.
mlir::FailureOr<Decision> cutStages(mlir::ModuleOp module,
                                    const PlannerOptions &planner,
                                    OutlineOptions outline);

} // namespace merak
