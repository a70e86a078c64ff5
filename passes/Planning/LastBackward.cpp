#include "passes/Planning/LastBackward.h"

#include "runtime/plan/Links.h"

#include <algorithm>
#include <array>

namespace merak::planning {

namespace {

class LastStreams {
public:
  LastStreams(const std::vector<IssuedTask> &tasks,
              const std::vector<EarlyReduction> &reductions, bool sharesLinks)
      : tasks(tasks), reductions(reductions), level(sharesLinks ? 0 : 1),
        finish(tasks.size(), -1) {}

  LastBackward run() {
    for (size_t task = 0; task < tasks.size(); ++task)
      issue(task);
    out.reduced = std::max(out.reduced, out.tasks);
    for (; next < reductions.size(); ++next)
      reduce();
    return out;
  }

private:
  void issue(size_t number) {
    const IssuedTask &task = tasks[number];
    double start = free[task.communication];
    // What takes no time is only a name for what it needs.
    if (!task.communication && task.seconds == 0)
      start = 0;
    for (int need : task.needs)
      start = std::max(start, finish[size_t(need)]);
    double end = start + task.seconds;
    if (task.communication) {
      reduceUntil(start);
      end = links.occupy(own, own, 0, task.seconds, 0, start).end;
    }
    finish[number] = end;
    if (task.communication || task.seconds > 0)
      free[task.communication] = end;
    out.tasks = std::max(out.tasks, end);
  }

  // Those that reach the links before a message of the tasks does.
  void reduceUntil(double time) {
    while (next < reductions.size() && isReady(time)) {
      reduce();
      ++next;
    }
  }
  bool isReady(double time) const {
    const int after = reductions[next].after;
    return (after < 0 || finish[size_t(after)] >= 0) && readyAt() < time;
  }
  double readyAt() const {
    const int after = reductions[next].after;
    return std::max(reduced, after < 0 ? 0 : finish[size_t(after)]);
  }
  void reduce() {
    reduced =
        links.occupy(own, own, level, reductions[next].seconds, 0, readyAt())
            .end;
    out.reduced = std::max(out.reduced, reduced);
  }

  const std::vector<IssuedTask> &tasks;
  const std::vector<EarlyReduction> &reductions;
  int level;
  std::vector<double> finish;   // of tasks; -1: not issued
  std::array<double, 2> free{}; // streams: of computation, of communication
  double reduced = 0;           // the stream of reductions is free from then on
  size_t next = 0;
  std::array<int, 1> own{0}; // all ranks of a stage do the same
  LinkUse links{{}, 1};
  LastBackward out;
};

} // namespace

LastBackward simulateLastBackward(const std::vector<IssuedTask> &tasks,
                                  const std::vector<EarlyReduction> &reductions,
                                  bool sharesLinks) {
  return LastStreams(tasks, reductions, sharesLinks).run();
}

std::vector<int> joinedOrder(const std::vector<IssuedTask> &b,
                             const std::vector<IssuedTask> &w,
                             const std::vector<std::vector<int>> &backward) {
  const int count = int(b.size());
  // By task of B: in front of which place its result can be used. That of a
  // collective behind whoever waits for it first.
  std::vector<int> usable(b.size(), count);
  std::vector<char> waits(b.size(), 0);
  for (int at = 0; at < count; ++at) {
    if (!b[size_t(at)].communication)
      usable[size_t(at)] = at + 1;
    for (int need : b[size_t(at)].needs)
      if (b[size_t(need)].communication && usable[size_t(need)] == count &&
          !b[size_t(at)].communication) {
        waits[size_t(at)] = 1;
        usable[size_t(need)] = at + 1;
      }
  }
  std::vector<std::vector<int>> atPlace(b.size() + 1);
  std::vector<int> placeOf(w.size(), 0);
  for (size_t task = 0; task < w.size(); ++task) {
    int &place = placeOf[task];
    for (int need : w[task].needs)
      place = std::max(place, placeOf[size_t(need)]);
    for (int need : backward[task])
      place = std::max(place, usable[size_t(need)]);
    int wait = place;
    while (wait < count && !waits[size_t(wait)])
      ++wait;
    place = wait < count ? wait : place;
    atPlace[size_t(place)].push_back(count + int(task));
  }
  std::vector<int> order;
  for (int at = 0; at <= count; ++at) {
    order.insert(order.end(), atPlace[size_t(at)].begin(),
                 atPlace[size_t(at)].end());
    if (at < count)
      order.push_back(at);
  }
  return order;
}

} // namespace merak::planning
