// Warm-up counts and how they hide transfers: golden counts and periods, and
// the exact law of a long run against the simulator.
#include "passes/Planning/ListSchedule.h"

#include "test/unit/planning/GoldenFile.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <random>

namespace merak::planning {
namespace {

using test::golden;

SimulateOptions transferCosts(const nlohmann::json &entry, int p) {
  SimulateOptions costs;
  ActionTimes times;
  times.F = entry["f"];
  times.W = entry.value("b_w", 0.0);
  times.B = entry["b"].get<double>() - times.W;
  costs.times = {times};
  for (int l = 0; l + 1 < p; ++l) {
    auto of = [&](const char *key) {
      const auto &value = entry[key];
      return value.is_array() ? value[l].get<double>() : value.get<double>();
    };
    costs.boundaries.push_back({of("cf"), of("cb"), 0, 0});
  }
  return costs;
}

// Seconds per microbatch of a long run, by simulation: over a whole number of
// turns of every loop.
double measuredPeriod(const std::vector<int> &warmup, SimulateOptions costs) {
  auto total = [&](int m) {
    ScheduleOptions options;
    options.stages = int(warmup.size());
    options.microbatches = m;
    options.warmup = warmup;
    for (const ActionTimes &times : costs.times)
      options.splitBackward |= times.W > 0;
    return simulate(*makeSchedule("eager", options), costs).total;
  };
  const int turns = 2520; // divisible by all loops of up to 10
  costs.record = false;
  return (total(turns + 100) - total(100)) / turns;
}

std::vector<int> warmupOf(int p, int slope) {
  std::vector<int> warmup;
  for (int s = 0; s < p; ++s)
    warmup.push_back(1 + slope * (p - 1 - s));
  return warmup;
}

TEST(TransferWarmup, SteadyPeriodsEqualGolden) {
  int compared = 0;
  for (const auto &entry : golden()["eager_1f1b"]["steady"]) {
    int p = entry["p"];
    SimulateOptions costs = transferCosts(entry, p);
    for (int slope : {1, 2}) {
      const auto &expected = entry[slope == 1 ? "period_1f1b" : "period_eager"];
      double period = expected[0].get<double>() / expected[1].get<double>();
      EXPECT_NEAR(measuredPeriod(warmupOf(p, slope), costs), period, 0.01)
          << entry;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 72);
}

TEST(TransferWarmup, PerBoundaryEqualsGolden) {
  int compared = 0;
  for (const auto &entry : golden()["eager_1f1b"]["per_boundary"]) {
    int p = entry["p"];
    SimulateOptions costs = transferCosts(entry, p);
    std::vector<int> warmup = transferWarmup(p, 1000, costs);
    EXPECT_EQ(warmup, entry["warmup"].get<std::vector<int>>());
    for (int l = 0; l + 1 < p; ++l)
      EXPECT_EQ(warmup[l] - warmup[l + 1], entry["delta"][l].get<int>());
    auto expect = [&](const std::vector<int> &counts, const char *key) {
      double period = entry[key][0].get<double>() / entry[key][1].get<double>();
      EXPECT_NEAR(measuredPeriod(counts, costs), period, 0.01) << entry;
    };
    expect(warmupOf(p, 1), "period_1f1b");
    expect(warmupOf(p, 2), "period_eager");
    expect(warmup, "period_adapted");
    ++compared;
  }
  EXPECT_EQ(compared, 5);
}

TEST(TransferWarmup, CountsEqualGolden) {
  int compared = 0;
  for (const auto &entry : golden()["eager_1f1b"]["warmups"])
    for (bool eager : {false, true}) {
      ScheduleOptions options;
      options.stages = entry["p"];
      options.microbatches = entry["m"];
      Schedule schedule = *makeSchedule(eager ? "eager" : "1f1b", options);
      std::vector<int> counts;
      for (const std::vector<Step> &order : schedule.order) {
        counts.push_back(0);
        while (order[counts.back()].action == Action::F)
          ++counts.back();
      }
      EXPECT_EQ(counts,
                entry[eager ? "w_eager" : "w_1f1b"].get<std::vector<int>>());
      // The rule of the name is the rule per boundary, slope 1 or 2.
      SimulateOptions costs;
      costs.times = {ActionTimes()};
      EXPECT_EQ(counts, transferWarmup(options.stages, options.microbatches,
                                       costs, eager));
      ++compared;
    }
  EXPECT_EQ(compared, 40);
}

// --------------------------------------------------------------- the law

double cycleOf(const ActionTimes &times) { return times.F + times.B + times.W; }

// Seconds per microbatch of a long run in which stage i has W_i microbatches in
// flight: stage i begins forward n + W_i after its backward n, on stage j
// forward n comes before backward n - W_j + 1; the way from i to j and back
// advances 1 + W_i - W_j microbatches. Gradients of inputs are sent before
// those of weights are computed.
double lawfulPeriod(const std::vector<int> &warmup,
                    const SimulateOptions &costs) {
  double period = 0;
  for (const ActionTimes &times : costs.times)
    period = std::max(period, cycleOf(times));
  for (const BoundaryCost &b : costs.boundaries)
    period = std::max({period, b.forward, b.backward});
  for (size_t i = 0; i < warmup.size(); ++i) {
    double loop = cycleOf(costs.times[i]);
    for (size_t j = i + 1; j < warmup.size(); ++j) {
      const BoundaryCost &b = costs.boundaries[j - 1];
      loop +=
          cycleOf(costs.times[j]) - costs.times[j].W + b.forward + b.backward;
      period = std::max(period, loop / (1 + warmup[i] - warmup[j]));
    }
  }
  return period;
}

// Stages and boundaries of whole and half seconds.
SimulateOptions randomCosts(std::mt19937 &random, int p, bool equal) {
  auto draw = [&](int most) { return 0.5 * double(random() % (2 * most + 1)); };
  SimulateOptions costs;
  for (int s = 0; s < p; ++s) {
    ActionTimes times;
    times.F = 0.5 + draw(2);
    times.B = 0.5 + draw(2);
    times.W = random() % 2 ? draw(2) : 0;
    costs.times.push_back(equal && s > 0 ? costs.times[0] : times);
  }
  for (int l = 0; l + 1 < p; ++l)
    costs.boundaries.push_back({draw(4), draw(4), 0, 0});
  return costs;
}

TEST(TransferWarmup, LawHoldsInTheSimulator) {
  std::mt19937 random(42);
  int byLoop = 0;
  for (int i = 0; i < 300; ++i) {
    const int p = 2 + int(random() % 5);
    const SimulateOptions costs = randomCosts(random, p, false);
    std::vector<int> warmup(p, 1);
    for (int s = p - 2; s >= 0; --s)
      warmup[s] = warmup[s + 1] + 1 + int(random() % 3);
    const double period = lawfulPeriod(warmup, costs);
    EXPECT_NEAR(measuredPeriod(warmup, costs), period, 0.01 * period)
        << "instance " << i;
    double resource = 0;
    for (const ActionTimes &times : costs.times)
      resource = std::max(resource, cycleOf(times));
    for (const BoundaryCost &b : costs.boundaries)
      resource = std::max({resource, b.forward, b.backward});
    byLoop += period > 1.02 * resource;
  }
  EXPECT_GT(byLoop, 60); // else stages and links would decide everything
}

// Equal stages: with the warm-up of each boundary the slowest stage or link is
// all that counts; with one less anywhere it is not, where the rule asked for
// more than 1F1B has.
TEST(TransferWarmup, PerBoundaryHidesAllTransfers) {
  std::mt19937 random(43);
  int lessIsSlower = 0;
  for (int i = 0; i < 200; ++i) {
    const int p = 2 + int(random() % 5);
    const SimulateOptions costs = randomCosts(random, p, true);
    double resource = cycleOf(costs.times[0]);
    for (const BoundaryCost &b : costs.boundaries)
      resource = std::max({resource, b.forward, b.backward});
    const std::vector<int> warmup = transferWarmup(p, 10000, costs);
    EXPECT_DOUBLE_EQ(lawfulPeriod(warmup, costs), resource);
    EXPECT_NEAR(measuredPeriod(warmup, costs), resource, 0.01 * resource);
    std::vector<int> less = warmup;
    for (int s = 0; s + 1 < p; ++s)
      if (warmup[s] - warmup[s + 1] > 1) {
        for (int before = 0; before <= s; ++before)
          --less[before];
        lessIsSlower += lawfulPeriod(less, costs) > resource;
        break;
      }
  }
  EXPECT_GT(lessIsSlower, 30);
}

// What a split backward hides: with 1F1B, transfers up to W cost nothing.
TEST(TransferWarmup, LateWeightsHideTransfers) {
  for (int p : {2, 4, 6}) {
    SimulateOptions costs;
    costs.times.assign(p, ActionTimes{0, 1, 0, 1, 1, 0});
    costs.boundaries.assign(p - 1, BoundaryCost{0.5, 0.5, 0, 0});
    std::vector<int> plain = warmupOf(p, 1);
    EXPECT_EQ(transferWarmup(p, 100, costs), plain);
    EXPECT_NEAR(measuredPeriod(plain, costs), 3, 0.01);
    costs.times.assign(p, ActionTimes{0, 1, 0, 2, 0, 0});
    EXPECT_NEAR(measuredPeriod(plain, costs), 3 + double(p - 1) / p, 0.01);
  }
}

} // namespace
} // namespace merak::planning
