// Which plan a run goes on with.
#include "runtime/elastic/Choice.h"

#include <gtest/gtest.h>
#include <random>

namespace merak::elastic {
namespace {

TEST(Choice, TheFasterOneIfItIsWorthIt) {
  const Running running{0.2, 0.1, 100}; // twice as long as simulated
  const Verdict verdict = judge(running, {{0.05, 1000, 0.5}});
  EXPECT_EQ(verdict.choice, 0);
  EXPECT_DOUBLE_EQ(verdict.stepSeconds, 0.1);
  EXPECT_DOUBLE_EQ(verdict.gainedSeconds, 10);
  EXPECT_EQ(verdict.why, "a step takes 200 ms, 100 ms are predicted; 100 steps "
                         "gain 10 s for 0.5 s of switching");
}

TEST(Choice, NotForTheLastSteps) {
  const Verdict verdict = judge({0.2, 0.2, 4}, {{0.1, 1000, 0.5}});
  EXPECT_EQ(verdict.choice, -1);
  EXPECT_EQ(verdict.best, 0);
  EXPECT_EQ(verdict.why, "a step takes 200 ms, 100 ms are predicted; 4 steps "
                         "gain 0.4 s, the switch costs 0.5 s");
}

TEST(Choice, NotForSomePercent) {
  const Verdict verdict = judge({0.2, 0.2, 1000000}, {{0.195, 0, 0}});
  EXPECT_EQ(verdict.choice, -1);
  EXPECT_EQ(verdict.why, "a step takes 200 ms, 195 ms are predicted, which is "
                         "less than 5 % better");
}

TEST(Choice, OfNearlyEqualOnesThatWhichMovesLeast) {
  const Running running{0.2, 0.2, 1000};
  EXPECT_EQ(judge(running, {{0.100, 500, 1}, {0.102, 100, 1}}).choice, 1);
  EXPECT_EQ(judge(running, {{0.100, 500, 1}, {0.110, 100, 1}}).choice, 0);
  EXPECT_EQ(judge(running, {{0.100, 5, 1}, {0.099, 5, 1}}).choice, 1);
}

TEST(Choice, ThereMayBeNone) {
  EXPECT_EQ(judge({0.2, 0.2, 1000}, {}).why, "there is no other plan");
  EXPECT_EQ(judge({0.2, 0.2, 1000}, {{0, 0, 0}}).choice, -1);
  EXPECT_EQ(judge({0.2, 0, 1000}, {{0.1, 0, 0}}).choice, -1);
}

// What is chosen gains more than it costs, and no other choice is much faster.
TEST(Choice, HoldsForRandomOnes) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> any(0.01, 1);
  for (int i = 0; i < 10000; ++i) {
    const Running running{any(random), any(random), int64_t(random() % 50)};
    std::vector<Choice> choices;
    for (unsigned c = 0; c < random() % 5; ++c)
      choices.push_back({any(random), int64_t(random() % 10), any(random)});
    const Verdict verdict = judge(running, choices);
    if (verdict.choice < 0)
      continue;
    const Choice &chosen = choices[size_t(verdict.choice)];
    EXPECT_GT(verdict.gainedSeconds, chosen.stallSeconds);
    EXPECT_LT(chosen.simulated, running.simulated);
    for (const Choice &other : choices)
      EXPECT_LE(chosen.simulated, 1.04 * other.simulated);
  }
}

// A step takes 0.4 s as simulated, 100 are left, a start takes 5 s.
TEST(Choice, ARestartIfNothingElseIsAsGood) {
  const Running running{0.4, 0.4, 100};
  EXPECT_EQ(judgeRestart(running, {}, {{0.1, 0, 5}}).choice, 0);
  EXPECT_EQ(judgeRestart(running, {{0.2, 0, 0.1}}, {{0.1, 0, 5}}).choice, 0);
  EXPECT_EQ(judgeRestart(running, {}, {}).why, "there is no other plan");
  EXPECT_EQ(judgeRestart(running, {}, {{0.39, 0, 5}}).choice, -1)
      << "less than 5 %";
  EXPECT_EQ(judgeRestart({0.4, 0.4, 10}, {}, {{0.1, 0, 5}}).choice, -1)
      << "the last steps";
  const Verdict near = judgeRestart(running, {{0.102, 0, 0.1}}, {{0.1, 0, 5}});
  EXPECT_EQ(near.choice, -1);
  EXPECT_EQ(near.why, "a step takes 400 ms, 100 ms are predicted after a "
                      "restart of 5 s, and 102 ms without one");
  // 4 % better: 0.4 s over these steps, and 40 s over a hundred times as many.
  EXPECT_EQ(judgeRestart(running, {{0.104, 0, 0.1}}, {{0.1, 0, 5}}).choice, -1);
  EXPECT_EQ(
      judgeRestart({0.4, 0.4, 10000}, {{0.104, 0, 0.1}}, {{0.1, 0, 5}}).choice,
      0);
  // What is not worth its own switch is no rival.
  EXPECT_EQ(judgeRestart(running, {{0.1, 0, 1000}}, {{0.1, 0, 5}}).choice, 0);
}

} // namespace
} // namespace merak::elastic
