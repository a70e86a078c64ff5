// Programs with rendezvous against golden ones, and against deadlock.
#include "passes/Planning/BlockingProgram.h"
#include "passes/Planning/AutoSchedule.h"

#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

namespace merak::planning {
namespace {

const nlohmann::json &golden() {
  static const nlohmann::json json = [] {
    std::ifstream file(MERAK_SOURCE_DIR "/test/data/golden/schedules.json");
    return nlohmann::json::parse(file)["blocking_p2p"];
  }();
  return json;
}

Schedule make(const std::string &name, int p, int m) {
  ScheduleOptions options;
  options.stages = p;
  options.microbatches = m;
  options.recompute = true;
  return *makeSchedule(name, options);
}

TEST(BlockingProgram, ProgramsEqualGolden) {
  int compared = 0;
  for (const auto &entry : golden()["programs"]) {
    Schedule schedule = make(entry["schedule"], golden()["p"], golden()["m"]);
    std::vector<StageProgram> programs = blockingPrograms(schedule);
    for (int s = 0; s < schedule.stages; ++s)
      EXPECT_EQ(str(programs[s], schedule, s),
                entry["stages"][s].get<std::string>())
          << entry["schedule"] << " stage " << s;
    ++compared;
  }
  EXPECT_EQ(compared, 4);
}

TEST(BlockingProgram, TotalsEqualGolden) {
  std::vector<ActionTimes> times = {
      {0, golden()["F"], golden()["R"], golden()["B"]}};
  int compared = 0;
  for (const auto &entry : golden()["totals"]) {
    auto programs =
        blockingPrograms(make(entry["schedule"], golden()["p"], golden()["m"]));
    for (bool free : {false, true}) {
      BlockingRun run =
          runBlocking(programs, times, free ? 0 : double(golden()["C"]));
      EXPECT_TRUE(run.finished);
      EXPECT_EQ(run.total, entry[free ? "total_C0" : "total"].get<double>())
          << entry;
    }
    ++compared;
  }
  EXPECT_EQ(compared, 4);
}

// Larger shapes, totals of an independent simulation.
TEST(BlockingProgram, TotalsOfLargerShapes) {
  std::vector<ActionTimes> times = {{0, 10, 10, 20}};
  const std::vector<std::string> names = {"1f1b", "early", "last", "scp"};
  const std::map<std::pair<int, int>, std::vector<double>> expected = {
      {{4, 8}, {459, 430, 411, 405}},
      {{4, 16}, {795, 766, 747, 741}},
      {{8, 16}, {963, 894, 875, 869}},
      {{8, 32}, {1635, 1566, 1547, 1541}}};
  for (const auto &[shape, totals] : expected)
    for (size_t i = 0; i < names.size(); ++i)
      EXPECT_EQ(runBlocking(
                    blockingPrograms(make(names[i], shape.first, shape.second)),
                    times, 1)
                    .total,
                totals[i])
          << names[i] << " " << shape.first << " " << shape.second;
}

// Both ends of each boundary see the same messages in the same order, each
// sent after it is made and received before it is needed, and all end.
TEST(BlockingProgram, NoDeadlockAnywhere) {
  std::mt19937 random(41);
  int checked = 0;
  auto check = [&](const std::string &name, const Schedule &schedule) {
    std::vector<StageProgram> programs = blockingPrograms(schedule);
    BlockingRun run =
        runBlocking(programs, {{0, 1, 1, 2, 1, 0}}, double(random() % 3));
    ASSERT_TRUE(run.finished) << name << " " << schedule.stages << " "
                              << schedule.microbatches << "\n"
                              << str(programs[0], schedule, 0);
    for (int s = 0; s < schedule.stages; ++s) {
      std::set<std::pair<bool, int>> received;
      std::set<std::pair<Action, int>> ran;
      for (const ProgramItem &item : programs[s]) {
        for (const Message &m : item.messages)
          if (m.sends)
            EXPECT_TRUE(
                ran.count({m.gradient ? Action::B : Action::F, m.microbatch}));
          else
            EXPECT_TRUE(received.insert({m.gradient, m.microbatch}).second);
        if (!item.messages.empty())
          continue;
        const Step &step = item.step;
        ran.insert({step.action, step.microbatch});
        if (step.action == Action::F && s > 0) {
          EXPECT_TRUE(received.count({false, step.microbatch}));
        }
        if (step.action == Action::B && s + 1 < schedule.stages) {
          EXPECT_TRUE(received.count({true, step.microbatch}));
        }
      }
    }
    ++checked;
  };
  for (int p = 1; p <= 9; ++p)
    for (int m = 1; m <= 4 * p; ++m) {
      ScheduleOptions options;
      options.stages = p;
      options.microbatches = m;
      options.splitBackward = random() % 2;
      for (int s = 0; s < p; ++s)
        options.recomputeStages.push_back(random() % 2);
      for (const std::string &name : scheduleNames())
        check(name, *makeSchedule(name, options));
      ListOptions list;
      list.shape = options;
      for (int s = 0; s < p; ++s)
        list.costs.times.push_back({0, 1.0 + random() % 5, 1.0 + random() % 5,
                                    1.0 + random() % 5, 1.0 + random() % 5});
      list.costs.forwardTransfer = random() % 4;
      list.sets = int(random() % 4);
      list.preference = Preference(random() % 4);
      check("list", *listSchedule(list));
    }
  EXPECT_EQ(checked, 180 * (int(scheduleNames().size()) + 1));
}

} // namespace
} // namespace merak::planning
