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

// What a chunk of a stage does apart from its order.
struct Room {
  std::vector<int> in[kActions], out[kActions]; // transfers
  bool has[kActions] = {};
  double seconds[kActions] = {};
  StageMemory memory;
  // The actions that take a set of activations, and give it back.
  Action taker() const { return has[int(Action::R)] ? Action::R : Action::F; }
  Action last() const { return has[int(Action::W)] ? Action::W : Action::B; }
};

class Simulation {
public:
  Simulation(const Schedule &schedule, const SimulateOptions &options)
      : schedule(schedule), options(options),
        transfers(transfersOf(schedule, options)),
        rooms(schedule.virtualStages()),
        arrival(transfers.size() * schedule.microbatches, kAbsent),
        linkFree(size_t(schedule.stages) * schedule.stages, 0),
        place(schedule.stages, 0), clock(schedule.stages, 0),
        sets(schedule.stages, 0), held(schedule.stages, 0) {
    for (int v = 0; v < schedule.virtualStages(); ++v) {
      const ActionTimes &times = pick(options.times, v);
      for (int action = 0; action < kActions; ++action)
        rooms[v].seconds[action] = times.of(Action(action));
      if (!options.memory.empty())
        rooms[v].memory = pick(options.memory, v);
    }
    for (size_t t = 0; t < transfers.size(); ++t) {
      const Transfer &x = transfers[t];
      room(x.fromStage, x.fromChunk).out[int(x.fromAction)].push_back(int(t));
      room(x.toStage, x.toChunk).in[int(x.toAction)].push_back(int(t));
      cost.push_back(costOf(x));
    }
    for (int stage = 0; stage < schedule.stages; ++stage)
      for (const Step &step : schedule.order[stage]) {
        Room &here = room(stage, step.chunk);
        here.has[int(step.action)] = true;
        for (int t : here.out[int(step.action)])
          at(t, step.microbatch) = kPending;
      }
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
  static std::vector<Transfer> transfersOf(const Schedule &schedule,
                                           const SimulateOptions &options) {
    std::vector<Transfer> all = options.transfers.empty()
                                    ? chainTransfers(schedule)
                                    : options.transfers;
    all.insert(all.end(), options.weightSums.begin(), options.weightSums.end());
    return all;
  }
  template <typename T> const T &pick(const std::vector<T> &all, int v) const {
    size_t n = all.size();
    return all[n == 1 ? 0 : n == rooms.size() ? v : v % schedule.stages];
  }
  Room &room(int stage, int chunk) {
    return rooms[size_t(chunk) * schedule.stages + stage];
  }
  double &at(int transfer, int microbatch) {
    return arrival[size_t(transfer) * schedule.microbatches + microbatch];
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
    bool perChunk = options.memory.size() == rooms.size();
    for (int v = 0; v < (perChunk ? int(rooms.size()) : schedule.stages); ++v)
      held[v % schedule.stages] += rooms[v].memory.fixed;
    timeline.peakBytes = held;
    timeline.memory.resize(schedule.stages);
    if (options.record)
      for (int stage = 0; stage < schedule.stages; ++stage)
        timeline.memory[stage].push_back({0, held[stage]});
  }

  // False: waits for a transfer.
  bool advance(int stage, const Step &step, std::vector<int> &ready) {
    Room &here = room(stage, step.chunk);
    int action = int(step.action);
    double start = clock[stage];
    auto waitFor = [&](const std::vector<int> &incoming) {
      for (int t : incoming) {
        double time = at(t, step.microbatch);
        if (time == kPending)
          return false;
        start = std::max(start, time);
      }
      return true;
    };
    if (!waitFor(here.in[action]))
      return false;
    // A recomputation that is not early waits for the gradient.
    if (step.action == Action::R && !step.early &&
        !waitFor(here.in[int(Action::B)]))
      return false;
    double duration = here.seconds[action], end = start + duration;
    clock[stage] = end;
    timeline.busy[stage] += duration;
    timeline.total = std::max(timeline.total, end);
    hold(stage, here, step, start, end);
    if (options.record)
      timeline.stages[stage].push_back({step, start, end});
    for (int t : here.out[action])
      send(t, step.microbatch, end, ready);
    return true;
  }

  void hold(int stage, const Room &here, const Step &step, double start,
            double end) {
    const Action taker = here.taker(), last = here.last();
    if (step.action == taker)
      timeline.fullSets[stage] =
          std::max(timeline.fullSets[stage], ++sets[stage]);
    if (step.action == last)
      --sets[stage];
    if (options.memory.empty())
      return;
    const StageMemory &memory = here.memory;
    double more = 0, less = 0;
    if (step.action == Action::F)
      more += memory.kept + memory.untilB;
    if (step.action == taker)
      more += memory.recomputed;
    if (step.action == Action::B) {
      more += memory.pending;
      less += memory.untilB;
    }
    if (step.action == last)
      less += memory.kept + memory.recomputed + memory.pending;
    hold(stage, more, start);
    hold(stage, -less, end);
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

  void send(int t, int microbatch, double end, std::vector<int> &ready) {
    const Transfer &x = transfers[t];
    double &link = linkFree[size_t(x.fromStage) * schedule.stages + x.toStage];
    link = std::max(link, end) + cost[t].first;
    at(t, microbatch) = link;
    if (!timeline.sentBytes.empty())
      timeline.sentBytes[x.fromStage] += cost[t].second;
    if (x.toStage != x.fromStage && !queued[x.toStage]) {
      queued[x.toStage] = 1;
      ready.push_back(x.toStage);
    }
  }

  const Schedule &schedule;
  const SimulateOptions &options;
  std::vector<Transfer> transfers;
  std::vector<std::pair<double, double>> cost; // seconds, bytes
  std::vector<Room> rooms;
  std::vector<double> arrival;  // per transfer and microbatch
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
