// Memory of the stages of a pipeline under a schedule: what the schedule's
// lists say of copies and microbatches in flight, and with it the bytes of
// given stages, as plans lay them out (StageProblem.h).
#pragma once

#include "passes/Planning/Schedule.h"
#include "passes/Planning/StageProblem.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace merak::planning {

// What a schedule's lists say whatever the times, for each virtual stage:
// copies of values at once, the most microbatches under way, whether it
// recomputes.
struct ScheduleLists {
  std::vector<PerLiveKind<int>> copies; // of values from neighbours
  std::vector<int> inFlight;
  std::vector<char> recomputes;

  // `again` gives the schedule where values skip stages.
  ScheduleLists(const Schedule &schedule, std::function<Schedule()> again)
      : recomputes(schedule.virtualStages(), 0), again(std::move(again)),
        steps(stepsOf(schedule)) {
    counter = std::make_unique<CopyCounter>(schedule);
    for (int v = 0; v < schedule.virtualStages(); ++v) {
      copies.push_back(counter->of(v, 1));
      inFlight.push_back(copies.back().at(LiveKind::FW));
    }
    for (int s = 0; s < schedule.stages; ++s)
      for (const Step &step : schedule.order[s])
        if (step.action == Action::R)
          recomputes[step.chunk * schedule.stages + s] = 1;
  }
  explicit ScheduleLists(const Schedule &schedule)
      : ScheduleLists(schedule, [&schedule] { return schedule; }) {}
  // Those of a schedule that has `rounds` rounds more than `longer`, where each
  // adds what that one has more than `shorter`, a round shorter. Both must
  // outlive this.
  ScheduleLists(const ScheduleLists &shorter, const ScheduleLists &longer,
                int rounds)
      : recomputes(longer.recomputes), shorter(&shorter), longer(&longer),
        rounds(rounds) {
    for (size_t v = 0; v < longer.copies.size(); ++v) {
      copies.push_back(extrapolated(shorter.copies[v], longer.copies[v]));
      inFlight.push_back(copies.back().at(LiveKind::FW));
    }
  }

  // The same on virtual stage `v` of values that come from so many virtual
  // stages away.
  PerLiveKind<int> copiesFrom(int distance, int v) const {
    if (distance <= 1)
      return copies[v];
    if (longer)
      return extrapolated(shorter->copiesFrom(distance, v),
                          longer->copiesFrom(distance, v));
    std::lock_guard lock(mutex);
    auto [it, isNew] = farther.try_emplace({distance, v});
    if (isNew) {
      if (!counter)
        counter = std::make_unique<CopyCounter>(again());
      it->second = counter->of(v, distance);
    }
    return it->second;
  }
  // Gives back what only makes further answers of copiesFrom fast, where that
  // is much.
  void release() const {
    if (longer) {
      shorter->release();
      longer->release();
      return;
    }
    std::lock_guard lock(mutex);
    if (steps > kKeptSteps)
      counter.reset();
  }

private:
  // Counters of so many steps are kept: about five megabytes.
  static constexpr size_t kKeptSteps = 400'000;
  static size_t stepsOf(const Schedule &schedule) {
    size_t steps = 0;
    for (const std::vector<Step> &order : schedule.order)
      steps += order.size();
    return steps;
  }
  PerLiveKind<int> extrapolated(const PerLiveKind<int> &before,
                                const PerLiveKind<int> &now) const {
    PerLiveKind<int> of = now;
    for (size_t i = 0; i < of.all.size(); ++i)
      of.all[i] += (now.all[i] - before.all[i]) * rounds;
    return of;
  }

  std::function<Schedule()> again;
  const ScheduleLists *shorter = nullptr, *longer = nullptr;
  int rounds = 0;
  size_t steps = 0;
  mutable std::mutex mutex;
  mutable std::unique_ptr<CopyCounter> counter;
  mutable std::map<std::pair<int, int>, PerLiveKind<int>> farther;
};

// A schedule of many microbatches is known by the same one of fewer: behind the
// first of them every round of one microbatch a stage is like the one before.
// The two numbers of microbatches to look at, a round apart, and how many
// rounds the schedule has beyond; none where its own lists are hardly longer.
struct SteadyLengths {
  int shorter = 0, longer = 0, rounds = 0;
};
std::optional<SteadyLengths> steadyLengths(int stages, int microbatches);

// Of a schedule that makeSchedule made. A search asks for the same ones over
// and over, for other cuts and models. Errors: as makeSchedule has them.
Result<const ScheduleLists *> listsOf(const std::string &name,
                                      const ScheduleOptions &made);

// Bytes at the peak of virtual stage `v` of a pipeline cut at `begin`.
double bytesOf(const StageCost &cost, const ScheduleLists &lists,
               const std::vector<int> &begin, int v);
// Of each stage. Chunks take turns in one workspace.
std::vector<double> bytesOf(const PipelineShape &shape,
                            const std::vector<StageCost> &costs,
                            const ScheduleLists &lists,
                            const std::vector<int> &begin);
// The same as the simulator counts it, over time: boundaries without the calls
// before and after.
StageMemory memoryOf(const StageCost &cost);

} // namespace merak::planning
