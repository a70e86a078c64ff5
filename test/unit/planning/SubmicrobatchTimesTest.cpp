// Times of ranges of ops against the chain of the range by itself.
#include "passes/Planning/SubmicrobatchTimes.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <random>

namespace merak::planning {
namespace {

int pick(std::mt19937 &random, int n) { return int(random() % unsigned(n)); }

// A few ops that repeat, tasks with needs on any earlier ones.
std::vector<SubmicrobatchTask> randomTasks(std::mt19937 &random, int ops,
                                           int period) {
  std::vector<SubmicrobatchTask> block, out;
  for (int op = 0; op < period; ++op)
    for (int k = pick(random, 3); k >= 0; --k)
      block.push_back({op,
                       double(pick(random, 5)),
                       pick(random, 3) == 0,
                       pick(random, 2) == 0,
                       {},
                       pick(random, 4) == 0});
  for (int start = 0; start < ops; start += period)
    for (SubmicrobatchTask task : block) {
      task.op += start;
      if (task.op >= ops)
        continue;
      if (int n = int(out.size()); n > 0)
        task.needs = {n - 1 - pick(random, std::min(n, 3))};
      out.push_back(task);
    }
  return out;
}

TEST(SubmicrobatchTimes, RangeAloneIsItsChain) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    int ops = 2 + pick(random, 12);
    std::vector<SubmicrobatchTask> tasks =
        randomTasks(random, ops, 1 + pick(random, 4));
    int level = 1 + pick(random, 3);
    SubmicrobatchTimes times(tasks, ops, level);
    for (int begin = 0; begin < ops; ++begin)
      for (int end = begin + 1; end <= ops; ++end) {
        ChainWriter writer;
        std::vector<int> number(tasks.size(), -1);
        double compute = 0, communication = 0;
        for (size_t i = 0; i < tasks.size(); ++i) {
          const SubmicrobatchTask &task = tasks[i];
          if (task.op < begin || task.op >= end)
            continue;
          std::vector<int> needs;
          for (int need : task.needs)
            if (number[need] >= 0)
              needs.push_back(number[need]);
          number[i] = writer.add(task.seconds, task.communication, needs,
                                 task.joins, task.once);
          double parts = task.once ? 1 : 2;
          (task.communication ? communication : compute) +=
              parts * task.seconds;
        }
        SubmicrobatchTimes::Times found = times.of(begin, end);
        std::vector<Issue> order = orderSubmicrobatches(writer.chain(), level);
        EXPECT_DOUBLE_EQ(found.seconds, simulateStreams(writer.chain(), order));
        EXPECT_DOUBLE_EQ(found.compute, compute);
        if (communication == 0) {
          EXPECT_TRUE(std::isinf(found.slack));
          continue;
        }
        // Links that are busy for longer than the slack hold it up as long.
        for (double busy : {0.5, 3.0, 20.0})
          EXPECT_NEAR(simulateStreams(writer.chain(), order, busy),
                      found.seconds + std::max(0.0, busy - found.slack), 1e-9);
      }
  }
}

// What is simulated grows with the different blocks, not with the layers.
TEST(SubmicrobatchTimes, EqualStagesAreSimulatedOnce) {
  std::vector<SubmicrobatchTask> tasks;
  const int layers = 100;
  for (int layer = 0; layer < layers; ++layer)
    for (bool communication : {false, true}) {
      SubmicrobatchTask task{
          layer, communication ? 2.0 : 3.0, communication, false, {}};
      if (!tasks.empty())
        task.needs = {int(tasks.size()) - 1};
      tasks.push_back(task);
    }
  SubmicrobatchTimes times(tasks, layers, 3);
  for (int layer = 0; layer + 10 <= layers; ++layer)
    times.of(layer, layer + 10);
  EXPECT_EQ(times.simulated(), 1u);
  times.of(0, 11);
  EXPECT_EQ(times.simulated(), 2u);
}

} // namespace
} // namespace merak::planning
