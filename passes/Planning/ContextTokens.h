// Context parallelism (Liu et al., "Ring Attention", 2023; here with keys and
// values gathered, as in Llama 3, 2024, section 3.3.2): the tokens of a sample
// are split over tp everywhere and weights are whole. Only attention looks at
// other tokens: its queries stay where they are, keys and values are gathered,
// their gradients reduce-scattered.
#pragma once

#include "passes/Planning/Partition.h"

namespace merak::planning {

// The class of tokens: of those that tp divides, no sample and summed by no
// product on the way forward, the one whose split leaves a device the fewest
// FLOPs of products, and of those the fewest bytes to send. `base` has the
// batch axes. Errors: splitting none divides any product.
Result<int> contextTokens(const Graph &graph, const Classes &classes,
                          const Assignment &base, int64_t tp);

} // namespace merak::planning
