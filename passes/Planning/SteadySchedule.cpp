#include "passes/Planning/SteadySchedule.h"

namespace merak::planning {

std::optional<Result<SteadySchedule>>
SteadySchedule::make(const std::string &name, const ScheduleOptions &full) {
  const auto few = steadyLengths(full.stages, full.microbatches);
  if (!few)
    return std::nullopt;
  ScheduleOptions before = full, now = full;
  before.microbatches = few->shorter;
  now.microbatches = few->longer;
  auto shorter = knownSchedule(name, before);
  auto longer = knownSchedule(name, now);
  for (const auto *made : {&shorter, &longer})
    if (!made->ok())
      return Result<SteadySchedule>(made->status());
  SteadySchedule steady;
  steady.shorter = std::move(*shorter);
  steady.longer = std::move(*longer);
  steady.microbatches = full.microbatches;
  steady.rounds = few->rounds;
  return Result<SteadySchedule>(std::move(steady));
}

SteadySchedule::Time
SteadySchedule::simulated(const SimulateOptions &options) const {
  const Time before = shorter->timeOf(options);
  const Time now = longer->timeOf(options);
  const auto extrapolated = [&](double least, double most) {
    return most + (most - least) * rounds;
  };
  Time time{extrapolated(before.total, now.total), {}};
  for (size_t stage = 0; stage < now.busy.size(); ++stage)
    time.busy.push_back(extrapolated(before.busy[stage], now.busy[stage]));
  return time;
}

} // namespace merak::planning
