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

// Whether a view is all of its buffer, row major.
inline bool isWhole(plan::ViewAttr view, plan::BufferOp buffer) {
  return view.getOffset() == 0 && view.isDense() &&
         view.getNumElements() ==
             mlir::cast<mlir::RankedTensorType>(buffer.getType())
                 .getNumElements();
}

// The same place of another buffer.
inline plan::ViewAttr viewOf(mlir::StringAttr buffer, plan::ViewAttr view) {
  return plan::ViewAttr::get(
      view.getContext(), mlir::FlatSymbolRefAttr::get(buffer), view.getOffset(),
      view.getShape(), view.getStrides());
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
