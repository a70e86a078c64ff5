// A schedule of many microbatches as a search prices it: the same one of fewer,
// at two lengths (steadyLengths). Lists of all microbatches of hundreds of
// stages would take minutes and gigabytes.
#pragma once

#include "passes/Planning/KnownSchedules.h"
#include "passes/Planning/ScheduleMemory.h"

#include <optional>

namespace merak::planning {

class SteadySchedule {
public:
  // None where the lists of all microbatches are hardly longer. Errors: as
  // makeSchedule has them.
  static std::optional<Result<SteadySchedule>>
  make(const std::string &name, const ScheduleOptions &full);

  // The longer of the two.
  const OrderedSchedule &sample() const { return *longer; }
  int missing() const { return microbatches - longer->microbatches; }

  using Time = StepOrder::Time;
  // As simulate() finds it of all microbatches, but for what the times of
  // stages leave unsteady behind the first rounds.
  Time simulated(const SimulateOptions &options) const;

private:
  std::shared_ptr<const OrderedSchedule> shorter, longer;
  int microbatches = 0, rounds = 0;
};

} // namespace merak::planning
