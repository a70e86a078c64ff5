// The command line of merak-bench.
#pragma once

#include "runtime/core/Backend.h"
#include "tools/merak-bench/Cases.h"

#include <functional>

namespace merak::bench {

// The backend of this machine's GPU, or a sentence that says why there is none.
using OpenDevice = std::function<Result<std::unique_ptr<runtime::Backend>>()>;

// Returns the exit code: 0 done, 1 failed, 2 wrong usage. `grid`: sizes other
// than the machine's, for tests.
int benchToolMain(int argc, const char *const *argv,
                  const OpenDevice &openDevice,
                  const GridSizes *grid = nullptr);

} // namespace merak::bench
