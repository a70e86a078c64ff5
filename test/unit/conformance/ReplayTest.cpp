// Several steps of Adam without a gradient at once: the bits of one call a
// step, whatever is left out because it is rounded away.
#include "runtime/backends/cpu/Requests.h"

#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <limits>
#include <random>

namespace merak::cpu {
namespace {

struct Row {
  std::vector<float> p, m, v;
  bool operator==(const Row &other) const {
    auto same = [](const std::vector<float> &a, const std::vector<float> &b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return same(p, other.p) && same(m, other.m) && same(v, other.v);
  }
};

// Parameters and averages of many magnitudes, of a row that had its last
// gradient some steps ago; some are zeros of either sign.
Row randomRow(std::mt19937 &random, size_t size) {
  std::uniform_real_distribution<float> unit(-1, 1);
  std::uniform_int_distribution<int> exponent(-120, 4), kind(0, 9);
  Row row;
  for (size_t i = 0; i < size; ++i) {
    const float m = std::ldexp(unit(random), exponent(random));
    row.p.push_back(kind(random) == 0 ? std::copysign(0.0f, unit(random))
                                      : unit(random));
    row.m.push_back(kind(random) == 0 ? std::copysign(0.0f, m) : m);
    row.v.push_back(kind(random) == 0 ? 0 : m * m);
  }
  return row;
}

std::vector<AdamWReplayStep> randomSteps(std::mt19937 &random, int count) {
  std::uniform_int_distribution<int> choice(0, 3);
  std::uniform_real_distribution<double> unit(0, 1);
  AdamRequest adam;
  adam.beta1 = choice(random) ? 0.9 : 0.5;
  adam.beta2 = choice(random) ? 0.999 : 0.9;
  adam.eps = choice(random) ? 1e-8 : 1e-3;
  adam.decay = choice(random) > 1 ? 0.1 : 0;
  adam.l2 = choice(random) ? 0 : 0.1;
  adam.plainRoot = choice(random) == 0;
  adam.postDecay = choice(random) ? 0 : 0.01;
  const int first = 1 + choice(random) * 50;
  std::vector<AdamWReplayStep> steps;
  for (int s = 0; s < count; ++s)
    steps.push_back({.step = adam.at(0.01 * unit(random), first + s)});
  boundSteps(steps);
  return steps;
}

TEST(Replay, HasTheBitsOfSteps) {
  std::mt19937 random(7);
  for (const char *name : {"avx512", "avx2", "baseline"}) {
    const Simd *set = findSimd(name);
    for (int trial = 0; set && trial < 400; ++trial) {
      const size_t size = 1 + random() % 150;
      const std::vector<AdamWReplayStep> steps =
          randomSteps(random, 1 + static_cast<int>(random() % 300));
      Row once = randomRow(random, size), each = once;
      const auto n = static_cast<int64_t>(size);
      set->adamWReplay(once.p.data(), once.m.data(), once.v.data(), n,
                       steps.data(), static_cast<int64_t>(steps.size()));
      const std::vector<float> zeros(size, 0);
      for (const AdamWReplayStep &step : steps)
        set->adamW(each.p.data(), each.m.data(), each.v.data(), zeros.data(), n,
                   1, step.step);
      ASSERT_TRUE(once == each) << name << " trial " << trial;
    }
  }
}

// What is no number stays none, and infinite averages keep to be.
TEST(Replay, HasTheBitsOfStepsOnWhatIsNotFinite) {
  std::mt19937 random(9);
  const float odd[] = {std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN()};
  const std::vector<float> zeros(64, 0);
  for (int trial = 0; trial < 100; ++trial) {
    const std::vector<AdamWReplayStep> steps = randomSteps(random, 200);
    Row once = randomRow(random, 64);
    once.p[random() % 64] = odd[random() % 3];
    once.m[random() % 64] = odd[random() % 3];
    once.v[random() % 64] = odd[random() % 3];
    Row each = once;
    simd().adamWReplay(once.p.data(), once.m.data(), once.v.data(), 64,
                       steps.data(), static_cast<int64_t>(steps.size()));
    for (const AdamWReplayStep &step : steps)
      simd().adamW(each.p.data(), each.m.data(), each.v.data(), zeros.data(),
                   64, 1, step.step);
    for (size_t i = 0; i < 64; ++i)
      for (auto of : {&Row::p, &Row::m, &Row::v})
        if (!std::isnan((each.*of)[i])) {
          ASSERT_EQ(std::memcmp(&(once.*of)[i], &(each.*of)[i], sizeof(float)),
                    0)
              << "trial " << trial << " element " << i;
        } else {
          ASSERT_TRUE(std::isnan((once.*of)[i]));
        }
  }
}

} // namespace
} // namespace merak::cpu
