// The simulator against a slow one written from the definition, its memory
// against a recount, and every generated schedule against deadlock.
#include "passes/Planning/ScheduleCheck.h"
#include "passes/Planning/StepOrder.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <random>

namespace merak::planning {
namespace {

using Key = std::tuple<int, int, int, int>; // stage, action, chunk, microbatch

// Start of each step by repeated relaxation until nothing changes.
std::map<Key, double> slowStarts(const Schedule &s,
                                 const SimulateOptions &options) {
  std::map<Key, double> start;
  auto key = [](int stage, Action action, int chunk, int i) {
    return Key(stage, int(action), chunk, i);
  };
  auto v = [&](int stage, int chunk) { return chunk * s.stages + stage; };
  auto duration = [&](int stage, const Step &step) {
    return options.times[v(stage, step.chunk)].of(step.action);
  };
  for (bool changed = true; changed;) {
    changed = false;
    std::map<std::pair<int, int>, double> link;
    std::map<Key, double> arrived; // at the receiver
    for (int stage = 0; stage < s.stages; ++stage)
      for (const Step &step : s.order[stage]) {
        int from = v(stage, step.chunk);
        int to = step.action == Action::F   ? from + 1
                 : step.action == Action::B ? from - 1
                                            : -1;
        if (to < 0 || to >= s.virtualStages())
          continue;
        const BoundaryCost &cost = options.boundaries[std::min(from, to)];
        double &free = link[{stage, to % s.stages}];
        free = std::max(
                   free,
                   start[key(stage, step.action, step.chunk, step.microbatch)] +
                       duration(stage, step)) +
               (to > from ? cost.forward : cost.backward);
        arrived[key(to % s.stages, step.action, to / s.stages,
                    step.microbatch)] = free;
      }
    for (int stage = 0; stage < s.stages; ++stage) {
      double clock = 0;
      for (const Step &step : s.order[stage]) {
        Key me = key(stage, step.action, step.chunk, step.microbatch);
        double at = std::max(clock, arrived[me]);
        if (step.action == Action::R && !step.early)
          at = std::max(
              at, arrived[key(stage, Action::B, step.chunk, step.microbatch)]);
        if (at != start[me])
          changed = true;
        start[me] = at;
        clock = at + duration(stage, step);
      }
    }
  }
  return start;
}

ScheduleOptions randomShape(std::mt19937 &random) {
  ScheduleOptions options;
  options.stages = 1 + int(random() % 5);
  options.microbatches = 1 + int(random() % 9);
  options.splitBackward = random() % 2;
  for (int stage = 0; stage < options.stages; ++stage)
    options.recomputeStages.push_back(random() % 2);
  return options;
}

TEST(Simulate, AgreesWithTheDefinition) {
  std::mt19937 random(11);
  auto number = [&](int most) { return double(random() % (most + 1)); };
  for (int round = 0; round < 400; ++round) {
    const std::vector<std::string> &names = scheduleNames();
    ScheduleOptions shape = randomShape(random);
    const std::string &name = names[random() % names.size()];
    if (name == "interleaved") {
      shape.chunks = 1 + int(random() % 3);
      shape.microbatches = shape.stages * (1 + int(random() % 3));
    }
    Schedule schedule = *makeSchedule(name, shape);
    SimulateOptions costs;
    for (int v = 0; v < schedule.virtualStages(); ++v) {
      costs.times.push_back({0, number(5), number(5), number(9), number(4)});
      costs.memory.push_back({number(50), number(9), number(20)});
      costs.boundaries.push_back({number(4), number(4), 1, 10});
    }
    Timeline timeline = simulate(schedule, costs);
    std::map<Key, double> expected = slowStarts(schedule, costs);
    double total = 0;
    for (int stage = 0; stage < schedule.stages; ++stage) {
      ASSERT_EQ(timeline.stages[stage].size(), schedule.order[stage].size());
      for (const TimedStep &timed : timeline.stages[stage]) {
        EXPECT_EQ(timed.start,
                  (expected[{stage, int(timed.step.action), timed.step.chunk,
                             timed.step.microbatch}]));
        total = std::max(total, timed.end);
      }
    }
    EXPECT_EQ(timeline.total, total);
    EXPECT_TRUE(timeline.finished);
    // Without the record the numbers are the same.
    costs.record = false;
    Timeline brief = simulate(schedule, costs);
    EXPECT_EQ(brief.total, timeline.total);
    EXPECT_EQ(brief.peakBytes, timeline.peakBytes);
    EXPECT_EQ(brief.fullSets, timeline.fullSets);
    EXPECT_TRUE(brief.stages[0].empty());
    // Nor where the order of the steps is kept.
    const OrderedSchedule ordered(schedule);
    for (bool sums : {false, true}) {
      if (sums && schedule.stages > 1)
        costs.weightSums = {{1, 0, Action::W, Action::W, 0, 0}};
      costs.setup.assign(schedule.stages, sums ? 3 : 0);
      const Timeline again = simulate(schedule, costs);
      const StepOrder::Time time = ordered.timeOf(costs);
      EXPECT_EQ(time.total, again.total);
      EXPECT_EQ(time.busy, again.busy);
    }
  }
}

// Bytes at every moment, recounted from the recorded times.
TEST(Simulate, MemoryIsWhatTheStepsHold) {
  std::mt19937 random(13);
  for (int round = 0; round < 200; ++round) {
    const std::vector<std::string> &names = scheduleNames();
    Schedule schedule =
        *makeSchedule(names[random() % names.size()], randomShape(random));
    SimulateOptions costs;
    costs.times = {{0, 2, 1, 3, 2}};
    costs.memory = {{100, 7, 30}};
    Timeline timeline = simulate(schedule, costs);
    for (int stage = 0; stage < schedule.stages; ++stage) {
      std::map<int, double> taken, from; // per microbatch: bytes, end of it
      bool recomputes = false, splits = false;
      for (const TimedStep &timed : timeline.stages[stage]) {
        recomputes |= timed.step.action == Action::R;
        splits |= timed.step.action == Action::W;
      }
      auto bytesAt = [&](double time) {
        double bytes = 100;
        for (const TimedStep &first : timeline.stages[stage])
          for (const TimedStep &last : timeline.stages[stage])
            if (first.step.microbatch == last.step.microbatch &&
                last.step.action == (splits ? Action::W : Action::B) &&
                first.start <= time && time < last.end)
              bytes += first.step.action == Action::F   ? (recomputes ? 7 : 37)
                       : first.step.action == Action::R ? 30
                                                        : 0;
        return bytes;
      };
      double peak = 0;
      for (double t = 0; t <= timeline.total; t += 0.5)
        peak = std::max(peak, bytesAt(t));
      EXPECT_EQ(timeline.peakBytes[stage], peak) << tableStr(schedule);
      for (size_t i = 0; i < timeline.memory[stage].size(); ++i) {
        const MemoryPoint &point = timeline.memory[stage][i];
        if (i + 1 == timeline.memory[stage].size() ||
            timeline.memory[stage][i + 1].time > point.time) {
          EXPECT_EQ(point.bytes, bytesAt(point.time));
        }
      }
    }
  }
}

TEST(Simulate, CountsWhatIsSent) {
  ScheduleOptions options;
  options.stages = 3;
  options.microbatches = 5;
  SimulateOptions costs;
  costs.times = {ActionTimes()};
  costs.boundaries = {{0, 0, 2, 10}, {0, 0, 3, 100}};
  EXPECT_EQ(simulate(*makeSchedule("1f1b", options), costs).sentBytes,
            (std::vector<double>{10, 65, 500}));
}

TEST(Simulate, ReportsADeadlock) {
  Schedule schedule = *parseSchedule(
      R"({"microbatches": 2, "stages": ["F0 B0 F1 B1", "F0 F1 B0 B1"]})", "s");
  SimulateOptions costs;
  costs.times = {ActionTimes()};
  EXPECT_FALSE(simulate(schedule, costs).finished);
  EXPECT_FALSE(StepOrder(schedule).finished());
}

// Every schedule, every pattern of stages that recompute, few microbatches and
// many: passes the checker, and runs to the end.
TEST(Schedules, NoDeadlockAnywhere) {
  std::mt19937 random(17);
  int checked = 0;
  for (int p = 1; p <= 9; ++p)
    for (int m = 1; m <= 4 * p; ++m)
      for (const std::string &name : scheduleNames()) {
        ScheduleOptions options;
        options.stages = p;
        options.microbatches = m;
        if (name == "interleaved" && m % p == 0)
          options.chunks = 1 + int(random() % 4);
        options.splitBackward = random() % 2;
        options.prologue = random() % 2;
        options.update = random() % 2;
        for (int stage = 0; stage < p; ++stage)
          options.recomputeStages.push_back(random() % 2);
        Result<Schedule> schedule = makeSchedule(name, options);
        ASSERT_TRUE(schedule.ok()) << schedule.status().str();
        Status status = checkSchedule(*schedule);
        ASSERT_TRUE(status.ok()) << name << "\n"
                                 << tableStr(*schedule) << status.str();
        for (int stage = 0; stage < p; ++stage) {
          bool lastOne = stage == p - 1 && (name == "last" || name == "scp");
          bool has = false;
          for (const Step &step : schedule->order[stage])
            has |= step.action == Action::R;
          EXPECT_EQ(has, options.recomputeStages[stage] && !lastOne);
        }
        ++checked;
      }
  EXPECT_EQ(checked, 180 * int(scheduleNames().size()));
}

// Gradients are summed 0 first under every schedule.
TEST(Schedules, MicrobatchesAreSummedInOrder) {
  for (int p = 1; p <= 5; ++p)
    for (int m = 1; m <= 3 * p; ++m)
      for (const std::string &name : scheduleNames()) {
        ScheduleOptions options;
        options.stages = p;
        options.microbatches = m;
        options.splitBackward = true;
        if (name == "interleaved" && m % p == 0)
          options.chunks = 2;
        Schedule schedule = *makeSchedule(name, options);
        for (const std::vector<Step> &order : schedule.order) {
          std::map<std::pair<Action, int>, int> next;
          for (const Step &step : order)
            EXPECT_EQ(step.microbatch, (next[{step.action, step.chunk}]++));
        }
      }
}

} // namespace
} // namespace merak::planning
