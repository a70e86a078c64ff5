#include "passes/Planning/ListSchedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <limits>

namespace merak::planning {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// What sums of seconds may differ by.
constexpr double kSmall = 1e-9;

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

ListBounds boundsOf(const ListOptions &options, int v) {
  const ScheduleOptions &shape = options.shape;
  ListBounds bounds;
  bounds.inFlight =
      std::max(1, options.inFlight.empty() ? shape.stages * shape.chunks - v
                                           : pick(options.inFlight, v));
  bounds.sets = ListBounds::kNone;
  if (options.sets > 0) {
    bounds.sets = options.sets;
    if (!shape.recomputes(v % shape.stages))
      bounds.sets += bounds.inFlight - 1;
  }
  return bounds;
}

// Where a part sends what an action makes.
struct Link {
  int part = -1, stage = -1; // -1: nowhere
  size_t link = 0;           // between the two stages
  double seconds = 0;
};

// A chunk of a stage. Counters instead of sets: each action takes its
// microbatches 0 first.
struct Part {
  ActionTimes times;
  StageMemory memory;
  bool recomputes = false;
  ListBounds bounds;
  ListScope::Part scope;
  Link forward, backward;

  int forwards = 0, recomputed = 0, backwards = 0, weights = 0; // started
  double *inputs = nullptr, *gradients = nullptr; // arrival per microbatch
  // The same of the sums that W goes on with; how many are still to come. Both
  // empty where no part waits for sums.
  std::vector<double> sums;
  std::vector<int> openSums;
  std::vector<int> sumsTo; // virtual stages
  // Bytes by the counts, where its stage has a limit: see below.
  double heldBytes = 0, claimBytes = 0;

  int underWay() const { return forwards - backwards; }
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
  void count() {
    heldBytes = held();
    claimBytes = claim();
  }
};

struct StageState {
  double fixed = 0, limit = kNever;
  double freeAt = 0;
  double held = 0; // bytes, where there is a limit
  double left = 0; // seconds of what has not started
  std::vector<Part> parts;
  std::vector<Step> steps;

  void count() {
    held = fixed;
    for (const Part &part : parts)
      held += part.heldBytes;
  }
  // Of the parts but one: room that each keeps for a microbatch of its own.
  double claimedBeside(const Part &one) const {
    double bytes = 0;
    for (const Part &part : parts)
      bytes += &part == &one ? 0 : part.claimBytes;
    return bytes;
  }
  // Room for so much more on one of its parts.
  bool fits(const Part &part, double more) const {
    return limit == kNever || held + more + claimedBeside(part) <= limit;
  }
};

class ListScheduler {
public:
  explicit ListScheduler(const ListOptions &options)
      : options(options), order(orderOf(options.preference)),
        m(options.shape.microbatches), p(options.shape.stages),
        count(p * options.shape.chunks),
        arrivals(size_t(count) * 2 * m, kNever), stages(p),
        latest(latestOf(options)), links(size_t(p) * p, 0),
        wakes(size_t(p + 3) / 4 * 4, kNever) {
    std::fill_n(wakes.begin(), p, 0);
    const std::vector<StageMemory> &memory = options.costs.memory;
    for (StageState &stage : stages) {
      stage.parts.reserve(size_t(options.shape.chunks));
      stage.steps.reserve(size_t(options.shape.chunks) * m * 4);
    }
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
      part.bounds = boundsOf(options, v);
      part.inputs = &arrivals[size_t(v) * 2 * m];
      part.gradients = part.inputs + m;
      if (v == 0)
        std::fill_n(part.inputs, m, 0);
      stage.left += secondsOf(part);
      if (options.shape.update && v < p)
        stage.left += part.times.U;
      if (v + 1 < count)
        part.forward = linkTo(v, v + 1, boundary(options.costs, v).forward);
      if (v > 0)
        part.backward =
            linkTo(v, v - 1, boundary(options.costs, v - 1).backward);
      part.count();
      stage.parts.push_back(std::move(part));
      if (!options.memoryLimit.empty() && !memory.empty())
        stage.limit = pick(options.memoryLimit, v);
    }
    for (StageState &stage : stages)
      stage.count();
    for (const Transfer &sum : options.costs.weightSums) {
      int to = sum.toChunk * p + sum.toStage;
      partOf(sum.fromChunk * p + sum.fromStage).sumsTo.push_back(to);
      Part &waiting = partOf(to);
      waiting.sums.resize(m, 0);
      waiting.openSums.resize(m, 0);
      for (int &open : waiting.openSums)
        ++open;
    }
  }

  Result<Schedule> run() {
    Status status = checkRoom();
    if (!status.ok())
      return status;
    // At the same time the first stage goes first.
    for (double now; (now = firstWake()) != kNever;) {
      const int stage =
          int(std::find(wakes.begin(), wakes.end(), now) - wakes.begin());
      if (now + stages[stage].left > latest)
        return Status::error(
            fmt::format("takes longer than {:.6g} seconds", options.limit));
      visit(stage, now);
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

  ListScope scope() const {
    ListScope scope;
    for (int v = 0; v < count; ++v)
      scope.parts.push_back(stages[v % p].parts[v / p].scope);
    return scope;
  }

private:
  // When the last stage may end at most, by the list's own clock. The simulator
  // starts no action sooner than `setup` lets its stage begin.
  static double latestOf(const ListOptions &options) {
    const std::vector<double> &setup = options.costs.setup;
    const double first =
        setup.empty() ? 0 : *std::min_element(setup.begin(), setup.end());
    return options.limit * (1 + kSmall) - first;
  }

  double secondsOf(const Part &part) const {
    const ActionTimes &times = part.times;
    return m * (times.F + (part.recomputes ? times.R : 0) + times.B + times.W);
  }

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

  // Whether an action may start but for the bounds.
  bool hasCome(const StageState &stage, const Part &part, Class kind,
               double now) const {
    const StageMemory &memory = part.memory;
    switch (kind) {
    case kB:
      return part.backwards <
                 (part.recomputes ? part.recomputed : part.forwards) &&
             part.gradients[part.backwards] <= now &&
             (part.backwards == part.weights ||
              stage.fits(part, memory.pending));
    case kRWithGradient:
    case kREarly:
      return part.recomputes && part.recomputed < part.forwards &&
             (kind == kREarly || part.gradients[part.recomputed] <= now) &&
             stage.fits(part,
                        memory.recomputed + (part.backwards == part.weights
                                                 ? memory.pending
                                                 : 0));
    case kF:
      // The oldest microbatch must still find its room.
      return part.forwards < m && part.inputs[part.forwards] <= now &&
             stage.fits(part, memory.kept + memory.untilB + part.reserved());
    case kW:
    case kClasses:
      break;
    }
    return part.weights < part.backwards &&
           (part.openSums.empty() ||
            (!part.openSums[part.weights] && part.sums[part.weights] <= now));
  }

  // The bounds are asked first, and where they alone say no the scope of the
  // list ends.
  bool ready(const StageState &stage, Part &part, Class kind,
             double now) const {
    const bool isForward = kind == kF;
    const auto refused = [&](int level, int bound, int &most) {
      if (level < bound)
        return false;
      if (most > level && hasCome(stage, part, kind, now))
        most = level;
      return true;
    };
    if (isForward && refused(part.underWay(), part.bounds.inFlight,
                             part.scope.most.inFlight))
      return false;
    const bool takesSet =
        part.recomputes ? kind == kRWithGradient || kind == kREarly : isForward;
    if (takesSet &&
        refused(part.materialised(), part.bounds.sets, part.scope.most.sets))
      return false;
    return hasCome(stage, part, kind, now);
  }

  // Starts the first action that is ready: of several chunks the one that is
  // furthest on its way goes, forward the last, backward the first; W in the
  // order of B. The stage then looks again at its end, else when something
  // comes.
  void visit(int index, double now) {
    StageState &stage = stages[index];
    const int chunks = int(stage.parts.size());
    for (Class kind : order)
      for (int i = 0; i < chunks; ++i) {
        int chunk = kind == kF || kind == kW ? chunks - 1 - i : i;
        if (ready(stage, stage.parts[chunk], kind, now))
          return start(index, chunk, kind, now);
      }
    wakes[index] = nextArrival(stage, now);
  }

  // Of what is on its way already and may be waited for.
  double nextArrival(const StageState &stage, double now) const {
    double next = kNever;
    const auto consider = [&](double arrival) {
      if (arrival > now)
        next = std::min(next, arrival);
    };
    for (const Part &part : stage.parts) {
      if (part.forwards < m)
        consider(part.inputs[part.forwards]);
      if (part.backwards < m)
        consider(part.gradients[part.backwards]);
      if (part.recomputes && part.recomputed < m)
        consider(part.gradients[part.recomputed]);
      if (part.weights < m && !part.openSums.empty() &&
          !part.openSums[part.weights])
        consider(part.sums[part.weights]);
    }
    return next;
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
    ListBounds &least = part.scope.least;
    least.inFlight = std::max(least.inFlight, part.underWay());
    least.sets = std::max(least.sets, part.materialised());
    stage.steps.push_back(step);
    if (stage.limit != kNever) {
      part.count();
      stage.count();
    }
    const double seconds = part.times.of(step.action);
    stage.left -= seconds;
    const double end = now + seconds;
    stage.freeAt = wakes[index] = end;
    if (step.action == Action::W)
      for (int to : part.sumsTo) {
        Part &next = partOf(to);
        --next.openSums[step.microbatch];
        next.sums[step.microbatch] = std::max(next.sums[step.microbatch], end);
        wake(to % p, end);
      }
    if (step.action == Action::F) {
      if (part.forward.part >= 0)
        send(
            part.forward, end, [&](Part &to) { return to.inputs; }, step);
      else
        part.gradients[step.microbatch] = end; // the loss is here
    }
    if (step.action == Action::B && part.backward.part >= 0)
      send(
          part.backward, end, [&](Part &to) { return to.gradients; }, step);
  }

  // Four at a time and without branches: no branch of a search for the least is
  // foreseeable, and this runs once for every action.
  double firstWake() const {
    double first[4] = {kNever, kNever, kNever, kNever};
    for (size_t s = 0; s < wakes.size(); s += 4)
      for (size_t i = 0; i < 4; ++i)
        first[i] = std::min(first[i], wakes[s + i]);
    return std::min(std::min(first[0], first[1]), std::min(first[2], first[3]));
  }

  Part &partOf(int v) { return stages[v % p].parts[v / p]; }

  Link linkTo(int from, int to, double seconds) const {
    return {to / p, to % p, size_t(from % p) * p + to % p, seconds};
  }

  template <typename Where>
  void send(const Link &way, double end, Where where, const Step &step) {
    double &link = links[way.link];
    link = std::max(link, end) + way.seconds;
    where(stages[way.stage].parts[way.part])[step.microbatch] = link;
    wake(way.stage, link);
  }

  // What runs until then looks at what has come when it has ended, also where
  // that is the same moment.
  void wake(int stage, double at) {
    if (stages[stage].freeAt < at)
      wakes[stage] = std::min(wakes[stage], at);
  }

  const ListOptions &options;
  Order order;
  int m, p, count;              // microbatches, stages, virtual stages
  std::vector<double> arrivals; // inputs and gradients of all parts
  std::vector<StageState> stages;
  double latest;             // see latestOf()
  std::vector<double> links; // when free again, per pair of stages
  // When each stage looks for something to do, filled up to a multiple of 4.
  std::vector<double> wakes;
};

} // namespace

bool ListScope::covers(const ListOptions &options) const {
  for (int v = 0; v < int(parts.size()); ++v) {
    const ListBounds bounds = boundsOf(options, v);
    const auto &[least, most] = parts[v];
    if (bounds.inFlight < least.inFlight || bounds.inFlight > most.inFlight ||
        bounds.sets < least.sets || bounds.sets > most.sets)
      return false;
  }
  return true;
}

Result<Schedule> listSchedule(const ListOptions &options, ListScope *scope) {
  ListScheduler scheduler(options);
  Result<Schedule> schedule = scheduler.run();
  if (scope)
    *scope = scheduler.scope();
  return schedule;
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
