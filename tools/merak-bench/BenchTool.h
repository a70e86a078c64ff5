// The command line of merak-bench.
#pragma once

namespace merak::bench {

// Returns the exit code: 0 done, 1 failed, 2 wrong usage.
int benchToolMain(int argc, const char *const *argv);

} // namespace merak::bench
