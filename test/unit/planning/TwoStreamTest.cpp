#include "passes/Planning/TwoStream.h"

#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <random>

using namespace merak::planning;

namespace {

// The forward of transformer layers: A, its all-reduce, the join D, M, its
// all-reduce, the join. Times are of the whole microbatch times `share`.
Chain layers(int count, double a, double m, double d, double ar, double share) {
  Chain chain;
  int last = -1;
  auto add = [&](double seconds, bool communication, int phase) {
    StreamTask task{seconds * share, communication, {}, phase};
    if (last >= 0)
      task.needs.push_back(last);
    last = static_cast<int>(chain.size());
    chain.push_back(task);
  };
  for (int layer = 0; layer < count; ++layer)
    for (int part : {0, 1}) {
      int phase = 2 * layer + part;
      add(part ? m : a, false, phase);
      add(ar, true, phase);
      add(d, false, phase);
    }
  return chain;
}

// A chain of a few tasks with random needs and phases.
Chain randomChain(std::mt19937 &random, int count) {
  auto pick = [&](int n) { return static_cast<int>(random() % n); };
  Chain chain;
  int phase = 0;
  bool joining = false;
  for (int i = 0; i < count; ++i) {
    StreamTask task;
    task.communication = i > 0 && pick(3) == 0;
    task.seconds = pick(6) == 0 && !task.communication ? 0 : 1 + pick(9);
    if (i > 0)
      task.needs.push_back(pick(3) == 0 ? pick(i) : i - 1);
    if (joining && !task.communication && pick(2) == 0) {
      ++phase;
      joining = false;
    }
    task.phase = phase;
    joining |= task.communication;
    chain.push_back(task);
  }
  return chain;
}

// All tasks once, in the chain's order, the second half never ahead.
void expectLegal(const Chain &chain, const std::vector<Issue> &order) {
  int next[2] = {0, 0};
  for (const Issue &issue : order) {
    ASSERT_EQ(issue.task, next[issue.half]);
    if (chain[issue.task].once) {
      ASSERT_EQ(next[1], issue.task);
    }
    ++next[issue.half];
    ASSERT_LE(next[1], next[0]);
  }
  EXPECT_EQ(next[0], static_cast<int>(chain.size()));
  EXPECT_EQ(next[1], static_cast<int>(chain.size()));
}

// The best over all orders in which the second half follows the first.
double best(const Chain &chain) {
  std::vector<Issue> order;
  double seconds = 1e30;
  int count = static_cast<int>(chain.size());
  auto extend = [&](auto &self, int first, int second) -> void {
    if (second == count) {
      seconds = std::min(seconds, simulateStreams(chain, order));
      return;
    }
    for (int half : {0, 1}) {
      int task = half ? second : first;
      if (task == count || (half == 1 && second == first) ||
          (half == 0 && chain[task].once && second < task))
        continue;
      order.push_back({half, task});
      self(self, first + (half == 0), second + (half == 1));
      order.pop_back();
    }
  };
  extend(extend, 0, 0);
  return seconds;
}

TEST(TwoStream, GoldenForward) {
  std::ifstream file(MERAK_SOURCE_DIR "/test/data/golden/schedules.json");
  nlohmann::json golden = nlohmann::json::parse(file);
  int seen = 0;
  for (const auto &entry : golden.at("sub_pipelined_tp_forward")) {
    auto number = [&](const char *key) { return entry.at(key).get<double>(); };
    auto chain = [&](double share) {
      return layers(entry.at("layers").get<int>(), number("A"), number("M"),
                    number("D"), number("AR"), share);
    };
    SCOPED_TRACE(entry.dump());
    EXPECT_DOUBLE_EQ(simulateStreams(chain(1)), number("total_level0"));
    for (int level : {2, 3}) {
      std::vector<Issue> order = orderSubmicrobatches(chain(0.5), level);
      EXPECT_DOUBLE_EQ(simulateStreams(chain(0.5), order),
                       number(level == 2 ? "total_level2" : "total_level3"));
    }
    ++seen;
  }
  EXPECT_EQ(seen, 15);
}

// In level 1 the submicrobatches meet after every collective: of each pair the
// second is exposed but for the first half's join.
TEST(TwoStream, LevelOneMeetsAfterEveryCollective) {
  for (double ar : {2.0, 10.0, 40.0, 100.0}) {
    double a = 40, m = 48, d = 4;
    Chain chain = layers(1, a, m, d, ar, 0.5);
    double expected = (a + std::max(a, ar) + std::max(d, ar) + d + m +
                       std::max(m, ar) + std::max(d, ar) + d) /
                      2;
    EXPECT_DOUBLE_EQ(simulateStreams(chain, orderSubmicrobatches(chain, 1)),
                     expected)
        << ar;
  }
}

// 0 A, 1 all-reduce, 2 D, 3 M, 4 all-reduce, 5 D.
TEST(TwoStream, OrderOfOneLayer) {
  Chain chain = layers(1, 40, 48, 4, 40, 0.5);
  EXPECT_EQ(orderSubmicrobatches(chain, 3), (std::vector<Issue>{{0, 0},
                                                                {0, 1},
                                                                {1, 0},
                                                                {1, 1},
                                                                {0, 2},
                                                                {0, 3},
                                                                {0, 4},
                                                                {1, 2},
                                                                {1, 3},
                                                                {1, 4},
                                                                {0, 5},
                                                                {1, 5}}));
}

TEST(TwoStream, LegalAndMonotone) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    Chain chain = randomChain(random, 1 + static_cast<int>(random() % 30));
    double sequential = 0, last = 0;
    for (const StreamTask &task : chain)
      sequential += 2 * task.seconds;
    for (int level = 1; level <= kMaxOverlapLevel; ++level) {
      std::vector<Issue> order = orderSubmicrobatches(chain, level);
      expectLegal(chain, order);
      double seconds = simulateStreams(chain, order);
      EXPECT_LE(seconds, sequential + 1e-9);
      if (level > 1) {
        EXPECT_LE(seconds, last + 1e-9);
      }
      last = seconds;
    }
  }
}

// Against every order of small chains: seldom slower, never by much.
TEST(TwoStream, CloseToTheBestOrder) {
  std::mt19937 random(2);
  const int rounds = 400;
  int optimal = 0;
  double worst = 1;
  for (int round = 0; round < rounds; ++round) {
    Chain chain = randomChain(random, 3 + static_cast<int>(random() % 6));
    double optimum = best(chain);
    double found = simulateStreams(chain, orderSubmicrobatches(chain, 3));
    EXPECT_GE(found, optimum - 1e-9);
    optimal += found <= optimum + 1e-9;
    worst = std::max(worst, found / optimum);
  }
  EXPECT_GE(optimal, rounds * 85 / 100) << optimal;
  EXPECT_LE(worst, 1.2);
  RecordProperty("optimal", optimal);
}

double submicrobatches(const Chain &chain, int level) {
  return simulateStreams(chain, orderSubmicrobatches(chain, level));
}

// Seconds of one layer in the middle of many, A, M, D and C of the whole
// microbatch (Merak): the orders of submicrobatches reach or beat them.
TEST(TwoStream, SteadyLayers) {
  std::mt19937 random(31);
  for (int round = 0; round < 60; ++round) {
    auto number = [&] { return 2.0 * (1 + random() % 50); };
    double A = number(), M = number(), D = number(), C = number();
    auto increase = [&](auto &&seconds, double share) {
      return (seconds(layers(40, A, M, D, C, share)) -
              seconds(layers(20, A, M, D, C, share))) /
             20;
    };
    EXPECT_DOUBLE_EQ(
        increase([](const Chain &c) { return simulateStreams(c); }, 1),
        A + M + 2 * D + 2 * C);
    double inside =
        increase([](const Chain &c) { return submicrobatches(c, 2); }, 0.5);
    EXPECT_LE(
        inside,
        (A + std::max(A, C) + 2 * std::max(M + D, C) + std::max(D, C) + D) / 2 +
            1e-9)
        << A << " " << M << " " << D << " " << C;
    double across =
        increase([](const Chain &c) { return submicrobatches(c, 3); }, 0.5);
    EXPECT_NEAR(across, std::max(A + D, C) + std::max(M + D, C), 1e-9)
        << A << " " << M << " " << D << " " << C;
  }
}

// What both submicrobatches need whole, as attention over submicrobatches of
// tokens.
TEST(TwoStream, TasksForBothHalves) {
  std::mt19937 random(3);
  for (int round = 0; round < 400; ++round) {
    Chain chain = randomChain(random, 3 + static_cast<int>(random() % 6));
    double sequential = 0;
    for (StreamTask &task : chain) {
      task.once = random() % 3 == 0;
      sequential += (task.once ? 1 : 2) * task.seconds;
    }
    double optimum = best(chain);
    for (int level = 1; level <= kMaxOverlapLevel; ++level) {
      std::vector<Issue> order = orderSubmicrobatches(chain, level);
      expectLegal(chain, order);
      double seconds = simulateStreams(chain, order);
      EXPECT_GE(seconds, optimum - 1e-9);
      EXPECT_LE(seconds, sequential + 1e-9);
    }
  }
  // Projections, attention on both, a projection back, its all-reduce.
  Chain chain = {{2, false, {}, 0},
                 {10, false, {0}, 0, true},
                 {2, false, {1}, 0},
                 {5, true, {2}, 0},
                 {4, false, {3}, 1}};
  // 2 2 10 2, then 5 twice, the second under 4 more.
  EXPECT_DOUBLE_EQ(simulateStreams(chain, orderSubmicrobatches(chain, 3)), 30);
}

TEST(TwoStream, NothingToOverlap) {
  Chain chain(3);
  for (int i = 0; i < 3; ++i)
    chain[i] = {1.0, false, {}, 0};
  std::vector<Issue> order = orderSubmicrobatches(chain, 3);
  EXPECT_DOUBLE_EQ(simulateStreams(chain, order), 6);
  EXPECT_TRUE(orderSubmicrobatches({}, 3).empty());
}

} // namespace
