// Checks that verifiers of several ops make. Each reports one sentence at the
// op: what was expected, what was found.
#pragma once

#include "dialects/Train/TrainDialect.h"

namespace merak::train {

using Dims = llvm::SmallVector<int64_t>;

inline llvm::ArrayRef<int64_t> dimsOf(mlir::Value value) {
  return llvm::cast<mlir::RankedTensorType>(value.getType()).getShape();
}

// 0 <= axis < rank of x.
mlir::LogicalResult verifyAxis(mlir::Operation *op, int64_t axis,
                               mlir::Value x);

// `value`, called `name` in the definition, has this shape. Null is fine: an
// optional operand.
mlir::LogicalResult verifyShape(mlir::Operation *op, llvm::StringRef name,
                                mlir::Value value,
                                llvm::ArrayRef<int64_t> shape);

// The values' element types are one.
mlir::LogicalResult verifyOneElementType(mlir::Operation *op,
                                         mlir::ValueRange values);

// table[:axis] + ids[batch:] + table[axis+1:], the rows that ids choose.
mlir::FailureOr<Dims> rowsShape(std::optional<mlir::Location> location,
                                mlir::RankedTensorType table,
                                mlir::RankedTensorType ids, int64_t axis,
                                int64_t batch);

} // namespace merak::train
