#include "passes/Planning/ScheduleMemory.h"

#include <algorithm>
#include <cstdlib>
#include <tuple>

namespace merak::planning {

const ScheduleLists &listsOf(const std::string &name,
                             const ScheduleOptions &made,
                             const Schedule &schedule) {
  static std::mutex mutex;
  static std::map<std::tuple<std::string, int, int, int, bool, bool>,
                  std::unique_ptr<ScheduleLists>>
      known;
  std::tuple key(name, made.stages, made.microbatches, made.chunks,
                 made.recompute, made.splitBackward);
  {
    std::lock_guard lock(mutex);
    if (auto it = known.find(key); it != known.end())
      return *it->second;
  }
  auto lists = std::make_unique<ScheduleLists>(
      schedule, [name, made] { return *makeSchedule(name, made); });
  std::lock_guard lock(mutex);
  return *known.try_emplace(key, std::move(lists)).first->second;
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
    auto next = std::upper_bound(begin.begin(), begin.end(), value.from);
    int distance = std::abs(int(next - begin.begin()) - 1 - v);
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
