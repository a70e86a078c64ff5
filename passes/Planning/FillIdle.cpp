#include "passes/Planning/FillIdle.h"

#include <algorithm>
#include <optional>

namespace merak::planning {

bool Filling::any() const {
  return std::any_of(place.begin(), place.end(),
                     [](int at) { return at != kStays; });
}

namespace {

// As late as they may run, from the last on. A task may move if all that read
// its values do.
Filling placeLate(const LateWork &work, IdleSlots &slots) {
  Filling moves;
  moves.place.assign(work.tasks.size(), kStays);
  // By value, the first position that reads it; kStays: something in R does.
  std::vector<std::optional<int>> readAt(work.values.size());
  for (size_t t = work.tasks.size(); t-- > 0;) {
    const LateTask &task = work.tasks[t];
    int latest = task.before;
    for (int value : task.makes)
      latest = std::min(latest, readAt[size_t(value)].value_or(latest));
    std::optional<int> at;
    if (latest != kStays)
      at = task.seconds > 0 ? slots.takeLast(latest, task.seconds) : latest;
    moves.place[t] = at.value_or(kStays);
    moves.seconds += at ? task.seconds : 0;
    for (int value : task.reads) {
      std::optional<int> &first = readAt[size_t(value)];
      first = std::min(first.value_or(moves.place[t]), moves.place[t]);
    }
  }
  return moves;
}

// Bytes that have to be kept besides, less those that need not be any more.
double moreBytes(const LateWork &work, const Filling &moves) {
  std::vector<char> madeInB(work.values.size(), 0), counted = madeInB;
  double bytes = 0;
  for (size_t t = 0; t < work.tasks.size(); ++t)
    if (moves.place[t] != kStays)
      for (int value : work.tasks[t].makes) {
        madeInB[size_t(value)] = 1;
        if (work.values[size_t(value)].onlyForB)
          bytes -= work.values[size_t(value)].bytes;
      }
  for (size_t t = 0; t < work.tasks.size(); ++t)
    if (moves.place[t] != kStays)
      for (int value : work.tasks[t].reads) {
        const LateValue &read = work.values[size_t(value)];
        if (!madeInB[size_t(value)] && !counted[size_t(value)] && !read.kept)
          bytes += read.bytes;
        counted[size_t(value)] = 1;
      }
  return bytes;
}

// What moves, if it pays; else nothing, and the slots are as before.
Filling ifItPays(Filling moves, IdleSlots &slots, const IdleSlots &before,
                 double seconds, const SecondsWith &with) {
  moves.late = slots.late() - before.late();
  if (moves.any() && paysToMove(with(moves), seconds + moves.seconds))
    return moves;
  slots = before;
  return {std::vector<int>(moves.place.size(), kStays), 0, 0};
}

} // namespace

Filling fillLate(const LateWork &work, IdleSlots &slots, double seconds,
                 const SecondsWith &with) {
  const IdleSlots before = slots;
  Filling moves = placeLate(work, slots);
  if (moreBytes(work, moves) > 0)
    moves.place.assign(moves.place.size(), kStays);
  return ifItPays(std::move(moves), slots, before, seconds, with);
}

std::vector<std::vector<int>> slicesOf(const std::vector<EarlyTask> &tasks) {
  std::vector<int> users(tasks.size(), 0);
  for (const EarlyTask &task : tasks)
    for (int need : task.needs)
      ++users[size_t(need)];
  // Of the slice that is looked at now: who is in it, and how often its tasks
  // use each.
  std::vector<int> inSlice(tasks.size(), -1), used(tasks.size(), 0);
  std::vector<std::vector<int>> slices;
  for (int end = 0; end < int(tasks.size()); ++end) {
    if (!tasks[size_t(end)].sum)
      continue;
    std::vector<int> slice = {end};
    inSlice[size_t(end)] = end;
    used[size_t(end)] = 0;
    for (size_t i = 0; i < slice.size(); ++i)
      for (int need : tasks[size_t(slice[i])].needs) {
        if (inSlice[size_t(need)] != end) {
          inSlice[size_t(need)] = end;
          used[size_t(need)] = 0;
          slice.push_back(need);
        }
        ++used[size_t(need)];
      }
    if (!std::all_of(slice.begin(), slice.end(), [&](int task) {
          return !tasks[size_t(task)].fixed &&
                 used[size_t(task)] == users[size_t(task)];
        }))
      continue;
    std::sort(slice.begin(), slice.end());
    slices.push_back(std::move(slice));
  }
  return slices;
}

Filling fillEarly(const std::vector<EarlySlice> &slices, IdleSlots &slots,
                  double seconds, const SecondsWith &with) {
  const IdleSlots before = slots;
  Filling moves;
  for (const EarlySlice &slice : slices) {
    std::optional<int> at = slots.takeFirst(slice.after, slice.seconds);
    moves.place.push_back(at.value_or(kStays));
    moves.seconds += at ? slice.seconds : 0;
  }
  return ifItPays(std::move(moves), slots, before, seconds, with);
}

} // namespace merak::planning
