// Who sends each task, and in which order: tasks occupy network interfaces, of
// which each carries one task after another.
// (Zhuang et al., 2023, arXiv 2211.05322, section 3)
//
// A solution is a choice for each task and one order of all. Each task starts
// when all that it occupies is free of those before it, so that the order alone
// gives the times, and any restriction of it to a device can be executed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace merak::resharding {

// An interface that a task occupies from `offset` seconds after its start on,
// for `busy` seconds.
struct Use {
  int interface = 0;
  double offset = 0, busy = 0;
};
// One way to do a task.
struct Choice {
  std::vector<Use> uses;
};
struct OrderProblem {
  int interfaces = 0;
  std::vector<std::vector<Choice>> tasks; // at least one choice each
};

enum class OrderRule {
  Naive,  // the first choice, as the tasks stand
  Size,   // least loaded sender, as the tasks stand
  Sorted, // least loaded sender, the largest task first
  Greedy, // sets of tasks that run beside each other
  Search, // depth first, up to a number of nodes
  Best    // the best of Size, Sorted, Greedy and Search, in turn until one
          // reaches the lower bound; of many tasks without Search
};
// Of more tasks a search does not get anywhere.
inline constexpr size_t kMostSearched = 64;
const std::vector<std::string> &orderRuleNames();
bool parseOrderRule(const std::string &name, OrderRule &rule);

struct TaskOrder {
  std::vector<int> choice; // by task
  std::vector<int> order;  // of the tasks
  double makespan = 0;
  OrderRule rule = OrderRule::Naive; // that found it
  bool optimal = false;              // proved, by the bound or by search
};

struct OrderOptions {
  uint64_t seed = 1; // of Greedy
  // Sets that Greedy compares; fewer where there are hundreds of tasks.
  int trials = 100;
  int64_t searchNodes = 50000; // of Search
  // Whether anybody asks for bounds, which take longer than simple rules.
  // Without them nothing is known to be optimal.
  bool bounded = true;
};

// When the last interface is free again.
double makespanOf(const OrderProblem &problem, const std::vector<int> &choice,
                  const std::vector<int> &order);
// No solution is faster: the busiest interface, and the mean of each set of
// interfaces of which tasks occupy one or another. Of very many sets of senders
// only some are looked at.
double lowerBound(const OrderProblem &problem);
// The same problem gives the same solution, on any machine.
TaskOrder orderTasks(const OrderProblem &problem, OrderRule rule,
                     const OrderOptions &options = {});

} // namespace merak::resharding
