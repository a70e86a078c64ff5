#include "passes/Planning/SubmicrobatchTimes.h"

#include <algorithm>
#include <tuple>

namespace merak::planning {

SubmicrobatchTimes::SubmicrobatchTimes(
    const std::vector<SubmicrobatchTask> &tasks, int ops, int level)
    : tasks(&tasks), level(level), tasksOf(ops) {
  std::map<std::tuple<double, bool, bool, bool>, int> kinds;
  for (const SubmicrobatchTask &task : tasks) {
    tasksOf[task.op].push_back(static_cast<int>(kind.size()));
    kind.push_back(kinds
                       .try_emplace({task.seconds, task.communication,
                                     task.joins, task.once},
                                    static_cast<int>(kinds.size()))
                       .first->second);
  }
}

std::vector<int> SubmicrobatchTimes::tasksIn(int begin, int end) const {
  std::vector<int> chosen;
  size_t count = 0;
  for (int op = begin; op < end; ++op)
    count += tasksOf[op].size();
  chosen.reserve(count);
  for (int op = begin; op < end; ++op)
    chosen.insert(chosen.end(), tasksOf[op].begin(), tasksOf[op].end());
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

const SubmicrobatchTimes::Simulated *
SubmicrobatchTimes::find(int begin, int end,
                         const std::vector<int> &chosen) const {
  auto [it, isNew] = ranges.try_emplace({begin, end}, nullptr);
  if (isNew)
    it->second = simulated(chosen);
  return it->second;
}

const SubmicrobatchTimes::Simulated *
SubmicrobatchTimes::simulated(const std::vector<int> &chosen) const {
  double communication = 0;
  for (int task : chosen)
    communication += (*tasks)[task].communication ? (*tasks)[task].seconds : 0;
  if (communication == 0)
    return nullptr;
  std::vector<int> key; // each task's kind, then how far back its needs are
  std::vector<std::vector<int>> needs(chosen.size());
  for (size_t i = 0; i < chosen.size(); ++i) {
    const SubmicrobatchTask &task = (*tasks)[chosen[i]];
    key.push_back(-1 - kind[chosen[i]]);
    for (int need : task.needs) {
      auto at = std::lower_bound(chosen.begin(), chosen.begin() + i, need);
      if (at == chosen.begin() + i || *at != need)
        continue;
      needs[i].push_back(static_cast<int>(at - chosen.begin()));
      key.push_back(static_cast<int>(i) - needs[i].back());
    }
  }
  auto [it, isNew] = known.try_emplace(std::move(key));
  if (isNew) {
    ChainWriter writer;
    for (size_t i = 0; i < chosen.size(); ++i) {
      const SubmicrobatchTask &task = (*tasks)[chosen[i]];
      writer.add(task.seconds, task.communication, std::move(needs[i]),
                 task.joins, task.once);
    }
    if (level == 0) { // one chain, in its order
      it->second.seconds = simulateStreams(writer.chain());
      return &it->second;
    }
    std::vector<Issue> order = orderSubmicrobatches(writer.chain(), level);
    std::vector<double> idle = idleBefore(writer.chain(), order);
    it->second.seconds = simulateStreams(writer.chain(), order);
    // The longest way from the first collective on ends so long after links
    // that are busy for longer than all else takes.
    const double busy = 2 * it->second.seconds;
    it->second.slack = it->second.seconds -
                       (simulateStreams(writer.chain(), order, busy) - busy);
    it->second.idle.assign(chosen.size(), 0);
    for (size_t i = 0; i < order.size(); ++i)
      it->second.idle[order[i].task] += idle[i];
  }
  return &it->second;
}

SubmicrobatchTimes::Times SubmicrobatchTimes::of(int begin, int end) const {
  const std::vector<int> chosen = tasksIn(begin, end);
  const Simulated *simulated = find(begin, end, chosen);
  Times times;
  for (int task : chosen)
    times.compute += (*tasks)[task].communication ? 0 : (*tasks)[task].both();
  times.seconds = simulated ? simulated->seconds : times.compute;
  if (simulated && level > 0)
    times.slack = simulated->slack;
  return times;
}

SubmicrobatchTimes::Idle SubmicrobatchTimes::idle(int begin, int end) const {
  std::vector<int> chosen = tasksIn(begin, end);
  const Simulated *simulated = find(begin, end, chosen);
  return {std::move(chosen),
          simulated && level > 0 ? &simulated->idle : nullptr};
}

} // namespace merak::planning
