// Schedules against full tables, totals and traces of an independent
// simulation (test/data/golden/schedules.json), and against each other: no
// schedule passes another one's test.
#include "passes/Planning/ScheduleCheck.h"

#include "test/unit/planning/GoldenFile.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <random>

namespace merak::planning {
namespace {

using test::golden;

// The golden 1F1B recomputes on every stage.
Schedule make(const std::string &name, int stages, int microbatches,
              bool recompute = true, int chunks = 1) {
  ScheduleOptions options;
  options.chunks = chunks;
  options.stages = stages;
  options.microbatches = microbatches;
  options.recompute = recompute;
  Result<Schedule> schedule = makeSchedule(name, options);
  EXPECT_TRUE(schedule.ok()) << schedule.status().str();
  return *schedule;
}

SimulateOptions times(double F, double R, double B) {
  SimulateOptions options;
  ActionTimes times;
  times.F = F;
  times.R = R;
  times.B = B;
  options.times = {times};
  return options;
}

TEST(Schedule, OrdersEqualGoldenTables) {
  EXPECT_EQ(golden()["orders"].size(), 44u);
  for (const auto &entry : golden()["orders"]) {
    Schedule schedule = make(entry["schedule"], entry["p"], entry["m"]);
    for (int s = 0; s < schedule.stages; ++s)
      EXPECT_EQ(stageStr(schedule, s), entry["stages"][s].get<std::string>());
    Status status = checkSchedule(schedule);
    EXPECT_TRUE(status.ok()) << status.str();
  }
}

TEST(Schedule, EagerOrdersEqualGoldenTables) {
  EXPECT_EQ(golden()["eager_1f1b"]["orders"].size(), 6u);
  for (const auto &entry : golden()["eager_1f1b"]["orders"]) {
    bool isEager = entry["schedule"] == "eager-1f1b";
    Schedule schedule =
        make(isEager ? "eager" : "1f1b", entry["p"], entry["m"], false);
    for (int s = 0; s < schedule.stages; ++s)
      EXPECT_EQ(stageStr(schedule, s), entry["stages"][s].get<std::string>());
  }
}

TEST(Schedule, GpipeTable) {
  Schedule schedule = make("gpipe", 2, 3, false);
  EXPECT_EQ(tableStr(schedule), "S0: F0 F1 F2 B0 B1 B2\n"
                                "S1: F0 F1 F2 B0 B1 B2\n");
  EXPECT_TRUE(checkSchedule(schedule).ok());
  EXPECT_EQ(inFlightPeak(schedule), (std::vector<int>{3, 3}));
}

TEST(Schedule, TotalsEqualGolden) {
  int compared = 0;
  for (const auto &entry : golden()["totals"]) {
    Schedule schedule = make(entry["schedule"], entry["p"], entry["m"]);
    Timeline timeline =
        simulate(schedule, times(entry["F"], entry["R"], entry["B"]));
    EXPECT_EQ(timeline.total, entry["total"].get<double>()) << entry;
    if (entry.contains("busy")) {
      EXPECT_EQ(timeline.busy, entry["busy"].get<std::vector<double>>());
    }
    ++compared;
  }
  EXPECT_EQ(compared, 480);
}

// [["F", 0, start, end], ...] as "F0 ...".
std::string traceStr(const nlohmann::json &steps) {
  std::string text;
  for (const auto &step : steps)
    text += (text.empty() ? "" : " ") + step[0].get<std::string>() +
            std::to_string(step[1].get<int>());
  return text;
}

TEST(Schedule, TracesEqualGolden) {
  EXPECT_EQ(golden()["traces"].size(), 4u);
  for (const auto &entry : golden()["traces"]) {
    Schedule schedule = make(entry["schedule"], entry["p"], entry["m"]);
    Timeline timeline =
        simulate(schedule, times(entry["F"], entry["R"], entry["B"]));
    EXPECT_EQ(timeline.total, entry["total"].get<double>());
    for (int s = 0; s < schedule.stages; ++s) {
      ASSERT_EQ(timeline.stages[s].size(), entry["stages"][s].size());
      EXPECT_EQ(stageStr(schedule, s), traceStr(entry["stages"][s]));
      for (size_t i = 0; i < timeline.stages[s].size(); ++i) {
        EXPECT_EQ(timeline.stages[s][i].start,
                  entry["stages"][s][i][2].get<double>());
        EXPECT_EQ(timeline.stages[s][i].end,
                  entry["stages"][s][i][3].get<double>());
      }
    }
  }
}

TEST(Schedule, MemoryEqualsGolden) {
  int compared = 0;
  for (const auto &entry : golden()["memory"]) {
    Schedule schedule = make(entry["schedule"], entry["p"], entry["m"]);
    EXPECT_EQ(inFlightPeak(schedule),
              entry["in_flight_peak"].get<std::vector<int>>())
        << entry;
    EXPECT_EQ(simulate(schedule, times(1, 1, 2)).fullSets,
              entry["full_sets_peak"].get<std::vector<int>>())
        << entry;
    ++compared;
  }
  EXPECT_EQ(compared, 20);
}

TEST(Schedule, TransferTimesEqualGolden) {
  EXPECT_EQ(golden()["eager_1f1b"]["finite"].size(), 30u);
  for (const auto &entry : golden()["eager_1f1b"]["finite"])
    for (const char *name : {"1f1b", "eager"}) {
      Schedule schedule = make(name, entry["p"], entry["m"], false);
      SimulateOptions options = times(entry["f"], 0, entry["b"]);
      options.forwardTransfer = entry["cf"];
      options.backwardTransfer = entry["cb"];
      EXPECT_EQ(simulate(schedule, options).total,
                entry[std::string("total_") + name].get<double>())
          << entry;
      EXPECT_EQ(
          inFlightPeak(schedule),
          entry[std::string("in_flight_") + name].get<std::vector<int>>());
    }
}

// T = (m + p - 1)(F + R + B).
TEST(Schedule, OneForwardOneBackwardFormula) {
  for (int p = 1; p <= 8; ++p)
    for (int m = 1; m <= 3 * p; ++m)
      for (double R : {0.0, 1.0})
        EXPECT_EQ(simulate(make("1f1b", p, m, R > 0), times(1, R, 2)).total,
                  (m + p - 1) * (3 + R));
}

// The formulas of docs/Schedules.md and the general ones behind them, equal
// stages: R = F with several B, and R below F.
TEST(Schedule, FormulasOverAGrid) {
  int compared = 0;
  const double F = 10;
  for (auto [R, B] :
       {std::pair(10.0, 15.0), {10, 20}, {10, 25}, {10, 30}, {3, 20}, {5, 20}})
    for (int p = 1; p <= 8; ++p)
      for (int m = std::max(4, p); m <= 4 * p; ++m) {
        auto total = [&](const char *name) {
          return simulate(make(name, p, m), times(F, R, B)).total;
        };
        double cycle = F + R + B;
        EXPECT_EQ(total("1f1b"), (m + p - 1) * cycle);
        EXPECT_EQ(total("gpipe"), (m + p - 1) * cycle);
        EXPECT_EQ(total("early"), m * cycle + (p - 1) * (F + B));
        if (p < 2)
          continue;
        EXPECT_EQ(total("last"),
                  (m + p - 2) * F + (m - 1) * R + (m + p - 1) * B + (F - R))
            << p << " " << m << " " << R << " " << B;
        EXPECT_EQ(total("scp"), std::max((p + 1) * F + R, p * F + B) + m * B +
                                    (m - 3) * F + (m - 1) * R + (p - 2) * B +
                                    2 * (F - R))
            << p << " " << m << " " << R << " " << B;
        if (R == F && F + R >= B) {
          EXPECT_EQ(total("scp"), m * cycle + (p - 2) * (F + B));
        }
        ++compared;
      }
  EXPECT_GT(compared, 500);
}

// 1F1B whose recomputation does not wait for the gradient takes the time of
// early; last and scp gain min(R, F-R).
TEST(Schedule, WhatTheWaitCosts) {
  for (double R : {0.0, 3.0, 5.0, 10.0})
    for (int p = 2; p <= 6; ++p)
      for (int m = std::max(4, p); m <= 3 * p; ++m) {
        SimulateOptions costs = times(10, R, 20);
        auto gain = [&](const char *name) {
          Schedule schedule = make(name, p, m);
          double waits = simulate(schedule, costs).total;
          for (std::vector<Step> &order : schedule.order)
            for (Step &step : order)
              step.early = true;
          return waits - simulate(schedule, costs).total;
        };
        EXPECT_EQ(gain("1f1b"), (p - 1) * R);
        EXPECT_EQ(gain("last"), std::min(R, 10 - R)) << p << " " << m;
        EXPECT_EQ(gain("scp"), std::min(R, 10 - R)) << p << " " << m;
      }
}

// Whole steps with transfers c = cf + cb up to F+B: all hidden under eager, all
// but one in p shown under 1F1B.
TEST(Schedule, TransferFormulas) {
  for (int p : {2, 3, 4, 8})
    for (int m : {2 * p, 4 * p, 8 * p})
      for (double c : {0.0, 2.0, 6.0, 12.0, 18.0, 30.0}) {
        SimulateOptions costs = times(10, 0, 20);
        costs.forwardTransfer = costs.backwardTransfer = c / 2;
        EXPECT_EQ(simulate(make("eager", p, m, false), costs).total,
                  (m + p - 1) * 30 + (p - 1) * c);
        EXPECT_NEAR(simulate(make("1f1b", p, m, false), costs).total,
                    (m + p - 1) * 30 + c * ((p - 1.0) * m / p + p - 2), 1e-9);
      }
}

// n a + A on the stages that recompute, where n are in flight; A on the last.
TEST(Schedule, PeakBytes) {
  const double inputs = 1, full = 100;
  for (const char *name : {"1f1b", "early", "last", "scp"})
    for (int p = 2; p <= 8; ++p)
      for (int m = std::max(4, p); m <= 3 * p; ++m) {
        Schedule schedule = make(name, p, m);
        SimulateOptions costs = times(1, 1, 2);
        costs.memory.assign(p, {0, inputs, full});
        bool keeps = name == std::string("last") || name == std::string("scp");
        if (keeps)
          costs.memory[p - 1] = {0, full, 0};
        Timeline timeline = simulate(schedule, costs);
        std::vector<int> flights = inFlightPeak(schedule);
        for (int s = 0; s < p; ++s)
          EXPECT_EQ(timeline.peakBytes[s],
                    keeps && s == p - 1 ? full : flights[s] * inputs + full);
      }
}

// Any two schedules of one shape differ somewhere, or are the same list.
TEST(Schedule, TablesTellSchedulesApart) {
  std::vector<std::string> tables;
  for (const std::string &name : scheduleNames())
    tables.push_back(tableStr(
        make(name, 4, 8, /*recompute=*/true, name == "interleaved" ? 2 : 1)));
  for (size_t i = 0; i < tables.size(); ++i)
    for (size_t j = i + 1; j < tables.size(); ++j)
      EXPECT_NE(tables[i], tables[j])
          << scheduleNames()[i] << " " << scheduleNames()[j];
}

TEST(Schedule, CompletesWithPrologueWeightsAndUpdate) {
  ScheduleOptions options;
  options.stages = 2;
  options.microbatches = 2;
  options.splitBackward = options.prologue = options.update = true;
  options.prologueStages = {1};
  Result<Schedule> schedule = makeSchedule("1f1b", options);
  ASSERT_TRUE(schedule.ok());
  EXPECT_EQ(tableStr(*schedule), "S0: F0 F1 B0 W0 B1 W1 U\n"
                                 "S1: P0 P1 F0 B0 W0 F1 B1 W1 U\n");
  Status status = checkSchedule(*schedule);
  EXPECT_TRUE(status.ok()) << status.str();
}

TEST(Schedule, RefusesUnknownNamesAndShapes) {
  ScheduleOptions options;
  EXPECT_EQ(makeSchedule("2f2b", options).status().str(),
            "there is no schedule '2f2b'; known are gpipe, 1f1b, early, last, "
            "scp, eager, interleaved, zb");
  options.stages = 4;
  options.microbatches = 0;
  options.recomputeStages = {true, false};
  EXPECT_EQ(makeSchedule("scp", options).status().str(),
            "schedule 'scp' needs at least 1 microbatch, found 0\n"
            "schedule 'scp' has 4 stages, found 2 recomputation flags");
  options.recomputeStages.clear();
  options.microbatches = 6;
  options.chunks = 2;
  EXPECT_EQ(makeSchedule("interleaved", options).status().str(),
            "schedule 'interleaved' runs microbatches in groups of one a "
            "stage: 6 microbatches do not divide by 4 stages");
  EXPECT_EQ(makeSchedule("zb", options).status().str(),
            "schedule 'zb' has one chunk a stage, found 2");
}

TEST(Schedule, InterleavedTable) {
  EXPECT_EQ(tableStr(make("interleaved", 2, 2, false, 2)),
            "S0: F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1\n"
            "S1: F0 F1 F0.1 B0.1 F1.1 B1.1 B0 B1\n");
  EXPECT_EQ(tableStr(make("interleaved", 3, 5, true, 1)),
            tableStr(make("1f1b", 3, 5)));
}

// T = m(F+R+B) + (p-1)(F+R+B)/v, where a chunk takes a v-th.
TEST(Schedule, InterleavedFormula) {
  for (int p = 2; p <= 8; ++p)
    for (int v = 2; v <= 4; ++v)
      for (int m = p; m <= 4 * p; m += p)
        for (double R : {0.0, 1.0})
          for (double B : {1.0, 2.0, 3.0}) {
            Schedule schedule = make("interleaved", p, m, R > 0, v);
            EXPECT_EQ(simulate(schedule, times(1, R, B)).total,
                      (m * v + p - 1) * (1 + R + B))
                << p << " " << v << " " << m;
            // In chunks; p of 1F1B are p * v of them.
            EXPECT_EQ(inFlightPeak(schedule)[0],
                      std::min(m * v, 2 * (p - 1) + (v - 1) * p + 1));
          }
}

// T = m(F+B+W) + (p-1)(F+B-W) for equal times, and no stage has more than p
// activation sets.
TEST(Schedule, ZeroBubbleFormula) {
  for (int p = 1; p <= 8; ++p)
    for (int m = p; m <= 4 * p; ++m) {
      SimulateOptions costs = times(1, 0, 1);
      costs.times[0].W = 1;
      Timeline timeline = simulate(make("zb", p, m, false), costs);
      EXPECT_EQ(timeline.total, 3 * m + p - 1);
      for (int sets : timeline.fullSets)
        EXPECT_LE(sets, p);
      // 1F1B with the same actions has a bubble three times as long.
      ScheduleOptions options;
      options.stages = p;
      options.microbatches = m;
      Timeline plain = simulate(*makeSchedule("1f1b", options), times(1, 0, 2));
      EXPECT_EQ(plain.total - 3 * m, 3 * (p - 1));
    }
}

// ------------------------------------------------------------- the checker

std::string problems(const std::string &stages,
                     const CheckOptions &options = {}) {
  Result<Schedule> schedule =
      parseSchedule("{\"microbatches\": 2, \"stages\": [" + stages + "]}", "s");
  EXPECT_TRUE(schedule.ok()) << schedule.status().str();
  return checkSchedule(*schedule, options).str();
}

TEST(ScheduleCheck, AcceptsUserSchedules) {
  EXPECT_EQ(problems(R"("F0 F1 B0 B1", "F0 B0 F1 B1")"), "");
  EXPECT_EQ(problems(R"("F0 F1", "F0 F1")"), "");
}
TEST(ScheduleCheck, MissingAndRepeatedActions) {
  EXPECT_EQ(problems(R"("F0 F1 B0 B1", "F0 B0 F1 B0")"),
            "stage 1, position 3: B0 is a duplicate, first at position 1\n"
            "stage 1: B1 is missing");
  EXPECT_EQ(problems(R"("F0 F1 B0 W0 B1", "F0 B0 F1 B1")"),
            "stage 0: W1 is missing");
  EXPECT_EQ(problems(R"("F0 F1", "F0 B0 F1 B1")"),
            "stage 0 has no B, stage 1 has");
  EXPECT_EQ(problems(R"("F0 F1 F2")"),
            "stage 0, position 2: F2 is outside of 2 microbatches and 1 "
            "chunks");
}
TEST(ScheduleCheck, OrderInsideAStage) {
  EXPECT_EQ(problems(R"("F0 B1 F1 B0")"),
            "stage 0, position 3: B0 stands after microbatch 1, but sums take "
            "microbatches 0 first\n"
            "stage 0, position 1: B1 stands before F1");
  EXPECT_EQ(problems(R"("F0 F1 W0 B0 B1 W1")"),
            "stage 0, position 2: W0 stands before B0");
  EXPECT_EQ(problems(R"("F0 P0 P1 F1")"),
            "stage 0, position 1: P0 stands after the first forward\n"
            "stage 0, position 2: P1 stands after the first forward");
  EXPECT_EQ(problems(R"("F0 U F1")"),
            "stage 0, position 1: U is not the last action");
}
// One sentence for an action that goes backwards; R may.
TEST(ScheduleCheck, MicrobatchesZeroFirst) {
  EXPECT_EQ(problems(R"("F0 F1 B0 B1", "F1 F0 B0 B1")"),
            "stage 1, position 1: F0 stands after microbatch 1, but sums take "
            "microbatches 0 first");
  EXPECT_EQ(problems(R"("F0 F1 B0 B1 W1 W0")"),
            "stage 0, position 5: W0 stands after microbatch 1, but sums take "
            "microbatches 0 first");
  EXPECT_EQ(problems(R"("F0 F1 R1 R0 B0 B1")"), "");
}
TEST(ScheduleCheck, ExpectedShapeAndFile) {
  CheckOptions options;
  options.file = "mine.json";
  options.stages = 3;
  options.microbatches = 4;
  EXPECT_EQ(problems(R"("F0 F1 B0 B1", "F0 B0 F1 B0")", options),
            "mine.json: expected 3 stages, found 2\n"
            "mine.json: expected 4 microbatches, found 2\n"
            "mine.json: stage 1, position 3: B0 is a duplicate, first at "
            "position 1\n"
            "mine.json: stage 1: B1 is missing");
}
TEST(ScheduleCheck, DeadlockPrintsItsCycle) {
  EXPECT_EQ(problems(R"("F0 B0 F1 B1", "F0 F1 B0 B1")"),
            "deadlock: stage 0 B0 waits for stage 1 B0 waits for stage 1 F1 "
            "waits for stage 0 F1 waits for stage 0 B0");
}
TEST(ScheduleCheck, InFlightBound) {
  CheckOptions options;
  options.inFlight = {2, 1};
  EXPECT_EQ(problems(R"("F0 F1 B0 B1", "F0 F1 B0 B1")", options),
            "stage 1 has 2 microbatches in flight, at most 1 are allowed");
}

// Swapping two neighbours of a right schedule is noticed unless they are free
// to swap, in which case it still runs to the end.
TEST(ScheduleCheck, RandomSwapsAreCaughtOrHarmless) {
  std::mt19937 random(7);
  int caught = 0, harmless = 0;
  for (int round = 0; round < 300; ++round) {
    Schedule schedule = make("1f1b", 3, 5, false);
    auto &order = schedule.order[random() % 3];
    size_t at = random() % (order.size() - 1);
    std::swap(order[at], order[at + 1]);
    if (!checkSchedule(schedule).ok()) {
      ++caught;
      continue;
    }
    ++harmless;
    Timeline timeline = simulate(schedule, times(1, 0, 2));
    size_t steps = 0;
    for (const auto &stage : timeline.stages)
      steps += stage.size();
    EXPECT_EQ(steps, 30u);
  }
  EXPECT_GT(caught, 50);
  EXPECT_GT(harmless, 20);
}

// ------------------------------------------------------------------- files

TEST(ScheduleFile, RoundTrip) {
  for (const std::string &name : scheduleNames()) {
    Schedule schedule = make(name, 3, 6);
    Result<Schedule> again = parseSchedule(toJson(schedule), "again");
    ASSERT_TRUE(again.ok()) << again.status().str();
    EXPECT_EQ(*again, schedule);
  }
}
TEST(ScheduleFile, AllProblemsAtOnce) {
  Result<Schedule> schedule = parseSchedule(
      R"({"microbatches": 0, "stages": ["F0 X1", 3, "f0 r0 B0"], "who": 1})",
      "mine.json");
  EXPECT_EQ(
      schedule.status().str(),
      "mine.json: unknown field 'who'\n"
      "mine.json: 'microbatches' is 0, expected a whole number of at least 1\n"
      "mine.json: stage 0, position 1: 'X1' is no action; expected one like "
      "F0, "
      "r1, B2.1 or U\n"
      "mine.json: stage 1 is not a string\n"
      "mine.json: stage 2, position 0: f0 announces an early recomputation R0 "
      "that is not "
      "there");
  EXPECT_EQ(parseSchedule("{", "x").status().str(),
            "x: expected a JSON object");
}
// The compiler places the exchange of shared gradients.
TEST(ScheduleFile, HasNoExchange) {
  EXPECT_EQ(parseSchedule(R"({"microbatches": 1, "stages": ["F0 B0 S U"]})",
                          "mine.json")
                .status()
                .str(),
            "mine.json: stage 0, position 2: 'S' is no action; expected one "
            "like F0, r1, B2.1 or U");
}

// The lists of several pipelines stand one behind the other, with the numbers
// that microbatches have in the step, and can be told apart again.
TEST(Schedule, ListsOfPipelines) {
  ScheduleOptions shape;
  shape.stages = 2;
  shape.microbatches = 3;
  shape.splitBackward = shape.update = true;
  const Schedule first = *makeSchedule("1f1b", shape);
  shape.stages = 1;
  shape.microbatches = 2;
  const Schedule last = *makeSchedule("gpipe", shape);
  Schedule all;
  append(first, 0, all);
  append(last, 3, all);
  EXPECT_EQ(all.stages, 3);
  EXPECT_EQ(all.microbatches, 5);
  EXPECT_EQ(stageStr(all, 0), stageStr(first, 0));
  EXPECT_EQ(stageStr(all, 2), "F3 F4 B3 W3 B4 W4 U");
  EXPECT_EQ(listsOfPipeline(all, 0, 2, 0, 3).order, first.order);
  EXPECT_EQ(listsOfPipeline(all, 2, 1, 3, 2).order, last.order);
}

} // namespace
} // namespace merak::planning
