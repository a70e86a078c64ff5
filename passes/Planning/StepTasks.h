// All tasks of a step of a whole model, action by action, before it is cut into
// stages: what ActionOps.h lists and ActionKernels.h makes kernels of, with
// times and with what each task needs of others.
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
  int at = -1;        // the forward op that it belongs to; -1: none
  double seconds = 0; // of a microbatch; in U, of the step
  double bytes = 0;   // of what it makes, on a device
  bool communication = false;
  bool anywhere =
      false;         // made on every stage and in every action that reads it
  bool sums = false; // of U: adds up what its operands are
  // Of U: over ranks of a replica too; `seconds` is not said.
  bool overRanks = false, tensor = false;
  std::vector<TaskId> needs; // those of other lists are of the same microbatch
};

// The optimizer's step on a parameter, and the task of U, or else of a
// microbatch, that makes its gradient.
struct StepUpdate {
  int parameter = -1; // of the problem
  TaskId gradient;
};

struct StepTasks {
  std::array<std::vector<StepTask>, kLists> lists; // none of P
  std::vector<StepUpdate> updates;                 // in the order of the step
};

// Requires what makeStageProblem does, without overlap. Parameters are counted
// as there. Errors: the step has what is no task yet (parameters that are
// gathered, gradients that are scattered).
Result<StepTasks> makeStepTasks(const Graph &graph,
                                const Assignment &assignment,
                                const Outcome &outcome,
                                const StageCostOptions &options);

} // namespace merak::planning
