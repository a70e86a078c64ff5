#include "passes/Planning/TwoStream.h"

#include <algorithm>
#include <array>
#include <utility>

namespace merak::planning {

namespace {

// Time on both streams while tasks are issued one by one.
class Streams {
public:
  Streams(const Chain &chain, int copies, double busy = 0)
      : chain(chain),
        finish(copies, std::vector<double>(chain.size(), 0.0)), free{0, busy} {}

  // When the task would start if it were issued next.
  double startOf(int half, int task) const {
    double ready = readyAt(half, task);
    return isFree(half, task)
               ? ready
               : std::max(ready, free[chain[task].communication]);
  }
  void issue(int half, int task) {
    double end =
        startOf(half, task) + (isAlias(half, task) ? 0 : chain[task].seconds);
    finish[half][task] = end;
    if (!isFree(half, task))
      free[chain[task].communication] = end;
    last = std::max(last, end);
  }
  bool isFree(int half, int task) const {
    return isAlias(half, task) ||
           (!chain[task].communication && chain[task].seconds == 0);
  }
  // What the first half has done for both.
  bool isAlias(int half, int task) const {
    return half > 0 && chain[task].once;
  }
  double readyAt(int half, int task) const {
    if (isAlias(half, task))
      return finish[0][task];
    double ready = 0;
    for (int need : chain[task].needs) {
      ready = std::max(ready, finish[half][need]);
      if (chain[task].once)
        ready = std::max(ready, finish.back()[need]);
    }
    return ready;
  }
  double end() const { return last; }
  double computesUntil() const { return free[0]; }

private:
  const Chain &chain;
  std::vector<std::vector<double>> finish;
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
        preference(preference), count(static_cast<int>(chain.size())) {}

  std::vector<Issue> run() {
    while (next[0] < count || next[1] < count) {
      Step steps[] = {peek(0), peek(1)};
      take(choose(steps), steps);
    }
    return std::move(order);
  }

private:
  struct Step {
    int end = 0;       // tasks [next, end)
    bool real = false; // the last of them is not free
    bool communication = false;
    double start = 0;
  };

  Step peek(int half) {
    Step step;
    // The second half follows; the first waits where the submicrobatches meet.
    int limit = half == 1 ? next[0] : count;
    bool meets = half == 0 && next[1] < count;
    int block = meets ? meeting.block(chain[next[1]].phase) : 0;
    for (step.end = next[half]; step.end < limit && !step.real; ++step.end) {
      if (meets && meeting.block(chain[step.end].phase) > block)
        break;
      // Both submicrobatches must have come to it.
      if (half == 0 && chain[step.end].once && next[1] < step.end)
        break;
      step.real = !streams.isFree(half, step.end);
      step.communication = chain[step.end].communication;
      step.start = streams.startOf(half, step.end);
      if (!step.real)
        streams.issue(half, step.end);
    }
    return step;
  }

  int choose(const Step (&steps)[2]) {
    // What does not hold up the computation goes at once.
    for (int half : {0, 1})
      if (steps[half].real && steps[half].communication)
        return half;
    if (steps[0].real && steps[1].real) {
      if (preference == Preference::FirstHalf)
        return 0;
      return steps[0].start == steps[1].start  ? current
             : steps[0].start < steps[1].start ? 0
                                               : 1;
    }
    if (steps[0].real || steps[1].real)
      return steps[0].real ? 0 : 1;
    return steps[0].end > next[0] ? 0 : 1;
  }

  void take(int half, const Step (&steps)[2]) {
    const Step &step = steps[half];
    if (step.real && !step.communication)
      current = half;
    for (; next[half] < step.end; ++next[half]) {
      if (!streams.isFree(half, next[half]))
        streams.issue(half, next[half]);
      order.push_back({half, next[half]});
    }
  }

  const Chain &chain;
  Streams streams;
  Meeting meeting;
  Preference preference;
  int count;
  std::array<int, 2> next{};
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
  double least = 0;
  for (Meeting meeting : meetings)
    for (Preference preference :
         {Preference::Earliest, Preference::FirstHalf}) {
      std::vector<Issue> order = Greedy(chain, meeting, preference).run();
      double found = simulateStreams(chain, order);
      if (best.empty() || found < least) {
        best = std::move(order);
        least = found;
      }
    }
  return best;
}

} // namespace merak::planning
