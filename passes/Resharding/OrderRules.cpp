#include "passes/Resharding/OrderRules.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace merak::resharding {
namespace {

std::vector<int> iota(size_t count) {
  std::vector<int> result(count);
  std::iota(result.begin(), result.end(), 0);
  return result;
}

// The interface that tells a choice from the others of its task; of a task with
// one choice the first.
int senderOf(const std::vector<Choice> &task, int choice) {
  for (const Use &use : task[choice].uses) {
    bool common = true;
    for (const Choice &other : task)
      common &=
          std::any_of(other.uses.begin(), other.uses.end(), [&](const Use &o) {
            return o.interface == use.interface;
          });
    if (!common)
      return use.interface;
  }
  return task[choice].uses.empty() ? -1 : task[choice].uses[0].interface;
}

int leastLoadedChoice(const std::vector<Choice> &task,
                      const std::vector<double> &loads) {
  int best = 0;
  double least = -1;
  for (int c = 0; c < int(task.size()); ++c) {
    const int sender = senderOf(task, c);
    const double load = sender < 0 ? 0 : loads[sender];
    if (least < 0 || load < least) {
      best = c;
      least = load;
    }
  }
  return best;
}

} // namespace

TaskOrder naive(const OrderProblem &problem) {
  TaskOrder result;
  result.choice.assign(problem.tasks.size(), 0);
  result.order = iota(problem.tasks.size());
  return result;
}

TaskOrder leastLoaded(const OrderProblem &problem, bool sorted) {
  TaskOrder result = naive(problem);
  if (sorted)
    std::stable_sort(
        result.order.begin(), result.order.end(), [&](int a, int b) {
          return weightOf(problem.tasks[a]) > weightOf(problem.tasks[b]);
        });
  std::vector<double> loads(problem.interfaces, 0); // as a sender
  for (int task : result.order) {
    const std::vector<Choice> &choices = problem.tasks[task];
    result.choice[task] = leastLoadedChoice(choices, loads);
    const int sender = senderOf(choices, result.choice[task]);
    if (sender >= 0)
      loads[sender] += weightOf(choices);
  }
  return result;
}

namespace {

// std::mt19937_64 gives the same numbers everywhere, the distributions of the
// standard library do not.
class Dice {
public:
  explicit Dice(uint64_t seed) : engine(seed) {}
  // Uniform below `limit`.
  size_t below(size_t limit) { return size_t(engine() % limit); }
  double unit() { return double(engine() >> 11) * 0x1p-53; }
  void shuffle(std::vector<int> &list) {
    for (size_t i = list.size(); i > 1; --i)
      std::swap(list[i - 1], list[below(i)]);
  }

private:
  std::mt19937_64 engine;
};

// Until all tasks are placed: of many random sets of tasks that occupy nothing
// in common the largest, of these the one that loads senders most evenly.
class Greedy {
public:
  Greedy(const OrderProblem &problem, const OrderOptions &options)
      : problem(problem), dice(options.seed), loads(problem.interfaces, 0) {
    // All sets together take a look at each open task for each task and trial.
    const double tasks = double(std::max<size_t>(problem.tasks.size(), 1));
    trials =
        std::clamp(int(2e7 / (tasks * tasks)), 1, std::max(1, options.trials));
  }

  TaskOrder run() {
    TaskOrder result = naive(problem);
    result.order.clear();
    std::vector<int> open = iota(problem.tasks.size());
    while (!open.empty()) {
      Set set = bestSet(open);
      for (auto [task, choice] : set.members) {
        result.choice[task] = choice;
        result.order.push_back(task);
        std::erase(open, task);
      }
      loads = std::move(set.loads);
    }
    return result;
  }

private:
  struct Set {
    std::vector<std::pair<int, int>> members; // task, choice
    std::vector<double> loads;                // of senders, with it
    double deviation = 0;
  };

  Set bestSet(const std::vector<int> &open) {
    Set best;
    for (int trial = 0; trial < trials; ++trial) {
      Set next = randomSet(open);
      if (next.members.size() > best.members.size() ||
          (next.members.size() == best.members.size() &&
           next.deviation < best.deviation))
        best = std::move(next);
    }
    return best;
  }

  Set randomSet(std::vector<int> open) {
    Set set;
    set.loads = loads;
    dice.shuffle(open);
    std::vector<char> used(problem.interfaces, 0);
    for (int task : open) {
      const std::vector<Choice> &choices = problem.tasks[task];
      const int choice = freeChoice(choices, used);
      if (choice < 0)
        continue;
      for (const Use &use : choices[choice].uses)
        used[use.interface] = 1;
      if (int sender = senderOf(choices, choice); sender >= 0)
        set.loads[sender] += weightOf(choices);
      set.members.push_back({task, choice});
    }
    set.deviation = deviation(set.loads);
    return set;
  }

  // A choice of which nothing is used, the likelier the less its sender has
  // to do; -1: there is none.
  int freeChoice(const std::vector<Choice> &choices,
                 const std::vector<char> &used) {
    const double most = *std::max_element(loads.begin(), loads.end());
    const double least = weightOf(choices) * 1e-3 + 1e-300;
    std::vector<std::pair<int, double>> free;
    double sum = 0;
    for (int c = 0; c < int(choices.size()); ++c) {
      const std::vector<Use> &uses = choices[c].uses;
      if (std::any_of(uses.begin(), uses.end(),
                      [&](const Use &use) { return used[use.interface]; }))
        continue;
      const int sender = senderOf(choices, c);
      sum += most - (sender < 0 ? 0 : loads[sender]) + least;
      free.push_back({c, sum});
    }
    const double drawn = free.size() > 1 ? dice.unit() * sum : 0;
    for (auto [c, upTo] : free)
      if (drawn < upTo)
        return c;
    return free.empty() ? -1 : free.back().first;
  }

  // Over all interfaces, receivers with no load among them: over senders alone
  // a balanced set wins whose tasks block what has to come next.
  static double deviation(const std::vector<double> &values) {
    const double count = double(values.size());
    const double mean =
        std::accumulate(values.begin(), values.end(), 0.0) / count;
    double sum = 0;
    for (double value : values)
      sum += (value - mean) * (value - mean);
    return std::sqrt(sum / count);
  }

  const OrderProblem &problem;
  Dice dice;
  std::vector<double> loads; // seconds as a sender, by interface
  int trials = 1;
};

} // namespace

TaskOrder greedy(const OrderProblem &problem, const OrderOptions &options) {
  if (problem.interfaces == 0)
    return naive(problem);
  return Greedy(problem, options).run();
}

namespace {

bool sameUses(const std::vector<Choice> &a, const std::vector<Choice> &b) {
  auto equal = [](const Use &x, const Use &y) {
    return x.interface == y.interface && x.offset == y.offset &&
           x.busy == y.busy;
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const Choice &x, const Choice &y) {
                      return std::equal(x.uses.begin(), x.uses.end(),
                                        y.uses.begin(), y.uses.end(), equal);
                    });
}

// Depth first over the next task and its choice.
class Search {
public:
  Search(const OrderProblem &problem, const OrderOptions &options, double bound)
      : problem(problem), nodes(options.searchNodes), bound(bound),
        placed(problem.tasks.size(), 0), free(problem.interfaces, 0),
        remaining(problem.interfaces, 0) {
    for (const std::vector<Choice> &task : problem.tasks)
      charge(task, 1);
    for (size_t t = 0; t < problem.tasks.size(); ++t) {
      twin.push_back(-1);
      for (size_t other = 0; other < t; ++other)
        if (sameUses(problem.tasks[other], problem.tasks[t]))
          twin[t] = int(other);
    }
  }

  TaskOrder run(TaskOrder start, double makespan) {
    found = std::move(start);
    best = makespan;
    current = found;
    current.order.clear();
    descend();
    found.optimal = nodes >= 0;
    return std::move(found);
  }

private:
  // Each open task keeps those interfaces busy that all its choices have: a
  // bound that no solution is below.
  void charge(const std::vector<Choice> &task, double sign) {
    for (const Use &use : task[0].uses) {
      double least = use.busy;
      for (const Choice &choice : task) {
        double busy = 0;
        for (const Use &other : choice.uses)
          busy += other.interface == use.interface ? other.busy : 0;
        least = std::min(least, busy);
      }
      remaining[use.interface] += sign * least;
    }
  }

  bool hopeless() const {
    for (size_t i = 0; i < free.size(); ++i)
      if (free[i] + remaining[i] >= best * (1 - 1e-12))
        return true;
    return false;
  }

  bool done() const { return nodes < 0 || best <= bound * (1 + 1e-12); }

  void descend() {
    if (done() || hopeless())
      return;
    if (current.order.size() == problem.tasks.size()) {
      best = *std::max_element(free.begin(), free.end());
      found = current;
      return;
    }
    for (int task = 0; task < int(placed.size()); ++task) {
      // Of equal tasks the first goes first.
      if (placed[task] || (twin[task] >= 0 && !placed[twin[task]]))
        continue;
      for (int c = 0; c < int(problem.tasks[task].size()); ++c) {
        if (--nodes < 0)
          return;
        tryNext(task, c);
      }
    }
  }

  void tryNext(int task, int choice) {
    const std::vector<double> before = free, left = remaining;
    place(problem.tasks[task][choice], free);
    charge(problem.tasks[task], -1);
    placed[task] = 1;
    current.choice[task] = choice;
    current.order.push_back(task);
    descend();
    current.order.pop_back();
    placed[task] = 0;
    remaining = left;
    free = before;
  }

  const OrderProblem &problem;
  int64_t nodes;
  double bound, best = 0;
  std::vector<char> placed;
  std::vector<double> free, remaining; // seconds, by interface
  std::vector<int> twin;               // an earlier task like this; -1: none
  TaskOrder found, current;
};

} // namespace

TaskOrder search(const OrderProblem &problem, const OrderOptions &options,
                 double bound) {
  TaskOrder start;
  double least = -1;
  for (TaskOrder next :
       {leastLoaded(problem, true), greedy(problem, options)}) {
    const double makespan = makespanOf(problem, next.choice, next.order);
    if (least < 0 || makespan < least) {
      least = makespan;
      start = std::move(next);
    }
  }
  if (problem.interfaces == 0)
    return start;
  return Search(problem, options, bound).run(std::move(start), least);
}

} // namespace merak::resharding
