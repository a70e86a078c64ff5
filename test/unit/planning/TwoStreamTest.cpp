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

// The order of one rule for meetings as TwoStream.h has it, with all times made
// anew for each step: the tasks of a half up to the first that takes time are
// looked at, and those of one half go.
class PlainOrder {
public:
  PlainOrder(const Chain &chain, int period, int offset, bool firstHalf)
      : chain(chain), period(period), offset(offset), firstHalf(firstHalf) {}

  std::vector<Issue> run() {
    const int count = static_cast<int>(chain.size());
    while (next[0] < count || next[1] < count) {
      const int ends[] = {endOf(0), endOf(1)};
      const int half = choose(ends);
      if (takesTime(half, ends[half]) && !chain[ends[half] - 1].communication)
        current = half;
      for (; next[half] < ends[half]; ++next[half])
        order.push_back({half, next[half]});
    }
    return order;
  }

private:
  bool isFree(int half, int task) const {
    return (half == 1 && chain[task].once) ||
           (!chain[task].communication && chain[task].seconds == 0);
  }
  int block(int task) const {
    return period == 0 ? 0 : (chain[task].phase + offset) / period;
  }
  int endOf(int half) const {
    const int count = static_cast<int>(chain.size());
    for (int end = next[half];; ++end) {
      const bool waits = half == 1 ? end == next[0]
                                   : end < count && next[1] < count &&
                                         (block(end) > block(next[1]) ||
                                          (chain[end].once && next[1] < end));
      if (end == count || waits)
        return end;
      if (!isFree(half, end))
        return end + 1;
    }
  }
  bool takesTime(int half, int end) const {
    return end > next[half] && !isFree(half, end - 1);
  }
  // When the last of the tasks up to `end` would start, behind all others.
  double startOf(int half, int end) const {
    std::vector<Issue> issued = order;
    for (int task = next[half]; task < end; ++task)
      issued.push_back({half, task});
    std::vector<double> finish[2];
    finish[0].resize(chain.size());
    finish[1] = finish[0];
    double free[2] = {0, 0}, start = 0;
    for (auto [of, number] : issued) {
      const StreamTask &task = chain[number];
      start = 0;
      for (int need : task.needs)
        start = std::max(
            {start, finish[of][need], task.once ? finish[1][need] : 0.0});
      if (of == 1 && task.once) {
        finish[1][number] = finish[0][number];
        continue;
      }
      if (!isFree(of, number))
        start = std::max(start, free[task.communication]);
      finish[of][number] = start + task.seconds;
      if (!isFree(of, number))
        free[task.communication] = finish[of][number];
    }
    return start;
  }
  int choose(const int (&ends)[2]) const {
    const bool time[] = {takesTime(0, ends[0]), takesTime(1, ends[1])};
    for (int half : {0, 1})
      if (time[half] && chain[ends[half] - 1].communication)
        return half;
    if (time[0] && time[1]) {
      if (firstHalf)
        return 0;
      const double first = startOf(0, ends[0]), second = startOf(1, ends[1]);
      return first == second ? current : first < second ? 0 : 1;
    }
    return time[0] || time[1] ? (time[0] ? 0 : 1) : ends[0] > next[0] ? 0 : 1;
  }

  const Chain &chain;
  int period, offset;
  bool firstHalf;
  int next[2] = {0, 0};
  int current = 0;
  std::vector<Issue> order;
};

TEST(TwoStream, OrdersAreThoseOfStepsLookedAtAnew) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    Chain chain = randomChain(random, 1 + static_cast<int>(random() % 24));
    for (StreamTask &task : chain)
      task.once = round % 2 && random() % 4 == 0;
    for (int level = 1; level <= kMaxOverlapLevel; ++level) {
      std::vector<std::pair<int, int>> meetings = {{1, 0}};
      if (level >= 2)
        meetings.insert(meetings.begin(), {{2, 0}, {2, 1}});
      if (level >= 3)
        meetings.insert(meetings.begin(), {0, 0});
      std::vector<Issue> best;
      double least = 0;
      for (auto [period, offset] : meetings)
        for (bool firstHalf : {false, true}) {
          std::vector<Issue> order =
              PlainOrder(chain, period, offset, firstHalf).run();
          const double seconds = simulateStreams(chain, order);
          if (best.empty() || seconds < least) {
            best = std::move(order);
            least = seconds;
          }
        }
      EXPECT_EQ(orderSubmicrobatches(chain, level), best) << round;
    }
  }
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
