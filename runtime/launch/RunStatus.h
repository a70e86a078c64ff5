// What the log of a run says of it by now, for people (merak-run --status).
#pragma once

#include "runtime/core/Status.h"

#include <string>

namespace merak::runtime {

// Its last step; the rates of its ranks, where they were measured; where it
// changed its plan or was started again; its copies in memory. Errors: not a
// log, or one with nothing but steps.
Result<std::string> statusOf(const std::string &logPath);

} // namespace merak::runtime
