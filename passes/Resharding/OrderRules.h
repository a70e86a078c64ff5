// The rules of TaskOrder.h, one function each.
#pragma once

#include "passes/Resharding/TaskOrder.h"

namespace merak::resharding {

// Puts a task behind what `free` says; returns its start.
double place(const Choice &choice, std::vector<double> &free);
// Seconds by which tasks are compared: of the interface it occupies longest.
double weightOf(const std::vector<Choice> &task);

TaskOrder naive(const OrderProblem &problem);
TaskOrder leastLoaded(const OrderProblem &problem, bool sorted);
TaskOrder greedy(const OrderProblem &problem, const OrderOptions &options);
// Starts from what the other rules find; stops at `bound`. `optimal` says that
// it came to its end.
TaskOrder search(const OrderProblem &problem, const OrderOptions &options,
                 double bound);

} // namespace merak::resharding
