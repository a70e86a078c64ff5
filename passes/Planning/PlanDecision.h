// Everything that the search decided on a graph, as values over its ops: what
// staging applies, and with the strategy what a file says.
#pragma once

#include "passes/Planning/PlanSearch.h"

namespace merak::planning {

// Of one of several pipelines what need not be as in the others.
struct PipelineDecision {
  Degrees degrees; // pp: its stages; of microbatches those of the step
  int64_t chunks = 1;
  int64_t firstMicrobatch = 0, microbatches = 1;
  std::vector<int> stageOfOp;
  std::vector<char> recompute;
  PipelinePlan plan;
};

struct PlanDecision {
  Strategy strategy; // complete: the decision as a file
  Degrees degrees;
  int64_t chunks = 1; // parts of the model on each stage
  // Tensor-parallel overlap: with a level above 0 the layouts split the batch
  // over 2 * microbatches, or have the axis "sub" (Submicrobatches.h).
  int overlapLevel = 0;
  bool submicrobatchAxis = false;
  int64_t submicrobatches() const {
    return overlapLevel > 0 && !submicrobatchAxis ? 2 : 1;
  }
  Assignment assignment;
  Outcome outcome; // of the assignment
  // By op: its part, chunk * pp + stage; only forward ops, others -1.
  std::vector<int> stageOfOp;
  std::vector<char> recompute; // by op: whether R computes it again
  PipelinePlan plan;           // as priced
  // Whether parameters that are read in another type are converted once a step
  // (Strategy::castWeights).
  bool convertsOnce = false;
  // The order of actions where no named schedule is it.
  std::optional<Schedule> schedule;
  // Most bytes of several gradients that one collective reduces; 0: none.
  int64_t gradientBucket = 0;
  // Of several pipelines; of one it is what stands above. With them degrees.pp
  // is the number of all stages, which the schedule has one behind the other,
  // and stageOfOp, recompute and plan are those of the first.
  std::vector<PipelineDecision> pipelines;
  std::string report; // lines for the user: submicrobatches, stages, numbers
};

// A candidate of `search`, which was made for `input`, in full. Errors: what
// the user pinned names ops or blocks that the graph lacks.
Result<PlanDecision> decide(PlanSearch &search, const SearchInput &input,
                            const PlanCandidate &candidate);

} // namespace merak::planning
