// The stage-aware rule against exact fractions of an independent computation
// (test/data/golden/schedules.json) and against its own reason: equal peaks.
#include "passes/Planning/Recompute.h"
#include "passes/Planning/ScheduleCheck.h"

#include "test/unit/planning/GoldenFile.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace merak::planning {
namespace {

const nlohmann::json &golden() { return test::golden()["stage_aware"]; }

double fraction(const nlohmann::json &pair) {
  return pair[0].get<double>() / pair[1].get<double>();
}

double total(const std::string &name, int p, int m, double F,
             const std::vector<double> &R, double B,
             std::vector<int> *inFlight = nullptr) {
  ScheduleOptions options;
  options.stages = p;
  options.microbatches = m;
  for (double seconds : R)
    options.recomputeStages.push_back(seconds > 0);
  Result<Schedule> schedule = makeSchedule(name, options);
  EXPECT_TRUE(schedule.ok()) << schedule.status().str();
  SimulateOptions costs;
  for (double seconds : R) {
    ActionTimes times;
    times.F = F;
    times.R = seconds;
    times.B = B;
    costs.times.push_back(times);
  }
  if (inFlight)
    *inFlight = inFlightPeak(*schedule);
  return simulate(*schedule, costs).total;
}

TEST(Recompute, RatiosEqualGolden) {
  int compared = 0;
  for (const auto &entry : golden()["ratios"])
    for (bool scp : {false, true}) {
      const auto &expected = entry[scp ? "scp" : "plain"];
      Result<std::vector<double>> ratios =
          stageRatios(entry["p"], {fraction(entry["a"])}, scp);
      ASSERT_TRUE(ratios.ok());
      ASSERT_EQ(ratios->size(), expected.size());
      for (size_t s = 0; s < expected.size(); ++s)
        EXPECT_NEAR((*ratios)[s], fraction(expected[s]), 1e-12) << entry;
      ++compared;
    }
  EXPECT_EQ(compared, 40);
}

// Peak activations of a stage with `inFlight` microbatches, one of them fully
// materialised, in those of one microbatch.
double stagePeak(int inFlight, double ratio) {
  return 1 + (inFlight - 1) * (1 - ratio);
}

TEST(Recompute, ResultsEqualGolden) {
  int compared = 0;
  for (const auto &entry : golden()["results"]) {
    int p = entry["p"], m = entry["m"];
    double F = entry["F"], B = entry["B"], a = fraction(entry["a"]);
    std::vector<double> ratios = *stageRatios(p, {a}, /*scp=*/true);
    std::vector<double> R;
    for (int s = 0; s < p; ++s)
      R.push_back(std::round(ratios[s] * F));
    EXPECT_EQ(R, entry["R_per_stage"].get<std::vector<double>>());
    std::vector<int> inFlight;
    EXPECT_EQ(total("scp", p, m, F, R, B, &inFlight),
              entry["total_stage_aware"].get<double>());
    EXPECT_EQ(inFlight, entry["in_flight"].get<std::vector<int>>());
    for (int s = 0; s < p; ++s)
      EXPECT_NEAR(stagePeak(inFlight[s], ratios[s]),
                  entry["peak_over_A"][s].get<double>(), 1e-12);
    std::vector<double> same(p, std::round(a * F)), full(p, F);
    EXPECT_EQ(total("scp", p, m, F, same, B),
              entry["total_uniform_ratio"].get<double>());
    EXPECT_EQ(total("1f1b", p, m, F, full, B),
              entry["total_1f1b_full_recompute"].get<double>());
    ++compared;
  }
  EXPECT_EQ(compared, 20);
}

// Why the rule is what it is: the peaks of all stages that recompute are equal,
// the others need no more.
TEST(Recompute, PeaksAreEqual) {
  for (int p = 2; p <= 12; ++p)
    for (double a : {0.95, 0.8, 0.5, 0.25}) {
      std::vector<double> ratios = *stageRatios(p, {a}, false);
      double first = stagePeak(p, ratios[0]);
      for (int s = 0; s < p; ++s) {
        double peak = stagePeak(p - s, ratios[s]);
        if (ratios[s] > 0) {
          EXPECT_NEAR(peak, first, 1e-9) << p << " " << a << " " << s;
        } else {
          EXPECT_LE(peak, first + 1e-9) << p << " " << a << " " << s;
        }
      }
    }
}

TEST(Recompute, ListsOfRatios) {
  using V = std::vector<double>;
  EXPECT_EQ(*stageRatios(3, {0.5, 0.25, 1}, true), (V{0.5, 0.25, 1}));
  EXPECT_EQ(*stageRatios(4, {0.5, 0.25}, true), (V{0.5, 0.25, 0.25, 0.25}));
  EXPECT_EQ(*stageRatios(1, {0.5}, true), (V{0.5}));
  EXPECT_EQ(stageRatios(2, {0.5, 2, -1}, false).status().str(),
            "expected 1 to 2 recomputation ratios, found 3\n"
            "recomputation ratio 2 is not between 0 and 1\n"
            "recomputation ratio -1 is not between 0 and 1");
  EXPECT_FALSE(stageRatios(2, {}, false).ok());
}

TEST(Recompute, WholeParts) {
  EXPECT_EQ(recomputedParts(2.0 / 3, 3), 2);
  EXPECT_EQ(recomputedParts(0.7, 10), 7);
  EXPECT_EQ(recomputedParts(0.69, 10), 6);
  EXPECT_EQ(recomputedParts(1, 5), 5);
  EXPECT_EQ(recomputedParts(0, 5), 0);
}

} // namespace
} // namespace merak::planning
