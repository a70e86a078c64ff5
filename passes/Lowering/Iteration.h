// The loops of a train op that a generated kernel may contain: sizes, which of
// them reduce, and which loop each dimension of an operand or result walks.
#pragma once

#include "mlir/IR/Operation.h"
#include "llvm/ADT/SmallVector.h"

#include <cstdint>
#include <optional>

namespace merak::lowering {

// Loop of a dimension; kNoLoop: always index 0 (size 1, or broadcast).
inline constexpr int kNoLoop = -1;
using DimLoops = llvm::SmallVector<int, 4>;

struct Iteration {
  llvm::SmallVector<int64_t, 4> sizes;
  // Loops that the op reduces for some of its results, e.g. the row of a
  // softmax; those results do not walk them.
  llvm::SmallVector<bool, 4> reduced;
  llvm::SmallVector<DimLoops, 4> operands, results;

  bool reduces() const { return llvm::is_contained(reduced, true); }
  int64_t countOf(bool ofReduced) const {
    int64_t count = 1;
    for (auto [size, isReduced] : llvm::zip(sizes, reduced))
      count *= isReduced == ofReduced ? size : 1;
    return count;
  }
};

// Nothing if no kernel can hold the op.
std::optional<Iteration> iterationOf(mlir::Operation *op);

} // namespace merak::lowering
