// The plans between which a search decides at last, priced by all of their
// tasks.
#include "passes/Planning/PlanSketch.h"
#include "passes/Planning/StepSketch.h"

#include <algorithm>
#include <array>

namespace merak::planning {

static StepLinks linksOf(const costmodel::Cluster &cluster, const Degrees &d) {
  const int64_t inStage = d.dp * d.tp;
  auto node = [&](int64_t device) {
    return cluster.node(std::min(device, cluster.count - 1));
  };
  auto first = [inStage](int stage) { return stage * inStage; };
  StepLinks links;
  links.transfer = [&cluster, first, inStage](double bytes, int from, int to) {
    return costmodel::transferSeconds(bytes, first(from), first(to), cluster,
                                      std::min(cluster.perNode, inStage));
  };
  links.latency = [&cluster, first](int from, int to) {
    return cluster.between(first(from), first(to)).latency;
  };
  links.level = [&cluster, first](int from, int to) {
    return int(cluster.node(first(from)) != cluster.node(first(to)));
  };
  links.tensorLevel = node(0) != node(d.tp - 1);
  links.stageLevel = node(0) != node(inStage - 1);
  return links;
}

// Tasks of all microbatches above which a sketch takes too long: a million need
// a fifth of a second and 60 MB.
constexpr size_t kMostTasks = 1'000'000;

static size_t tasksOf(const StepTasks &tasks, int64_t microbatches) {
  size_t all = 0;
  for (const std::array<PartTasks, 3> &part : tasks.parts)
    for (const PartTasks &list : part)
      all += list.tasks.size();
  return all * size_t(microbatches);
}

namespace {

// Sketches of plans that have the degrees and techniques of one and differ in
// their cuts.
class Sketcher {
public:
  Sketcher(PlanSearch &search, const SearchInput &input,
           const PlanCandidate &like);

  std::optional<double> seconds(const PipelinePlan &plan) const;

  const PlanSearch::Sharding *sharding = nullptr; // null: nothing is sketched

private:
  PlanSearch &search;
  const SearchInput &input;
  const Degrees degrees;
  std::optional<Assignment> assignment;
  std::optional<Outcome> outcome;
};

} // namespace

Sketcher::Sketcher(PlanSearch &search, const SearchInput &input,
                   const PlanCandidate &like)
    : search(search), input(input), degrees(like.degrees) {
  // Its tasks are those of one mesh on one kind of device.
  if (like.techniques.overlap > 0 || !input.train ||
      !input.pinned.pipelines.empty() || !input.machine.kindOf.empty())
    return;
  Result<const PlanSearch::Sharding *> made =
      search.sharding(degrees, like.techniques);
  if (!made.ok() || !(*made)->problem.joins.empty())
    return;
  // A sharding may have been made for other degrees of the same parts.
  Result<Assignment> assigned = search.assign(degrees, like.techniques);
  if (!assigned.ok())
    return;
  assignment = std::move(*assigned);
  Result<Outcome> applied = apply(
      *input.graph, (*search.seamLayouts(degrees, like.techniques))->classes(),
      *assignment);
  if (!applied.ok())
    return;
  outcome = std::move(*applied);
  sharding = *made;
}

std::optional<double> Sketcher::seconds(const PipelinePlan &plan) const {
  if (!sharding)
    return std::nullopt;
  Result<StepTasks> tasks =
      makeStepTasks(*input.graph, *assignment, *outcome,
                    search.costsOf(degrees, /*overlap=*/0), plan.begin);
  if (!tasks.ok() || tasksOf(*tasks, degrees.microbatches) > kMostTasks)
    return std::nullopt;
  const StepTimes step =
      sketchStep(*tasks, *sharding->model, search.commonShape(degrees), plan,
                 linksOf(input.cluster, degrees));
  return step.finished ? std::optional(step.seconds) : std::nullopt;
}

std::optional<double> sketchedSeconds(PlanSearch &search,
                                      const SearchInput &input,
                                      const PlanCandidate &candidate) {
  return Sketcher(search, input, candidate).seconds(candidate.plan);
}

// Tasks that sketches of one plan's other cuts may have in all: many tries of a
// small model, whose launches and messages sums price least well, few or none
// of a large one, where a neighbouring cut is nearly as good.
constexpr size_t kMovedTasks = 50'000;

// A cut that the sums over ops chose stays unless a step is that much shorter
// with another one: uneven stages need more memory, and a sketch is no better
// than so.
constexpr double kWorthMoving = 0.01;

namespace {

// Moves single cuts of a plan by one position as long as its sketch becomes
// shorter. The plan keeps the price of its sums.
class CutMover {
public:
  CutMover(PlanSearch &search, const Sketcher &sketcher,
           const PlanCandidate &plan, double seconds)
      : best(plan), search(search), sketcher(sketcher), seconds(seconds),
        positions(sketcher.sharding->model->positions(
            int(plan.plan.begin.size()) - 1)) {}

  // The sketched seconds with the cuts found, `best`.
  double run();

  PlanCandidate best;

private:
  std::optional<PlanCandidate> moved(size_t cut, bool up) const;
  bool improve(size_t cut, bool up);

  PlanSearch &search;
  const Sketcher &sketcher;
  double seconds;
  const std::vector<int> &positions; // where cuts may be
};

} // namespace

// The best plan with cut `cut` at the next position up or down, if there is
// one.
std::optional<PlanCandidate> CutMover::moved(size_t cut, bool up) const {
  PlanCandidate next = best;
  std::vector<int> &begin = next.plan.begin;
  const auto at =
      std::lower_bound(positions.begin(), positions.end(), begin[cut]);
  if (at == positions.end() || *at != begin[cut] ||
      (up ? at + 1 == positions.end() : at == positions.begin()))
    return std::nullopt;
  begin[cut] = up ? *(at + 1) : *(at - 1);
  if (begin[cut] <= begin[cut - 1] || begin[cut] >= begin[cut + 1])
    return std::nullopt;
  next = search.refit(next);
  if (!next.problem.empty())
    return std::nullopt;
  return next;
}

bool CutMover::improve(size_t cut, bool up) {
  std::optional<PlanCandidate> next = moved(cut, up);
  if (!next)
    return false;
  const std::optional<double> found = sketcher.seconds(next->plan);
  if (!found || *found >= seconds * (1 - 1e-9))
    return false;
  best = std::move(*next);
  seconds = *found;
  return true;
}

double CutMover::run() {
  const size_t parts = best.plan.begin.size() - 1;
  const size_t tasks =
      sketcher.sharding->problem.ops.size() * size_t(best.degrees.microbatches);
  size_t tries = kMovedTasks / std::max<size_t>(1, tasks);
  for (bool better = true; better;) {
    better = false;
    for (size_t cut = 1; cut < parts; ++cut)
      for (bool up : {false, true}) {
        if (tries-- == 0)
          return seconds;
        better |= improve(cut, up);
      }
  }
  return seconds;
}

std::vector<PlanCandidate>
neighbouringCuts(PlanSearch &search, const SearchInput &input,
                 const std::vector<PlanCandidate> &plans) {
  std::vector<PlanCandidate> others;
  const Strategy &pinned = input.pinned;
  if (pinned.stageBegins || pinned.recomputeOps || pinned.lists ||
      (pinned.recompute && *pinned.recompute != "auto"))
    return others;
  for (const PlanCandidate &plan : plans) {
    if (plan.plan.begin.size() < 3) // one stage
      continue;
    const Sketcher sketcher(search, input, plan);
    const std::optional<double> seconds = sketcher.seconds(plan.plan);
    if (!seconds)
      continue;
    CutMover mover(search, sketcher, plan, *seconds);
    if (mover.run() < (1 - kWorthMoving) * *seconds)
      others.push_back(std::move(mover.best));
  }
  return others;
}

void sketchPlans(PlanSearch &search, const SearchInput &input,
                 std::vector<PlanCandidate> &plans) {
  for (PlanCandidate &plan : plans)
    if (std::optional<double> seconds = sketchedSeconds(search, input, plan))
      plan.plan.cost.seconds = *seconds;
  std::stable_sort(plans.begin(), plans.end(),
                   [](const PlanCandidate &a, const PlanCandidate &b) {
                     return a.plan.cost.seconds < b.plan.cost.seconds;
                   });
}

} // namespace merak::planning
