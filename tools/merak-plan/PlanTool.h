// The command line of merak-plan.
#pragma once

#include <iosfwd>

namespace merak {

// Returns the exit code: 0 done, 1 a broken plan, differing plans or unusable
// files, 2 wrong usage, 70 a bug of ours.
int planToolMain(int argc, const char *const *argv, std::ostream &out,
                 std::ostream &err);

} // namespace merak
