// Gives every stage its ordered list of actions.
#pragma once

#include "mlir/IR/BuiltinOps.h"
#include "passes/Planning/Schedule.h"

namespace merak {

// `name`: a known schedule, or the file that `userSchedule` comes from, which
// is used instead. Checks it against the module's stages and transfers. A stage
// lists only the actions it has, and all of them: P, R, W and U that the
// schedule leaves out are put in their usual places. `used` gets the schedule.
mlir::LogicalResult attachSchedule(mlir::ModuleOp module,
                                   const std::string &name,
                                   int64_t microbatches,
                                   const planning::Schedule *userSchedule,
                                   planning::Schedule *used = nullptr);

// The same with `asked`, or where that is empty with what the stage phase
// decided and noted on the module, or else 1f1b.
mlir::LogicalResult attachDecidedSchedule(mlir::ModuleOp module,
                                          const std::string &asked = "",
                                          planning::Schedule *used = nullptr);

} // namespace merak
