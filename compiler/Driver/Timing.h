// `merakc --timing`: where the time of a compilation went.
#pragma once

#include "passes/Planning/SearchTimes.h"

#include <string>
#include <utility>
#include <vector>

namespace merak {

struct CompileTimes {
  // Phases in the order of their first run; one that runs again, for another
  // plan, counts again.
  std::vector<std::pair<std::string, planning::TimedWork>> phases;
  planning::SearchTimes search;     // part of the phase "stage"
  planning::TimedWork confirmation; // plans simulated before one is written
  planning::TimedWork all;

  planning::TimedWork &phase(const std::string &name);
  // A table, and the most memory that this process has had.
  std::string str() const;
};

} // namespace merak
