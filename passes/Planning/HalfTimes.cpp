#include "passes/Planning/HalfTimes.h"

#include <algorithm>
#include <tuple>

namespace merak::planning {

HalfTimes::HalfTimes(const std::vector<HalfTask> &tasks, int ops, int level)
    : tasks(&tasks), level(level), tasksOf(ops) {
  std::map<std::tuple<double, bool, bool, bool>, int> kinds;
  for (const HalfTask &task : tasks) {
    tasksOf[task.op].push_back(static_cast<int>(kind.size()));
    kind.push_back(kinds
                       .try_emplace({task.seconds, task.communication,
                                     task.joins, task.once},
                                    static_cast<int>(kinds.size()))
                       .first->second);
  }
}

HalfTimes::Times HalfTimes::of(int begin, int end) const {
  std::vector<int> chosen;
  for (int op = begin; op < end; ++op)
    chosen.insert(chosen.end(), tasksOf[op].begin(), tasksOf[op].end());
  std::sort(chosen.begin(), chosen.end());
  Times times;
  double communication = 0;
  std::vector<int> key; // each task's kind, then how far back its needs are
  std::vector<std::vector<int>> needs(chosen.size());
  for (size_t i = 0; i < chosen.size(); ++i) {
    const HalfTask &task = (*tasks)[chosen[i]];
    (task.communication ? communication : times.compute) +=
        (task.once ? 1 : 2) * task.seconds;
    key.push_back(-1 - kind[chosen[i]]);
    for (int need : task.needs) {
      auto at = std::lower_bound(chosen.begin(), chosen.begin() + i, need);
      if (at == chosen.begin() + i || *at != need)
        continue;
      needs[i].push_back(static_cast<int>(at - chosen.begin()));
      key.push_back(static_cast<int>(i) - needs[i].back());
    }
  }
  if (communication == 0) {
    times.seconds = times.compute;
    return times;
  }
  auto [it, isNew] = known.try_emplace(std::move(key), 0);
  if (isNew) {
    ChainWriter writer;
    for (size_t i = 0; i < chosen.size(); ++i) {
      const HalfTask &task = (*tasks)[chosen[i]];
      writer.add(task.seconds, task.communication, std::move(needs[i]),
                 task.joins, task.once);
    }
    it->second = secondsOfHalves(writer.chain(), level);
  }
  times.seconds = it->second;
  return times;
}

} // namespace merak::planning
