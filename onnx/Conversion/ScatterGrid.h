// ScatterND at places that are known ahead of time and form a grid, as an
// assignment to a slice makes them: then every dimension stays what it is and
// can be split, where a scatter needs its operand whole.
#pragma once

#include "passes/Graph/GraphBuilder.h"

namespace merak {

// Rows of a tensor's leading dimensions: `rows[d]` along dimension d, one for
// each step of the indices' dimension `axis[d]` (-1: one row, of no dimension).
struct IndexGrid {
  llvm::SmallVector<llvm::SmallVector<int64_t>> rows;
  llvm::SmallVector<int64_t> axis;
};

// The grid that `ids` [..., depth] name in a tensor of `shape`; none if they
// are not the product of distinct rows of each dimension.
std::optional<IndexGrid> indexGridOf(mlir::DenseElementsAttr ids,
                                     llvm::ArrayRef<int64_t> shape);

// `data` with `updates` at the places of the grid; `combine` says what becomes
// of an old and a new value.
mlir::Value
scatterGrid(GraphBuilder &b, mlir::Value data, const IndexGrid &grid,
            mlir::Value updates,
            llvm::function_ref<mlir::Value(mlir::Value, mlir::Value)> combine);

} // namespace merak
