// What a pipeline takes by sums alone: as if every stage were always busy once
// the first microbatch has come to it.
#pragma once

#include "passes/Planning/PipelineCost.h"

namespace merak::planning {

struct SteadyTimes {
  double slowest = 0;  // of a microbatch, the longest stage or transfer
  double all = 0;      // of a microbatch, until it has been through all stages
  double exchange = 0; // of gradients that several of its stages hold
  double of(int64_t microbatches) const {
    return double(microbatches - 1) * slowest + all + exchange;
  }
};

// Of cuts of a multiple of the stages: several parts a stage fill it sooner.
SteadyTimes steadyTimes(const StageModel &model, const PipelineShape &shape,
                        const std::vector<int> &begin, bool train);

} // namespace merak::planning
