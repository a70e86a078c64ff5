// The train dialect: ops, attributes and interfaces of the training graph.
#pragma once

#include "dialects/Support/Epilogue.h"
#include "dialects/Support/ShardingRule.h"
#include "dialects/Train/Traits.h"
#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "runtime/plan/Optimizer.h"

namespace merak {
llvm::hash_code hash_value(const Optimizer &optimizer);
} // namespace merak

#include "dialects/Train/TrainDialect.h.inc"
#include "dialects/Train/TrainEnums.h.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Train/TrainAttrs.h.inc"
#include "dialects/Train/TrainInterfaces.h.inc"

namespace merak::train {

// What mixed precision computes in beside f32 (docs/Precision.md).
inline bool isHalf(mlir::Type element) {
  return element.isBF16() || element.isF16();
}

// The rule of element-wise ops with NumPy broadcasting: one parallel factor a
// result dimension; size-1 operand dimensions have none. `linear`: see
// ShardingRule.
ShardingRule elementwiseRule(mlir::Operation *op,
                             std::vector<std::vector<int>> linear = {});

// Result type of NumPy broadcasting; `element` null: that of operand 0.
mlir::LogicalResult inferBroadcast(std::optional<mlir::Location> location,
                                   mlir::ValueRange operands,
                                   mlir::Type element,
                                   llvm::SmallVectorImpl<mlir::Type> &types);

// Discardable attribute on every op of a step function: which action the op
// belongs to.
inline constexpr llvm::StringLiteral kRoleAttr = "train.role";
inline constexpr llvm::StringLiteral kForward = "forward";
inline constexpr llvm::StringLiteral kBackwardInput = "backward_input";
inline constexpr llvm::StringLiteral kBackwardWeight = "backward_weight";
inline constexpr llvm::StringLiteral kUpdate = "update";

// Discardable attributes that tie gradients to forward ops: the position of a
// forward op, and on a backward op the position of the op it is a gradient of.
inline constexpr llvm::StringLiteral kIdAttr = "train.id";
inline constexpr llvm::StringLiteral kOfAttr = "train.of";
// Discardable attribute on an addition that sums the gradients of all uses of a
// value; its kOfAttr is that of a use.
inline constexpr llvm::StringLiteral kSumAttr = "train.sum";

// Discardable attribute on the module: the #train.config.
inline constexpr llvm::StringLiteral kConfigAttr = "train.config";

// On a train.parameter that the forward pass writes: a running statistic.
inline constexpr llvm::StringLiteral kStatisticAttr = "train.statistic";

} // namespace merak::train

#define GET_OP_CLASSES
#include "dialects/Train/TrainOps.h.inc"
