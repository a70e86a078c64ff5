#include "passes/Planning/ScheduleSimulate.h"

#include "passes/Planning/StepOrder.h"

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

// What an action of a part of the model takes and gives back.
struct Effect {
  bool runs = false;
  int sets = 0;                   // of activations taken; -1: given back
  double taken = 0, released = 0; // bytes, at its start and at its end
};

// Writes down what happens in a pass over the steps.
class Recorder {
public:
  Recorder(const Schedule &schedule, const SimulateOptions &options)
      : schedule(schedule), options(options), count(schedule.virtualStages()),
        order(schedule, options.transfers, options.weightSums),
        costs(order.costsOf(options)), effects(size_t(count) * kActions),
        sets(schedule.stages, 0), held(schedule.stages, 0) {
    for (int stage = 0; stage < schedule.stages; ++stage)
      for (const Step &step : schedule.order[stage])
        effectOf(step.chunk * schedule.stages + stage, step.action).runs = true;
    for (int v = 0; v < count; ++v)
      addMemory(v);
  }

  Timeline run() {
    const int stages = schedule.stages;
    timeline.finished = order.finished();
    timeline.busy = options.setup;
    timeline.busy.resize(stages, 0);
    timeline.fullSets.assign(stages, 0);
    if (!options.memory.empty())
      startMemory();
    if (!options.boundaries.empty())
      timeline.sentBytes.assign(stages, 0);
    timeline.stages.resize(stages);
    if (options.record)
      for (int stage = 0; stage < stages; ++stage)
        timeline.stages[stage].reserve(schedule.order[stage].size());
    order.run(costs, timeline.busy,
              [&](const StepOrder::Ran &step, double start, double end) {
                add(step, start, end);
              });
    return std::move(timeline);
  }

private:
  Effect &effectOf(int virtualStage, Action action) {
    return effects[size_t(virtualStage) * kActions + size_t(action)];
  }
  template <typename T> const T &pick(const std::vector<T> &all, int v) const {
    size_t n = all.size();
    return all[n == 1 ? 0 : n == size_t(count) ? v : v % schedule.stages];
  }

  // Of the actions that take a set of activations, and give it back.
  void addMemory(int v) {
    Effect &forward = effectOf(v, Action::F),
           &backward = effectOf(v, Action::B);
    const bool recomputes = effectOf(v, Action::R).runs;
    Effect &taker = recomputes ? effectOf(v, Action::R) : forward;
    Effect &last =
        effectOf(v, Action::W).runs ? effectOf(v, Action::W) : backward;
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

  void add(const StepOrder::Ran &step, double start, double end) {
    const StepOrder::Work &work = order.workOf(step);
    const Effect &effect = effectOf(work.virtualStage, work.action);
    const int stage = work.stage;
    timeline.busy[stage] += costs.works[step.work];
    timeline.total = std::max(timeline.total, end);
    if (effect.sets > 0)
      timeline.fullSets[stage] =
          std::max(timeline.fullSets[stage], sets[stage] + 1);
    sets[stage] += effect.sets;
    hold(stage, effect.taken, start);
    hold(stage, -effect.released, end);
    if (options.record) {
      std::vector<TimedStep> &steps = timeline.stages[stage];
      steps.push_back({schedule.order[stage][steps.size()], start, end});
    }
    if (!timeline.sentBytes.empty())
      order.forOuts(work, [&](const StepOrder::Out &out) {
        timeline.sentBytes[stage] += costs.bytes[out.transfer];
      });
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

  const Schedule &schedule;
  const SimulateOptions &options;
  const int count; // virtual stages
  const StepOrder order;
  const StepOrder::Costs costs;
  std::vector<Effect> effects; // by virtual stage and action
  std::vector<int> sets;       // by stage
  std::vector<double> held;    // by stage
  Timeline timeline;
};

} // namespace

Timeline simulate(const Schedule &schedule, const SimulateOptions &options) {
  return Recorder(schedule, options).run();
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
