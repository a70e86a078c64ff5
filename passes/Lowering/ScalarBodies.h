// What an element-wise train op does to one element, in arith and math ops.
#pragma once

#include "mlir/IR/Builders.h"
#include "mlir/IR/Value.h"

namespace merak::lowering {

// `scalars`: one value per operand of `op`, signless. Requires
// op->hasTrait<train::Pointwise>().
mlir::Value emitScalarBody(mlir::OpBuilder &builder, mlir::Operation *op,
                           mlir::ValueRange scalars);

} // namespace merak::lowering
