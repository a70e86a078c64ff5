// What no plan of given ops can do without: a bound from below on the time of
// a step, from sums alone, so that a search need not price what cannot win.
//
// A stage takes at least as long as its kernels; a collective that nothing is
// asked to hide is waited for as long as in the whole model at once, where most
// runs beside it. Stage s begins when the first microbatch has come to it:
//
//   seconds >= forward of all stages before s + microbatches x work of s
//
// Its ops' recomputation, transfers, reductions and idle times are left out.
#pragma once

#include "passes/Planning/StageProblem.h"

namespace merak::planning {

class LeastSeconds {
public:
  // The model must outlive this.
  explicit LeastSeconds(const StageModel &model);

  // Of any cuts and recomputation, with any schedule: the mean of the stages.
  double of(const PipelineShape &shape) const;
  // Of the given cuts, `stages` x chunks of them.
  double of(const PipelineShape &shape, const std::vector<int> &begin) const;
  // Whether parameters, gradients and the optimizer's state alone take more
  // memory than all stages have.
  bool misfits(const PipelineShape &shape) const;

private:
  const StageModel &model;
  std::vector<double> forward, work; // kernels of ops before each, seconds
  double waited = 0;                 // of a microbatch, with collectives
  double optimizer = 0, fixedBytes = 0;
};

} // namespace merak::planning
