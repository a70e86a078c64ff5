// The ops of an action as the chain of tasks that each submicrobatch runs
// (passes/Planning/TwoStream.h).
#pragma once

#include "dialects/Dist/DistDialect.h"
#include "mlir/IR/Operation.h"
#include "passes/CostModel/Cluster.h"
#include "passes/Planning/TwoStream.h"

namespace merak {

// Whether a conversion is between the submicrobatches of a microbatch on one
// device.
bool isBetweenSubmicrobatches(mlir::Operation *op);
bool isCollective(mlir::Operation *op);
// Ops that become views or nothing.
bool isFree(mlir::Operation *op);
// Whether a value is of one submicrobatch: see Submicrobatches.h.
bool isOfSubmicrobatch(dist::LayoutAttr layout);
// Whether an op of an action runs once for both submicrobatches.
bool isOfBothSubmicrobatches(mlir::Operation *op);

class SubmicrobatchChain {
public:
  // `cluster` gives times and must outlive this.
  SubmicrobatchChain(dist::MeshAttr mesh, const costmodel::Cluster &cluster);

  double secondsOf(mlir::Operation *op) const;
  // Of a collective as if it had so many bytes (costmodel::collectiveSeconds).
  double collectiveSeconds(mlir::Operation *op, double bytes) const;
  // Whether a collective leaves its node: others have other links.
  bool leavesNode(mlir::Operation *op) const;
  // A phase ends with the ops that join the results of its collectives to the
  // rest.
  planning::Chain chainOf(llvm::ArrayRef<mlir::Operation *> ops) const;
  bool byAxis() const { return byAxis_; }

private:
  std::vector<int64_t> membersOf(mlir::Operation *op) const;

  dist::MeshAttr mesh_;
  bool byAxis_; // submicrobatches are positions of kSubmicrobatchAxis, not of
                // "mb"
  const costmodel::Cluster &cluster_;
};

} // namespace merak
