// Schedules of many microbatches by those of fewer.
#include "passes/Planning/SteadySchedule.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

using namespace merak;
using namespace merak::planning;

namespace {

struct Case {
  std::string name;
  ScheduleOptions options;
  std::string str() const {
    return fmt::format("{} stages={} microbatches={} chunks={} recompute={}",
                       name, options.stages, options.microbatches,
                       options.chunks, options.recompute);
  }
};

// All schedules with enough microbatches to be priced from fewer.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string &name : scheduleNames())
    for (int stages : {1, 2, 3, 4, 5, 8})
      for (int chunks : {1, 2, 3})
        for (int microbatches : {6, 7, 9, 10, 13})
          for (int odd : {0, 1, stages - 1})
            for (bool recompute : {false, true}) {
              ScheduleOptions make;
              make.stages = stages;
              make.chunks = chunks;
              make.microbatches = microbatches * stages + odd;
              make.recompute = recompute;
              make.splitBackward = make.update = true;
              if (steadyLengths(stages, make.microbatches) &&
                  makeSchedule(name, make).ok())
                all.push_back({name, make});
            }
  return all;
}

TEST(SteadySchedule, CopiesAreThoseOfAllMicrobatches) {
  size_t compared = 0;
  for (const Case &one : cases()) {
    const Schedule schedule = *makeSchedule(one.name, one.options);
    const ScheduleLists exact(schedule);
    Result<const ScheduleLists *> found = listsOf(one.name, one.options);
    ASSERT_TRUE(found.ok()) << found.status().str();
    EXPECT_EQ((*found)->inFlight, exact.inFlight) << one.str();
    EXPECT_EQ((*found)->recomputes, exact.recomputes) << one.str();
    for (int v = 0; v < schedule.virtualStages(); ++v)
      for (int distance : {1, 2, 3}) {
        EXPECT_EQ((*found)->copiesFrom(distance, v).all,
                  exact.copiesFrom(distance, v).all)
            << one.str() << " virtual stage " << v << " from " << distance;
        ++compared;
      }
  }
  EXPECT_GT(compared, 10000u);
}

// Of few steps the counter stays, of many it is made again.
TEST(SteadySchedule, CopiesAreTheSameWhenAllElseIsGivenBack) {
  for (int microbatches : {8, 40'000}) {
    ScheduleOptions make;
    make.stages = 4;
    make.microbatches = microbatches;
    make.splitBackward = make.update = true;
    const Schedule schedule = *makeSchedule("eager", make);
    const ScheduleLists lists(schedule), released(schedule);
    released.release();
    for (int v = 0; v < 4; ++v)
      EXPECT_EQ(released.copiesFrom(2, v).all, lists.copiesFrom(2, v).all);
  }
}

TEST(KnownSchedules, AreThoseThatAreMade) {
  for (const Case &one : cases()) {
    auto known = knownSchedule(one.name, one.options);
    ASSERT_TRUE(known.ok()) << known.status().str();
    EXPECT_EQ(Schedule(**known), *makeSchedule(one.name, one.options))
        << one.str();
  }
  ScheduleOptions unlike;
  unlike.stages = 2;
  unlike.microbatches = 4;
  for (bool first : {false, true}) {
    unlike.recomputeStages = {first, !first};
    EXPECT_EQ(Schedule(**knownSchedule("1f1b", unlike)),
              *makeSchedule("1f1b", unlike));
  }
  EXPECT_FALSE(knownSchedule("no such", unlike).ok());
}

SimulateOptions timesOf(const Schedule &schedule, bool recompute, bool even) {
  SimulateOptions options;
  options.record = false;
  options.forwardTransfer = 0.25;
  options.backwardTransfer = 0.5;
  for (int s = 0; s < schedule.stages; ++s) {
    ActionTimes times;
    times.F = even ? 1 : 1 + 0.125 * ((s * 5 + 1) % 4);
    times.R = recompute ? 0.5 : 0;
    times.B = even ? 1.25 : 1.25 + 0.125 * (s % 3);
    times.W = 0.75;
    times.U = 0.5 + 0.25 * s;
    options.times.push_back(times);
  }
  return options;
}

// Of total seconds. Those that stages are busy are exact.
double errorOf(const Case &one, bool even) {
  const Schedule schedule = *makeSchedule(one.name, one.options);
  auto steady = SteadySchedule::make(one.name, one.options);
  EXPECT_TRUE(steady && steady->ok()) << one.str();
  const SimulateOptions options =
      timesOf(schedule, one.options.recompute, even);
  const Timeline exact = simulate(schedule, options);
  const SteadySchedule::Time found = (*steady)->simulated(options);
  EXPECT_EQ(found.busy.size(), exact.busy.size());
  for (size_t s = 0; s < exact.busy.size(); ++s)
    EXPECT_NEAR(found.busy[s], exact.busy[s], 1e-6) << one.str();
  return std::abs(found.total / exact.total - 1);
}

TEST(SteadySchedule, SecondsAreThoseOfAllMicrobatches) {
  size_t compared = 0, unlike = 0;
  for (const Case &one : cases()) {
    const double error = errorOf(one, /*even=*/true);
    EXPECT_LT(error, 0.005) << one.str();
    unlike += error > 1e-9;
    ++compared;
  }
  EXPECT_GT(compared, 1000u);
  EXPECT_LT(double(unlike), 0.05 * double(compared));
}

// Where stages take up to half as long again as others, waits take longer to
// become steady.
TEST(SteadySchedule, SecondsOfUnlikeStagesAreClose) {
  for (const Case &one : cases())
    EXPECT_LT(errorOf(one, /*even=*/false), 0.025) << one.str();
}

} // namespace
