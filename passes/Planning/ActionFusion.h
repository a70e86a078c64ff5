// Which ops of a list share a kernel, and what products do besides: the groups
// of FusionGroups.h and the epilogues of Epilogues.h, on shapes alone.
#pragma once

#include "passes/Planning/ActionKernels.h"
#include "passes/Planning/Epilogues.h"

#include <algorithm>
#include <set>

namespace merak::planning {

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
