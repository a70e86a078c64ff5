#include "passes/Planning/PipelinePlan.h"

#include "passes/Planning/AutoSchedule.h"
#include "passes/Planning/Recompute.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fmt/format.h>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>

namespace merak::planning {

// Up to so many cuts all of them are tried.
constexpr double kExhaustive = 300;
// Time and memory differences below this part do not count.
constexpr double kSmall = 1e-9;
// Rungs tried where none of a stage fits.
constexpr size_t kScanned = 16;
// A list schedule replaces a named one if it is faster by this part.
constexpr double kWorthAList = 1e-3;

double PipelineCost::bubble() const {
  double idle = 0;
  for (double time : busy)
    idle += seconds > 0 ? 1 - time / seconds : 0;
  return busy.empty() ? 0 : idle / double(busy.size());
}

std::vector<char> PipelinePlan::recomputed(const StageModel &model) const {
  std::vector<char> out(model.count(), 0);
  for (size_t v = 0; v < marks.size(); ++v)
    for (int i = begin[v]; i < begin[v + 1]; ++i)
      out[i] = model.marked(i, marks[v]);
  return out;
}

std::vector<int> uniformFloor(int n, int p) {
  std::vector<int> out;
  int c = n / p, r = n % p;
  for (int q = 0; q < p; ++q)
    out.push_back(n <= p ? std::min(q, n)
                         : q * c + std::min(r, std::max(0, q - 1)));
  out.push_back(n);
  return out;
}

std::vector<int> balance(const std::vector<double> &weights, int parts) {
  int n = int(weights.size());
  std::vector<double> prefix(1, 0);
  for (double weight : weights)
    prefix.push_back(prefix.back() + weight);
  double none = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(parts + 1,
                                        std::vector<double>(n + 1, none));
  std::vector<std::vector<int>> from(parts + 1, std::vector<int>(n + 1, 0));
  best[0][0] = 0;
  // Of the last part's begin j, its weight falls and the heaviest before it
  // rises: the best j is where they meet. Of equal ones the last.
  for (int q = 1; q <= parts; ++q)
    for (int i = q; i <= n; ++i) {
      const std::vector<double> &before = best[q - 1];
      auto last = [&](int j) { return prefix[i] - prefix[j]; };
      int low = q - 1, high = i;
      while (low < high) {
        const int j = low + (high - low) / 2;
        (before[j] >= last(j) ? high : low) = before[j] >= last(j) ? j : j + 1;
      }
      if (low < i) {
        best[q][i] = before[low];
        from[q][i] = int(std::upper_bound(before.begin() + low,
                                          before.begin() + i, before[low]) -
                         before.begin()) -
                     1;
      }
      if (low > q - 1 && last(low - 1) < best[q][i]) {
        best[q][i] = last(low - 1);
        from[q][i] = low - 1;
      }
    }
  std::vector<int> out(parts + 1, n);
  for (int q = parts, i = n; q > 0; --q)
    out[q - 1] = i = from[q][i];
  return out;
}

namespace {

// What a schedule's lists say whatever the times, for each virtual stage:
// copies of values at once, the most microbatches under way, whether it
// recomputes.
struct Lists {
  std::vector<PerLiveKind<int>> copies; // of values from neighbours
  std::vector<int> inFlight;
  std::vector<char> recomputes;

  // `again` gives the schedule where values skip stages.
  Lists(const Schedule &schedule, std::function<Schedule()> again)
      : copies(copiesOf(schedule)), recomputes(schedule.virtualStages(), 0),
        again(std::move(again)) {
    for (const PerLiveKind<int> &of : copies)
      inFlight.push_back(of.at(LiveKind::FW));
    for (int s = 0; s < schedule.stages; ++s)
      for (const Step &step : schedule.order[s])
        if (step.action == Action::R)
          recomputes[step.chunk * schedule.stages + s] = 1;
  }
  explicit Lists(const Schedule &schedule)
      : Lists(schedule, [&schedule] { return schedule; }) {}

  // The same of values that come from so many virtual stages away.
  const std::vector<PerLiveKind<int>> &copiesFrom(int distance) const {
    if (distance <= 1)
      return copies;
    std::lock_guard lock(mutex);
    auto [it, isNew] = farther.try_emplace(distance);
    if (isNew)
      it->second = copiesOf(again(), distance);
    return it->second;
  }

private:
  std::function<Schedule()> again;
  mutable std::mutex mutex;
  mutable std::map<int, std::vector<PerLiveKind<int>>> farther;
};

// Of a schedule that makeSchedule made. A search asks for the same ones over
// and over, for other cuts and models.
const Lists &listsOf(const std::string &name, const ScheduleOptions &made,
                     const Schedule &schedule) {
  static std::mutex mutex;
  static std::map<std::tuple<std::string, int, int, int, bool, bool>, Lists>
      known;
  std::lock_guard lock(mutex);
  std::tuple key(name, made.stages, made.microbatches, made.chunks,
                 made.recompute, made.splitBackward);
  auto it = known.find(key);
  if (it == known.end())
    it = known
             .try_emplace(key, schedule,
                          [name, made] { return *makeSchedule(name, made); })
             .first;
  return it->second;
}

double fixedOf(const StageCost &cost) {
  // A shared gradient is sent and received.
  return cost.parameterBytes + cost.gradientBytes + cost.stateBytes +
         cost.workspace + 2 * cost.sharedBytes;
}
double bytesOf(const StageCost &cost, const Lists &lists,
               const std::vector<int> &begin, int v) {
  double bytes = fixedOf(cost) + bytesOf(cost.held, lists.copies[v]);
  for (const ArrivingValue &value : cost.arriving) {
    auto next = std::upper_bound(begin.begin(), begin.end(), value.from);
    int distance = std::abs(int(next - begin.begin()) - 1 - v);
    bytes += value.bytes * lists.copiesFrom(distance)[v].at(value.life, true);
  }
  return bytes;
}

// Of each stage. Chunks take turns in one workspace.
std::vector<double> bytesOf(const PipelineShape &shape,
                            const std::vector<StageCost> &costs,
                            const Lists &lists, const std::vector<int> &begin) {
  std::vector<double> bytes(shape.stages, 0), workspace = bytes;
  for (size_t v = 0; v < costs.size(); ++v) {
    double &most = workspace[v % shape.stages];
    double own = costs[v].workspace, all = std::max(most, own);
    bytes[v % shape.stages] +=
        bytesOf(costs[v], lists, begin, int(v)) - own - most + all;
    most = all;
  }
  return bytes;
}

// The same as the simulator counts it, over time: boundaries without the calls
// before and after.
StageMemory memoryOf(const StageCost &cost) {
  auto sum = [&](LiveKind life) {
    double bytes = 0;
    for (bool received : {false, true})
      for (bool sent : {false, true})
        bytes += cost.held.at(life, received, sent);
    for (const ArrivingValue &value : cost.arriving)
      bytes += value.life == life ? value.bytes : 0;
    return bytes;
  };
  StageMemory memory;
  memory.fixed = fixedOf(cost) + sum(LiveKind::F) + sum(LiveKind::B);
  memory.kept = sum(LiveKind::FW);
  memory.untilB = sum(LiveKind::FR) + sum(LiveKind::FB);
  memory.recomputed = sum(LiveKind::RB) + sum(LiveKind::RW);
  memory.pending = sum(LiveKind::BW);
  return memory;
}

// The sums that go from W of a part to W of its neighbour. Parts between the
// two ends of a sum hand it on: stricter than what is sent in the end, and so
// right wherever its additions are done.
std::vector<Transfer> weightSumsOf(const StageProblem &problem, int p,
                                   const std::vector<int> &begin) {
  // Cuts, by the part behind: crossed towards the first part, the last one.
  std::vector<std::array<char, 2>> crossed(begin.size());
  auto partOf = [&](int op) {
    return int(std::upper_bound(begin.begin(), begin.end(), op) -
               begin.begin()) -
           1;
  };
  for (auto [from, to] : problem.weightSums)
    for (int v = partOf(std::max(from, to)); v > partOf(std::min(from, to));
         --v)
      crossed[v][from < to] = 1;
  std::vector<Transfer> sums;
  auto add = [&](int from, int to) {
    sums.push_back({from % p, to % p, Action::W, Action::W, from / p, to / p});
  };
  for (int v = 1; v < int(begin.size()) - 1; ++v) {
    if (crossed[v][0])
      add(v, v - 1);
    if (crossed[v][1])
      add(v - 1, v);
  }
  return sums;
}

const StageCost &priceOf(const StageModel &model, const PipelineShape &shape,
                         int begin, int end, Marks marks,
                         const StagePricer &price) {
  return price ? price(model, shape, begin, end, marks)
               : model.cost(begin, end, marks);
}

// What the simulator needs of given cuts and marks, and the sums of `out` that
// do not depend on a schedule.
SimulateOptions simulationOf(const StageModel &model,
                             const PipelineShape &shape, int chunks,
                             const std::vector<int> &begin,
                             const std::vector<Marks> &marks,
                             const StagePricer &price, PipelineCost &out) {
  int p = shape.stages, parts = p * chunks;
  SimulateOptions simulation;
  simulation.record = false;
  simulation.setup.assign(p, 0);
  std::vector<double> optimizer(p, 0);
  simulation.weightSums = weightSumsOf(model.problem, p, begin);
  // Seconds for which the transfers of a microbatch occupy links that the
  // collectives of both ends use: of values, of gradients.
  std::vector<std::array<double, 2>> occupied(parts + 1);
  for (int v = 0; v + 1 < parts; ++v) {
    BoundaryCost boundary;
    if (!shape.links.empty()) {
      // From the last stage back to the first over the slowest link.
      BoundaryLink link = shape.links[std::min(v % p, p - 2)];
      if (v % p == p - 1)
        for (const BoundaryLink &other : shape.links)
          if (other.secondsPerByte > link.secondsPerByte)
            link = other;
      auto seconds = [&](double bytes) {
        return bytes > 0 ? link.latency + bytes * link.secondsPerByte : 0;
      };
      boundary.forwardBytes = model.forwardBytes(begin[v + 1]);
      boundary.backwardBytes = model.gradientBytes(begin[v + 1]);
      boundary.forward = seconds(boundary.forwardBytes);
      boundary.backward = seconds(boundary.backwardBytes);
      if (link.shared)
        occupied[v + 1] = {boundary.forwardBytes * link.secondsPerByte,
                           boundary.backwardBytes * link.secondsPerByte};
    }
    out.transferSeconds += boundary.forward + boundary.backward;
    simulation.boundaries.push_back(boundary);
  }
  for (int v = 0; v < parts; ++v) {
    out.stages.push_back(
        priceOf(model, shape, begin[v], begin[v + 1], marks[v], price));
    StageCost &cost = out.stages.back();
    // Values come and go beside B, and gradients beside F, as one forward one
    // backward has it; without B both are F's.
    auto delay = [&](double &seconds, double busy, double slack) {
      double more = std::max(0.0, busy - slack);
      seconds += more;
      cost.communication += more;
    };
    double values = occupied[v][0] + occupied[v + 1][0];
    double gradients = occupied[v][1] + occupied[v + 1][1];
    bool train = model.problem.train;
    delay(cost.times.F, train ? gradients : values, cost.slackForward);
    if (train)
      delay(cost.times.B, values, cost.slackBackward);
    ActionTimes times = cost.times;
    double reduce =
        model.exposedReduction(begin[v], begin[v + 1], shape, cost.times.W);
    if (cost.sharedBytes > 0 && !shape.links.empty())
      reduce += shape.links[0].latency +
                cost.sharedBytes * shape.links[0].secondsPerByte;
    times.U += reduce;
    // No stage waits for the last B of the first one: it runs with its W, so
    // that gradients are final early (passes/Lowering/OverlapGradients.cpp).
    if (v == 0 && shape.reduce.early &&
        (cost.reduces || shape.reduce.replicas > 1)) {
      const double late = std::min(times.U, cost.hiddenByWeights);
      times.U -= late;
      simulation.setup[0] -= cost.hiddenByWeights - late;
    }
    simulation.setup[v % p] += cost.prologue * shape.microbatches +
                               (shape.microbatches > 1 ? cost.clear : 0);
    optimizer[v % p] += cost.optimizer;
    out.exposedSeconds = std::max(
        out.exposedSeconds, cost.communication * shape.microbatches + reduce);
    simulation.times.push_back(times);
    if (v >= p) // one update for all chunks of a stage
      simulation.times[v % p].U += times.U;
    simulation.memory.push_back(memoryOf(cost));
  }
  double update = 0;
  for (int s = 0; s < p; ++s)
    update = std::max(update, simulation.times[s].U);
  out.finishSeconds = *std::max_element(optimizer.begin(), optimizer.end());
  if (model.problem.train)
    out.finishSeconds += model.normSeconds(shape);
  out.updateSeconds = update + out.finishSeconds;
  return simulation;
}

PipelineCost costOf(const StageModel &model, const PipelineShape &shape,
                    const Schedule &schedule, const Lists &lists,
                    const std::vector<int> &begin,
                    const std::vector<Marks> &marks, const StagePricer &price) {
  PipelineCost out;
  SimulateOptions simulation =
      simulationOf(model, shape, schedule.chunks, begin, marks, price, out);
  simulation.memory.clear();
  out.memory = bytesOf(shape, out.stages, lists, begin);
  Timeline timeline = simulate(schedule, simulation);
  out.seconds = timeline.total + out.finishSeconds;
  out.busy = timeline.busy;
  for (double &busy : out.busy)
    busy += out.finishSeconds;
  out.inFlight = lists.inFlight;
  if (shape.memoryBytes > 0)
    for (double bytes : out.memory)
      out.excessBytes += std::max(0.0, bytes - shape.memoryBytes);
  return out;
}

class Planner {
public:
  Planner(const StageModel &model, const PipelineShape &shape,
          const PipelineOptions &options)
      : model(model), problem(model.problem), shape(shape), options(options) {}

  std::vector<PipelinePlan> run(Status &status) {
    bool ratio = options.recompute != "none" && options.recompute != "full" &&
                 options.recompute != "auto";
    if (ratio)
      given = std::strtod(options.recompute.c_str(), nullptr);
    for (const std::string &name : options.schedules) {
      ScheduleOptions make;
      make.stages = shape.stages;
      make.microbatches = shape.microbatches;
      make.chunks = problem.train ? chunksOn(shape.stages, options) : 1;
      make.recompute = problem.train && options.recompute != "none";
      make.splitBackward = make.update = problem.train;
      Result<Schedule> schedule = makeSchedule(name, make);
      if (!schedule.ok()) {
        status.merge(schedule.status());
        continue;
      }
      const ScheduleOptions full = make;
      // The same lists with fewer microbatches while searching.
      std::optional<Schedule> shorter;
      make.microbatches =
          std::min(shape.microbatches, std::max(8, 3 * shape.stages));
      if (make.microbatches < shape.microbatches)
        if (Result<Schedule> made = makeSchedule(name, make); made.ok())
          shorter = *made;
      status.merge(
          consider(*schedule, shorter, listsOf(name, full, *schedule)));
    }
    for (const Schedule &schedule : options.concrete)
      if (schedule.stages == shape.stages &&
          schedule.microbatches == shape.microbatches)
        status.merge(consider(schedule, std::nullopt, Lists(schedule)));
      else
        status.merge(Status::error(fmt::format(
            "the lists of the schedule are for {} stages and {} microbatches, "
            "found {} and {}",
            schedule.stages, schedule.microbatches, shape.stages,
            shape.microbatches)));
    return std::move(plans);
  }

  static bool better(const PipelineCost &a, const PipelineCost &b) {
    if (a.excessBytes != b.excessBytes)
      return a.excessBytes < b.excessBytes;
    return a.seconds < b.seconds * (1 - kSmall);
  }

private:
  using Cuts = std::vector<int>; // indices of `positions`

  // The state of the search under one schedule.
  struct Search {
    const Schedule *schedule;
    const Lists &lists;
    int missing = 0; // microbatches that the schedule lacks
    int64_t actions = 0, spent = 0, evaluations = 0;
    PipelinePlan best;
  };

  Status consider(const Schedule &schedule,
                  const std::optional<Schedule> &shorter, const Lists &lists) {
    int parts = schedule.virtualStages();
    Search search{&schedule, lists, 0, 0, 0, 0, {}};
    if (shorter) {
      search.schedule = &*shorter;
      search.missing = schedule.microbatches - shorter->microbatches;
    }
    for (const std::vector<Step> &order : search.schedule->order)
      search.actions += int64_t(order.size());
    if (options.begin) {
      if (int(options.begin->size()) == parts + 1)
        try_(search, *options.begin);
    } else {
      MERAK_RETURN_IF_ERROR(start(search, parts));
      if (!options.cutter && options.cut == CutRule::Time && parts > 1)
        improve(search, parts);
    }
    PipelinePlan &found = search.best;
    if (found.begin.empty())
      return {};
    // Exactly, with all microbatches.
    found.schedule = schedule;
    found.cost = costOf(model, shape, schedule, lists, found.begin, found.marks,
                        options.price);
    found.evaluations = search.evaluations;
    plans.push_back(std::move(found));
    return {};
  }

  // Groups of ops between neighbouring positions.
  std::vector<double> weights(const std::vector<int> &at) const {
    std::vector<double> out;
    for (size_t i = 0; i + 1 < at.size(); ++i)
      out.push_back(model.seconds(at[i], at[i + 1]));
    return out;
  }

  Status start(Search &search, int parts) {
    if (options.cutter) {
      Result<std::vector<int>> begin = options.cutter(model, parts);
      if (!begin.ok())
        return begin.status();
      try_(search, *begin);
      return {};
    }
    const std::vector<int> &at = model.positions(parts);
    int n = int(at.size()) - 1;
    if (n < parts)
      return Status::error(fmt::format(
          "{} stages need at least as many operations, found {}", parts, n));
    std::vector<int> begin;
    for (int cut : balance(weights(at), parts))
      begin.push_back(at[cut]);
    try_(search, begin);
    if (options.cut == CutRule::Time &&
        model.blockBounds().size() > size_t(parts))
      try_(search, *equalLayers(model, parts));
    return {};
  }

  bool withinBudget(const Search &search) const {
    return search.spent < options.budget;
  }

  // True if it is the best so far under this schedule.
  bool try_(Search &search, const std::vector<int> &begin) {
    std::vector<Marks> marks = choose(search, begin);
    PipelineCost cost = costOf(model, shape, *search.schedule, search.lists,
                               begin, marks, options.price);
    ++search.evaluations;
    search.spent += search.actions;
    double cycle = 0;
    for (int s = 0; s < shape.stages; ++s) {
      double seconds = 0;
      for (size_t v = s; v < cost.stages.size(); v += shape.stages) {
        const ActionTimes &times = cost.stages[v].times;
        seconds += times.F + times.R + times.B + times.W;
      }
      cycle = std::max(cycle, seconds);
    }
    cost.seconds += cycle * search.missing;
    if (!search.best.begin.empty() && !better(cost, search.best.cost))
      return false;
    search.best.begin = begin;
    search.best.marks = std::move(marks);
    search.best.cost = std::move(cost);
    return true;
  }

  // ------------------------------------------------------- recomputation

  std::vector<Marks> choose(const Search &search,
                            const std::vector<int> &begin) {
    int parts = int(begin.size()) - 1;
    std::vector<Marks> marks(parts);
    if (!problem.train || options.recompute == "none")
      return marks;
    for (int v = 0; v < parts; ++v)
      if (search.lists.recomputes[v])
        marks[v] = options.recompute == "full"   ? Marks{model.levels(), 0}
                   : options.recompute == "auto" ? fit(search, begin, v)
                                                 : byRatio(search, begin, v);
    return marks;
  }

  // Merak: the first blocks of a stage, as many as its ratio says.
  Marks byRatio(const Search &search, const std::vector<int> &begin, int v) {
    Result<std::vector<double>> ratios = stageRatios(
        shape.stages, {given}, traitsOf(search.schedule->name).shifts);
    if (!ratios.ok())
      return {};
    std::vector<int> ends = shardEnds(begin, v);
    int count = recomputedParts((*ratios)[v % shape.stages], int(ends.size()));
    return {0, count > 0 ? ends[count - 1] : 0};
  }

  // The fewest ranks with which the stage fits; if none does, those
  // with the least memory.
  Marks fit(const Search &search, const std::vector<int> &begin, int v) {
    if (shape.memoryBytes <= 0)
      return {};
    // Chunks of one device share its memory evenly.
    double limit = shape.memoryBytes / search.schedule->chunks;
    auto bytes = [&](int level) {
      return bytesOf(priceOf(model, shape, begin[v], begin[v + 1], {level, 0},
                             options.price),
                     search.lists, begin, v);
    };
    if (bytes(0) <= limit)
      return {};
    // Rungs of this stage alone.
    std::vector<int> levels;
    for (int i = begin[v]; i < begin[v + 1]; ++i)
      if (model.level(i) < model.levels())
        levels.push_back(model.level(i) + 1);
    std::sort(levels.begin(), levels.end());
    levels.erase(std::unique(levels.begin(), levels.end()), levels.end());
    if (levels.empty())
      return {};
    auto it = std::partition_point(levels.begin(), levels.end(),
                                   [&](int l) { return bytes(l) > limit; });
    if (it != levels.end())
      return {*it, 0};
    // More recomputation need not take less memory: what one microbatch makes
    // again counts too.
    Marks least;
    double leastBytes = bytes(0);
    auto consider = [&](Marks marks) {
      double needed = bytesOf(
          priceOf(model, shape, begin[v], begin[v + 1], marks, options.price),
          search.lists, begin, v);
      if (needed < leastBytes) {
        leastBytes = needed;
        least = marks;
      }
    };
    for (size_t i = 0, n = levels.size(); i < std::min(n, kScanned); ++i)
      consider({levels[i * n / std::min(n, kScanned)], 0});
    for (int level : {levels.back(), model.levels() - 1, model.levels()})
      consider({level, 0});
    for (int end : shardEnds(begin, v))
      consider({0, end});
    return least;
  }

  // Where a block of a stage ends.
  std::vector<int> shardEnds(const std::vector<int> &begin, int v) const {
    std::vector<int> ends;
    for (int at : model.blockBounds())
      if (at > begin[v] && at < begin[v + 1])
        ends.push_back(at);
    ends.push_back(begin[v + 1]);
    return ends;
  }

  // ----------------------------------------------------------------- cuts

  void improve(Search &search, int parts) {
    const std::vector<int> &at = model.positions(parts);
    int n = int(at.size()) - 1;
    double combinations = 1;
    for (int i = 1; i < parts && combinations < kExhaustive * n; ++i)
      combinations *= double(n - i) / i;
    if (combinations <= kExhaustive)
      return tryAll(search, parts);
    auto indexOf = [&](int position) {
      return int(std::lower_bound(at.begin(), at.end(), position) - at.begin());
    };
    Cuts cuts;
    auto reset = [&] {
      cuts.clear();
      for (int position : search.best.begin)
        cuts.push_back(indexOf(position));
    };
    // Boundaries first..last move by `by`.
    auto shift = [&](int first, int last, int by) {
      if (!withinBudget(search))
        return false;
      Cuts moved = cuts;
      for (int q = first; q <= last; ++q)
        moved[q] += by;
      if (moved[first] <= moved[first - 1] || moved[last] >= moved[last + 1])
        return false;
      std::vector<int> begin;
      for (int cut : moved)
        begin.push_back(at[cut]);
      if (!try_(search, begin))
        return false;
      reset();
      return true;
    };
    reset();
    bool changed = true;
    while (changed && withinBudget(search)) {
      changed = false;
      for (int by : {1, -1, 2, -2, 4, -4, 8, -8})
        for (int q = 1; q < parts; ++q)
          while (shift(q, q, by))
            changed = true;
      for (int by : {1, -1})
        for (int length = 2; length < parts; ++length)
          for (int q = 1; q + length <= parts; ++q)
            if (length <= 4 || q == 1 || q + length == parts || parts <= 16)
              changed |= shift(q, q + length - 1, by);
    }
  }

  void tryAll(Search &search, int parts) {
    const std::vector<int> &at = model.positions(parts);
    int n = int(at.size()) - 1;
    std::vector<int> cuts(parts + 1);
    for (int q = 0; q < parts; ++q)
      cuts[q] = q;
    cuts[parts] = n;
    while (true) {
      std::vector<int> begin;
      for (int cut : cuts)
        begin.push_back(at[cut]);
      try_(search, begin);
      int q = parts - 1;
      while (q > 0 && cuts[q] == n - parts + q)
        --q;
      if (q == 0)
        return;
      ++cuts[q];
      for (int next = q + 1; next < parts; ++next)
        cuts[next] = cuts[next - 1] + 1;
    }
  }

  const StageModel &model;
  const StageProblem &problem;
  const PipelineShape &shape;
  const PipelineOptions &options;
  double given = 0;
  std::vector<PipelinePlan> plans;
};

} // namespace

Result<std::vector<int>> equalLayers(const StageModel &model, int parts) {
  const std::vector<int> &at = model.blockBounds();
  int n = int(at.size()) - 1;
  if (n < parts)
    return Status::error(fmt::format(
        "{} stages need at least as many layers, found {}", parts, n));
  std::vector<int> begin;
  for (int cut : uniformFloor(n, parts))
    begin.push_back(at[cut]);
  return begin;
}

std::vector<PipelinePlan> planSchedules(const StageModel &model,
                                        const PipelineShape &shape,
                                        const PipelineOptions &options,
                                        Status &status) {
  return Planner(model, shape, options).run(status);
}

Result<PipelinePlan> planPipeline(const StageModel &model,
                                  const PipelineShape &shape,
                                  const PipelineOptions &options) {
  Status status;
  std::vector<PipelinePlan> plans =
      planSchedules(model, shape, options, status);
  if (plans.empty())
    return status;
  size_t best = 0;
  for (size_t i = 1; i < plans.size(); ++i)
    if (Planner::better(plans[i].cost, plans[best].cost))
      best = i;
  return std::move(plans[best]);
}

PipelineCost pipelineCost(const StageModel &model, const PipelineShape &shape,
                          const Schedule &schedule,
                          const std::vector<int> &begin,
                          const std::vector<Marks> &marks,
                          const StagePricer &price) {
  return costOf(model, shape, schedule, Lists(schedule), begin, marks, price);
}

bool improveSchedule(const StageModel &model, const PipelineShape &shape,
                     PipelinePlan &plan, int64_t effort,
                     std::string *considered) {
  if (shape.stages == 1 || !model.problem.train)
    return false;
  AutoProblem problem;
  problem.shape.stages = shape.stages;
  problem.shape.microbatches = shape.microbatches;
  problem.shape.chunks = plan.schedule.chunks;
  if (problem.shape.chunks > 1)
    problem.names = {searchedSchedules(/*chunks=*/true).front(), "list"};
  problem.shape.update = true;
  problem.effort = effort;
  PipelineCost sums;
  problem.costs = simulationOf(model, shape, problem.shape.chunks, plan.begin,
                               plan.marks, nullptr, sums);
  // A stage has an R where one of its chunks has something to do in it.
  problem.shape.recomputeStages.assign(shape.stages, false);
  for (size_t v = 0; v < sums.stages.size(); ++v)
    if (sums.stages[v].times.R > 0 || sums.stages[v].recomputedBytes > 0)
      problem.shape.recomputeStages[v % shape.stages] = true;
  if (shape.memoryBytes > 0)
    problem.memoryLimit = {shape.memoryBytes};
  // Buffers are laid out for the most copies of each kind, even if these peaks
  // come at different times.
  problem.refuses = [&](const Schedule &schedule) -> std::string {
    Lists lists(schedule);
    double excess = 0;
    for (double bytes : bytesOf(shape, sums.stages, lists, plan.begin))
      excess += std::max(0.0, bytes - shape.memoryBytes);
    bool fits = shape.memoryBytes <= 0 || excess <= plan.cost.excessBytes;
    return fits ? "" : "its buffers do not fit";
  };
  Result<AutoChoice> choice = makeAuto(problem);
  if (!choice.ok())
    return false;
  PipelineCost cost =
      pipelineCost(model, shape, choice->schedule, plan.begin, plan.marks);
  bool named = choice->schedule.name != "auto";
  bool worse =
      cost.excessBytes > plan.cost.excessBytes ||
      cost.seconds >= plan.cost.seconds * (1 - (named ? 0 : kWorthAList));
  for (size_t i = 0; worse && i < choice->candidates.size(); ++i)
    if (choice->candidates[i].name == plan.schedule.name)
      choice->chosen = i;
  if (considered)
    *considered = choice->str();
  if (worse)
    return false;
  plan.schedule = std::move(choice->schedule);
  plan.cost = std::move(cost);
  return true;
}

} // namespace merak::planning
