#include "passes/Planning/SubmicrobatchTimes.h"

#include <algorithm>
#include <tuple>

namespace merak::planning {

SubmicrobatchTimes::SubmicrobatchTimes(
    const std::vector<SubmicrobatchTask> &tasks, int ops, int level)
    : tasks(&tasks), level(level), first(ops, static_cast<int>(tasks.size())),
      past(ops, 0), placeOf(tasks.size(), -1) {
  std::map<std::tuple<double, bool, bool, bool>, int> kinds;
  kind.reserve(tasks.size());
  opOf.reserve(tasks.size());
  for (const SubmicrobatchTask &task : tasks) {
    const int number = static_cast<int>(kind.size());
    first[task.op] = std::min(first[task.op], number);
    past[task.op] = number + 1;
    opOf.push_back(task.op);
    kind.push_back(kinds
                       .try_emplace({task.seconds, task.communication,
                                     task.joins, task.once},
                                    static_cast<int>(kinds.size()))
                       .first->second);
  }
}

std::vector<int> SubmicrobatchTimes::tasksIn(int begin, int end) const {
  int from = static_cast<int>(kind.size()), to = 0;
  for (int op = begin; op < end; ++op) {
    from = std::min(from, first[op]);
    to = std::max(to, past[op]);
  }
  std::vector<int> chosen;
  for (int task = from; task < to; ++task)
    if (opOf[task] >= begin && opOf[task] < end)
      chosen.push_back(task);
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

size_t
SubmicrobatchTimes::KeyHash::operator()(const std::vector<int> &key) const {
  size_t hash = key.size();
  for (int part : key)
    hash = (hash ^ static_cast<size_t>(part)) * 0x9e3779b97f4a7c15 + 1;
  return hash ^ hash >> 32;
}

std::vector<int>
SubmicrobatchTimes::keyOf(const std::vector<int> &chosen) const {
  std::vector<int> key;
  key.reserve(3 * chosen.size());
  for (size_t i = 0; i < chosen.size(); ++i) {
    key.push_back(-1 - kind[chosen[i]]);
    for (int need : (*tasks)[chosen[i]].needs)
      if (placeOf[need] >= 0)
        key.push_back(static_cast<int>(i) - placeOf[need]);
    placeOf[chosen[i]] = static_cast<int>(i);
  }
  for (int task : chosen)
    placeOf[task] = -1;
  return key;
}

ChainWriter SubmicrobatchTimes::chainOf(const std::vector<int> &key,
                                        const std::vector<int> &chosen) const {
  ChainWriter writer;
  auto part = key.begin();
  for (size_t i = 0; i < chosen.size(); ++i) {
    std::vector<int> needs;
    for (++part; part != key.end() && *part > 0; ++part)
      needs.push_back(static_cast<int>(i) - *part);
    const SubmicrobatchTask &task = (*tasks)[chosen[i]];
    writer.add(task.seconds, task.communication, std::move(needs), task.joins,
               task.once);
  }
  return writer;
}

const SubmicrobatchTimes::Simulated *
SubmicrobatchTimes::simulated(const std::vector<int> &chosen) const {
  const bool communicates =
      std::any_of(chosen.begin(), chosen.end(), [&](int task) {
        return (*tasks)[task].communication && (*tasks)[task].seconds > 0;
      });
  if (!communicates)
    return nullptr;
  auto [it, isNew] = known.try_emplace(keyOf(chosen));
  Simulated &found = it->second;
  if (!isNew)
    return &found;
  const ChainWriter writer = chainOf(it->first, chosen);
  if (level == 0) { // one chain, in its order
    found.seconds = simulateStreams(writer.chain());
    return &found;
  }
  const std::vector<Issue> order = orderSubmicrobatches(writer.chain(), level);
  const std::vector<double> idle = idleBefore(writer.chain(), order);
  found.seconds = simulateStreams(writer.chain(), order);
  // The longest way from the first collective on ends so long after links
  // that are busy for longer than all else takes.
  const double busy = 2 * found.seconds;
  found.slack =
      found.seconds - (simulateStreams(writer.chain(), order, busy) - busy);
  found.idle.assign(chosen.size(), 0);
  for (size_t i = 0; i < order.size(); ++i)
    found.idle[order[i].task] += idle[i];
  return &found;
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
