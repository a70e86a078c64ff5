#include "passes/Stragglers/Replan.h"

#include "passes/Stragglers/Migration.h"
#include "passes/Stragglers/Restart.h"

#include <algorithm>
#include <fmt/format.h>

namespace merak::stragglers {

const std::vector<std::string> &reactionNames() {
  static const std::vector<std::string> names = {"none", "microbatches",
                                                 "layers", "grouping"};
  return names;
}

const std::string &nameOf(Reaction reaction) {
  return reactionNames()[size_t(reaction)];
}

const std::vector<std::string> &objectiveNames() {
  static const std::vector<std::string> names = {"steady", "filled"};
  return names;
}

namespace {

template <typename T>
bool parseName(const std::vector<std::string> &names, const std::string &name,
               T &value) {
  const auto at = std::find(names.begin(), names.end(), name);
  if (at == names.end())
    return false;
  value = T(at - names.begin());
  return true;
}

} // namespace

bool parseReaction(const std::string &name, Reaction &reaction) {
  return parseName(reactionNames(), name, reaction);
}
bool parseObjective(const std::string &name, Objective &objective) {
  return parseName(objectiveNames(), name, objective);
}

namespace {

Status soundWithoutRates(const Problem &problem, const Plan &old) {
  Problem normal = problem;
  for (Device &device : normal.devices)
    device.rate = kOne;
  return verify(normal, old).withContext("the plan that runs");
}

bool isWhole(const Problem &problem, const Stage &stage) {
  return std::none_of(stage.devices.begin(), stage.devices.end(),
                      [&](int device) { return isFailed(problem, device); });
}

// Gives the microbatches to pipelines whose stages are settled.
Result<Plan> withMicrobatches(const Problem &problem, Plan plan,
                              Objective objective) {
  if (plan.pipelines.empty())
    return Status::error("no pipeline can go on with the groups it has");
  std::vector<PipelineWork> work;
  for (const Pipeline &pipeline : plan.pipelines)
    work.push_back(
        {timeOf(problem, pipeline), int64_t(pipeline.stages.size())});
  const auto shared = shareMicrobatches(work, problem.microbatches, objective);
  if (!shared)
    return Status::error(
        fmt::format("{} microbatches are fewer than the stages of {} pipelines",
                    problem.microbatches, plan.pipelines.size()));
  for (size_t i = 0; i < shared->size(); ++i)
    plan.pipelines[i].microbatches = (*shared)[i];
  return plan;
}

Result<Plan> shiftMicrobatches(const Problem &problem, const Plan &old,
                               Objective objective) {
  Plan plan;
  for (const Pipeline &pipeline : old.pipelines)
    if (std::all_of(pipeline.stages.begin(), pipeline.stages.end(),
                    [&](const Stage &s) { return isWhole(problem, s); }))
      plan.pipelines.push_back(pipeline);
  return withMicrobatches(problem, std::move(plan), objective);
}

Result<Plan> shiftLayers(const Problem &problem, const Plan &old,
                         Objective objective) {
  Plan plan;
  for (const Pipeline &pipeline : old.pipelines) {
    std::vector<Stage> stages = pipeline.stages;
    std::erase_if(stages, [&](const Stage &s) { return !isWhole(problem, s); });
    std::vector<GroupClass> groups;
    for (const Stage &stage : stages)
      groups.push_back(classOf(problem, stage.devices));
    const SolvedPipeline solved = solveInOrder(problem, groups);
    if (!solved.fits())
      continue;
    Pipeline &shifted = plan.pipelines.emplace_back();
    for (size_t j = 0; j < solved.groups.size(); ++j)
      shifted.stages.push_back(
          {stages[size_t(solved.groups[j])].devices, solved.layers[j]});
  }
  return withMicrobatches(problem, std::move(plan), objective);
}

// Plans this much above the bound: fewer pipelines may be better.
constexpr double kNearBound = 1.05;
constexpr int64_t kFewerEffort = 4; // that part of the steps goes into those

bool isShorter(const Score &a, const Score &b, Objective objective) {
  if (objective == Objective::Steady)
    return std::pair(a.steady, a.filled) < std::pair(b.steady, b.filled);
  return std::pair(a.filled, a.steady) < std::pair(b.filled, b.steady);
}

// The time that the objective makes least.
int64_t primaryTime(const Score &score, Objective objective) {
  return objective == Objective::Steady ? score.steady : score.filled;
}

class Regrouping {
public:
  Regrouping(const Problem &problem, const Plan &old,
             const ReplanOptions &options)
      : problem(problem), old(old), options(options),
        nodes(groupingsOf(problem, old, options.groupings)) {
    std::erase_if(nodes,
                  [](const NodeGroupings &n) { return n.groupings.empty(); });
  }

  // What layers in the old groups reach (`limit`) is not to be exceeded for the
  // sake of filling.
  Result<Plan> run(int64_t limit) {
    Status why = whyNot(problem.dp);
    Result<Plan> best = why;
    Score bestScore;
    for (int64_t count = problem.dp; count >= 1; --count) {
      if (!whyNot(count).ok())
        continue;
      const Division found = divideInto(count, limit);
      if (why.ok() && !found.plan)
        why = found.plan.status();
      const Score score = found.plan ? scoreOf(problem, *found.plan) : Score();
      if (best.ok() && !isShorter(score, bestScore, options.search.objective))
        break;
      if (!found.plan)
        continue;
      best = found.plan;
      bestScore = score;
      least = found.least;
      optimal = found.optimal && count == problem.dp;
      if (double(score.steady) <= kNearBound * bound())
        break;
    }
    if (const std::optional<Plan> uniform = restartedPlan(problem, problem.dp))
      if (primaryTime(scoreOf(problem, *uniform), options.search.objective) <
          primaryTime(bestScore, options.search.objective)) {
        best = keepPlaces(problem, old, *uniform);
        optimal = false;
      }
    return best.ok() ? best : Result<Plan>(why);
  }

  double bound() const {
    double speed = 0;
    for (const NodeGroupings &node : nodes)
      speed += node.groupings.front().speed;
    return double(problem.layers) * double(problem.microbatches) / speed;
  }

  bool optimal = false;
  int64_t least = kFailed;

private:
  // What the best grouping of each node lacks for so many pipelines.
  Status whyNot(int64_t pipelines) const {
    size_t groups = 0;
    int64_t room = 0;
    for (const NodeGroupings &node : nodes) {
      size_t most = 0;
      int64_t holds = 0;
      for (const Grouping &grouping : node.groupings) {
        most = std::max(most, grouping.groups.size());
        int64_t layers = 0;
        for (const GroupClass &group : grouping.classes)
          layers += layerCap(problem, group.size, 0, false);
        holds = std::max(holds, layers);
      }
      groups += most;
      room += holds;
    }
    Status status;
    if (int64_t(groups) < pipelines)
      status.merge(Status::error(fmt::format(
          "devices: {} groups are left for {} pipelines", groups, pipelines)));
    if (room < pipelines * problem.layers)
      status.merge(Status::error(fmt::format(
          "memory: {} pipelines have {} layers, the devices that are left hold "
          "at most {}",
          pipelines, pipelines * problem.layers, room)));
    return status;
  }

  struct Division {
    Result<Plan> plan = Status();
    int64_t least = kFailed;
    bool optimal = false;
  };
  Division divideInto(int64_t pipelines, int64_t limit) const {
    const DivisionProblem division(problem, nodes, pipelines);
    SearchOptions search = options.search;
    if (pipelines < problem.dp) {
      search.steps /= kFewerEffort;
      search.nodes /= kFewerEffort;
    }
    const DivisionResult result = divide(division, search);
    if (result.found.isEmpty())
      return {Status::error(fmt::format(
          "no division of the devices that are left into {} pipelines with at "
          "most {} stages and {} microbatches fits into memory",
          pipelines, division.longest, problem.microbatches))};
    std::vector<std::vector<int>> spare;
    const Plan plan = planOf(division, nodes, result.found.best(limit).division,
                             options.search.objective, spare);
    return {keepPlaces(problem, old, plan, spare), result.found.leastSteady(),
            result.optimal &&
                std::all_of(nodes.begin(), nodes.end(),
                            [](const NodeGroupings &n) { return n.isWhole; })};
  }

  const Problem &problem;
  const Plan &old;
  const ReplanOptions &options;
  std::vector<NodeGroupings> nodes;
};

// What each reaction reaches, and which of them is taken.
class Replanner {
public:
  Replanner(const Problem &problem, const Plan &old,
            const ReplanOptions &options)
      : problem(problem), old(old), options(options),
        objective(options.search.objective), regrouping(problem, old, options) {
  }

  Result<Replanning> run() {
    for (int r = 0; r <= int(options.most); ++r)
      add(Reaction(r));
    result.bound = regrouping.bound();
    result.least = regrouping.least;
    result.optimal = regrouping.optimal && objective == Objective::Steady;
    for (size_t i = 1; i < result.reached.size(); ++i)
      if (isShorter(result.reached[i].score, result.best().score, objective))
        result.chosen = i;
    if (result.best().score.steady == kFailed)
      return result.reached.back().status;
    return std::move(result);
  }

private:
  Result<Plan> planWith(Reaction reaction) {
    switch (reaction) {
    case Reaction::None:
      return old;
    case Reaction::Microbatches:
      return shiftMicrobatches(problem, old, objective);
    case Reaction::Layers:
      return shiftLayers(problem, old, objective);
    case Reaction::Grouping:
      return regrouping.run(result.reached.back().score.steady);
    }
    return Status::error("there is no such reaction");
  }

  void add(Reaction reaction) {
    Reached reached{reaction};
    Result<Plan> plan = planWith(reaction);
    reached.status = plan.status();
    if (plan) {
      reached.plan = std::move(*plan);
      reached.score = scoreOf(problem, reached.plan);
      reached.moved = movedLayers(old, reached.plan);
      if (reached.score.steady == kFailed)
        reached.status = Status::error("devices that are gone have work");
    }
    result.reached.push_back(std::move(reached));
  }

  const Problem &problem;
  const Plan &old;
  const ReplanOptions &options;
  const Objective objective;
  Regrouping regrouping;
  Replanning result;
};

} // namespace

Result<Replanning> replan(const Problem &problem, const Plan &old,
                          const ReplanOptions &options) {
  MERAK_RETURN_IF_ERROR(check(problem));
  MERAK_RETURN_IF_ERROR(soundWithoutRates(problem, old));
  return Replanner(problem, old, options).run();
}

} // namespace merak::stragglers
