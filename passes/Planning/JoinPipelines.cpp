#include "passes/Planning/JoinPipelines.h"

#include "passes/Planning/Boundaries.h"

#include <algorithm>
#include <fmt/format.h>

namespace merak::planning {

namespace {

PipelineStages stagesOf(const PlanDecision &of) {
  PipelineStages out = of.strategy.pipelines.front();
  out.chunks = of.strategy.chunks;
  if (of.chunks > 1)
    out.partBegins = of.strategy.stageBegins;
  out.recomputeOps = of.strategy.recomputeOps;
  return out;
}

} // namespace

Result<PlanDecision> joinPipelines(const Graph &graph, const Classes &classes,
                                   const Strategy &pinned,
                                   std::vector<PlanDecision> of) {
  PlanDecision out = of.front();
  Strategy &strategy = out.strategy;
  strategy.stageBegins.reset();
  strategy.recomputeOps.reset();
  strategy.chunks.reset();
  strategy.pipelines.clear();
  out.degrees.pp = 0;
  out.report.clear();
  std::vector<char> late;
  for (const OpOutcome &op : out.outcome.ops)
    late.push_back(op.late);
  std::set<TensorUse> complete = sumsOfStep(graph, late);
  // A name stands for all of them.
  const bool listed = std::any_of(of.begin(), of.end(), [&](auto &one) {
    return one.schedule || one.strategy.schedule != strategy.schedule;
  });
  Schedule lists;
  for (size_t i = 0; i < of.size(); ++i) {
    PlanDecision &one = of[i];
    PipelineDecision &own = out.pipelines.emplace_back();
    own.degrees = one.degrees;
    own.chunks = one.chunks;
    own.firstMicrobatch = pinned.firstMicrobatch(i);
    own.microbatches = pinned.pipelines[i].microbatches.value_or(1);
    out.degrees.pp += one.degrees.pp;
    complete.insert(one.assignment.complete.begin(),
                    one.assignment.complete.end());
    strategy.pipelines.push_back(stagesOf(one));
    if (listed)
      append(one.schedule.value_or(one.plan.schedule), int(own.firstMicrobatch),
             lists);
    out.report +=
        fmt::format("pipeline {}: {} of {} microbatches\n{}", i,
                    own.microbatches, one.degrees.microbatches, one.report);
    out.convertsOnce &= one.convertsOnce;
    own.stageOfOp = std::move(one.stageOfOp);
    own.recompute = std::move(one.recompute);
    own.plan = std::move(one.plan);
  }
  if (listed) {
    lists.name = pinned.lists ? pinned.lists->name : "auto";
    strategy.schedule = lists.name;
    out.schedule = strategy.lists = std::move(lists);
  }
  strategy.setPipelines(strategy.pipelines);
  out.assignment.complete = std::move(complete);
  Result<Outcome> outcome = apply(graph, classes, out.assignment);
  if (!outcome.ok())
    return outcome.status();
  out.outcome = std::move(*outcome);
  // Their passes would wait for each other between forwards and gradients.
  if (!out.outcome.joins.empty())
    return Status::error(
        fmt::format("{}; plans of several pipelines have no such sums yet",
                    out.outcome.joins));
  return out;
}

} // namespace merak::planning
