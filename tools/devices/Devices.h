// What this build can run on: every backend, and how processes of ranks
// communicate, for the tools that run something.
#pragma once

#include "runtime/launch/RunMain.h"

namespace merak {

// "cpu" and "cuda". What was not built, or is not there, says so in a sentence.
const runtime::BackendRegistry &deviceBackends();
const runtime::WorldRegistry &deviceWorlds();

// What was built in, and what of it this machine has: one line for each
// library.
std::string deviceVersions();

} // namespace merak
