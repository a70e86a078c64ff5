// Writes train ops as the linalg ops of a kernel function: element-wise ops
// with their broadcasting, reductions, normalizations, softmax and its cross
// entropy. What a kernel function may hold is in docs/Kernels.md.
#pragma once

#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/IR/Operation.h"

namespace merak::lowering {

// Whether a generated kernel can hold the op.
bool isFusable(mlir::Operation *op);

// Writes `op` at the builder's place. `mapping` gives the tensors of its
// operands, splat constants excepted, and receives those of its results.
// Requires isFusable(op).
void writeLinalg(mlir::OpBuilder &builder, mlir::Operation *op,
                 mlir::IRMapping &mapping);

// The type without the sign of its elements: kernels have bits, and ops that
// know how to read them.
mlir::Type signlessType(mlir::Type type);

} // namespace merak::lowering
