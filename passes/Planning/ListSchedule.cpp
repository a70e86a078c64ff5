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

// One for all, one a stage, or one a virtual stage.
template <typename T> const T &pick(const std::vector<T> &all, int v) {
  return all[size_t(v) % all.size()];
}

BoundaryCost boundary(const SimulateOptions &costs, int index) {
  if (costs.boundaries.empty())
    return {costs.forwardTransfer, costs.backwardTransfer, 0, 0};
  return pick(costs.boundaries, index);
}

// A chunk of a stage. Counters instead of sets: each action takes its
// microbatches 0 first.
struct Part {
  ActionTimes times;
  StageMemory memory;
  bool recomputes = false;
  int inFlight = 1, sets = 0;

  int forwards = 0, recomputed = 0, backwards = 0, weights = 0; // started
  std::vector<double> inputs, gradients; // arrival per microbatch
  // The same of the sums that W goes on with; how many are still to come.
  std::vector<double> sums;
  std::vector<int> openSums;
  std::vector<int> sumsTo; // virtual stages

  int materialised() const {
    return (recomputes ? recomputed : forwards) - weights;
  }
  double held() const {
    return memory.kept * (forwards - weights) +
           memory.untilB * (forwards - backwards) +
           memory.recomputed * materialised() +
           memory.pending * (backwards - weights);
  }
  double whole() const {
    return memory.kept + memory.untilB + memory.recomputed + memory.pending;
  }
  // What the oldest microbatch still needs to get to its end.
  double reserved() const {
    bool again = !recomputes || recomputed == weights;
    return (again ? memory.recomputed : 0) +
           (backwards == weights ? memory.pending : 0);
  }
  // The same of a microbatch that may not have come yet, besides `held`.
  double claim() const {
    return (forwards == weights ? memory.kept : 0) +
           (forwards == backwards ? memory.untilB : 0) +
           (materialised() == 0 ? memory.recomputed : 0) +
           (backwards == weights ? memory.pending : 0);
  }
};

struct StageState {
  double fixed = 0, limit = kNever;
  double freeAt = 0;
  std::vector<Part> parts;
  std::vector<Step> steps;

  double held() const {
    double bytes = fixed;
    for (const Part &part : parts)
      bytes += part.held();
    return bytes;
  }
  // Of the parts but one: room that each keeps for a microbatch of its own.
  double claimedBeside(const Part &one) const {
    double bytes = 0;
    for (const Part &part : parts)
      bytes += &part == &one ? 0 : part.claim();
    return bytes;
  }
};

class ListScheduler {
public:
  explicit ListScheduler(const ListOptions &options)
      : options(options), order(orderOf(options.preference)),
        m(options.shape.microbatches), p(options.shape.stages),
        count(p * options.shape.chunks), stages(p), links(size_t(p) * p, 0) {
    const std::vector<StageMemory> &memory = options.costs.memory;
    for (int v = 0; v < count; ++v) {
      StageState &stage = stages[v % p];
      Part part;
      part.times = pick(options.costs.times, v);
      if (!memory.empty()) {
        part.memory = pick(memory, v);
        // As the simulator counts it.
        if (v < p || int(memory.size()) == count)
          stage.fixed += part.memory.fixed;
      }
      part.recomputes = options.shape.recomputes(v % p);
      part.inFlight = std::max(
          1, options.inFlight.empty() ? count - v : pick(options.inFlight, v));
      part.sets = options.sets;
      if (options.sets > 0 && !part.recomputes)
        part.sets += part.inFlight - 1;
      part.inputs.assign(m, v == 0 ? 0 : kNever);
      part.gradients.assign(m, kNever);
      part.sums.assign(m, 0);
      part.openSums.assign(m, 0);
      stage.parts.push_back(std::move(part));
      if (!options.memoryLimit.empty() && !memory.empty())
        stage.limit = pick(options.memoryLimit, v);
    }
    for (const Transfer &sum : options.costs.weightSums) {
      int to = sum.toChunk * p + sum.toStage;
      partOf(sum.fromChunk * p + sum.fromStage).sumsTo.push_back(to);
      for (int &open : partOf(to).openSums)
        ++open;
    }
  }

  Result<Schedule> run() {
    Status status = checkRoom();
    if (!status.ok())
      return status;
    for (int s = 0; s < p; ++s)
      wakes.push({0, s});
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
    MERAK_RETURN_IF_ERROR(checkFinished());
    Schedule schedule;
    schedule.name = "auto";
    schedule.stages = p;
    schedule.microbatches = m;
    schedule.chunks = options.shape.chunks;
    for (int s = 0; s < p; ++s)
      schedule.order.push_back(
          completeStage(stages[s].steps, options.shape, s));
    return schedule;
  }

private:
  // One microbatch of each part must fit, then the pipeline never stands still:
  // what a part holds is released by the backward of its oldest microbatch,
  // which has all it needs.
  Status checkRoom() const {
    Status status;
    for (int s = 0; s < p; ++s) {
      double least = stages[s].fixed;
      for (const Part &part : stages[s].parts)
        least += part.whole();
      if (least > stages[s].limit)
        status.merge(Status::error(fmt::format(
            "stage {} needs {:.0f} bytes for one microbatch, the limit is "
            "{:.0f}",
            s, least, stages[s].limit)));
    }
    return status;
  }

  // Nothing is ready any more, so either all has run or some wait has no end.
  Status checkFinished() const {
    Status status;
    for (int v = 0; v < count; ++v) {
      const Part &part = stages[v % p].parts[v / p];
      if (part.weights < m)
        status.merge(Status::error(fmt::format(
            "stage {}{} stands still after {} forwards, {} backwards and {} "
            "weight gradients of {} microbatches",
            v % p,
            options.shape.chunks > 1 ? fmt::format(" chunk {}", v / p) : "",
            part.forwards, part.backwards, part.weights, m)));
    }
    return status;
  }

  static bool ready(const StageState &stage, const Part &part, int m,
                    Class kind, double now) {
    bool room = part.sets == 0 || part.materialised() < part.sets;
    auto fits = [&](double more) {
      return stage.limit == kNever ||
             stage.held() + more + stage.claimedBeside(part) <= stage.limit;
    };
    const StageMemory &memory = part.memory;
    switch (kind) {
    case kB:
      return part.backwards <
                 (part.recomputes ? part.recomputed : part.forwards) &&
             part.gradients[part.backwards] <= now &&
             (part.backwards == part.weights || fits(memory.pending));
    case kRWithGradient:
    case kREarly:
      return part.recomputes && part.recomputed < part.forwards && room &&
             (kind == kREarly || part.gradients[part.recomputed] <= now) &&
             fits(memory.recomputed +
                  (part.backwards == part.weights ? memory.pending : 0));
    case kF:
      // The oldest microbatch must still find its room.
      return part.forwards < m && part.inputs[part.forwards] <= now &&
             part.forwards - part.backwards < part.inFlight &&
             (part.recomputes || room) &&
             fits(memory.kept + memory.untilB + part.reserved());
    case kW:
    case kClasses:
      break;
    }
    return part.weights < part.backwards && !part.openSums[part.weights] &&
           part.sums[part.weights] <= now;
  }

  // Of several chunks the one that is furthest on its way goes: forward the
  // last, backward the first; W in the order of B.
  void startOne(int index, double now) {
    StageState &stage = stages[index];
    int chunks = int(stage.parts.size());
    for (Class kind : order)
      for (int i = 0; i < chunks; ++i) {
        int chunk = kind == kF || kind == kW ? chunks - 1 - i : i;
        if (ready(stage, stage.parts[chunk], m, kind, now))
          return start(index, chunk, kind, now);
      }
  }

  void start(int index, int chunk, Class kind, double now) {
    StageState &stage = stages[index];
    Part &part = stage.parts[chunk];
    Step step;
    switch (kind) {
    case kB:
      step = {Action::B, part.backwards++, chunk};
      break;
    case kRWithGradient:
    case kREarly: // neither has to wait when the list runs
      step = {Action::R, part.recomputed++, chunk, true};
      break;
    case kF:
      step = {Action::F, part.forwards++, chunk};
      break;
    case kW:
    case kClasses:
      step = {Action::W, part.weights++, chunk};
      break;
    }
    stage.steps.push_back(step);
    double end = now + part.times.of(step.action);
    stage.freeAt = end;
    wakes.push({end, index});
    int v = chunk * p + index;
    if (step.action == Action::W)
      for (int to : part.sumsTo) {
        Part &next = partOf(to);
        --next.openSums[step.microbatch];
        next.sums[step.microbatch] = std::max(next.sums[step.microbatch], end);
        wake(to % p, end);
      }
    if (step.action == Action::F && v + 1 < count)
      send(v, v + 1, end, boundary(options.costs, v).forward,
           partOf(v + 1).inputs[step.microbatch]);
    if (step.action == Action::F && v + 1 == count)
      part.gradients[step.microbatch] = end; // the loss is here
    if (step.action == Action::B && v > 0)
      send(v, v - 1, end, boundary(options.costs, v - 1).backward,
           partOf(v - 1).gradients[step.microbatch]);
  }

  Part &partOf(int v) { return stages[v % p].parts[v / p]; }

  void send(int from, int to, double end, double seconds, double &arrival) {
    double &link = links[size_t(from % p) * p + to % p];
    link = std::max(link, end) + seconds;
    arrival = link;
    wake(to % p, link);
  }

  // What runs until then looks at what has come when it has ended.
  void wake(int stage, double at) {
    if (stages[stage].freeAt < at)
      wakes.push({at, stage});
  }

  const ListOptions &options;
  Order order;
  int m, p, count; // microbatches, stages, virtual stages
  std::vector<StageState> stages;
  std::vector<double> links;           // when free again, per pair of stages
  using Wake = std::pair<double, int>; // time, stage
  std::priority_queue<Wake, std::vector<Wake>, std::greater<>> wakes;
};

} // namespace

Result<Schedule> listSchedule(const ListOptions &options) {
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

} // namespace merak::planning
