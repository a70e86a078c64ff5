#include "passes/Planning/TwoStream.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace merak::planning {

namespace {

// Time on both streams while tasks are issued one by one.
class Streams {
public:
  Streams(const Chain &chain, int copies, double busy = 0)
      : chain(chain), finish(size_t(copies) * chain.size(), 0.0),
        lastHalf(copies - 1), free{0, busy} {}

  // When the task would start if it were issued next.
  double startOf(int half, int task) const {
    return startOf(half, task, readyAt(half, task));
  }
  // The same of one that has all it needs at `ready`.
  double startOf(int half, int task, double ready) const {
    return isFree(half, task)
               ? ready
               : std::max(ready, free[chain[size_t(task)].communication]);
  }
  void issue(int half, int task) { issue(half, task, readyAt(half, task)); }
  void issue(int half, int task, double ready) {
    const double end = startOf(half, task, ready) +
                       (isAlias(half, task) ? 0 : chain[size_t(task)].seconds);
    finish[at(half, task)] = end;
    if (!isFree(half, task))
      free[chain[size_t(task)].communication] = end;
    last = std::max(last, end);
  }
  bool isFree(int half, int task) const {
    return isAlias(half, task) || (!chain[size_t(task)].communication &&
                                   chain[size_t(task)].seconds == 0);
  }
  // What the first half has done for both.
  bool isAlias(int half, int task) const {
    return half > 0 && chain[size_t(task)].once;
  }
  double readyAt(int half, int task) const {
    const StreamTask &of = chain[size_t(task)];
    if (isAlias(half, task))
      return finish[at(0, task)];
    double ready = 0;
    for (int need : of.needs) {
      ready = std::max(ready, finish[at(half, need)]);
      if (of.once)
        ready = std::max(ready, finish[at(lastHalf, need)]);
    }
    return ready;
  }
  double end() const { return last; }
  double computesUntil() const { return free[0]; }
  double communicatesUntil() const { return free[1]; }

private:
  size_t at(int half, int task) const {
    return size_t(half) * chain.size() + size_t(task);
  }

  const Chain &chain;
  std::vector<double> finish; // of the first half, then of the second
  int lastHalf;
  std::array<double, 2> free;
  double last = 0;
};

// In which blocks of the chain both submicrobatches must be before one of them
// goes on: phases [k * period - offset, (k + 1) * period - offset).
struct Meeting {
  int period, offset;
  int block(int phase) const {
    return period == 0 ? 0 : (phase + offset) / period;
  }
};

enum class Preference {
  Earliest,  // whoever can start first; the half that runs already if equal
  FirstHalf, // as far as the first half may go
};

// Builds the order step by step. A step is one task of a half with the free
// tasks before it, so that those are issued where they are needed.
class Greedy {
public:
  Greedy(const Chain &chain, Meeting meeting, Preference preference)
      : chain(chain), streams(chain, 2), meeting(meeting),
        preference(preference), count(static_cast<int>(chain.size())) {
    order.reserve(2 * chain.size());
    for (const StreamTask &task : chain)
      left[task.communication] += (task.once ? 1 : 2) * task.seconds;
  }

  // None if it is certain that the order takes `limit` seconds or more.
  std::vector<Issue> run(double limit) {
    while (next[0] < count || next[1] < count) {
      if (kSurely * leastSeconds() > limit)
        return {};
      look(0);
      look(1);
      take(choose());
    }
    return std::move(order);
  }
  // Of the order that was found: free tasks are issued sooner here than there,
  // which changes no time.
  double seconds() const { return streams.end(); }

private:
  struct Step {
    int end = 0;       // tasks [next, end)
    bool real = false; // the last of them is not free
    double ready = 0;  // when it has what it needs
  };

  // Each stream has to run what is left, one task after the other.
  double leastSeconds() const {
    return std::max(streams.computesUntil() + left[0],
                    streams.communicatesUntil() + left[1]);
  }

  // Goes on with the step of a half, as far as this one may go now. What it has
  // come to stays as it is whatever the other half does.
  void look(int half) {
    Step &step = steps[size_t(half)];
    // The second half follows; the first waits where the submicrobatches meet.
    const int limit = half == 1 ? next[0] : count;
    const bool meets = half == 0 && next[1] < count;
    const int block = meets ? meeting.block(chain[size_t(next[1])].phase) : 0;
    for (; step.end < limit && !step.real; ++step.end) {
      const StreamTask &task = chain[size_t(step.end)];
      if (meets && meeting.block(task.phase) > block)
        break;
      // Both submicrobatches must have come to it.
      if (half == 0 && task.once && next[1] < step.end)
        break;
      step.real = !streams.isFree(half, step.end);
      step.ready = streams.readyAt(half, step.end);
      if (!step.real)
        streams.issue(half, step.end, step.ready);
    }
  }

  bool communicates(int half) const {
    const Step &step = steps[size_t(half)];
    return step.real && chain[size_t(step.end) - 1].communication;
  }
  double startOf(int half) const {
    const Step &step = steps[size_t(half)];
    return streams.startOf(half, step.end - 1, step.ready);
  }

  int choose() const {
    // What does not hold up the computation goes at once.
    for (int half : {0, 1})
      if (communicates(half))
        return half;
    if (steps[0].real && steps[1].real) {
      if (preference == Preference::FirstHalf)
        return 0;
      const double first = startOf(0), second = startOf(1);
      return first == second ? current : first < second ? 0 : 1;
    }
    if (steps[0].real || steps[1].real)
      return steps[0].real ? 0 : 1;
    return steps[0].end > next[0] ? 0 : 1;
  }

  void take(int half) {
    Step &step = steps[size_t(half)];
    if (step.real && !communicates(half))
      current = half;
    if (step.real) {
      const StreamTask &task = chain[size_t(step.end) - 1];
      streams.issue(half, step.end - 1, step.ready);
      left[task.communication] -= task.seconds;
    }
    for (int &task = next[size_t(half)]; task < step.end; ++task)
      order.push_back({half, task});
    step.real = false;
  }

  // Sums of what is left are rounded.
  static constexpr double kSurely = 1 - 1e-9;
  const Chain &chain;
  Streams streams;
  std::array<double, 2> left{}; // seconds on each of them
  Meeting meeting;
  Preference preference;
  int count;
  std::array<int, 2> next{};
  std::array<Step, 2> steps;
  int current = 0;
  std::vector<Issue> order;
};

} // namespace

double simulateStreams(const Chain &chain, const std::vector<Issue> &order,
                       double busy) {
  Streams streams(chain, 2, busy);
  for (const Issue &issue : order)
    streams.issue(issue.half, issue.task);
  return streams.end();
}

std::vector<double> idleBefore(const Chain &chain,
                               const std::vector<Issue> &order) {
  Streams streams(chain, 2);
  std::vector<double> idle;
  for (const Issue &issue : order) {
    bool computes = !streams.isFree(issue.half, issue.task) &&
                    !chain[issue.task].communication;
    idle.push_back(computes ? streams.startOf(issue.half, issue.task) -
                                  streams.computesUntil()
                            : 0);
    streams.issue(issue.half, issue.task);
  }
  return idle;
}

double simulateStreams(const Chain &chain) {
  Streams streams(chain, 1);
  for (size_t task = 0; task < chain.size(); ++task)
    streams.issue(0, static_cast<int>(task));
  return streams.end();
}

int ChainWriter::add(double seconds, bool communication, std::vector<int> needs,
                     bool joins, bool once) {
  bool pending = false;
  for (int need : needs)
    pending |= open[need] && tasks[need].phase == phase;
  if (pending && !joins) {
    ++phase;
    pending = false;
  }
  open.push_back(communication || pending);
  tasks.push_back({seconds, communication, std::move(needs), phase, once});
  return static_cast<int>(tasks.size()) - 1;
}

std::vector<Issue> orderSubmicrobatches(const Chain &chain, int level) {
  // From the freest meeting rule down: what a lower level may do, a higher one
  // may do too.
  std::vector<Meeting> meetings;
  if (level >= 3)
    meetings.push_back({0, 0});
  if (level >= 2)
    meetings.insert(meetings.end(), {{2, 0}, {2, 1}});
  meetings.push_back({1, 0});
  std::vector<Issue> best;
  double least = std::numeric_limits<double>::infinity();
  for (Meeting meeting : meetings)
    for (Preference preference :
         {Preference::Earliest, Preference::FirstHalf}) {
      Greedy greedy(chain, meeting, preference);
      std::vector<Issue> order = greedy.run(least);
      if (!order.empty() && greedy.seconds() < least) {
        best = std::move(order);
        least = greedy.seconds();
      }
    }
  return best;
}

} // namespace merak::planning
