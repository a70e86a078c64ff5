// When a run thinks about another plan: once for one change.
#include "runtime/elastic/Situation.h"

#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <random>

namespace merak::elastic {
namespace {

using rates::DeviceRate;
using rates::Pace;
using rates::RateBook;

std::vector<DeviceRate> devicesAt(const std::vector<double> &rates) {
  std::vector<DeviceRate> devices;
  for (double rate : rates)
    devices.push_back(rates::deviceOf(rate));
  return devices;
}

TEST(Situation, IsReadAsItIsWritten) {
  for (const Situation &situation :
       {Situation{1, 1, 1}, {1, 2.5, 1}, {3.01, 1, 1.25}}) {
    auto read = parseSituation(str(situation), 3);
    ASSERT_TRUE(read.ok()) << str(situation);
    EXPECT_EQ(*read, situation);
  }
  EXPECT_EQ(str({1, 1}), "none");
  EXPECT_EQ(str({1, 2.5, 1.1}), "1:2.5,2:1.1");
  for (const char *bad : {"3:2", "1", "1:", ":2", "1:0.5", "1:x", "1:2;2:3"})
    EXPECT_FALSE(parseSituation(bad, 3).ok()) << bad;
}

TEST(Situation, SmallRatesOfNormalDevicesAreNone) {
  std::vector<DeviceRate> devices = devicesAt({1, 1});
  devices[1].rate = 1.15;
  EXPECT_EQ(situationOf(devices), (Situation{1, 1}));
  devices[1].pace = Pace::Mild;
  EXPECT_EQ(situationOf(devices), (Situation{1, 1.15}));
}

TEST(Situation, PlansForNearRatesAreOne) {
  EXPECT_FALSE(differ({1, 3}, {1, 3.6}));
  EXPECT_TRUE(differ({1, 3}, {1, 4}));
  EXPECT_TRUE(differ({1, 3}, {3, 1}));
  EXPECT_TRUE(differ({1, 1.2}, {1, 1}));
}

TEST(Watch, AsksOnceForOneChange) {
  Watch watch({1, 1});
  EXPECT_FALSE(watch.look(devicesAt({1, 1})));
  EXPECT_FALSE(watch.look(devicesAt({1, 3}))); // it may be two
  auto asked = watch.look(devicesAt({1, 3.1}));
  ASSERT_TRUE(asked);
  EXPECT_EQ(*asked, (Situation{1, 3.1}));
  EXPECT_TRUE(watch.look(devicesAt({1, 3})));
  watch.answer(*asked);
  for (int i = 0; i < 50; ++i)
    EXPECT_FALSE(watch.look(devicesAt({1, 3 + 0.01 * i})));
  EXPECT_FALSE(watch.look(devicesAt({1, 1})));
  EXPECT_TRUE(watch.look(devicesAt({1, 1})));
}

TEST(Watch, DevicesThatSlowDownTogetherAreOneQuestion) {
  Watch watch({1, 1, 1});
  EXPECT_FALSE(watch.look(devicesAt({1, 3, 1})));
  EXPECT_FALSE(watch.look(devicesAt({1, 3, 2})));
  auto asked = watch.look(devicesAt({1, 3, 2}));
  ASSERT_TRUE(asked);
  EXPECT_EQ(*asked, (Situation{1, 3, 2}));
}

TEST(Watch, MildDevicesAreWaitedFor) {
  Watch watch({1, 1, 1});
  for (int i = 0; i < 4; ++i)
    EXPECT_FALSE(watch.look(devicesAt({1, 1.5, 1})));
  EXPECT_FALSE(watch.look(devicesAt({1, 1, 1})));
  for (int i = 0; i < 4; ++i)
    EXPECT_FALSE(watch.look(devicesAt({1, 1.5, 1})));
  auto asked = watch.look(devicesAt({1, 1.5, 1}));
  ASSERT_TRUE(asked);
  watch.answer(*asked);
  // A severe one besides is not waited for, nor that it is over.
  EXPECT_FALSE(watch.look(devicesAt({1, 1.5, 3})));
  asked = watch.look(devicesAt({1, 1.5, 3}));
  ASSERT_TRUE(asked);
  watch.answer(*asked);
  EXPECT_FALSE(watch.look(devicesAt({1, 1.5, 1})));
  EXPECT_TRUE(watch.look(devicesAt({1, 1.5, 1})));
}

TEST(Watch, ARateThatIsAnotherForAWhileIsNews) {
  Watch watch({1, 1});
  watch.answer({1, 2});
  int looks = 1;
  while (!watch.look(devicesAt({1, 4})) && looks < 100)
    ++looks;
  EXPECT_EQ(looks, 5);
  watch.answer({1, 4});
  for (int i = 0; i < 4; ++i)
    EXPECT_FALSE(watch.look(devicesAt({1, 8})));
  EXPECT_FALSE(watch.look(devicesAt({1, 4})));
}

// A fleet as RateBookTest has it, whose rates go through book and watch; after
// each answer the book begins again, as it does after a switch.
int questions(std::mt19937 &random, const std::function<double(int)> &rateOf,
              int steps, double noise, double disturbed) {
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> chance;
  std::vector<int> programs = {0, 1, 2, 3};
  RateBook book(programs);
  Watch watch(Situation(4, 1));
  int asked = 0;
  for (int step = 1; step <= steps; ++step) {
    std::vector<rates::Work> works(4);
    for (size_t d = 0; d < 4; ++d) {
      const double hit = chance(random) < disturbed ? 10 : 1;
      for (size_t c = 0; c < kRateClasses; ++c) {
        works[d].expected[c] = 0.02 * double(c + 1);
        works[d].measured[c] = works[d].expected[c] *
                               (d == 2 ? rateOf(step) : 1) * hit *
                               std::exp(noise * normal(random));
      }
    }
    book.add(step, works);
    if (auto situation = watch.look(book.devices())) {
      ++asked;
      watch.answer(*situation);
      book = RateBook(programs, {}, book.known());
    }
  }
  return asked;
}

TEST(Watch, OneQuestionForOneChangeUnderNoise) {
  std::mt19937 random(5);
  for (double rate : {1.5, 3.0, 8.0})
    EXPECT_EQ(questions(
                  random, [&](int step) { return step > 100 ? rate : 1; }, 1000,
                  0.05, 0.01),
              1)
        << rate;
}

TEST(Watch, AskedTwiceWhenItIsOver) {
  std::mt19937 random(6);
  EXPECT_EQ(questions(
                random,
                [](int step) { return step > 100 && step < 400 ? 3 : 1; }, 1000,
                0.05, 0.01),
            2);
}

// At the rate from which a device is slow, and noisily around it.
TEST(Watch, NoOscillationAtTheThreshold) {
  std::mt19937 random(7);
  for (double rate : {1.1, 1.2, 2.0}) {
    const int asked = questions(
        random, [&](int step) { return step > 100 ? rate : 1; }, 5000, 0.03, 0);
    EXPECT_LE(asked, 1) << rate;
  }
}

TEST(Watch, NoiseIsNoQuestion) {
  std::mt19937 random(8);
  EXPECT_EQ(questions(
                random, [](int) { return 1; }, 5000, 0.1, 0.02),
            0);
}

} // namespace
} // namespace merak::elastic
