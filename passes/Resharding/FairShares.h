// Links that transfers share instead of taking turns.
#pragma once

#include "passes/Resharding/Transfers.h"

namespace merak::resharding {

// All transfers that can run do so at the same
// time, each with its max-min fair share of the slowest interface it needs.
// `inOrder`: a device takes part in one transfer at a time, in the order of the
// list; else all begin at once. Copies and gathers take no time. Returns when
// the last one ends.
double fairSeconds(const std::vector<Transfer> &transfers, bool inOrder,
                   int64_t elementBytes, const costmodel::Cluster &cluster);

} // namespace merak::resharding
