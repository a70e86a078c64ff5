// The step function as the small abstract graph that planning decides on.
#pragma once

#include "dialects/Train/NameAttribute.h"
#include "dialects/Train/TrainDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "passes/Planning/Partition.h"

namespace merak {

// Attributes of the arguments and results of @model and @step.
using train::kNameAttr;
inline constexpr llvm::StringLiteral kBatchedAttr = "train.batched";
// On a train.parameter: dimensions as large as the batch along which its values
// are all the same. Import writes it.
inline constexpr llvm::StringLiteral kRepeatsAttr = "train.repeats";

struct PlanningGraph {
  planning::Graph graph;
  std::vector<mlir::Operation *> ops;        // by graph op
  llvm::DenseMap<mlir::Value, int> tensorOf; // all reads of one parameter
                                             // share a tensor
  llvm::DenseMap<mlir::Operation *, int> opOf;
  std::vector<planning::Repeated> repeated; // of trained parameters
  std::vector<int> batched;                 // batched inputs
};

// Every op of @step but reads and constants becomes a graph op; parameters,
// inputs and constants are tensors without a producer.
PlanningGraph buildPlanningGraph(mlir::func::FuncOp step);

// The ONNX node name of an op, for messages; falls back to the op's name.
std::string nodeName(mlir::Operation *op);
// The role of an op (see train.role).
llvm::StringRef roleOf(mlir::Operation *op);

} // namespace merak
