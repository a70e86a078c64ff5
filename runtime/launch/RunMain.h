// The body of merak-run: options, the loop over steps, exit codes.
#pragma once

#include "runtime/launch/AsRank.h"
#include "runtime/launch/LinkOption.h"
#include "runtime/launch/PlanPool.h"
#include "runtime/launch/Rates.h"
#include "runtime/launch/Session.h"

namespace merak::runtime {

// The backends that this build has, by name ("cpu"); the tool's main fills it.
using BackendRegistry = std::map<std::string, BackendFactory>;

// Returns the exit code: 0 done, 1 the input or the run failed, 2 wrong usage.
// Without `clusterLinks` no cluster file is read. `versions`: what --version
// prints. `expected`: what --rates compares with, `predicted`: what MERAK_PACE
// is relative to; `prices`: what --replan chooses plans by.
int runMain(int argc, char **argv, const BackendRegistry &backends,
            const ClusterLinks &clusterLinks = nullptr,
            const WorldRegistry &worlds = {},
            const std::function<std::string()> &versions = nullptr,
            const ExpectedSeconds &expected = nullptr,
            const PredictedSeconds &predicted = nullptr,
            const PlanPrices &prices = {});

} // namespace merak::runtime
