// Sequence parallelism (Korthikanti et al., "Reducing Activation Recomputation
// in Large Transformer Models", MLSys 2023): where tensor parallelism divides
// nothing, around norms, residual sums and dropout, tokens are split over its
// ranks. Each all-reduce in front of such a part becomes a reduce-scatter there
// and an all-gather behind it: the same bytes, activations divided by tp.
#pragma once

#include "passes/Planning/Partition.h"

namespace merak::planning {

struct SequenceSeams {
  int tokens = -1; // the class to split, of those without seams
  // Uses where values go into ops that tp divides, and where they come out.
  std::vector<TensorUse> entries, exits;

  std::vector<TensorUse> uses() const {
    std::vector<TensorUse> all = entries;
    all.insert(all.end(), exits.begin(), exits.end());
    return all;
  }
};

// The seams of an assignment that splits classes over tp; dimension 0 of the
// tensors `batched` are samples, not tokens. Errors: it has no sums over tp, or
// no dimension besides the batch that tp divides in them.
Result<SequenceSeams> sequenceSeams(const Graph &graph, const Classes &classes,
                                    const std::vector<int> &batched,
                                    const Assignment &base);

} // namespace merak::planning
