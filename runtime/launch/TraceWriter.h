// What happened when, in Chrome's trace format (chrome://tracing, Perfetto):
// a process for each rank, a thread for each stream.
#pragma once

#include "runtime/comm/rendezvous/Store.h"
#include "runtime/core/Executor.h"

namespace merak::runtime {

// With a store rank 0 writes what all processes call this with. The clocks of
// several hosts agree as well as their times of day.
Status writeTrace(const std::string &path,
                  const std::vector<Executor *> &executors,
                  Store *store = nullptr);

} // namespace merak::runtime
