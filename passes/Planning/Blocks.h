// The forward ops of a model as a chain of blocks: pieces between positions
// that few values cross. For a transformer one block is an attention or an MLP
// with its residual. Recomputation by ratio and reports count in blocks.
#pragma once

#include "passes/Planning/FactorGraph.h"

namespace merak::planning {

struct Block {
  std::vector<int> ops;     // graph ops, in order
  bool parameters = false;  // some op reads a parameter
  bool contraction = false; // some op is a product or a convolution
  bool embedding = false;   // some op looks up rows of a parameter
};

// Cuts a run of forward ops (graph ops in topological order) where the fewest
// values cross; values with more than five readers, as masks, do not count.
// Pieces without a product with parameters join the one before, but for an
// embedding. `embedding` by
// graph op.
// (Lai et al., 2023, Merak, section "graph sharding", in spirit: its threshold
// on parameters is replaced by the count of values.)
std::vector<Block> findBlocks(const Graph &graph, const std::vector<int> &ops,
                              const std::vector<char> &embedding);

} // namespace merak::planning
