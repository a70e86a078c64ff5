// How many threads a process should compute with when several processes of a
// run are on one machine, bound to cores by their launcher or not.
#pragma once

#include "runtime/comm/rendezvous/Store.h"

namespace merak::runtime {

// The share of process `me` in the cores that it may use, each divided by the
// processes that may use it too; at least 1. `cores`: by process.
int cpuShare(const std::vector<std::vector<int>> &cores, size_t me);

// The same for this process among those of its host; all processes call it.
Result<int> cpuShare(Store &store);

} // namespace merak::runtime
