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

std::optional<double> sketchedSeconds(PlanSearch &search,
                                      const SearchInput &input,
                                      const PlanCandidate &candidate) {
  const Degrees &d = candidate.degrees;
  if (candidate.techniques.overlap > 0 || !input.train)
    return std::nullopt;
  Result<const PlanSearch::Sharding *> made =
      search.sharding(d, candidate.techniques);
  if (!made.ok() || !(*made)->problem.joins.empty())
    return std::nullopt;
  // A sharding may have been made for other degrees of the same parts.
  Result<Assignment> assignment = search.assign(d, candidate.techniques);
  if (!assignment.ok())
    return std::nullopt;
  Result<Outcome> outcome = apply(*input.graph, *(*made)->classes, *assignment);
  if (!outcome.ok())
    return std::nullopt;
  Result<StepTasks> tasks =
      makeStepTasks(*input.graph, *assignment, *outcome,
                    search.costsOf(d, /*overlap=*/0), candidate.plan.begin);
  if (!tasks.ok() || tasksOf(*tasks, d.microbatches) > kMostTasks)
    return std::nullopt;
  const StepTimes step = sketchStep(*tasks, *(*made)->model, search.shapeOf(d),
                                    candidate.plan, linksOf(input.cluster, d));
  return step.finished ? std::optional(step.seconds) : std::nullopt;
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
