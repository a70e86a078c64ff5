#include "passes/Planning/ListSchedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <limits>
#include <queue>

namespace merak::planning {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

enum Class { kB, kRWithGradient, kF, kREarly, kW, kClasses };
using Order = std::array<Class, kClasses>;

Order orderOf(Preference preference) {
  switch (preference) {
  case Preference::RecomputeFirst:
    break;
  case Preference::ForwardFirst:
    return {kB, kF, kRWithGradient, kREarly, kW};
  case Preference::WeightsEarly:
    return {kB, kRWithGradient, kW, kF, kREarly};
  case Preference::WeightsFirst:
    return {kW, kB, kRWithGradient, kF, kREarly};
  }
  return {kB, kRWithGradient, kF, kREarly, kW};
}

template <typename T> const T &pick(const std::vector<T> &all, int stage) {
  return all[all.size() == 1 ? 0 : stage];
}

BoundaryCost boundary(const SimulateOptions &costs, int index) {
  if (costs.boundaries.empty())
    return {costs.forwardTransfer, costs.backwardTransfer, 0, 0};
  return pick(costs.boundaries, index);
}

// Counters instead of sets: each action takes its microbatches 0 first.
struct StageState {
  ActionTimes times;
  StageMemory memory;
  bool recomputes = false;
  int inFlight = 1, sets = 0;
  double limit = kNever;

  int forwards = 0, recomputed = 0, backwards = 0, weights = 0; // started
  double freeAt = 0;
  double linkForward = 0, linkBackward = 0; // when the links are free again
  std::vector<double> inputs, gradients;    // arrival per microbatch
  std::vector<Step> steps;

  int materialised() const {
    return (recomputes ? recomputed : forwards) - weights;
  }
  double held() const {
    return memory.fixed + memory.kept * (forwards - weights) +
           memory.untilB * (forwards - backwards) +
           memory.recomputed * materialised() +
           memory.pending * (backwards - weights);
  }
  // What the oldest microbatch still needs to get to its end.
  double reserved() const {
    bool again = !recomputes || recomputed == weights;
    return (again ? memory.recomputed : 0) +
           (backwards == weights ? memory.pending : 0);
  }
};

class ListScheduler {
public:
  explicit ListScheduler(const ListOptions &options)
      : options(options), order(orderOf(options.preference)),
        m(options.shape.microbatches), stages(options.shape.stages) {
    int p = options.shape.stages;
    for (int s = 0; s < p; ++s) {
      StageState &stage = stages[s];
      stage.times = pick(options.costs.times, s);
      if (!options.costs.memory.empty())
        stage.memory = pick(options.costs.memory, s);
      stage.recomputes = options.shape.recomputes(s);
      stage.inFlight = std::max(
          1, options.inFlight.empty() ? p - s : pick(options.inFlight, s));
      stage.sets = options.sets;
      if (options.sets > 0 && !stage.recomputes)
        stage.sets += stage.inFlight - 1;
      if (!options.memoryLimit.empty() && !options.costs.memory.empty())
        stage.limit = pick(options.memoryLimit, s);
      stage.inputs.assign(m, s == 0 ? 0 : kNever);
      stage.gradients.assign(m, kNever);
    }
  }

  Result<Schedule> run() {
    Status status = checkRoom();
    if (!status.ok())
      return status;
    for (size_t s = 0; s < stages.size(); ++s)
      wakes.push({0, int(s)});
    std::vector<int> woken;
    while (!wakes.empty()) {
      double now = wakes.top().first;
      woken.clear();
      for (; !wakes.empty() && wakes.top().first == now; wakes.pop())
        if (woken.empty() || woken.back() != wakes.top().second)
          woken.push_back(wakes.top().second);
      for (int stage : woken)
        if (stages[stage].freeAt <= now)
          startOne(stage, now);
    }
    Schedule schedule;
    schedule.name = "auto";
    schedule.stages = int(stages.size());
    schedule.microbatches = m;
    for (size_t s = 0; s < stages.size(); ++s)
      schedule.order.push_back(
          completeStage(stages[s].steps, options.shape, int(s)));
    return schedule;
  }

private:
  // One microbatch must fit, then the pipeline never stands still: what a stage
  // holds is released by the backward of its oldest microbatch, which has all
  // it needs.
  Status checkRoom() const {
    Status status;
    for (size_t s = 0; s < stages.size(); ++s) {
      const StageState &stage = stages[s];
      double least = stage.memory.fixed + stage.memory.kept +
                     stage.memory.untilB + stage.memory.recomputed +
                     stage.memory.pending;
      if (least > stage.limit)
        status.merge(Status::error(fmt::format(
            "stage {} needs {:.0f} bytes for one microbatch, the limit is "
            "{:.0f}",
            s, least, stage.limit)));
    }
    return status;
  }

  bool ready(const StageState &s, Class kind, double now) const {
    bool room = options.sets == 0 || s.materialised() < s.sets;
    switch (kind) {
    case kB:
      return s.backwards < (s.recomputes ? s.recomputed : s.forwards) &&
             s.gradients[s.backwards] <= now &&
             (s.backwards == s.weights ||
              s.held() + s.memory.pending <= s.limit);
    case kRWithGradient:
    case kREarly:
      return s.recomputes && s.recomputed < s.forwards && room &&
             (kind == kREarly || s.gradients[s.recomputed] <= now) &&
             s.held() + s.memory.recomputed +
                     (s.backwards == s.weights ? s.memory.pending : 0) <=
                 s.limit;
    case kF:
      // The oldest microbatch must still find its room.
      return s.forwards < m && s.inputs[s.forwards] <= now &&
             s.forwards - s.backwards < s.inFlight && (s.recomputes || room) &&
             s.held() + s.memory.kept + s.memory.untilB + s.reserved() <=
                 s.limit;
    case kW:
    case kClasses:
      break;
    }
    return s.weights < s.backwards;
  }

  void startOne(int index, double now) {
    StageState &stage = stages[index];
    for (Class kind : order)
      if (ready(stage, kind, now))
        return start(index, kind, now);
  }

  void start(int index, Class kind, double now) {
    StageState &stage = stages[index];
    Step step;
    switch (kind) {
    case kB:
      step = {Action::B, stage.backwards++};
      break;
    case kRWithGradient:
    case kREarly: // neither has to wait when the list runs
      step = {Action::R, stage.recomputed++, 0, true};
      break;
    case kF:
      step = {Action::F, stage.forwards++};
      break;
    case kW:
    case kClasses:
      step = {Action::W, stage.weights++};
      break;
    }
    stage.steps.push_back(step);
    double end = now + stage.times.of(step.action);
    stage.freeAt = end;
    wakes.push({end, index});
    if (step.action == Action::F && index + 1 < int(stages.size()))
      send(stage.linkForward, end, boundary(options.costs, index).forward,
           index + 1, stages[index + 1].inputs[step.microbatch]);
    if (step.action == Action::F && index + 1 == int(stages.size()))
      stage.gradients[step.microbatch] = end; // the loss is here
    if (step.action == Action::B && index > 0)
      send(stage.linkBackward, end, boundary(options.costs, index - 1).backward,
           index - 1, stages[index - 1].gradients[step.microbatch]);
  }

  void send(double &link, double end, double seconds, int to, double &arrival) {
    link = std::max(link, end) + seconds;
    arrival = link;
    wakes.push({link, to});
  }

  const ListOptions &options;
  Order order;
  int m;
  std::vector<StageState> stages;
  using Wake = std::pair<double, int>; // time, stage
  std::priority_queue<Wake, std::vector<Wake>, std::greater<>> wakes;
};

} // namespace

Result<Schedule> listSchedule(const ListOptions &options) {
  if (options.shape.chunks != 1)
    return Status::error(fmt::format("a list schedule has one chunk a stage, "
                                     "found {}",
                                     options.shape.chunks));
  return ListScheduler(options).run();
}

std::vector<int> transferWarmup(int stages, int microbatches,
                                const SimulateOptions &costs, int slack) {
  std::vector<int> warmup(stages, 1);
  for (int s = stages - 2; s >= 0; --s) {
    const ActionTimes &times = pick(costs.times, s);
    BoundaryCost b = boundary(costs, s);
    double cycle = times.F + times.R + times.B + times.W;
    double hidden = b.forward + b.backward - times.W;
    int more = cycle > 0 ? int(std::ceil(std::max(0.0, hidden) / cycle)) : 0;
    warmup[s] = warmup[s + 1] + 1 + more + slack;
  }
  for (int &count : warmup)
    count = std::min(count, microbatches);
  return warmup;
}

double steadyPeriod(const std::vector<int> &warmup,
                    const SimulateOptions &costs) {
  int p = int(warmup.size());
  double period = 0;
  auto cycle = [&](int s) {
    const ActionTimes &times = pick(costs.times, s);
    return times.F + times.R + times.B + times.W;
  };
  for (int i = 0; i < p; ++i) {
    double loop = cycle(i);
    period = std::max(period, loop);
    for (int j = i + 1; j < p; ++j) {
      BoundaryCost b = boundary(costs, j - 1);
      period = std::max({period, b.forward, b.backward});
      loop += cycle(j) - pick(costs.times, j).W + b.forward + b.backward;
      period = std::max(period, loop / (1 + warmup[i] - warmup[j]));
    }
  }
  return period;
}

} // namespace merak::planning
