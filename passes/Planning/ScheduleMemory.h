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
      : recomputes(schedule.virtualStages(), 0), again(std::move(again)) {
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

  // The same on virtual stage `v` of values that come from so many virtual
  // stages away.
  PerLiveKind<int> copiesFrom(int distance, int v) const {
    if (distance <= 1)
      return copies[v];
    std::lock_guard lock(mutex);
    auto [it, isNew] = farther.try_emplace({distance, v});
    if (isNew) {
      if (!counter)
        counter = std::make_unique<CopyCounter>(again());
      it->second = counter->of(v, distance);
    }
    return it->second;
  }
  // Gives back what only makes further answers of copiesFrom fast.
  void release() const {
    std::lock_guard lock(mutex);
    counter.reset();
  }

private:
  std::function<Schedule()> again;
  mutable std::mutex mutex;
  mutable std::unique_ptr<CopyCounter> counter;
  mutable std::map<std::pair<int, int>, PerLiveKind<int>> farther;
};

// Of a schedule that makeSchedule made. A search asks for the same ones over
// and over, for other cuts and models.
const ScheduleLists &listsOf(const std::string &name,
                             const ScheduleOptions &made,
                             const Schedule &schedule);

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
