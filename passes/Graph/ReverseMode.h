// Reverse-mode differentiation of a list of ops: used for the training step
// (differentiate) and for Gradient nodes inside a model (legalize-onnx).
#pragma once

#include "dialects/Train/TrainDialect.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"

namespace merak {

class ReverseMode {
public:
  // `needed`: the values whose gradient somebody asks for, directly or on the
  // way. Float tensors only.
  explicit ReverseMode(const llvm::DenseSet<mlir::Value> &needed)
      : needed(needed) {}

  // Gradients of the sum of the elements of `y`, or with `scaled` of that times
  // the scale of the loss, by walking `forward` (in their order) backwards. New
  // ops stand where `b` inserts and name the op that they belong to (kOfAttr),
  // if it has a number. Reports all ops that have no gradient before it fails.
  mlir::LogicalResult run(mlir::OpBuilder &b,
                          llvm::ArrayRef<mlir::Operation *> forward,
                          mlir::Value y, bool scaled = false);

  // By value, in the order they came up.
  llvm::MapVector<mlir::Value, mlir::Value> gradient;

private:
  mlir::LogicalResult differentiate(mlir::OpBuilder &b, mlir::Operation *op);

  const llvm::DenseSet<mlir::Value> &needed;
};

bool isFloatTensor(mlir::Value value);

} // namespace merak
