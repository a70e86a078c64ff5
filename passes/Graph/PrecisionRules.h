// Which operations gain from 16 bits, and which need f32.
#pragma once

#include "mlir/IR/Operation.h"

namespace merak {

// low      what runs on matrix units: operands are converted to 16 bits
// follow   computes in the type its operands already have
// any      takes operands of 16 bits and has f32 results
// full     all others (sums, logarithms, powers, ...): operands are converted
//          to f32
enum class PrecisionKind { Low, Follow, Any, Full };

PrecisionKind precisionKindOf(mlir::Operation *op);

// Operands that stay as they are: scales and biases of normalizations, tables
// of a rotation, the mask of an attention, what a gather reads.
bool keepsPrecision(mlir::OpOperand &operand);

} // namespace merak
