// What a step takes when all of its tasks run as the plan will run them: every
// kernel, collective and message of every call, on the streams of the plan,
// the links and the order of messages of the plan simulator (StepStreams.h).
// The search prices stages by sums over their ops (PipelineCost.h); this is for
// the few plans between which it decides at last.
//
// As passes/Staging and passes/Lowering write it:
//   a call       receives, the tasks of its action, sends
//   a value      goes from the stage that makes it to each one that reads it,
//                by a stream for each pair of actions
//   gradients    in buckets on a stream of their own, where their last member
//                is final; W goes into the waits of B where nobody else waits
//                for B
//   the update   exchange of gradients between stages, the norm, the optimizer
#pragma once

#include "passes/Planning/PipelinePlan.h"
#include "passes/Planning/StepStreams.h"
#include "passes/Planning/StepTasks.h"

#include <functional>

namespace merak::planning {

struct StepLinks {
  // Seconds of a message between two stages, and what of them is latency.
  std::function<double(double bytes, int from, int to)> transfer;
  std::function<double(int from, int to)> latency;
  // 1: it leaves the node. Of messages between two stages; of collectives of a
  // replica, of the ranks of a stage.
  std::function<int(int from, int to)> level;
  int tensorLevel = 0, stageLevel = 0;
};

// `plan` is one of the model that the tasks are of. Its actions F, R, B and W
// are looked at, and the end of the step.
StepTimes sketchStep(const StepTasks &tasks, const StageModel &model,
                     const PipelineShape &shape, const PipelinePlan &plan,
                     const StepLinks &links);

} // namespace merak::planning
