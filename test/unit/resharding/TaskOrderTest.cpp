// Orders against brute force on random small instances.
#include "passes/Resharding/TaskOrder.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <numeric>
#include <random>

namespace merak::resharding {
namespace {

// Tasks between hosts: a few senders, one or several receivers, whole seconds.
OrderProblem randomProblem(std::mt19937 &random, int tasks) {
  const int senders = 1 + int(random() % 3), receivers = 1 + int(random() % 3);
  OrderProblem problem;
  problem.interfaces = senders + receivers;
  for (int t = 0; t < tasks; ++t) {
    const double seconds = 1 + double(random() % 4);
    std::vector<Use> targets;
    for (int r = 0; r < receivers; ++r)
      if (random() % 2 || (r + 1 == receivers && targets.empty()))
        targets.push_back({senders + r, 0, seconds});
    std::vector<Choice> choices;
    for (int s = 0; s < senders; ++s) {
      if (random() % 2 && !(s + 1 == senders && choices.empty()))
        continue;
      Choice choice{{{s, 0, seconds}}};
      choice.uses.insert(choice.uses.end(), targets.begin(), targets.end());
      choices.push_back(std::move(choice));
    }
    problem.tasks.push_back(std::move(choices));
  }
  return problem;
}

// The least makespan over all orders and choices.
double bruteForce(const OrderProblem &problem) {
  std::vector<int> order(problem.tasks.size()), choice(order.size(), 0);
  std::iota(order.begin(), order.end(), 0);
  double best = 1e300;
  do {
    std::fill(choice.begin(), choice.end(), 0);
    for (bool more = true; more;) {
      best = std::min(best, makespanOf(problem, choice, order));
      more = false;
      for (size_t t = 0; t < choice.size() && !more; ++t) {
        more = ++choice[t] < int(problem.tasks[t].size());
        choice[t] = more ? choice[t] : 0;
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

// What no choice keeps from an interface.
double workOf(const OrderProblem &problem, int interface) {
  double work = 0;
  for (const std::vector<Choice> &task : problem.tasks) {
    double least = 1e300;
    for (const Choice &choice : task) {
      double busy = 0;
      for (const Use &use : choice.uses)
        busy += use.interface == interface ? use.busy : 0;
      least = std::min(least, busy);
    }
    work += least;
  }
  return work;
}

void expectSolution(const OrderProblem &problem, const TaskOrder &found) {
  std::vector<int> order = found.order;
  std::sort(order.begin(), order.end());
  for (int t = 0; t < int(problem.tasks.size()); ++t) {
    ASSERT_EQ(order[t], t);
    ASSERT_LT(found.choice[t], int(problem.tasks[t].size()));
  }
  EXPECT_EQ(found.makespan, makespanOf(problem, found.choice, found.order));
}

TEST(TaskOrder, SearchFindsTheOptimum) {
  std::mt19937 random(1);
  int finished = 0, aboveBound = 0;
  for (int i = 0; i < 300; ++i) {
    const OrderProblem problem = randomProblem(random, 1 + int(random() % 5));
    const double optimum = bruteForce(problem), bound = lowerBound(problem);
    EXPECT_LE(bound, optimum * (1 + 1e-12));
    for (int interface = 0; interface < problem.interfaces; ++interface)
      EXPECT_GE(bound, workOf(problem, interface));
    aboveBound += optimum > bound * (1 + 1e-9);
    for (OrderRule rule :
         {OrderRule::Naive, OrderRule::Size, OrderRule::Sorted,
          OrderRule::Greedy, OrderRule::Search, OrderRule::Best}) {
      const TaskOrder found = orderTasks(problem, rule);
      expectSolution(problem, found);
      EXPECT_GE(found.makespan, optimum * (1 - 1e-12));
      EXPECT_GE(found.makespan, bound * (1 - 1e-12));
      if (found.optimal) {
        EXPECT_DOUBLE_EQ(found.makespan, optimum);
      }
      if (rule == OrderRule::Search) {
        EXPECT_TRUE(found.optimal);
        ++finished;
      }
    }
  }
  EXPECT_EQ(finished, 300);
  EXPECT_GT(aboveBound, 4); // else the bound would decide everything
}

// Whether bounds are asked for changes no order of a simple rule.
TEST(TaskOrder, WithoutBoundsTheSameOrder) {
  std::mt19937 random(3);
  OrderOptions without;
  without.bounded = false;
  int proved = 0;
  for (int i = 0; i < 100; ++i) {
    const OrderProblem problem = randomProblem(random, 1 + int(random() % 9));
    const TaskOrder a = orderTasks(problem, OrderRule::Size),
                    b = orderTasks(problem, OrderRule::Size, without);
    EXPECT_EQ(a.choice, b.choice);
    EXPECT_EQ(a.order, b.order);
    EXPECT_EQ(a.makespan, b.makespan);
    EXPECT_FALSE(b.optimal);
    proved += a.optimal;
  }
  EXPECT_GT(proved, 4);
}

// A search that is cut off says so, and is not worse than what it began with.
TEST(TaskOrder, SearchThatIsCutOffIsNotCalledOptimal) {
  std::mt19937 random(2);
  int cut = 0;
  for (int i = 0; i < 100; ++i) {
    const OrderProblem problem = randomProblem(random, 9);
    OrderOptions few;
    few.searchNodes = 20;
    const TaskOrder found = orderTasks(problem, OrderRule::Search, few);
    const TaskOrder whole = orderTasks(problem, OrderRule::Search);
    expectSolution(problem, found);
    EXPECT_GE(found.makespan, whole.makespan * (1 - 1e-12));
    EXPECT_LE(found.makespan,
              orderTasks(problem, OrderRule::Sorted).makespan + 1e-12);
    if (found.optimal) {
      EXPECT_DOUBLE_EQ(found.makespan, whole.makespan);
    }
    cut += !found.optimal;
  }
  EXPECT_GT(cut, 5);
}

TEST(TaskOrder, BestIsNeverWorse) {
  std::mt19937 random(3);
  for (int i = 0; i < 100; ++i) {
    const OrderProblem problem = randomProblem(random, 8);
    const double best = orderTasks(problem, OrderRule::Best).makespan;
    for (OrderRule rule : {OrderRule::Size, OrderRule::Sorted})
      EXPECT_LE(best, orderTasks(problem, rule).makespan + 1e-12);
  }
}

TEST(TaskOrder, IsTheSameEveryTime) {
  std::mt19937 random(4);
  const OrderProblem problem = randomProblem(random, 12);
  const TaskOrder a = orderTasks(problem, OrderRule::Best);
  const TaskOrder b = orderTasks(problem, OrderRule::Best);
  EXPECT_EQ(a.order, b.order);
  EXPECT_EQ(a.choice, b.choice);
}

// The second use of a task may begin later than the first.
TEST(TaskOrder, OffsetsCount) {
  OrderProblem problem;
  problem.interfaces = 3;
  problem.tasks = {{Choice{{{0, 0, 4}, {1, 2, 2}}}},
                   {Choice{{{2, 0, 2}, {1, 0, 2}}}}};
  EXPECT_EQ(makespanOf(problem, {0, 0}, {1, 0}), 4);
  EXPECT_EQ(makespanOf(problem, {0, 0}, {0, 1}), 6);
}

TEST(TaskOrder, NothingToDo) {
  for (OrderRule rule : {OrderRule::Naive, OrderRule::Greedy, OrderRule::Best})
    EXPECT_EQ(orderTasks({}, rule).makespan, 0);
}

} // namespace
} // namespace merak::resharding
