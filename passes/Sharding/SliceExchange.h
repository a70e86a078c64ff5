// How the slices of a row-sparse gradient get from the action that makes them
// to the update.
#pragma once

#include "dialects/Dist/DistDialect.h"
#include "dialects/Pipe/PipeDialect.h"

namespace merak {

// The one store to the value that is loaded; null: there are several, or none.
pipe::StoreOp onlyStoreTo(pipe::StageOp stage, mlir::Value loaded);

// The exchange over replicas that makes a stored value, whose blocks lie one
// behind the other, behind the one place of a microbatch if there is one; null:
// another exchange, or none.
mlir::Operation *sliceExchangeOf(mlir::Value stored);

} // namespace merak
