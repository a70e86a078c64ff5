#include "passes/Planning/KnownSchedules.h"

#include <map>
#include <mutex>
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
  // Threads that want the same one wait for the first of them.
  struct Entry {
    std::once_flag made;
    Known schedule = Status::error("not made");
  };
  static std::mutex mutex;
  static std::map<std::tuple<std::string, int, int, int, bool, bool, bool>,
                  Entry>
      all;
  std::tuple key(name, made.stages, made.microbatches, made.chunks,
                 made.recompute, made.splitBackward, made.update);
  std::unique_lock lock(mutex);
  Entry &entry = all[key]; // stays where it is
  lock.unlock();
  std::call_once(entry.made, [&] { entry.schedule = make(name, made); });
  return entry.schedule;
}

} // namespace merak::planning
