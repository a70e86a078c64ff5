// All tasks of a step, action by action: what ActionOps.h lists of a whole
// model, with what each task needs of others; and the kernels that
// ActionKernels.h makes of these lists where the model is cut into parts.
#pragma once

#include "passes/Planning/StageCosts.h"

#include <array>
#include <vector>

namespace merak::planning {

// A task: its list (ListOf) and its place there.
struct TaskId {
  int list = -1, task = -1;
  auto operator<=>(const TaskId &) const = default;
};

struct StepTask {
  int at = -1; // the forward op that it belongs to; -1: none
  // Of F, B and W, of collectives only, else the kernels' (PartTasks).
  double seconds = 0;
  double bytes = 0; // of what it makes, on a device
  bool communication = false;
  bool anywhere =
      false;         // made on every stage and in every action that reads it
  bool sums = false; // of U: adds up what its operands are
  // Of U: it sums over ranks, those of a replica too.
  bool overRanks = false, tensor = false;
  std::vector<TaskId> needs; // those of other lists are of the same microbatch
};

// The optimizer's step on a parameter, and the task of U, or else of a
// microbatch, that makes its gradient.
struct StepUpdate {
  int parameter = -1; // of the problem
  TaskId gradient;
};

// What a part of the model does in F, B or W: tasks of the list in its order,
// by place the seconds and the place of the one that runs it.
struct PartTasks {
  std::vector<int> tasks, runs;
  std::vector<double> seconds;
};

struct StepTasks {
  std::vector<std::array<PartTasks, 3>> parts;
  std::array<std::vector<StepTask>, kLists> lists; // none of P
  std::vector<StepUpdate> updates;                 // in the order of the step
};

// Requires what makeStageProblem does, without overlap. Parameters are counted
// as there. `begin`: positions of the parts, as PipelinePlan has them. Errors:
// the step has what is no task yet (parameters that are gathered, gradients
// that are scattered).
Result<StepTasks> makeStepTasks(const Graph &graph,
                                const Assignment &assignment,
                                const Outcome &outcome,
                                const StageCostOptions &options,
                                const std::vector<int> &begin);

} // namespace merak::planning
