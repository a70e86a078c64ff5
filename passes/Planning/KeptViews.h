// Which views of the forward pass the backward pass takes again of what they
// are views of, instead of finding them kept: q, k and v of one packed product,
// a transpose or reshape of a value that is kept anyway.
#pragma once

#include "passes/Planning/Partition.h"

namespace merak::planning {

// By op: whether an action that reads its result takes the view itself, where
// it is on the same stage. So does a view that leaves rows (the last dimension)
// in one piece, for kernels read such rows as fast as dense ones; other orders
// of elements are written once and kept. A slice is one if its operand is kept
// besides, or if all slices that are read are together no smaller than it:
// keeping the operand then takes no more memory. `mesh`: the sizes of axes that
// divide shapes.
std::vector<char> viewsTakenAgain(const Graph &graph, const Outcome &outcome,
                                  const layout::AxisMap &mesh);

} // namespace merak::planning
