// Which buffers an instruction reads and writes: what passes that move
// instructions of a procedure look at.
#pragma once

#include "dialects/Plan/PlanDialect.h"

#include "llvm/ADT/DenseSet.h"

namespace merak::lowering {

using BufferNames = llvm::SmallDenseSet<mlir::StringAttr>;

// Calls visit(name) for the buffer of each view.
template <typename Visit> void forBuffers(mlir::ArrayAttr views, Visit visit) {
  for (mlir::Attribute view : views)
    visit(mlir::cast<plan::ViewAttr>(view).getBuffer().getAttr());
}

struct Touched {
  BufferNames reads, writes;
  explicit Touched(plan::InstructionOpInterface op) {
    forBuffers(op.getInputs(),
               [&](mlir::StringAttr name) { reads.insert(name); });
    forBuffers(op.getOutputs(),
               [&](mlir::StringAttr name) { writes.insert(name); });
    // Sums read what they add to.
    if (op.accumulates())
      reads.insert(writes.begin(), writes.end());
  }
  bool has(mlir::StringAttr name) const {
    return reads.contains(name) || writes.contains(name);
  }
  // Whether the two must keep their order.
  bool conflicts(const Touched &other) const {
    return llvm::any_of(writes,
                        [&](mlir::StringAttr n) { return other.has(n); }) ||
           llvm::any_of(other.writes,
                        [&](mlir::StringAttr n) { return has(n); });
  }
};

} // namespace merak::lowering
