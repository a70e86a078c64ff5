// What planning for stragglers found, for people and programs.
#pragma once

#include "passes/Stragglers/Description.h"
#include "passes/Stragglers/Replan.h"

namespace merak::stragglers {

// One situation: the plan that runs, a restart, and what was found.
struct Findings {
  std::string name;
  const Problem *problem = nullptr;
  Plan old;
  std::optional<Plan> restarted;
  Replanning replanning;
};
// Errors: those of `replan`.
Result<Findings> findingsOf(const std::string &name, const Problem &problem,
                            const Plan &old, const ReplanOptions &options);

// "128 devices on 16 nodes, 3 slow, 1 gone".
std::string devicesStr(const Problem &problem);

// A table of the reactions beside the uniform plans, bound and theory, then
// the plan. Times in `unit` seconds, or as they are where that is 0.
std::string describe(const Findings &findings, double unit);
// An object.
std::string toJson(const Findings &findings, double unit);
// {"pipelines": [...]}, which parsePlan reads.
std::string toJson(const Plan &plan);

// The same as a strategy of merakc, which cuts the layers of each pipeline
// itself: by its prices, which know more than layers.
std::string toStrategy(const Problem &problem, const Plan &plan);

// A line for each: steady steps, the last columns over bound and theory, and
// how many times longer uniform plans take.
std::string tableStr(const std::vector<Findings> &all, double unit);

} // namespace merak::stragglers
