// The options of merak-run that concern its agent.
#pragma once

#include "runtime/launch/Agent.h"

#include <CLI/CLI.hpp>

namespace merak::runtime {

void addAgentOptions(CLI::App &app, AgentOptions &options);

// The command line as it was given, for the runs that an agent starts: without
// its own options, and without what it says anew for each run (the plan,
// --steps, --load, --ranks). `withPlans`: --plans is for the runs.
std::vector<std::string> argumentsOfRuns(const CLI::App &app, bool withPlans);

} // namespace merak::runtime
