#include "passes/Planning/ScheduleMemory.h"

#include "passes/Planning/KnownSchedules.h"
#include "passes/Planning/OnceForEach.h"

#include <algorithm>
#include <cstdlib>
#include <tuple>

namespace merak::planning {

// Rounds of one microbatch a stage after which a schedule is steady: filling
// the pipeline takes less than two of them, also with several parts a stage.
constexpr int kFilling = 4;
// Of few stages: so many microbatches at least.
constexpr int kLeastMicrobatches = 8;

std::optional<SteadyLengths> steadyLengths(int stages, int microbatches) {
  const int filling =
      std::max(kFilling, (kLeastMicrobatches + stages - 1) / stages);
  // 70 microbatches on 4 stages are known by 18 and 22, and 12 rounds.
  const int shorter = filling * stages + microbatches % stages;
  const int longer = shorter + stages;
  if (microbatches <= longer + stages)
    return std::nullopt;
  return SteadyLengths{shorter, longer, (microbatches - longer) / stages};
}

static Result<std::unique_ptr<ScheduleLists>>
makeLists(const std::string &name, const ScheduleOptions &made) {
  const auto few = steadyLengths(made.stages, made.microbatches);
  if (!few) {
    auto schedule = knownSchedule(name, made);
    if (!schedule.ok())
      return schedule.status();
    return std::make_unique<ScheduleLists>(**schedule, [name, made] {
      return Schedule(**knownSchedule(name, made));
    });
  }
  ScheduleOptions shorter = made, longer = made;
  shorter.microbatches = few->shorter;
  longer.microbatches = few->longer;
  Result<const ScheduleLists *> before = listsOf(name, shorter);
  Result<const ScheduleLists *> now = listsOf(name, longer);
  for (const Result<const ScheduleLists *> *lists : {&before, &now})
    if (!lists->ok())
      return lists->status();
  return std::make_unique<ScheduleLists>(**before, **now, few->rounds);
}

Result<const ScheduleLists *> listsOf(const std::string &name,
                                      const ScheduleOptions &made) {
  static OnceForEach<std::tuple<std::string, int, int, int, bool, bool>,
                     Result<std::unique_ptr<ScheduleLists>>>
      all;
  const auto &lists = all.of({name, made.stages, made.microbatches, made.chunks,
                              made.recompute, made.splitBackward},
                             [&] { return makeLists(name, made); });
  if (!lists.ok())
    return lists.status();
  return lists->get();
}

namespace {

double fixedOf(const StageCost &cost) {
  // A shared gradient is sent and received.
  return cost.parameterBytes + cost.gradientBytes + cost.stateBytes +
         cost.workspace + 2 * cost.sharedBytes;
}

} // namespace

double bytesOf(const StageCost &cost, const ScheduleLists &lists,
               const std::vector<int> &begin, int v) {
  double bytes = fixedOf(cost) + bytesOf(cost.held, lists.copies[v]);
  for (const ArrivingValue &value : cost.arriving) {
    const int distance = std::abs(partAt(begin, value.from) - v);
    bytes += value.bytes * lists.copiesFrom(distance, v).at(value.life, true);
  }
  return bytes;
}

std::vector<double> bytesOf(const PipelineShape &shape,
                            const std::vector<StageCost> &costs,
                            const ScheduleLists &lists,
                            const std::vector<int> &begin) {
  std::vector<double> bytes(shape.stages, 0), workspace = bytes;
  for (size_t v = 0; v < costs.size(); ++v) {
    double &most = workspace[v % shape.stages];
    double own = costs[v].workspace, all = std::max(most, own);
    bytes[v % shape.stages] +=
        bytesOf(costs[v], lists, begin, int(v)) - own - most + all;
    most = all;
  }
  return bytes;
}

StageMemory memoryOf(const StageCost &cost) {
  auto sum = [&](LiveKind life) {
    double bytes = 0;
    for (bool received : {false, true})
      for (bool sent : {false, true})
        bytes += cost.held.at(life, received, sent);
    for (const ArrivingValue &value : cost.arriving)
      bytes += value.life == life ? value.bytes : 0;
    return bytes;
  };
  StageMemory memory;
  memory.fixed = fixedOf(cost) + sum(LiveKind::F) + sum(LiveKind::B);
  memory.kept = sum(LiveKind::FW);
  memory.untilB = sum(LiveKind::FR) + sum(LiveKind::FB);
  memory.recomputed = sum(LiveKind::RB) + sum(LiveKind::RW);
  memory.pending = sum(LiveKind::BW);
  return memory;
}

} // namespace merak::planning
