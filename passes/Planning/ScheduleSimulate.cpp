#include "passes/Planning/ScheduleSimulate.h"

#include <algorithm>
#include <fmt/format.h>
#include <set>

namespace merak::planning {

std::vector<Transfer> chainTransfers(const Schedule &schedule, int distance) {
  std::vector<Transfer> out;
  bool backward = false;
  for (const std::vector<Step> &order : schedule.order)
    for (const Step &step : order)
      backward |= step.action == Action::B;
  for (int v = 0; v + distance < schedule.virtualStages(); ++v) {
    int w = v + distance;
    int from = v % schedule.stages, to = w % schedule.stages;
    int fromChunk = v / schedule.stages, toChunk = w / schedule.stages;
    if (distance > 1 && from == to)
      continue;
    out.push_back({from, to, Action::F, Action::F, fromChunk, toChunk});
    if (backward)
      out.push_back({to, from, Action::B, Action::B, toChunk, fromChunk});
  }
  return out;
}

double ActionTimes::of(Action action) const {
  // S and G are parts of U.
  const double times[kActions] = {P, F, R, B, W, U, 0, 0};
  return times[int(action)];
}

double Timeline::idleFraction() const {
  double sum = 0;
  for (double time : busy)
    sum += 1 - (total > 0 ? time / total : 1);
  return busy.empty() ? 0 : sum / double(busy.size());
}

namespace {

constexpr double kAbsent = -2, kPending = -1; // arrivals that have no time yet

// An action of a chunk of a stage, apart from its order.
struct Work {
  bool runs = false;
  double seconds = 0;
  int sets = 0;                   // of activations taken; -1: given back
  double taken = 0, released = 0; // bytes, at its start and at its end
  std::vector<size_t> in;         // where arrivals of a transfer begin
  struct Sent {
    size_t arrivals;
    int toStage;
    size_t link;
    double seconds, bytes;
  };
  std::vector<Sent> out;
};

class Simulation {
public:
  Simulation(const Schedule &schedule, const SimulateOptions &options)
      : schedule(schedule), options(options), count(schedule.virtualStages()),
        works(size_t(count) * kActions),
        linkFree(size_t(schedule.stages) * schedule.stages, 0),
        place(schedule.stages, 0), clock(schedule.stages, 0),
        sets(schedule.stages, 0), held(schedule.stages, 0) {
    for (int v = 0; v < count; ++v)
      for (int action = 0; action < kActions; ++action)
        workOf(v, Action(action)).seconds =
            pick(options.times, v).of(Action(action));
    addTransfers();
    for (int stage = 0; stage < schedule.stages; ++stage)
      for (const Step &step : schedule.order[stage]) {
        Work &work = workOf(step.chunk * schedule.stages + stage, step.action);
        work.runs = true;
        for (const Work::Sent &sent : work.out)
          arrival[sent.arrivals + size_t(step.microbatch)] = kPending;
      }
    for (int v = 0; v < count; ++v)
      addMemory(v);
  }

  Timeline run() {
    int stages = schedule.stages;
    timeline.busy.assign(stages, 0);
    if (!options.setup.empty())
      timeline.busy = clock = options.setup;
    timeline.fullSets.assign(stages, 0);
    if (!options.memory.empty())
      startMemory();
    if (!options.boundaries.empty())
      timeline.sentBytes.assign(stages, 0);
    timeline.stages.resize(stages);
    if (options.record)
      for (int stage = 0; stage < stages; ++stage)
        timeline.stages[stage].reserve(schedule.order[stage].size());
    // A stage runs until it waits for a transfer, and again when one comes.
    std::vector<int> ready;
    queued.assign(stages, 1);
    for (int stage = stages; stage-- > 0;)
      ready.push_back(stage);
    while (!ready.empty()) {
      int stage = ready.back();
      ready.pop_back();
      queued[stage] = 0;
      while (place[stage] < schedule.order[stage].size() &&
             advance(stage, schedule.order[stage][place[stage]], ready))
        ++place[stage];
    }
    for (int stage = 0; stage < stages; ++stage)
      timeline.finished &= place[stage] == schedule.order[stage].size();
    return std::move(timeline);
  }

private:
  Work &workOf(int virtualStage, Action action) {
    return works[size_t(virtualStage) * kActions + size_t(action)];
  }
  template <typename T> const T &pick(const std::vector<T> &all, int v) const {
    size_t n = all.size();
    return all[n == 1 ? 0 : n == size_t(count) ? v : v % schedule.stages];
  }

  void addTransfers() {
    std::vector<Transfer> transfers = options.transfers.empty()
                                          ? chainTransfers(schedule)
                                          : options.transfers;
    transfers.insert(transfers.end(), options.weightSums.begin(),
                     options.weightSums.end());
    const int p = schedule.stages;
    for (const Transfer &x : transfers) {
      const auto [seconds, bytes] = costOf(x);
      workOf(x.fromChunk * p + x.fromStage, x.fromAction)
          .out.push_back({arrival.size(), x.toStage,
                          size_t(x.fromStage) * p + x.toStage, seconds, bytes});
      workOf(x.toChunk * p + x.toStage, x.toAction)
          .in.push_back(arrival.size());
      arrival.resize(arrival.size() + size_t(schedule.microbatches), kAbsent);
    }
  }

  // Of the actions that take a set of activations, and give it back.
  void addMemory(int v) {
    Work &forward = workOf(v, Action::F), &backward = workOf(v, Action::B);
    const bool recomputes = workOf(v, Action::R).runs;
    Work &taker = recomputes ? workOf(v, Action::R) : forward;
    Work &last = workOf(v, Action::W).runs ? workOf(v, Action::W) : backward;
    ++taker.sets;
    --last.sets;
    if (options.memory.empty())
      return;
    const StageMemory &memory = pick(options.memory, v);
    forward.taken += memory.kept + memory.untilB;
    taker.taken += memory.recomputed;
    backward.taken += memory.pending;
    backward.released += memory.untilB;
    last.released += memory.kept + memory.recomputed + memory.pending;
  }

  // Seconds and bytes.
  std::pair<double, double> costOf(const Transfer &x) const {
    if (x.fromAction == Action::W)
      return {0, 0};
    bool back = x.fromAction == Action::B;
    if (options.boundaries.empty())
      return {back ? options.backwardTransfer : options.forwardTransfer, 0};
    int from = x.fromChunk * schedule.stages + x.fromStage;
    int to = x.toChunk * schedule.stages + x.toStage;
    size_t n = options.boundaries.size();
    const BoundaryCost &b =
        options.boundaries[n == 1 ? 0 : size_t(std::min(from, to)) % n];
    return back ? std::pair(b.backward, b.backwardBytes)
                : std::pair(b.forward, b.forwardBytes);
  }

  void startMemory() {
    bool perChunk = options.memory.size() == size_t(count);
    for (int v = 0; v < (perChunk ? count : schedule.stages); ++v)
      held[v % schedule.stages] += pick(options.memory, v).fixed;
    timeline.peakBytes = held;
    timeline.memory.resize(schedule.stages);
    if (options.record)
      for (int stage = 0; stage < schedule.stages; ++stage)
        timeline.memory[stage].push_back({0, held[stage]});
  }

  // False: waits for a transfer.
  bool advance(int stage, const Step &step, std::vector<int> &ready) {
    const int v = step.chunk * schedule.stages + stage;
    const Work &work = workOf(v, step.action);
    double start = clock[stage];
    auto waitFor = [&](const std::vector<size_t> &incoming) {
      for (size_t arrivals : incoming) {
        double time = arrival[arrivals + size_t(step.microbatch)];
        if (time == kPending)
          return false;
        start = std::max(start, time);
      }
      return true;
    };
    if (!waitFor(work.in))
      return false;
    // A recomputation that is not early waits for the gradient.
    if (step.action == Action::R && !step.early &&
        !waitFor(workOf(v, Action::B).in))
      return false;
    const double end = start + work.seconds;
    clock[stage] = end;
    timeline.busy[stage] += work.seconds;
    timeline.total = std::max(timeline.total, end);
    if (work.sets > 0)
      timeline.fullSets[stage] =
          std::max(timeline.fullSets[stage], sets[stage] + 1);
    sets[stage] += work.sets;
    hold(stage, work.taken, start);
    hold(stage, -work.released, end);
    if (options.record)
      timeline.stages[stage].push_back({step, start, end});
    for (const Work::Sent &sent : work.out)
      send(stage, sent, step.microbatch, end, ready);
    return true;
  }

  void hold(int stage, double change, double time) {
    if (change == 0)
      return;
    held[stage] += change;
    timeline.peakBytes[stage] =
        std::max(timeline.peakBytes[stage], held[stage]);
    if (options.record)
      timeline.memory[stage].push_back({time, held[stage]});
  }

  void send(int stage, const Work::Sent &sent, int microbatch, double end,
            std::vector<int> &ready) {
    double &link = linkFree[sent.link];
    link = std::max(link, end) + sent.seconds;
    arrival[sent.arrivals + size_t(microbatch)] = link;
    if (!timeline.sentBytes.empty())
      timeline.sentBytes[stage] += sent.bytes;
    if (sent.toStage != stage && !queued[sent.toStage]) {
      queued[sent.toStage] = 1;
      ready.push_back(sent.toStage);
    }
  }

  const Schedule &schedule;
  const SimulateOptions &options;
  const int count;              // virtual stages
  std::vector<Work> works;      // by virtual stage and action
  std::vector<double> arrival;  // by transfer and microbatch
  std::vector<double> linkFree; // per pair of stages
  std::vector<size_t> place;    // of each stage in its list
  std::vector<double> clock;
  std::vector<int> sets;
  std::vector<double> held;
  std::vector<char> queued;
  Timeline timeline;
};

} // namespace

Timeline simulate(const Schedule &schedule, const SimulateOptions &options) {
  return Simulation(schedule, options).run();
}

std::string timelineStr(const Timeline &timeline) {
  std::string text;
  size_t width = 2;
  for (const auto &stage : timeline.stages)
    for (const TimedStep &timed : stage)
      width = std::max(width, str(timed.step).size());
  for (size_t s = 0; s < timeline.stages.size(); ++s) {
    std::vector<std::string> cells;
    std::set<std::pair<int, int>> early;
    for (const TimedStep &timed : timeline.stages[s])
      if (timed.step.action == Action::R && timed.step.early)
        early.insert({timed.step.microbatch, timed.step.chunk});
    for (const TimedStep &timed : timeline.stages[s]) {
      cells.resize(std::max(cells.size(), size_t(timed.start)), "--");
      std::string cell = str(timed.step);
      if (timed.step.action == Action::F &&
          early.count({timed.step.microbatch, timed.step.chunk}))
        cell[0] = 'f';
      for (double t = timed.start; t < timed.end; t += 1)
        cells.push_back(cell);
    }
    std::string line = fmt::format("S{}:", s);
    for (const std::string &cell : cells)
      line += fmt::format(" {:<{}}", cell, width);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

} // namespace merak::planning
