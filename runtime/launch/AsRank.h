// One process of a run of several: all of them begin together and end together.
#pragma once

#include "runtime/comm/World.h"
#include "runtime/launch/LaunchIdentity.h"
#include "runtime/launch/Places.h"

#include <functional>
#include <map>

namespace merak::runtime {

// How ranks that are processes meet and communicate (--ranks=env), by backend.
using WorldFactory =
    std::function<Result<std::unique_ptr<World>>(const LaunchIdentity &)>;
using WorldRegistry = std::map<std::string, WorldFactory>;

constexpr int kFailed = 1; // an exit code

// Opens the world that the environment tells of and runs `body` in it. A
// failure of one process ends the others within seconds. `early`: why a run
// that went well ended before its time; rank 0 says so. Messages go to stderr
// after "TOOL: error: "; returns the exit code, of a failure `failureCode`.
// `hostMemory`: see LaunchIdentity. `places`: which rank and which device of
// its host it is meant to be; empty: those of its number.
int asRank(const std::string &tool, const std::string &backend,
           const WorldRegistry &worlds,
           const std::function<Status(World &, std::string &early)> &body,
           const int &failureCode = kFailed, bool hostMemory = false,
           const std::vector<Place> &places = {});

// Prints the messages that are not empty, as above.
int exitCode(const std::string &tool, const Status &status);

} // namespace merak::runtime
