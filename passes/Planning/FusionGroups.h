// Which ops of a list become one generated kernel: of the actions that are
// lowered (passes/Lowering/FusionGroups.h), and of those that the search prices
// (ActionKernels.h). One rule for both.
//
// Greedy, in the order of the list: an op joins the groups of its producers if
// all of them walk one iteration space. A group runs where its last op stands,
// so that nothing outside may need a result of it before that place. Values
// used outside are written to memory; all others live in registers.
#pragma once

#include "passes/Planning/FactorGraph.h"

#include <functional>
#include <vector>

namespace merak::planning {

struct FusionOptions {
  // Reductions with fewer independent results than this stay library kernels,
  // which divide the reduced elements themselves; unless they are small.
  int64_t minRows = 8, minColumns = 64;
  int64_t smallElements = 32768;
  size_t maxOps = 32, maxValues = 24; // of a group
};
// A GPU wants so many results before the blocks of a kernel, which do not
// share the sum of one, fill it: 132 processors with eight blocks each, of one
// row or 32 columns.
FusionOptions fusionFor(bool gpu);

struct FusionOp {
  const Loops *loops = nullptr;       // null: no kernel can hold it
  std::vector<int64_t> sizes;         // of the loops, on a device
  std::vector<int> operands, results; // values
  // No group has ops on both sides of it: it changes memory that others read.
  bool barrier = false;
};

// Groups of the list, disjoint, by the place of their last op; every op for
// which a kernel is worthwhile is in one. `mayDelay(user, op)`: a user outside
// of the group that can be moved behind `op`. `mayBe(group)`: what else a group
// must fulfil.
std::vector<std::vector<int>>
formFusionGroups(const std::vector<FusionOp> &ops, const FusionOptions &options,
                 const std::function<bool(int, int)> &mayDelay,
                 const std::function<bool(const std::vector<int> &)> &mayBe);

} // namespace merak::planning
