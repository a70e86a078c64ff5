// Gives every stage its ordered list of actions.
#pragma once

#include "mlir/IR/BuiltinOps.h"
#include "passes/Planning/Schedule.h"

namespace merak {

// `name`: a known schedule; `userSchedule`: one from a file, used instead.
// Checks it against the module's stages and transfers. A stage lists only the
// actions it has.
mlir::LogicalResult attachSchedule(mlir::ModuleOp module,
                                   const std::string &name,
                                   int64_t microbatches,
                                   const planning::Schedule *userSchedule);

} // namespace merak
