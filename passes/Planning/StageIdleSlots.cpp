// What the compiler moves from R and W into the waits of B, priced: the choices
// of passes/Sharding/FillGaps.cpp on the tasks of a stage. The order of B is
// not made again with what came in; work in a wait delays B by what the wait
// does not cover.
#include "passes/Planning/IdleSlots.h"
#include "passes/Planning/StageProblem.h"

#include <algorithm>
#include <limits>

namespace merak::planning {

// From each task of W that no other one needs back to all that leads to it.
void StageModel::findSlices() {
  const std::vector<SubmicrobatchTask> &tasks = problem.submicrobatches[2];
  std::vector<int> users(tasks.size(), 0);
  for (const SubmicrobatchTask &task : tasks)
    for (int need : task.needs)
      ++users[need];
  std::vector<int> inSlice(tasks.size(), -1), usedHere(tasks.size(), 0);
  for (size_t end = 0; end < tasks.size(); ++end) {
    if (users[end] > 0)
      continue;
    Slice slice{tasks[end].op, tasks[end].op, 0, {}, {}};
    std::vector<int> members = {int(end)};
    inSlice[end] = int(end);
    bool alone = true;
    for (size_t i = 0; i < members.size(); ++i) {
      const SubmicrobatchTask &task = tasks[members[i]];
      slice.first = std::min(slice.first, task.op);
      slice.last = std::max(slice.last, task.op);
      slice.seconds += task.both();
      slice.values.insert(slice.values.end(), task.values.begin(),
                          task.values.end());
      slice.backward.insert(slice.backward.end(), task.backward.begin(),
                            task.backward.end());
      alone &= !task.communication;
      for (int need : task.needs) {
        if (inSlice[need] != int(end)) {
          inSlice[need] = int(end);
          usedHere[need] = 0;
          members.push_back(need);
        }
        ++usedHere[need];
      }
    }
    // Work that another gradient shares stays where both are.
    for (size_t i = 1; i < members.size(); ++i)
      alone &= usedHere[members[i]] == users[members[i]];
    if (alone)
      slices.push_back(std::move(slice));
  }
}

void StageModel::fillWaits(int begin, int end, const Need &need,
                           StageCost &out) const {
  SubmicrobatchTimes::Idle idle = submicrobatches[1].idle(begin, end);
  if (!idle.before)
    return;
  IdleSlots waits(*idle.before);
  if (waits.empty())
    return;
  const std::vector<SubmicrobatchTask> &tasks = problem.submicrobatches[1];
  const int none = std::numeric_limits<int>::max();
  const int last = int(idle.tasks.size()) - 1;
  // By value: the place in B that first reads it, or what moved and reads it;
  // -1: something that stays in R does.
  std::unordered_map<int, int> readAt;
  for (int at = last; at >= 0; --at)
    for (int value : tasks[idle.tasks[at]].values)
      readAt[value] = at;

  // Late ops of R, as late as they may run.
  std::unordered_map<int, int> place; // of moved ops
  double moved = 0;
  IdleSlots before = waits;
  for (int op : need.ops) {
    int latest = last;
    for (int t : problem.ops[op].results)
      if (auto it = readAt.find(t); it != readAt.end())
        latest = std::min(latest, it->second);
    std::optional<int> at;
    double seconds = problem.ops[op].recompute;
    if (latest >= 0)
      at = seconds > 0 ? waits.takeLast(latest, seconds) : latest;
    if (at) {
      place[op] = *at;
      moved += seconds;
    }
    for (int t : problem.ops[op].operands) {
      int &read = readAt.try_emplace(t, none).first->second;
      read = std::min(read, at.value_or(-1));
    }
  }
  // No more bytes may be kept for it.
  double bytes = 0;
  for (auto [op, at] : place) {
    for (int t : problem.ops[op].results)
      bytes -=
          stamp[t] == now && this->need[t] == 2 ? problem.tensors[t].bytes : 0;
    for (int t : problem.ops[op].operands)
      if (stamp[t] == now && this->need[t] == 1 && producer[t] >= begin &&
          !place.count(producer[t]) &&
          std::find(need.ops.begin(), need.ops.end(), producer[t]) !=
              need.ops.end())
        bytes += problem.tensors[t].bytes;
  }
  double total = out.times.B + moved;
  if (bytes > 0 || !paysToMove(out.times.B + waits.late(), total)) {
    waits = before;
    place.clear();
    moved = 0;
  }

  // Gradients of weights, as early as they may.
  double lateR = waits.late(), weights = 0;
  for (const Slice &slice : slices) {
    if (slice.first < begin || slice.last >= end)
      continue;
    int earliest = 0;
    for (int task : slice.backward) {
      auto it = std::lower_bound(idle.tasks.begin(), idle.tasks.end(), task);
      if (it != idle.tasks.end() && *it == task)
        earliest = std::max(earliest, int(it - idle.tasks.begin()) + 1);
    }
    for (int value : slice.values)
      if (auto it = place.find(producer[value]); it != place.end())
        earliest = std::max(earliest, it->second);
    if (waits.takeFirst(earliest, slice.seconds))
      weights += slice.seconds;
  }
  double late = waits.late();
  if (!paysToMove(out.times.B + late, out.times.B + lateR + weights)) {
    late = lateR;
    weights = 0;
  }
  out.times.R -= moved;
  out.times.W -= weights;
  out.times.B += late;
  out.slackBackward += late;
  out.communication -= moved + weights - late;
}

} // namespace merak::planning
