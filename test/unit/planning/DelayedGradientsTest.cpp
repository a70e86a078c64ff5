// Which gradients are summed beside the next forward pass.
#include "passes/Planning/DelayedGradients.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <random>

namespace merak::planning {
namespace {

int count(const std::vector<char> &delayed) {
  return std::accumulate(delayed.begin(), delayed.end(), 0);
}

// Layers of a forward second and two backward seconds, in the order of the
// forward pass; the sum of each takes `seconds`.
std::vector<ReadyGradient> layers(int number, double seconds) {
  std::vector<ReadyGradient> gradients;
  for (int i = 0; i < number; ++i)
    gradients.push_back({seconds, 2.0 * i, 1.0 * i, true});
  return gradients;
}

TEST(DelayedGradients, WaitsAreOfLinksThatCarryOneSumAtATime) {
  // Ready 4, 2 and 0 seconds before the end.
  const auto gradients = layers(3, 3);
  GradientWaits waits = waitsOf(gradients, {0, 0, 0});
  EXPECT_DOUBLE_EQ(waits.behind, -4 + 3 * 3);
  EXPECT_DOUBLE_EQ(waits.inside, 0);
  waits = waitsOf(gradients, {0, 1, 1}); // needed after 1 and 2 seconds
  EXPECT_DOUBLE_EQ(waits.behind, 3);
  EXPECT_DOUBLE_EQ(waits.inside, 2 * 3 - 2);
  // Links are idle until the first is ready.
  EXPECT_DOUBLE_EQ(waitsOf(layers(2, 1), {0, 0}).behind, 1);
}

TEST(DelayedGradients, NothingWaitsWhereTheBackwardPassHidesAll) {
  auto gradients = layers(8, 1.9);
  gradients[0].seconds = 0;
  EXPECT_EQ(count(chooseDelayed(gradients)), 0);
  EXPECT_EQ(count(chooseDelayed({})), 0);
}

TEST(DelayedGradients, WhatIsLeftOverGoesBesideTheForwardPass) {
  // Three seconds of sums a layer, two of the backward pass, one of the
  // forward: every third layer waits.
  const auto gradients = layers(31, 2.9);
  const std::vector<char> delayed = chooseDelayed(gradients);
  const GradientWaits before = waitsOf(gradients, std::vector<char>(31, 0)),
                      after = waitsOf(gradients, delayed);
  EXPECT_NEAR(before.both(), 31 * 2.9 - 60, 1e-9);
  EXPECT_LT(after.both(), 2 * 2.9);
  EXPECT_NEAR(count(delayed), 10, 2);
}

TEST(DelayedGradients, WhatMayNotWaitIsSummedInItsStep) {
  auto gradients = layers(6, 4);
  for (size_t i = 0; i < gradients.size(); i += 2)
    gradients[i].mayWait = false;
  const std::vector<char> delayed = chooseDelayed(gradients);
  EXPECT_GT(count(delayed), 0);
  for (size_t i = 0; i < delayed.size(); i += 2)
    EXPECT_FALSE(delayed[i]);
}

// All choices of gradients of a few layers.
double bestOf(const std::vector<ReadyGradient> &gradients) {
  double best = std::numeric_limits<double>::infinity();
  for (unsigned set = 0; set < 1u << gradients.size(); ++set) {
    std::vector<char> delayed(gradients.size());
    bool may = true;
    for (size_t i = 0; i < delayed.size(); ++i) {
      delayed[i] = set >> i & 1;
      may &= !delayed[i] || gradients[i].mayWait;
    }
    if (may)
      best = std::min(best, waitsOf(gradients, delayed).both());
  }
  return best;
}

TEST(DelayedGradients, NoChoiceIsBetterByMoreThanASum) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> part(0, 1);
  int delays = 0;
  for (int round = 0; round < 400; ++round) {
    const double links = 8 * part(random);
    std::vector<ReadyGradient> gradients(1 + random() % 10);
    double left = 0, needed = 0, longest = 0;
    for (ReadyGradient &gradient : gradients) {
      gradient = {links * part(random), left, needed, part(random) < 0.9};
      const double forward = part(random);
      needed += forward;
      left += (1 + part(random)) * forward;
      longest = std::max(longest, gradient.seconds);
    }
    const std::vector<char> delayed = chooseDelayed(gradients);
    const double none =
        waitsOf(gradients, std::vector<char>(gradients.size(), 0)).both();
    const double found = waitsOf(gradients, delayed).both();
    delays += count(delayed);
    EXPECT_LE(found, none + 1e-12) << round;
    EXPECT_LE(found, bestOf(gradients) + longest + 0.02 * none) << round;
    // None waits without need.
    for (size_t i = 0; i < delayed.size(); ++i) {
      if (!delayed[i])
        continue;
      std::vector<char> without = delayed;
      without[i] = 0;
      EXPECT_GT(waitsOf(gradients, without).both(), found) << round;
    }
  }
  EXPECT_GT(delays, 200);
}

} // namespace
} // namespace merak::planning
