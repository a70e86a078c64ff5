// The end of a step's backward pass on one stage: the last B and W as the plan
// runs them, beside the reductions of gradients over replicas, which start as
// gradients become final. Links are those of the plan simulator
// (runtime/plan/Links.h): one message after another.
#pragma once

#include <vector>

namespace merak::planning {

// In the order of issue. One stream computes, another one communicates; each
// runs what it is given in order.
struct IssuedTask {
  double seconds = 0;
  bool communication = false;
  std::vector<int> needs; // earlier tasks
};

// Runs on a stream of its own when a task has ended, behind the reductions in
// front of it.
struct EarlyReduction {
  double seconds = 0;
  int after = -1; // a task; -1: from the start
};

struct LastBackward {
  double tasks = 0;   // seconds until the last task has ended
  double reduced = 0; // the same of tasks and reductions
};

// `sharesLinks`: reductions go over the links of the tasks' communication.
// Reductions must be in the order in which they become ready.
LastBackward simulateLastBackward(const std::vector<IssuedTask> &tasks,
                                  const std::vector<EarlyReduction> &reductions,
                                  bool sharesLinks);

// W in the waits of B, as passes/Lowering/OverlapGradients.cpp joins the two:
// each task of W goes in front of the first one of B, behind all that it needs
// of it, that waits for communication. `backward`: by task of W, tasks of B
// that it needs. Returns the order: B's tasks by their numbers, W's behind them
// (number + tasks of B).
std::vector<int> joinedOrder(const std::vector<IssuedTask> &b,
                             const std::vector<IssuedTask> &w,
                             const std::vector<std::vector<int>> &backward);

} // namespace merak::planning
