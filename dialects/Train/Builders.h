// Short forms for building train ops.
#pragma once

#include "dialects/Train/TrainDialect.h"

namespace merak::train {

using mlir::Location;
using mlir::OpBuilder;
using mlir::Value;

inline mlir::RankedTensorType tensorTypeOf(Value value) {
  return llvm::cast<mlir::RankedTensorType>(value.getType());
}
// A scalar (rank 0) constant of the element type of `like`.
Value scalarConstant(OpBuilder &b, Location loc, mlir::Type element,
                     double value);
Value zerosLike(OpBuilder &b, Location loc, mlir::RankedTensorType type);
Value reduceSum(OpBuilder &b, Location loc, Value x,
                llvm::ArrayRef<int64_t> axes, bool keepdims);
Value reshapeTo(OpBuilder &b, Location loc, Value x,
                llvm::ArrayRef<int64_t> shape);
// Multiplies by a literal.
Value scale(OpBuilder &b, Location loc, Value x, double factor);
// x[:, start:start+size] on one axis.
Value sliceAxis(OpBuilder &b, Location loc, Value x, int64_t axis,
                int64_t start, int64_t size);
// The adjoint of broadcasting to the type of `grad`: sums over the dimensions
// in which `type` is 1 or missing.
Value reduceToType(OpBuilder &b, Location loc, Value grad,
                   mlir::RankedTensorType type);

} // namespace merak::train
