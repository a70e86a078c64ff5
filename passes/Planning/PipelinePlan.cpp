#include "passes/Planning/PipelinePlan.h"

#include "passes/Planning/AutoSchedule.h"
#include "passes/Planning/LeastPlan.h"
#include "passes/Planning/Recompute.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <fmt/format.h>
#include <functional>
#include <limits>
#include <optional>

namespace merak::planning {

// Up to so many cuts all of them are tried.
constexpr double kExhaustive = 300;
// Time and memory differences below this part do not count.
constexpr double kSmall = 1e-9;
// Levels of recomputation tried where none of a stage fits.
constexpr size_t kScanned = 16;
// A list schedule replaces a named one if it is faster by this part.
constexpr double kWorthAList = 1e-3;

std::vector<char> PipelinePlan::recomputed(const StageModel &model,
                                           const PipelineShape &shape) const {
  std::vector<char> out(model.count(), 0);
  for (size_t v = 0; v < marks.size(); ++v)
    for (int i = begin[v]; i < begin[v + 1]; ++i)
      out[i] = shape.modelOf(int(v), model).marked(i, marks[v]);
  return out;
}

namespace {

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
    if (!options.schedules.empty() && !comparesCuts()) {
      // Lists of more stages than there are ops could take all memory.
      Result<std::vector<int>> begin = onlyCuts(parts());
      if (!begin.ok()) {
        status.merge(begin.status());
        return {};
      }
    }
    for (const std::string &name : options.schedules)
      if (!isHopeless(name))
        status.merge(considerNamed(name, shapeOf(chunks())));
    for (const Schedule &schedule : options.concrete)
      if (schedule.stages == shape.stages &&
          schedule.microbatches == shape.microbatches)
        status.merge(consider(OrderedSchedule(schedule), nullptr, nullptr,
                              ScheduleLists(schedule)));
      else
        status.merge(Status::error(fmt::format(
            "the lists of the schedule are for {} stages and {} microbatches, "
            "found {} and {}",
            schedule.stages, schedule.microbatches, shape.stages,
            shape.microbatches)));
    return std::move(plans);
  }

  // A plan whose schedule has no lists yet.
  Status complete(PipelinePlan &plan) {
    const ScheduleOptions make = shapeOf(plan.schedule.chunks);
    Result<Schedule> schedule = makeSchedule(plan.schedule.name, make);
    MERAK_RETURN_IF_ERROR(schedule.status());
    Result<const ScheduleLists *> lists = listsOf(plan.schedule.name, make);
    MERAK_RETURN_IF_ERROR(lists.status());
    plan.schedule = std::move(*schedule);
    plan.cost = pipelineCost(model, shape, OrderedSchedule(plan.schedule),
                             **lists, plan.begin, plan.marks, options.price);
    (*lists)->release();
    return {};
  }

  // See leastOfOnlyCuts().
  double least(const LeastSeconds &sums, const StoredShares &shares) {
    stored = &shares;
    double least = std::numeric_limits<double>::infinity();
    Result<std::vector<int>> begin = onlyCuts(parts());
    if (!begin.ok())
      return least;
    for (const std::string &name : options.schedules) {
      const LateWeights late = traitsOf(name).weights;
      double seconds = sums.of(shape, *begin, late);
      if (!isTooSlow(seconds)) {
        Result<const ScheduleLists *> lists = listsOf(name, shapeOf(chunks()));
        if (!lists.ok())
          continue;
        const OrderedSchedule schedule( // of no steps
            {name, shape.stages, shape.microbatches, chunks(), {}});
        const std::optional<std::vector<double>> again =
            madeAgain(Search{&schedule, **lists, 0, 0, 0, 0, {}}, *begin,
                      [&](const std::vector<double> &some) {
                        return isTooSlow(sums.of(shape, *begin, late, some));
                      });
        (*lists)->release();
        if (!again)
          continue;
        seconds = sums.of(shape, *begin, late, *again);
      }
      least = std::min(least, seconds);
      if (options.limit > 0 && !isTooSlow(least))
        break;
    }
    return least;
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
    const OrderedSchedule *schedule;
    const ScheduleLists &lists;
    int missing = 0; // microbatches that the schedule lacks
    int64_t actions = 0, spent = 0, evaluations = 0;
    PipelinePlan best;
  };

  Status considerNamed(const std::string &name, const ScheduleOptions &make) {
    std::optional<Result<SteadySchedule>> steady;
    if (options.steady)
      steady = SteadySchedule::make(name, make);
    if (steady && !steady->ok())
      return steady->status();
    std::shared_ptr<const OrderedSchedule> all;
    if (!steady) {
      auto schedule = knownSchedule(name, make);
      MERAK_RETURN_IF_ERROR(schedule.status());
      all = *schedule;
    }
    Result<const ScheduleLists *> lists = listsOf(name, make);
    MERAK_RETURN_IF_ERROR(lists.status());
    return consider(steady ? (*steady)->sample() : *all,
                    steady ? &**steady : nullptr, shorterOf(name, make),
                    **lists);
  }

  // The same lists with fewer microbatches while cuts are searched.
  std::shared_ptr<const OrderedSchedule> shorterOf(const std::string &name,
                                                   ScheduleOptions make) const {
    make.microbatches =
        std::min(shape.microbatches, std::max(8, 3 * shape.stages));
    if (make.microbatches == shape.microbatches || !comparesCuts())
      return nullptr;
    auto made = knownSchedule(name, make);
    return made.ok() ? *made : nullptr;
  }

  // `schedule`: all of it, or the sample of `steady`.
  Status consider(const OrderedSchedule &schedule, const SteadySchedule *steady,
                  std::shared_ptr<const OrderedSchedule> shorter,
                  const ScheduleLists &lists) {
    int parts = schedule.virtualStages();
    Search search{shorter ? &*shorter : &schedule, lists, 0, 0, 0, 0, {}};
    search.missing = shape.microbatches - search.schedule->microbatches;
    for (const std::vector<Step> &order : search.schedule->order)
      search.actions += int64_t(order.size());
    if (options.begin) {
      if (int(options.begin->size()) == parts + 1)
        take(search, *options.begin);
    } else if (!comparesCuts()) {
      Result<std::vector<int>> begin = onlyCuts(parts);
      MERAK_RETURN_IF_ERROR(begin.status());
      take(search, *begin);
    } else {
      MERAK_RETURN_IF_ERROR(start(search, parts));
      if (parts > 1)
        improve(search, parts);
    }
    PipelinePlan &found = search.best;
    if (found.begin.empty() && !found.noPlace) {
      lists.release();
      return {};
    }
    // With all microbatches.
    if (found.noPlace) {
      found.schedule.name = schedule.name;
      found.cost.seconds = found.cost.excessBytes =
          std::numeric_limits<double>::infinity();
    } else if (steady) {
      found.schedule = {schedule.name,
                        schedule.stages,
                        shape.microbatches,
                        schedule.chunks,
                        {}};
      found.cost = pipelineCost(model, shape, *steady, lists, found.begin,
                                found.marks, options.price);
    } else {
      found.schedule = schedule;
      found.cost = pipelineCost(model, shape, schedule, lists, found.begin,
                                found.marks, options.price);
    }
    lists.release();
    found.evaluations = search.evaluations;
    plans.push_back(std::move(found));
    return {};
  }

  ScheduleOptions shapeOf(int chunks) const {
    ScheduleOptions make;
    make.stages = shape.stages;
    make.microbatches = shape.microbatches;
    make.chunks = chunks;
    make.recompute = problem.train && options.recompute != "none";
    make.splitBackward = make.update = problem.train;
    return make;
  }
  // Of a named schedule: parts of the model on a stage, and all of them.
  int chunks() const {
    return problem.train ? chunksOn(shape.stages, options) : 1;
  }
  int parts() const { return shape.stages * chunks(); }
  bool comparesCuts() const {
    return !options.begin && !options.cutter && options.cut == CutRule::Time;
  }
  // Where no cuts are compared.
  Result<std::vector<int>> onlyCuts(int parts) const {
    if (options.begin)
      return *options.begin;
    return options.cutter ? options.cutter(model, parts)
                          : balanced(model, parts, shape);
  }
  bool isTooSlow(double least) const {
    return options.limit > 0 && least * (1 - kSmall) > options.limit;
  }
  // Whether the only cuts take too long with a schedule.
  bool isHopeless(const std::string &schedule) {
    if (options.limit <= 0 || options.price || comparesCuts() ||
        !shape.meshes.empty())
      return false;
    Result<std::vector<int>> begin = onlyCuts(parts());
    if (!begin.ok() || int(begin->size()) != parts() + 1)
      return false;
    if (!ofModel)
      ofModel.emplace(model);
    return isTooSlow(ofModel->of(shape, *begin, traitsOf(schedule).weights));
  }

  Status start(Search &search, int parts) {
    Result<std::vector<int>> begin = balanced(model, parts, shape);
    MERAK_RETURN_IF_ERROR(begin.status());
    try_(search, *begin);
    if (model.blockBounds().size() > size_t(parts))
      try_(search, *equalLayers(model, parts));
    return {};
  }

  bool withinBudget(const Search &search) const {
    return search.spent < options.budget;
  }

  // Cuts that are compared with no others: priced once, at the end.
  void take(Search &search, const std::vector<int> &begin) {
    ++search.evaluations;
    std::optional<std::vector<Marks>> marks = choose(search, begin);
    search.best.noPlace = !marks;
    if (!marks ||
        (options.limit > 0 && isTooSlow(leastOf(search, begin, &*marks))))
      return;
    search.best.marks = std::move(*marks);
    search.best.begin = begin;
  }

  // No time of these stages is less: a stage begins when the first microbatch
  // has come to it over all links before, and then does its work. Without
  // `marks`: whatever it recomputes.
  double leastOf(const Search &search, const std::vector<int> &begin,
                 const std::vector<Marks> *marks) const {
    const int p = shape.stages, m = search.schedule->microbatches;
    std::vector<double> work(p, 0), fill(p, 0);
    double before = 0, optimizer = 0;
    for (size_t v = 0; v + 1 < begin.size(); ++v) {
      const StageCost &cost =
          marks ? priceOf(model, shape, int(v), begin[v], begin[v + 1],
                          (*marks)[v], options.price)
                : shape.modelOf(int(v), model).timesOf(begin[v], begin[v + 1]);
      const double slowness = shape.slownessOf(int(v));
      const ActionTimes times =
          slowness == 1 ? cost.times : cost.timesAt(slowness);
      if (int(v) < p)
        fill[v] = before;
      if (v == 0) // of its last backward
        fill[v] -= cost.hiddenByWeights;
      double gradients = times.B + times.W;
      // W may yet move into the waits of B.
      if (!marks && problem.overlap > 0)
        gradients = std::max(times.B, gradients - cost.communication);
      work[v % p] += times.F + (problem.train ? times.R + gradients : 0);
      before += times.F;
      if (v + 2 < begin.size())
        before += boundaryOf(model, shape, int(v), begin[v + 1]).forward;
      optimizer = std::max(optimizer, slowness * cost.optimizer);
    }
    double least = 0, cycle = 0;
    for (int s = 0; s < p; ++s) {
      least = std::max(least, fill[s] + m * work[s]);
      cycle = std::max(cycle, work[s]);
    }
    // All microbatches, or as try_ adds those that its schedule lacks.
    return least + optimizer + cycle * search.missing;
  }

  // True if it is the best so far under this schedule.
  bool try_(Search &search, const std::vector<int> &begin) {
    ++search.evaluations;
    search.spent += search.actions;
    // Beside a plan that fits, one that does not is no better either. What has
    // to be made again is the dearest question.
    const auto isSlower = [&](const std::vector<Marks> *marks) {
      return !search.best.begin.empty() && search.best.cost.fits() &&
             leastOf(search, begin, marks) * (1 - kSmall) >
                 search.best.cost.seconds;
    };
    if (!options.price && isSlower(nullptr))
      return false;
    std::vector<Marks> marks = *choose(search, begin);
    if (isSlower(&marks))
      return false;
    PipelineCost cost = pipelineCost(model, shape, *search.schedule,
                                     search.lists, begin, marks, options.price);
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

  // Nothing where a stage has no place and this is all that is asked for.
  std::optional<std::vector<Marks>> choose(const Search &search,
                                           const std::vector<int> &begin) {
    std::vector<Marks> all;
    for (int v = 0; v + 1 < int(begin.size()); ++v) {
      const std::optional<Marks> marks = chooseFor(search, begin, v);
      if (!marks)
        return std::nullopt;
      all.push_back(*marks);
    }
    return all;
  }

  // The same of one stage.
  std::optional<Marks> chooseFor(const Search &search,
                                 const std::vector<int> &begin, int v) {
    Marks marks;
    if (problem.train && options.recompute != "none" &&
        search.lists.recomputes[v])
      marks = options.recompute == "full"
                  ? Marks{shape.modelOf(v, model).levels(), 0}
              : options.recompute == "auto" ? fit(search, begin, v)
                                            : byRatio(search, begin, v);
    if (asksForPlace(search) && shape.memoryOf(v) > 0 &&
        bytesOf(heldOf(model, shape, v, begin[v], begin[v + 1], marks,
                       options.price),
                search.lists, begin, v) > shape.memoryOf(v) + spared(begin, v))
      return std::nullopt;
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
    if (shape.memoryOf(v) <= 0)
      return {};
    const StageModel &model = shape.modelOf(v, this->model);
    // Chunks of one device share its memory evenly.
    const double limit =
        shape.memoryOf(v) / search.schedule->chunks + spared(begin, v);
    auto bytes = [&](int level) {
      return bytesOf(heldOf(model, shape, v, begin[v], begin[v + 1], {level, 0},
                            options.price),
                     search.lists, begin, v);
    };
    if (bytes(0) <= limit)
      return {};
    // Levels at which this stage changes.
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
    if (asksForPlace(search) && fixedOf(begin, v) > limit)
      return {};
    // More recomputation need not take less memory: what one microbatch makes
    // again counts too.
    Marks least;
    double leastBytes = bytes(0);
    auto consider = [&](Marks marks) {
      double needed = bytesOf(
          heldOf(model, shape, v, begin[v], begin[v + 1], marks, options.price),
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

  // Bytes that a stage has less of what is stored than its model says.
  double spared(const std::vector<int> &begin, int v) const {
    if (!stored)
      return 0;
    const StageCost &cost =
        heldOf(model, shape, v, begin[v], begin[v + 1], {}, options.price);
    return StoredShares().bytes(cost) - stored->bytes(cost);
  }

  // Seconds of a microbatch that virtual stages make again at least to find a
  // place; nothing if one has none. Where what some of them make again is too
  // much already, only that: of the first devices, which keep the most.
  std::optional<std::vector<double>>
  madeAgain(const Search &search, const std::vector<int> &begin,
            const std::function<bool(const std::vector<double> &)> &isTooMuch) {
    const size_t parts = begin.size() - 1, stages = size_t(shape.stages),
                 chunks = parts / stages;
    std::vector<StageCost> costs(parts);
    std::vector<double> again(parts, 0), spares(stages, 0);
    for (size_t i = 0; i < parts; ++i) {
      const size_t s = i / chunks, v = i % chunks * stages + s;
      const std::optional<Marks> marks = chooseFor(search, begin, int(v));
      if (!marks)
        return std::nullopt;
      costs[v] = heldOf(model, shape, int(v), begin[v], begin[v + 1], *marks,
                        options.price);
      // What waits for collectives may make something again meanwhile.
      const double idle = problem.overlap > 0 ? costs[v].communication : 0;
      again[v] = std::max(0.0, costs[v].times.R - idle);
      spares[s] += spared(begin, int(v));
      if (std::has_single_bit(i + 1) && isTooMuch(again))
        return again;
    }
    const std::vector<double> bytes =
        bytesOf(shape, costs, search.lists, begin);
    for (size_t s = 0; s < bytes.size(); ++s)
      if (const double limit = shape.memoryOf(int(s));
          limit > 0 && bytes[s] > limit + spares[s])
        return std::nullopt;
    return again;
  }

  // Parts of one device have shares of its memory, which are no limits.
  bool asksForPlace(const Search &search) const {
    return options.fitting && search.schedule->chunks == 1 && !comparesCuts();
  }
  // Bytes of a stage whatever it recomputes.
  double fixedOf(const std::vector<int> &begin, int v) const {
    const StageCost &cost =
        heldOf(model, shape, v, begin[v], begin[v + 1], {}, options.price);
    return StoredShares().bytes(cost);
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
  std::optional<LeastSeconds> ofModel;
  const StoredShares *stored = nullptr; // null: as the model says
  std::vector<PipelinePlan> plans;
};

} // namespace

std::vector<PipelinePlan> planSchedules(const StageModel &model,
                                        const PipelineShape &shape,
                                        const PipelineOptions &options,
                                        Status &status) {
  return Planner(model, shape, options).run(status);
}

Status completePlan(const StageModel &model, const PipelineShape &shape,
                    const PipelineOptions &options, PipelinePlan &plan) {
  if (!plan.schedule.order.empty())
    return {};
  return Planner(model, shape, options).complete(plan);
}

StoredShares StoredShares::of(int level, int64_t replicas) {
  const double part = 1 / double(replicas);
  return {level > 2 ? part : 1, level > 1 ? part : 1, level > 0 ? part : 1};
}

double leastOfOnlyCuts(const StageModel &model, const LeastSeconds &least,
                       const StoredShares &shares, const PipelineShape &shape,
                       const PipelineOptions &options) {
  return Planner(model, shape, options).least(least, shares);
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
    ScheduleLists lists(schedule);
    double excess = 0;
    const std::vector<double> bytes =
        bytesOf(shape, sums.stages, lists, plan.begin);
    for (size_t s = 0; s < bytes.size(); ++s)
      if (const double limit = shape.memoryOf(int(s)); limit > 0)
        excess += std::max(0.0, bytes[s] - limit);
    bool fits = excess <= plan.cost.excessBytes;
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
