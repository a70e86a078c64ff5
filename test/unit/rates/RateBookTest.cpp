// Who is slow, on made-up measurements.
#include "runtime/rates/RateBook.h"

#include <cmath>
#include <gtest/gtest.h>
#include <random>

namespace merak::rates {
namespace {

// Devices of some programs, each of which has classes of its own that the cost
// model is wrong about.
struct Fleet {
  std::vector<int> programs;
  RateBook book;
  std::mt19937 random{11};
  double noise = 0;     // of each number, as a part of it
  double disturbed = 0; // steps of a device that take ten times as long
  double all = 1;       // of every device
  std::vector<double> slow;
  int64_t step = 0;
  std::vector<std::pair<int64_t, PaceChange>> changes;

  explicit Fleet(std::vector<int> of, Thresholds thresholds = {})
      : programs(of), book(of, thresholds), slow(of.size(), 1) {}

  // The same devices under another plan.
  void goOn(std::vector<int> of) {
    book = RateBook(of, {}, book.known());
    programs = std::move(of);
    changes.clear();
  }

  void run(int steps) {
    std::normal_distribution<double> normal;
    std::uniform_real_distribution<double> chance;
    for (int i = 0; i < steps; ++i) {
      std::vector<Work> works;
      for (size_t d = 0; d < programs.size(); ++d) {
        Work &work = works.emplace_back();
        const double hit = chance(random) < disturbed ? 10 : 1;
        for (size_t c = 0; c < kRateClasses; ++c) {
          if (c == 1 && programs[d] == 1)
            continue; // a class that program 1 has not
          work.expected[c] = 0.01 * double(c + 1);
          const double wrong = 1 + 0.4 * std::sin(double(7 * programs[d] + c));
          work.measured[c] = work.expected[c] * wrong * slow[d] * all * hit *
                             std::exp(noise * normal(random));
        }
      }
      for (const PaceChange &change : book.add(++step, works))
        changes.push_back({step, change});
    }
  }
};

TEST(RateBook, WhatTheModelIsWrongAboutIsNoDevice) {
  for (const std::vector<int> &programs :
       {std::vector<int>{0}, {0, 1}, {0, 0, 1, 1}, {0, 1, 2, 3}}) {
    Fleet fleet(programs);
    fleet.run(50);
    EXPECT_TRUE(fleet.changes.empty());
    for (const DeviceRate &device : fleet.book.devices())
      EXPECT_NEAR(device.rate, 1, 1e-9);
  }
}

TEST(RateBook, NoiseIsNoDevice) {
  Fleet fleet({0, 0, 1, 1});
  fleet.noise = 0.1;
  fleet.disturbed = 0.02;
  fleet.run(5000);
  for (const auto &[step, change] : fleet.changes)
    ADD_FAILURE() << step << ": " << describe(change);
}

// With peers and without.
TEST(RateBook, ASlowDeviceIsKnownWithinFiveSteps) {
  for (const std::vector<int> &programs :
       {std::vector<int>{0, 1}, {0, 0}, {0, 0, 1, 1}, {0, 0, 0, 0, 1, 1, 1, 1}})
    for (double rate : {1.4, 3.0}) {
      Fleet fleet(programs);
      fleet.noise = 0.05;
      fleet.run(20);
      fleet.slow[1] = rate;
      fleet.run(5);
      ASSERT_EQ(fleet.changes.size(), 1u);
      EXPECT_LE(fleet.changes[0].first, 25);
      const PaceChange &change = fleet.changes[0].second;
      EXPECT_EQ(change.device, 1);
      EXPECT_EQ(change.to, rate > 2 ? Pace::Severe : Pace::Mild);
      EXPECT_NEAR(change.rate, rate, 0.2 * rate);
      fleet.slow[1] = 1;
      fleet.run(5);
      ASSERT_EQ(fleet.changes.size(), 2u);
      EXPECT_EQ(fleet.changes[1].second.to, Pace::Normal);
      EXPECT_EQ(fleet.book.devices()[1].since, fleet.changes[1].first);
    }
}

TEST(RateBook, AllPeersOfAProgramMayBeSlow) {
  Fleet fleet({0, 0, 1, 1, 2, 2});
  fleet.run(10);
  fleet.slow = {1, 1, 2.5, 2.5, 1, 1};
  fleet.run(5);
  ASSERT_EQ(fleet.changes.size(), 2u);
  EXPECT_EQ(fleet.changes[0].second.device, 2);
  EXPECT_EQ(fleet.changes[1].second.device, 3);
}

TEST(RateBook, WhatSlowsAllDownIsNoDevice) {
  Fleet fleet({0, 0, 1, 1});
  fleet.run(10);
  fleet.all = 3;
  fleet.run(20);
  EXPECT_TRUE(fleet.changes.empty());
}

TEST(RateBook, SlowFromTheBeginning) {
  Fleet peers({0, 0, 0});
  peers.slow[2] = 1.5;
  peers.run(6);
  ASSERT_EQ(peers.changes.size(), 1u);
  EXPECT_EQ(peers.changes[0].second.device, 2);
  Fleet alone({0, 1, 2});
  alone.slow[2] = 5;
  alone.run(6);
  ASSERT_EQ(alone.changes.size(), 1u);
  EXPECT_EQ(alone.changes[0].second.device, 2);
  EXPECT_EQ(alone.changes[0].second.to, Pace::Severe);
}

// Around each threshold a pace changes once.
TEST(RateBook, HoveringChangesAPaceOnce) {
  for (double threshold : {1.2, 2.0}) {
    Fleet fleet({0, 0, 0, 0});
    fleet.run(10);
    std::mt19937 random(3);
    for (int i = 0; i < 500; ++i) {
      fleet.slow[1] =
          threshold * (1 + 0.04 * (double(random() % 1001) / 500 - 1));
      fleet.run(1);
    }
    // Severe is reached by way of mild, or at once.
    EXPECT_LE(fleet.changes.size(), threshold > 1.5 ? 2u : 1u);
    EXPECT_GE(fleet.changes.size(), 1u);
  }
}

// The first step, and steps until there is something to look at.
TEST(RateBook, ShortStepsAreLookedAtTogether) {
  Fleet fleet({0, 0}, {.leastSeconds = 3.6});
  fleet.slow[1] = 3;
  // 0.36 s a step on device 0, 1.08 s on device 1: four make a look.
  fleet.run(1 + 4 * 4 + 3);
  EXPECT_TRUE(fleet.changes.empty());
  fleet.run(1);
  ASSERT_EQ(fleet.changes.size(), 1u);
  EXPECT_EQ(fleet.changes[0].first, 21);
}

// Without peers nothing in the new programs tells a slow device from what the
// cost model is wrong about.
TEST(RateBook, ARunThatGoesOnKnowsItsDevices) {
  for (double rate : {1.4, 3.0}) {
    Fleet fleet({0, 1, 2, 3});
    fleet.noise = 0.02;
    fleet.run(20);
    fleet.slow[2] = rate;
    fleet.run(20);
    fleet.goOn({4, 5, 6, 7});
    fleet.run(50);
    EXPECT_TRUE(fleet.changes.empty());
    EXPECT_NEAR(fleet.book.devices()[2].rate, rate, 0.1 * rate);
    fleet.slow[2] = 1;
    fleet.run(5);
    ASSERT_EQ(fleet.changes.size(), 1u);
    EXPECT_EQ(fleet.changes[0].second.to, Pace::Normal);
    fleet.goOn({0, 1, 2, 3});
    fleet.run(50);
    EXPECT_TRUE(fleet.changes.empty());
  }
}

// It is normal again before the new programs have shown what they take.
TEST(RateBook, ADeviceThatChangesWithThePlan) {
  Fleet fleet({0, 1, 2, 3});
  fleet.run(20);
  fleet.slow[2] = 4;
  fleet.run(20);
  fleet.goOn({0, 1, 2, 3});
  fleet.slow[2] = 1;
  fleet.run(10);
  ASSERT_EQ(fleet.changes.size(), 1u);
  EXPECT_EQ(fleet.changes[0].second.device, 2);
  EXPECT_EQ(fleet.changes[0].second.to, Pace::Normal);
}

// As a run begins under a plan that was compiled for it.
TEST(RateBook, ADeviceThatThePlanTakesForSlow) {
  Known known;
  known.devices.resize(4);
  known.devices[1] = deviceOf(4);
  for (double rate : {4.0, 1.0}) {
    Fleet fleet({0, 1, 2, 3});
    fleet.book = RateBook({0, 1, 2, 3}, {}, known);
    fleet.slow[1] = rate;
    fleet.run(30);
    ASSERT_EQ(fleet.changes.size(), rate == 1 ? 1u : 0u);
    EXPECT_NEAR(fleet.book.devices()[1].rate, rate, 0.5);
  }
}

TEST(RateBook, SaysWhoAndHowMuch) {
  EXPECT_EQ(describe({2, Pace::Normal, Pace::Severe, 3.14159}),
            "rank 2 takes 3.14 times as long as it should: severe");
  EXPECT_EQ(describe({0, Pace::Mild, Pace::Normal, 1.01}),
            "rank 0 is no longer slow");
  EXPECT_EQ(describe({3, Pace::Mild, Pace::Normal, 1}, "device"),
            "device 3 is no longer slow");
}

} // namespace
} // namespace merak::rates
