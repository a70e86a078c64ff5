// The machine that passes of the shard phase take times from.
#pragma once

#include "mlir/IR/BuiltinOps.h"
#include "passes/CostModel/Cluster.h"

namespace merak {

// What the stage phase noted, or one process.
Result<costmodel::Cluster> machineOf(mlir::ModuleOp module);

} // namespace merak
