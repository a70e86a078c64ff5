// The end of a backward pass beside reductions of gradients.
#include "passes/Planning/LastBackward.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

namespace merak::planning {
namespace {

TEST(LastBackward, ReductionsHideBehindTheTasks) {
  // Four tasks of a second; the gradient of each takes one and a half.
  std::vector<IssuedTask> tasks(4, {1, false, {}});
  std::vector<EarlyReduction> reductions;
  for (int task = 0; task < 4; ++task)
    reductions.push_back({1.5, task});
  LastBackward last = simulateLastBackward(tasks, reductions, true);
  EXPECT_DOUBLE_EQ(last.tasks, 4);
  EXPECT_DOUBLE_EQ(last.reduced, 1 + 4 * 1.5);
  EXPECT_DOUBLE_EQ(simulateLastBackward(tasks, {{1.5, -1}}, true).reduced, 4);
}

TEST(LastBackward, OneLinkCarriesOneMessage) {
  // A product, its sum over tp, a product that waits for it; the reduction of
  // the first gradient comes first where both use one link.
  std::vector<IssuedTask> tasks = {
      {1, false, {}}, {1, false, {}}, {2, true, {1}}, {1, false, {2}}};
  LastBackward apart = simulateLastBackward(tasks, {{3, 0}}, false);
  EXPECT_DOUBLE_EQ(apart.tasks, 5);
  EXPECT_DOUBLE_EQ(apart.reduced, 5);
  LastBackward shared = simulateLastBackward(tasks, {{3, 0}}, true);
  EXPECT_DOUBLE_EQ(shared.tasks, 1 + 3 + 2 + 1);
  EXPECT_DOUBLE_EQ(shared.reduced, 7);
}

TEST(LastBackward, GradientsOfWeightsGoIntoTheWaits) {
  // Product, collective, product that waits; twice.
  std::vector<IssuedTask> b = {{1, false, {}},
                               {1, true, {0}},
                               {1, false, {1}},
                               {1, true, {2}},
                               {1, false, {3}}};
  // Of the layers in order: one needs nothing, one the product 2, one what the
  // second collective gives.
  std::vector<IssuedTask> w(3, {1, false, {}});
  EXPECT_EQ(joinedOrder(b, w, {{}, {2}, {3}}),
            (std::vector<int>{0, 1, 5, 2, 3, 6, 4, 7}));
}

std::vector<IssuedTask> randomTasks(std::mt19937 &random) {
  std::vector<IssuedTask> tasks(1 + random() % 8);
  for (size_t t = 0; t < tasks.size(); ++t) {
    tasks[t] = {double(random() % 5), random() % 3 == 0, {}};
    for (int earlier = 0; earlier < int(t); ++earlier)
      if (random() % 3 == 0)
        tasks[t].needs.push_back(earlier);
  }
  return tasks;
}

// Nothing is faster than each of its parts, links that are shared make nothing
// faster, and where they are not reductions follow each other behind their
// gradients.
TEST(LastBackward, RandomTasks) {
  std::mt19937 random(3);
  int delayed = 0;
  for (int round = 0; round < 1000; ++round) {
    const std::vector<IssuedTask> tasks = randomTasks(random);
    std::vector<EarlyReduction> reductions(random() % 5);
    for (EarlyReduction &reduction : reductions)
      reduction = {double(random() % 6),
                   int(random() % (tasks.size() + 1)) - 1};
    std::sort(reductions.begin(), reductions.end(),
              [](const auto &a, const auto &b) { return a.after < b.after; });
    const LastBackward none = simulateLastBackward(tasks, {}, false);
    const LastBackward apart = simulateLastBackward(tasks, reductions, false);
    const LastBackward shared = simulateLastBackward(tasks, reductions, true);
    EXPECT_EQ(none.tasks, none.reduced);
    EXPECT_EQ(apart.tasks, none.tasks);
    double end = 0, sum = 0, compute = 0, messages = 0;
    for (const EarlyReduction &reduction : reductions) {
      const std::vector<IssuedTask> before(tasks.begin(),
                                           tasks.begin() + reduction.after + 1);
      // At the latest when all tasks up to its own have ended.
      end = std::max(end, simulateLastBackward(before, {}, false).tasks) +
            reduction.seconds;
      sum += reduction.seconds;
    }
    for (const IssuedTask &task : tasks)
      (task.communication ? messages : compute) += task.seconds;
    EXPECT_LE(apart.reduced, std::max(end, none.tasks));
    EXPECT_GE(apart.reduced, std::max(sum, none.tasks));
    EXPECT_GE(shared.tasks, none.tasks);
    EXPECT_GE(shared.reduced, std::max(sum + messages, compute));
    EXPECT_LE(shared.reduced, none.tasks + sum);
    delayed += shared.tasks > none.tasks;
  }
  EXPECT_GT(delayed, 50);
}

// A joined order holds every task once behind what it needs, keeps the order of
// B, and puts no task of W between a place that waits and one behind it that
// the task could have had too.
TEST(LastBackward, RandomJoins) {
  std::mt19937 random(4);
  for (int round = 0; round < 1000; ++round) {
    const std::vector<IssuedTask> b = randomTasks(random),
                                  w = randomTasks(random);
    std::vector<std::vector<int>> backward(w.size());
    for (std::vector<int> &of : backward)
      if (random() % 2 == 0)
        of.push_back(int(random() % b.size()));
    const std::vector<int> order = joinedOrder(b, w, backward);
    ASSERT_EQ(order.size(), b.size() + w.size());
    std::vector<int> place(order.size(), -1);
    for (size_t i = 0; i < order.size(); ++i)
      place[size_t(order[i])] = int(i);
    const size_t first = b.size();
    for (size_t t = 0; t < b.size(); ++t) {
      ASSERT_GE(place[t], 0);
      EXPECT_TRUE(t == 0 || place[t] > place[t - 1]);
    }
    for (size_t t = 0; t < w.size(); ++t) {
      ASSERT_GE(place[first + t], 0);
      for (int need : w[t].needs)
        EXPECT_GT(place[first + t], place[first + size_t(need)]);
      for (int need : backward[t])
        EXPECT_GT(place[first + t], place[size_t(need)]);
    }
  }
}

} // namespace
} // namespace merak::planning
