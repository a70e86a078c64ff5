// The options of merak-run that concern its agent.
#pragma once

#include "runtime/launch/Agent.h"

#include <CLI/CLI.hpp>

namespace merak::runtime {

void addAgentOptions(CLI::App &app, AgentOptions &options);
// Empty: they fit together.
std::string usageProblem(const AgentOptions &options, const AgentRun &run);

// The command line as it was given, for the runs that an agent starts: without
// its own options, and without what it says anew for each run (the plan,
// --steps, --load, --ranks). `withPlans`: --plans and --compiler are for the
// runs.
std::vector<std::string> argumentsOfRuns(const CLI::App &app, bool withPlans);

} // namespace merak::runtime
