#include "passes/Planning/Arrivals.h"

#include <algorithm>

namespace merak::planning {

std::vector<std::vector<int>>
latestArrivals(const Schedule &schedule,
               const std::vector<Transfer> &transfers) {
  SimulateOptions unit;
  unit.times = {{1, 1, 1, 1, 1, 1}};
  unit.transfers = transfers;
  Timeline timeline = simulate(schedule, unit);

  std::vector<std::vector<int>> arrivals;
  for (const Transfer &transfer : transfers) {
    const std::vector<TimedStep> &sender = timeline.stages[transfer.fromStage];
    const std::vector<TimedStep> &receiver = timeline.stages[transfer.toStage];
    arrivals.emplace_back(schedule.microbatches,
                          int(schedule.order[transfer.toStage].size()));
    if (!timeline.finished)
      continue;
    // From the back: the runs of the action and where each stands.
    std::vector<size_t> later;
    for (size_t at = sender.size(); at-- > 0;) {
      const Step &step = sender[at].step;
      if (step.action != transfer.fromAction ||
          step.chunk != transfer.fromChunk)
        continue;
      // The latest of `later` that is not the step right behind.
      size_t last = later.size();
      if (last > 0 && later[last - 1] == at + 1)
        --last;
      if (last > 0) {
        double wanted = sender[later[last - 1]].start;
        auto ended = std::partition_point(
            receiver.begin(), receiver.end(),
            [&](const TimedStep &timed) { return timed.end <= wanted; });
        arrivals.back()[step.microbatch] = int(ended - receiver.begin());
      }
      later.push_back(at);
    }
  }
  return arrivals;
}

} // namespace merak::planning
