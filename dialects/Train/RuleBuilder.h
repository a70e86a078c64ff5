// Helpers to write sharding rules; internal to the dialect.
#pragma once

#include "dialects/Train/TrainDialect.h"

namespace merak::train {

inline llvm::ArrayRef<int64_t> shapeOf(mlir::Value value) {
  return llvm::cast<mlir::RankedTensorType>(value.getType()).getShape();
}

// One dimension made of one factor; those of sizes 1 and 0 have none.
inline RuleDim dimOf(int64_t size, int factor) {
  return size <= 1 ? RuleDim{} : RuleDim{factor};
}

// Adds a factor of `kind` for a dimension; -1 for sizes 1 and 0.
inline int addFactor(ShardingRule &rule, int64_t size,
                     FactorKind kind = FactorKind::Parallel) {
  return size <= 1 ? -1 : rule.add(size, kind);
}
inline RuleDim dimOf(int factor) {
  return factor < 0 ? RuleDim{} : RuleDim{factor};
}

// One factor per dimension of a shape.
inline std::vector<int> addFactors(ShardingRule &rule,
                                   llvm::ArrayRef<int64_t> shape,
                                   FactorKind kind = FactorKind::Parallel) {
  std::vector<int> factors;
  for (int64_t size : shape)
    factors.push_back(addFactor(rule, size, kind));
  return factors;
}
inline RuleTensor tensorOf(llvm::ArrayRef<int> factors) {
  RuleTensor tensor;
  for (int factor : factors)
    tensor.push_back(dimOf(factor));
  return tensor;
}

// A tensor that broadcasts (right-aligned) to dimensions with these factors.
inline RuleTensor broadcastOf(llvm::ArrayRef<int64_t> shape,
                              llvm::ArrayRef<int> factors) {
  RuleTensor tensor;
  size_t lead = factors.size() - shape.size();
  for (size_t i = 0; i < shape.size(); ++i)
    tensor.push_back(shape[i] <= 1 ? RuleDim{} : dimOf(factors[lead + i]));
  return tensor;
}

} // namespace merak::train
