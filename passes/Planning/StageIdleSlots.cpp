// What the compiler moves from R and W into the waits of B (FillIdle.h), priced
// on the tasks of a stage. The order of B is not made again with what came in;
// work in a wait delays B by what the wait does not cover.
#include "passes/Planning/StageProblem.h"

#include <algorithm>

namespace merak::planning {

// A task of W that no other one needs ends in a gradient.
std::vector<StageModel::Slice> StageModel::findSlices() const {
  std::vector<Slice> slices;
  const std::vector<SubmicrobatchTask> &tasks = problem.submicrobatches[2];
  std::vector<EarlyTask> work(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    work[i] = {tasks[i].needs, tasks[i].communication, true};
    for (int need : tasks[i].needs)
      work[size_t(need)].sum = false;
  }
  for (const std::vector<int> &members : slicesOf(work)) {
    Slice slice{count(), 0, 0, {}, {}};
    for (int member : members) {
      const SubmicrobatchTask &task = tasks[size_t(member)];
      slice.first = std::min(slice.first, task.op);
      slice.last = std::max(slice.last, task.op);
      slice.seconds += task.both();
      slice.values.insert(slice.values.end(), task.values.begin(),
                          task.values.end());
      slice.backward.insert(slice.backward.end(), task.backward.begin(),
                            task.backward.end());
    }
    slices.push_back(std::move(slice));
  }
  return slices;
}

// The ops that R runs again, and where B first reads what they make. `at`: the
// tasks of B.
LateWork StageModel::lateWork(const Need &need,
                              const std::vector<int> &at) const {
  const std::vector<SubmicrobatchTask> &tasks = problem.submicrobatches[1];
  const Pricing &of = pricing();
  const int last = int(at.size()) - 1;
  std::unordered_map<int, int> readAt; // by tensor, a position
  for (int position = last; position >= 0; --position)
    for (int tensor : tasks[at[position]].values)
      readAt[tensor] = position;
  LateWork work;
  std::unordered_map<int, int> valueOf; // by tensor
  for (auto op = need.ops.rbegin(); op != need.ops.rend(); ++op) {
    const StageOp &again = problem.ops[*op];
    LateTask task{again.recompute, last, {}, {}};
    for (int t : again.operands)
      if (auto made = valueOf.find(t); made != valueOf.end())
        task.reads.push_back(made->second);
    for (int t : again.results) {
      const bool left = of.stamp[t] == of.now && of.need[t] > 1;
      const bool onlyForB = left && of.need[t] == 2;
      valueOf[t] = int(work.values.size());
      task.makes.push_back(valueOf[t]);
      work.values.push_back({problem.tensors[t].bytes, left, onlyForB});
      if (auto read = readAt.find(t); read != readAt.end())
        task.before = std::min(task.before, read->second);
    }
    work.tasks.push_back(std::move(task));
  }
  return work;
}

// The gradients of weights of ops [begin, end) that may move, and from where in
// B on. `placeOf`: of ops that moved there.
std::vector<EarlySlice>
StageModel::earlySlices(int begin, int end, const std::vector<int> &at,
                        const std::unordered_map<int, int> &placeOf) const {
  std::vector<EarlySlice> work;
  for (const Slice &slice : pricing().slices) {
    if (slice.first < begin || slice.last >= end)
      continue;
    EarlySlice one{slice.seconds, 0};
    for (int task : slice.backward) {
      auto it = std::lower_bound(at.begin(), at.end(), task);
      if (it != at.end() && *it == task)
        one.after = std::max(one.after, int(it - at.begin()) + 1);
    }
    for (int value : slice.values)
      if (auto it = placeOf.find(producer[value]); it != placeOf.end())
        one.after = std::max(one.after, it->second);
    work.push_back(one);
  }
  return work;
}

void StageModel::fillWaits(int begin, int end, const Need &need,
                           StageCost &out) const {
  SubmicrobatchTimes::Idle idle = submicrobatches[1]->idle(begin, end);
  if (!idle.before)
    return;
  IdleSlots waits(*idle.before);
  if (waits.empty())
    return;
  const auto about = [&](const Filling &moves) {
    return out.times.B + moves.late;
  };
  const auto take = [&](const Filling &moves, double &from) {
    from -= moves.seconds;
    out.times.B += moves.late;
    out.slackBackward += moves.late;
    out.communication -= moves.seconds - moves.late;
  };
  const Filling late =
      fillLate(lateWork(need, idle.tasks), waits, out.times.B, about);
  take(late, out.times.R);
  std::unordered_map<int, int> placeOf; // by op; need.ops has the last first
  for (size_t i = 0; i < late.place.size(); ++i)
    if (late.place[i] != kStays)
      placeOf[need.ops[late.place.size() - 1 - i]] = late.place[i];
  take(fillEarly(earlySlices(begin, end, idle.tasks, placeOf), waits,
                 out.times.B, about),
       out.times.W);
}

} // namespace merak::planning
