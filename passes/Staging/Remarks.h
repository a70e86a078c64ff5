// Decisions of planning as remarks (mlir/IR/Remarks.h), at what they are about.
#pragma once

#include "passes/Staging/Planner.h"

namespace merak {

// Categories and what stands at which place:
//   mesh       module: the degrees chosen; each other candidate that was
//   planned
//              is a missed one, with why it lost
//   layout     parameters that are split, dimension by axes; contractions that
//              no tensor-parallel axis divides are missed
//   stage      the first op of each stage: its seconds and bytes
//   recompute  ops that the backward pass computes again
//   sparse     module: what each exchange of a table's gradient would take
// Later phases have remarks of the categories schedule, overlap, bucket and
// memory.
void remarkDecision(mlir::ModuleOp module, const Decision &decision);

} // namespace merak
