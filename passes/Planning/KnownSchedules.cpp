#include "passes/Planning/KnownSchedules.h"

#include "passes/Planning/OnceForEach.h"

#include <tuple>

namespace merak::planning {

namespace {

// Lists of more steps are not kept: about two megabytes.
constexpr int64_t kKeptSteps = 100'000;

using Known = Result<std::shared_ptr<const OrderedSchedule>>;

Known make(const std::string &name, const ScheduleOptions &made) {
  Result<Schedule> schedule = makeSchedule(name, made);
  if (!schedule.ok())
    return schedule.status();
  return Known(std::make_shared<const OrderedSchedule>(std::move(*schedule)));
}

bool isKept(const ScheduleOptions &made) {
  // F, R, B and W.
  const int64_t steps =
      int64_t(made.stages) * made.microbatches * made.chunks * 4;
  return steps <= kKeptSteps && made.recomputeStages.empty() &&
         made.warmup.empty() && !made.prologue;
}

} // namespace

Known knownSchedule(const std::string &name, const ScheduleOptions &made) {
  if (!isKept(made))
    return make(name, made);
  static OnceForEach<std::tuple<std::string, int, int, int, bool, bool, bool>,
                     Known>
      all;
  return all.of({name, made.stages, made.microbatches, made.chunks,
                 made.recompute, made.splitBackward, made.update},
                [&] { return make(name, made); });
}

} // namespace merak::planning
