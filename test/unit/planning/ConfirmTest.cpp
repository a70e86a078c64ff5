// Which plans are simulated, and which is taken.
#include "passes/Planning/Confirm.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

namespace merak::planning {
namespace {

// Simulates what is asked for until nothing is.
std::vector<Finalist> confirmAll(std::vector<Finalist> finalists,
                                 const std::vector<double> &truth,
                                 size_t most) {
  while (std::optional<size_t> next = nextFinalist(finalists, most))
    if (truth[*next] > 0)
      finalists[*next].simulated = truth[*next];
    else
      finalists[*next].failed = true;
  return finalists;
}
size_t countSimulated(const std::vector<Finalist> &finalists) {
  return size_t(
      std::count_if(finalists.begin(), finalists.end(),
                    [](const Finalist &f) { return f.simulated.has_value(); }));
}
std::vector<Finalist> expecting(const std::vector<double> &seconds) {
  std::vector<Finalist> finalists;
  for (double expected : seconds)
    finalists.push_back({expected, std::nullopt, false});
  return finalists;
}

// Of several kinds of plans: the first until its best is known, then the
// others, as far as they promise more than that.
TEST(Confirm, OtherKindsAreComparedWithTheBestOfTheFirst) {
  auto ask = [](std::vector<Finalist> all, const std::vector<double> &truth,
                const std::vector<size_t> &begins) {
    std::vector<size_t> asked;
    while (std::optional<size_t> next = nextOfKinds(all, begins, 4)) {
      asked.push_back(*next);
      all[*next].simulated = truth[*next];
    }
    return std::pair(asked, *bestFinalist(all));
  };
  using Asked = std::pair<std::vector<size_t>, size_t>;
  EXPECT_EQ(ask(expecting({10, 11, 8, 9}), {10, 11, 8, 9}, {2}),
            (Asked{{0, 2}, 2}));
  EXPECT_EQ(ask(expecting({10, 11, 12}), {10, 11, 1}, {2}), (Asked{{0}, 0}));
  // A wrong figure makes the next one worth a try, which is no better.
  EXPECT_EQ(ask(expecting({10, 7, 7.1, 7.2}), {10, 12, 11, 10.5}, {1}),
            (Asked{{0, 1, 2, 3}, 0}));
  // There is none of the first kind.
  EXPECT_EQ(ask(expecting({8, 9}), {8, 9}, {0}), (Asked{{0}, 0}));
}

TEST(Confirm, OneIsEnoughWhereTheFiguresAgree) {
  auto done = confirmAll(expecting({10, 10.05, 12}), {10.1, 9, 9}, 4);
  EXPECT_EQ(countSimulated(done), 1u);
  EXPECT_EQ(bestFinalist(done), 0u);
}

TEST(Confirm, WhatPromisesLessIsTried) {
  // Both agree with what was expected of them; the second promises less than
  // the first takes.
  auto done = confirmAll(expecting({10, 10.01, 12}), {10.19, 10.02, 9}, 4);
  EXPECT_EQ(countSimulated(done), 2u);
  EXPECT_EQ(bestFinalist(done), 1u);
}

TEST(Confirm, AWrongFigureMakesTheNextOneWorthATry) {
  auto done =
      confirmAll(expecting({10, 12, 13, 14, 15}), {14, 13.5, 12.8, 20}, 4);
  EXPECT_EQ(countSimulated(done), 4u);
  EXPECT_EQ(bestFinalist(done), 2u);
}

TEST(Confirm, WhatDoesNotFitIsPassedOver) {
  auto done = confirmAll(expecting({10, 12, 13}), {11, 0, 10.5}, 4);
  EXPECT_TRUE(done[1].failed);
  EXPECT_EQ(bestFinalist(done), 2u);
  EXPECT_EQ(bestFinalist(confirmAll(expecting({1}), {0}, 4)), std::nullopt);
  EXPECT_EQ(nextFinalist({}, 4), std::nullopt);
}

// What is taken is the fastest of those simulated; it stops early only where
// all figures agree and none of the rest promises a percent.
TEST(Confirm, RandomFinalists) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> seconds(1, 2), error(0.95, 1.05);
  for (int round = 0; round < 2000; ++round) {
    std::vector<double> expected, truth;
    for (size_t n = 1 + random() % 7; n > 0; --n)
      expected.push_back(seconds(random));
    std::sort(expected.begin(), expected.end());
    for (double e : expected)
      truth.push_back(random() % 5 == 0 ? 0 : e * error(random));
    const size_t most = 1 + random() % 4;
    auto done = confirmAll(expecting(expected), truth, most);
    EXPECT_LE(countSimulated(done), most);
    std::optional<size_t> best = bestFinalist(done);
    bool allAgree = true;
    for (const Finalist &f : done)
      if (f.simulated) {
        EXPECT_LE(*done[*best].simulated, *f.simulated);
        allAgree &= std::abs(f.expected / *f.simulated - 1) <= kAgrees;
      }
    if (countSimulated(done) == most)
      continue;
    for (const Finalist &f : done)
      if (!f.simulated && !f.failed) {
        ASSERT_TRUE(best.has_value());
        EXPECT_TRUE(allAgree);
        EXPECT_GE(f.expected, 0.99 * *done[*best].simulated);
      }
  }
}

} // namespace
} // namespace merak::planning
