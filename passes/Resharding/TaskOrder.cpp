#include "passes/Resharding/TaskOrder.h"

#include "passes/Resharding/OrderRules.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace merak::resharding {

const std::vector<std::string> &orderRuleNames() {
  static const std::vector<std::string> names{"naive",  "size",   "sorted",
                                              "greedy", "search", "best"};
  return names;
}

bool parseOrderRule(const std::string &name, OrderRule &rule) {
  const std::vector<std::string> &names = orderRuleNames();
  auto found = std::find(names.begin(), names.end(), name);
  rule = OrderRule(found - names.begin());
  return found != names.end();
}

double place(const Choice &choice, std::vector<double> &free) {
  double start = 0;
  for (const Use &use : choice.uses)
    start = std::max(start, free[use.interface] - use.offset);
  for (const Use &use : choice.uses)
    free[use.interface] = start + use.offset + use.busy;
  return start;
}

double weightOf(const std::vector<Choice> &task) {
  double most = 0;
  for (const Use &use : task[0].uses)
    most = std::max(most, use.busy);
  return most;
}

double makespanOf(const OrderProblem &problem, const std::vector<int> &choice,
                  const std::vector<int> &order) {
  std::vector<double> free(problem.interfaces, 0);
  for (int task : order)
    place(problem.tasks[task][choice[task]], free);
  return free.empty() ? 0 : *std::max_element(free.begin(), free.end());
}

namespace {

using Interfaces = std::set<int>;

// What a task adds to the work of a set of interfaces, whatever is chosen.
double least(const std::vector<Choice> &task, const std::vector<char> &isIn) {
  double best = -1;
  for (const Choice &choice : task) {
    double sum = 0;
    for (const Use &use : choice.uses)
      sum += isIn[size_t(use.interface)] ? use.busy : 0;
    best = best < 0 ? sum : std::min(best, sum);
  }
  return best;
}

double meanWork(const OrderProblem &problem, const Interfaces &set) {
  std::vector<char> isIn(size_t(problem.interfaces), 0);
  for (int interface : set)
    isIn[size_t(interface)] = 1;
  double sum = 0;
  for (const std::vector<Choice> &task : problem.tasks)
    sum += least(task, isIn);
  return sum / double(set.size());
}

// Of each interface alone.
std::vector<double> workOf(const OrderProblem &problem) {
  std::vector<double> work(size_t(problem.interfaces), 0), own(work),
      fewest(work);
  // Of a task: choices that have used an interface, all before the next one.
  std::vector<size_t> used(size_t(problem.interfaces), 0);
  for (const std::vector<Choice> &task : problem.tasks) {
    for (size_t c = 0; c < task.size(); ++c) {
      for (const Use &use : task[c].uses)
        own[size_t(use.interface)] += use.busy;
      for (const Use &use : task[c].uses) {
        const size_t i = size_t(use.interface);
        if (used[i] == c) {
          fewest[i] = c == 0 ? own[i] : std::min(fewest[i], own[i]);
          ++used[i];
        }
      }
      for (const Use &use : task[c].uses)
        own[size_t(use.interface)] = 0;
    }
    for (const Choice &choice : task)
      for (const Use &use : choice.uses) {
        const size_t i = size_t(use.interface);
        work[i] += used[i] == task.size() ? fewest[i] : 0;
        used[i] = 0;
      }
  }
  return work;
}

// Interfaces of some choices of a task, but not of all.
Interfaces alternatives(const std::vector<Choice> &task) {
  Interfaces some;
  std::vector<Interfaces> each;
  for (const Choice &choice : task) {
    each.emplace_back();
    for (const Use &use : choice.uses)
      each.back().insert(use.interface);
    some.insert(each.back().begin(), each.back().end());
  }
  std::erase_if(some, [&](int interface) {
    return std::all_of(each.begin(), each.end(), [&](const Interfaces &one) {
      return one.count(interface);
    });
  });
  return some;
}

// The sets of alternatives and their unions, as many as `limit`.
std::set<Interfaces> unions(const OrderProblem &problem, size_t limit) {
  std::set<Interfaces> single, all;
  for (const std::vector<Choice> &task : problem.tasks)
    if (Interfaces some = alternatives(task); !some.empty())
      single.insert(std::move(some));
  for (const Interfaces &next : single) {
    std::set<Interfaces> more{next};
    for (const Interfaces &known : all) {
      if (all.size() + more.size() >= limit)
        break;
      Interfaces both = known;
      both.insert(next.begin(), next.end());
      more.insert(std::move(both));
    }
    all.merge(more);
  }
  return all;
}

} // namespace

double lowerBound(const OrderProblem &problem) {
  constexpr size_t kMostSets = 512;
  double bound = 0;
  for (double work : workOf(problem))
    bound = std::max(bound, work);
  for (const Interfaces &set : unions(problem, kMostSets))
    bound = std::max(bound, meanWork(problem, set));
  return bound;
}

namespace {

bool reaches(double makespan, double bound) {
  return makespan <= bound * (1 + 1e-12);
}

TaskOrder finished(const OrderProblem &problem, TaskOrder order, double bound) {
  order.makespan = makespanOf(problem, order.choice, order.order);
  order.optimal |= reaches(order.makespan, bound);
  return order;
}

TaskOrder ordered(const OrderProblem &problem, OrderRule rule,
                  const OrderOptions &options, double bound);

TaskOrder best(const OrderProblem &problem, const OrderOptions &options,
               double bound) {
  TaskOrder best;
  for (OrderRule rule : {OrderRule::Size, OrderRule::Sorted, OrderRule::Greedy,
                         OrderRule::Search}) {
    if (rule == OrderRule::Search && problem.tasks.size() > kMostSearched)
      break;
    TaskOrder next = ordered(problem, rule, options, bound);
    const bool proved = next.optimal;
    if (best.order.empty() || next.makespan < best.makespan)
      best = std::move(next);
    best.optimal |= proved;
    if (best.optimal)
      break;
  }
  return best;
}

TaskOrder byRule(const OrderProblem &problem, OrderRule rule,
                 const OrderOptions &options, double bound) {
  switch (rule) {
  case OrderRule::Naive:
    return naive(problem);
  case OrderRule::Size:
    return leastLoaded(problem, false);
  case OrderRule::Sorted:
    return leastLoaded(problem, true);
  case OrderRule::Greedy:
    return greedy(problem, options);
  default:
    return search(problem, options, bound);
  }
}

TaskOrder ordered(const OrderProblem &problem, OrderRule rule,
                  const OrderOptions &options, double bound) {
  if (rule == OrderRule::Best)
    return best(problem, options, bound);
  TaskOrder order = byRule(problem, rule, options, bound);
  order.rule = rule;
  return finished(problem, std::move(order), bound);
}

} // namespace

TaskOrder orderTasks(const OrderProblem &problem, OrderRule rule,
                     const OrderOptions &options) {
  return ordered(problem, rule, options,
                 options.bounded ? lowerBound(problem) : 0);
}

} // namespace merak::resharding
