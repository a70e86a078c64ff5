// Which ops of a list share a kernel, and what products do besides: the groups
// of FusionGroups.h and the epilogues of passes/Lowering/Epilogues.h, on shapes
// alone.
#pragma once

#include "passes/Planning/ActionKernels.h"

#include <algorithm>
#include <set>

namespace merak::planning {

// A product with what it does besides: see passes/Lowering/Epilogues.h.
struct FusedProduct {
  int op = -1;
  std::vector<int> ops; // besides
  int last = -1;        // where it runs
  int result = -1;      // values
  int source = -1;      // read in place of its operand; -1: that
  int bias = -1, argument = -1, sums = -1;
  bool gelu = false, slope = false;
};

struct ActionFusion {
  std::vector<std::vector<int>> groups; // ops, in order
  std::vector<FusedProduct> products;
  std::set<int> unused; // ops whose results nobody reads any more
};

inline bool has(const std::vector<int> &list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

ActionFusion fuseActions(const Graph &graph, const ActionOps &list,
                         ListOf which, const KernelOptions &options);

} // namespace merak::planning
