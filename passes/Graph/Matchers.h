// Small matchers that the raising patterns share.
#pragma once

#include "passes/Graph/GraphBuilder.h"
#include "passes/Graph/HostTensor.h"

#include <cmath>

namespace merak {

inline bool nearly(double a, double b, double tolerance = 1e-5) {
  return std::fabs(a - b) <= tolerance * std::max(std::fabs(a), std::fabs(b));
}

// The constant a value stands for, also behind an expand.
mlir::DenseElementsAttr constantThrough(mlir::Value value);

// x and the number c of `op(x, c)`, in either order.
template <typename OpTy>
std::optional<std::pair<mlir::Value, double>> withNumber(mlir::Value value) {
  auto op = value.getDefiningOp<OpTy>();
  if (!op)
    return std::nullopt;
  if (std::optional<double> number = splatOf(op.getRhs()))
    return std::pair(op.getLhs(), *number);
  if (std::optional<double> number = splatOf(op.getLhs()))
    return std::pair(op.getRhs(), *number);
  return std::nullopt;
}

// factor * values[0] * values[1] ..., through mul, neg and division by numbers.
struct Product {
  double factor = 1;
  llvm::SmallVector<mlir::Value> values;
};
// `stop` stays whole.
Product productOf(mlir::Value value, mlir::Value stop = {});

// The mean over `axes` with kept dimensions.
struct Mean {
  mlir::Value x;
  Shape axes;
};
std::optional<Mean> meanOf(mlir::Value value);

// 1 / sqrt(m + epsilon): the value of m.
struct InverseRoot {
  mlir::Value x; // what is multiplied by it
  mlir::Value m;
  double epsilon;
};
// x / sqrt(m + epsilon) or x * (1 / sqrt(m + epsilon)).
llvm::SmallVector<InverseRoot> inverseRootsOf(mlir::Operation *op);

// Whether a trained parameter has a part in the value.
bool dependsOnTrained(mlir::Value value);

} // namespace merak
