// What happened when, in Chrome's trace format (chrome://tracing, Perfetto):
// a process for each rank, a thread for each stream.
#pragma once

#include "runtime/core/Executor.h"

namespace merak::runtime {

Status writeTrace(const std::string &path,
                  const std::vector<Executor *> &executors);

} // namespace merak::runtime
