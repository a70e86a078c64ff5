// merakc in a process of its own, beside a run that trains on the same machine:
// it gets the processor time that training leaves.
#pragma once

#include "runtime/core/Status.h"

#include <atomic>
#include <string>
#include <vector>

namespace merak::runtime {

// The merakc beside this program, or, if there is none, of PATH.
std::string defaultCompiler();

// Waits for it; the error has what it printed first. `stop`, set by another
// thread, ends the process.
Status runCompiler(const std::string &compiler,
                   const std::vector<std::string> &arguments,
                   const std::atomic<bool> &stop);

} // namespace merak::runtime
