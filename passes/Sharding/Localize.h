// From the global view to the program of one rank: local shapes everywhere.
#pragma once

#include "mlir/IR/BuiltinOps.h"

namespace merak {

// Gives every value of every stage its local type, and ops whose attributes
// speak of positions their local attributes. Requires `dist.mesh` on the
// module and a layout on every value.
mlir::LogicalResult localize(mlir::ModuleOp module);

} // namespace merak
