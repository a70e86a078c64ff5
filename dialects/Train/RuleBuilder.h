// Helpers to write sharding rules; internal to the dialect.
#pragma once

#include "dialects/Support/Rules.h"
#include "dialects/Train/TrainDialect.h"

namespace merak::train {

inline llvm::ArrayRef<int64_t> shapeOf(mlir::Value value) {
  return llvm::cast<mlir::RankedTensorType>(value.getType()).getShape();
}

} // namespace merak::train
