// What planning considered, in the form that the plan keeps for reports.
#pragma once

#include "passes/Planning/PlanSearch.h"
#include "runtime/report/Decisions.h"

namespace merak {

// Best first; the first that has a plan is the chosen one. `globalBatch` gives
// the samples of a microbatch.
std::vector<report::CandidatePlan>
consideredCandidates(const std::vector<planning::PlanCandidate> &candidates,
                     int64_t globalBatch);

// Adds the points of the curve that `considered` lacks.
void considerDrawn(const std::vector<planning::PlanCandidate> &drawn,
                   int64_t globalBatch,
                   std::vector<report::CandidatePlan> &considered);

// One a virtual stage. `memoryBytes`: of a device; 0: not limited.
std::vector<report::StageDecision>
consideredStages(const planning::StageModel &model,
                 const planning::PipelineShape &shape,
                 const planning::PipelinePlan &plan, double memoryBytes);

} // namespace merak
