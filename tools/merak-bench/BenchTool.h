// The command line of merak-bench.
#pragma once

#include "runtime/launch/RunMain.h"
#include "tools/merak-bench/Cases.h"

namespace merak::bench {

// Returns the exit code: 0 done, 1 failed, 2 wrong usage. `grid`: sizes other
// than the machine's, for tests.
int benchToolMain(int argc, const char *const *argv,
                  const runtime::BackendRegistry &backends,
                  const runtime::WorldRegistry &worlds,
                  const GridSizes *grid = nullptr);

} // namespace merak::bench
