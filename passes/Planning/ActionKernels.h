// The kernels that lowering will make of a list of ops: which ops share one,
// what products do besides, what becomes a view and what has to be copied. The
// same decisions as in passes/Lowering, on shapes alone, so that the search
// prices what the plan will run.
#pragma once

#include "passes/CostModel/Cost.h"
#include "passes/Planning/ActionOps.h"

namespace merak::planning {

struct KernelOptions {
  bool gpu = false; // products have epilogues, sums ride on them
  double microbatches = 1;
  bool tokens = false; // submicrobatches, if any, are of tokens
};

// What runs where an op stands.
struct ActionKernel {
  costmodel::Kernel work;
  // Of its bytes, those of no submicrobatch: weights, and their gradients,
  // which each one reads and writes as a whole.
  double wholeBytes = 0;
};
struct OpKernels {
  std::vector<ActionKernel> kernels;
  std::vector<int> members; // ops that these do; empty: the op alone
};

struct ListKernels {
  std::vector<OpKernels> ops;    // by op of the list
  std::vector<char> inRegisters; // by value: never in memory
};

ListKernels kernelsOf(const Graph &graph, const Outcome &outcome,
                      const ActionOps &list, ListOf which,
                      const KernelOptions &options);

} // namespace merak::planning
