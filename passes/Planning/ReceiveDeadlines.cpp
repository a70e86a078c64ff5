#include "passes/Planning/ReceiveDeadlines.h"

namespace merak::planning {

std::vector<std::vector<int>>
receiveDeadlines(const Schedule &schedule,
                 const std::vector<Transfer> &transfers, bool atOnce) {
  SimulateOptions unit;
  unit.times = {{1, 1, 1, 1, 1, 1}};
  unit.transfers = transfers;
  Timeline timeline = simulate(schedule, unit);

  // Where each action of each chunk stands in the list of its stage.
  std::vector<std::vector<int>> places(size_t(schedule.virtualStages()) *
                                       kActions);
  auto placesOf = [&](int stage, Action action, int chunk) -> auto & {
    return places[(size_t(chunk) * schedule.stages + stage) * kActions +
                  size_t(action)];
  };
  for (int stage = 0; stage < schedule.stages; ++stage)
    for (size_t at = 0; at < schedule.order[stage].size(); ++at) {
      const Step &step = schedule.order[stage][at];
      placesOf(stage, step.action, step.chunk).push_back(int(at));
    }

  std::vector<std::vector<int>> arrivals;
  for (const Transfer &transfer : transfers) {
    const std::vector<TimedStep> &sender = timeline.stages[transfer.fromStage];
    const std::vector<TimedStep> &receiver = timeline.stages[transfer.toStage];
    std::vector<int> &of = arrivals.emplace_back(
        schedule.microbatches, int(schedule.order[transfer.toStage].size()));
    if (!timeline.finished)
      continue;
    const std::vector<int> &runs =
        placesOf(transfer.fromStage, transfer.fromAction, transfer.fromChunk);
    size_t ended = 0; // of the receiver's steps when the sender wants a buffer
    for (size_t i = 0; i < runs.size(); ++i) {
      double wanted = sender[runs[i]].end;
      if (!atOnce) {
        // The next run that is not the step right behind.
        size_t next = i + 1;
        if (next < runs.size() && runs[next] == runs[i] + 1)
          ++next;
        if (next >= runs.size())
          break;
        wanted = sender[runs[next]].start;
      }
      while (ended < receiver.size() && receiver[ended].end <= wanted)
        ++ended;
      of[sender[runs[i]].step.microbatch] = int(ended);
    }
  }
  return arrivals;
}

} // namespace merak::planning
