#include "passes/Planning/PlanDecision.h"

#include "passes/Planning/ActionOps.h"
#include "passes/Planning/Boundaries.h"
#include "passes/Planning/MarkRecompute.h"
#include "passes/Planning/StageNames.h"
#include "passes/Planning/Submicrobatches.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace merak::planning {

namespace {

class Decider {
public:
  Decider(PlanSearch &search, const SearchInput &input,
          const PlanCandidate &candidate)
      : search(search), input(input), candidate(candidate),
        graph(*input.graph) {}

  Result<PlanDecision> run();

private:
  int64_t samples() const { // of a microbatch
    const Degrees &d = candidate.degrees;
    return input.globalBatch / (d.dp * d.microbatches);
  }
  Status takeLayouts();
  Status splitSamples();
  void takeStages(const StageModel &model, const PipelineShape &shape);
  void takeConversions(const StageModel &model);
  void takeStrategy();
  Status reportStored();
  void reportTokens(const Classes &classes);

  PlanSearch &search;
  const SearchInput &input;
  const PlanCandidate &candidate;
  const Graph &graph;
  PlanDecision decision;
};

bool hasAxis(const std::vector<std::string> &axes, const char *axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

} // namespace

// What was planned for whole microbatches stays: the batch over twice as many
// positions of "mb".
Status Decider::splitSamples() {
  const Degrees &d = candidate.degrees;
  SearchReport unused;
  Result<Assignment> whole =
      search.assign(d, candidate.techniques.context, unused);
  if (!whole.ok())
    return whole.status();
  Assignment submicrobatches;
  Degrees twice = d;
  twice.microbatches *= 2;
  MERAK_RETURN_IF_ERROR(assignBatch(graph, *input.classes, input.batched,
                                    search.batchAxes(twice), submicrobatches));
  for (const AxisSize &axis : search.partsOf(kTensorAxis, d.tp))
    submicrobatches.mesh.push_back(axis);
  // All axes but those of the batch.
  for (const auto &[cls, axes] : whole->axes)
    for (const std::string &axis : axes)
      if (isOn(axis, kTensorAxis) ||
          !submicrobatches.samples.count(
              input.classes->classes[size_t(cls)].root))
        submicrobatches.axes[cls].push_back(axis);
  Result<const SeamLayouts *> layouts =
      search.seamLayouts(d, candidate.techniques);
  if (!layouts.ok())
    return layouts.status();
  Result<Assignment> seamed = (*layouts)->assign(submicrobatches);
  if (!seamed.ok())
    return seamed.status();
  decision.assignment = std::move(*seamed);
  return {};
}

void Decider::reportTokens(const Classes &classes) {
  for (const auto &[cls, axes] : decision.assignment.axes)
    if (samples() % 2 != 0 && hasAxis(axes, kSubmicrobatchAxis)) {
      const ClassAnchor anchor = anchorOf(graph, classes, cls);
      decision.report += fmt::format(
          "tensor-parallel overlap {}: submicrobatches of {} tokens (dimension "
          "{} of "
          "'{}')\n",
          decision.overlapLevel, anchor.size / 2, anchor.dim, anchor.tensor);
    }
}

Status Decider::takeLayouts() {
  Result<Assignment> assignment =
      search.layoutsOf(candidate.degrees, candidate.techniques);
  if (!assignment.ok())
    return assignment.status();
  decision.assignment = std::move(*assignment);
  const Classes &classes =
      (*search.seamLayouts(candidate.degrees, candidate.techniques))->classes();
  if (!input.pinned.pipelines.empty()) {
    std::vector<int> stageOf = decision.stageOfOp; // of parts
    for (int &stage : stageOf)
      if (stage >= 0)
        stage %= static_cast<int>(decision.degrees.pp);
    decision.assignment.complete = crossingUses(graph, stageOf);
  }
  decision.submicrobatchAxis = decision.overlapLevel > 0 &&
                               search.submicrobatchesByAxis(candidate.degrees);
  if (decision.submicrobatchAxis)
    reportTokens(classes);
  else if (decision.overlapLevel > 0)
    MERAK_RETURN_IF_ERROR(splitSamples());
  Result<Outcome> outcome = apply(graph, classes, decision.assignment);
  if (!outcome.ok())
    return outcome.status();
  decision.outcome = std::move(*outcome);
  return {};
}

void Decider::takeStages(const StageModel &model, const PipelineShape &shape) {
  decision.stageOfOp.assign(graph.ops.size(), -1);
  decision.recompute.assign(graph.ops.size(), 0);
  const std::vector<char> recompute = decision.plan.recomputed(model, shape);
  size_t position = 0, stage = 0;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    if (graph.ops[i].phase != Phase::Forward)
      continue;
    if (static_cast<int>(position) == decision.plan.begin[stage + 1])
      ++stage;
    decision.stageOfOp[i] = static_cast<int>(stage);
    decision.recompute[i] = recompute[position++];
  }
  decision.strategy.stageBegins = beginNames(graph, decision.plan.begin);
  decision.chunks = decision.plan.schedule.chunks;
  if (input.pinned.lists)
    decision.schedule = input.pinned.lists;
  else if (decision.plan.schedule.name == "auto")
    decision.schedule = decision.plan.schedule;
}

// Whether there are parameters that are read in another type, and how often
// they are converted.
void Decider::takeConversions(const StageModel &model) {
  const std::vector<char> any = convertedOnce(graph, decision.outcome, true);
  if (!input.train || std::count(any.begin(), any.end(), 1) == 0)
    return;
  decision.convertsOnce = input.convertOnce;
  decision.strategy.castWeights = input.convertOnce ? "step" : "use";
  if (!input.convertOnce)
    return;
  double most = 0;
  const PipelinePlan &plan = decision.plan;
  for (size_t v = 0; v + 1 < plan.begin.size(); ++v) {
    double bytes = 0;
    for (const StageParameter &parameter : model.problem.parameters)
      bytes += parameter.copiesOn(plan.begin[v], plan.begin[v + 1]);
    most = std::max(most, bytes);
  }
  decision.report += fmt::format(
      "parameters in the type of their uses are kept for a step, at "
      "most {:.1f} MiB\n",
      most / 1048576);
}

void Decider::takeStrategy() {
  Strategy &strategy = decision.strategy;
  const Degrees &d = candidate.degrees;
  strategy.mesh = {
      {kPipelineAxis, d.pp}, {kDataAxis, d.dp}, {kTensorAxis, d.tp}};
  strategy.globalBatch = input.globalBatch;
  strategy.microbatch = samples();
  strategy.pipelines = input.pinned.pipelines;
  if (!strategy.pipelines.empty())
    strategy.reshard = input.pinned.reshard;
  for (PipelineStages &pipeline : strategy.pipelines) {
    if (!pipeline.microbatches)
      pipeline.microbatches = d.microbatches;
    for (size_t s = 1; s < pipeline.stages.size() && decision.chunks == 1; ++s)
      pipeline.stages[s].begin = (*strategy.stageBegins)[s - 1];
  }
  strategy.classes = search.classesOf(d, candidate.techniques);
  if (candidate.techniques.zero > 0)
    strategy.zero = candidate.techniques.zero;
  if (candidate.techniques.sequence)
    strategy.sequence = 1;
  if (candidate.techniques.context)
    strategy.context = 1;
  strategy.parts = search.partsNamed(d, candidate.techniques);
  strategy.stored = input.pinned.stored;
  strategy.seams = search.seamsOf(d, candidate.techniques);
  strategy.schedule = input.pinned.schedule.value_or("auto");
  if (*strategy.schedule == "auto")
    strategy.schedule = decision.plan.schedule.name;
  strategy.lists = decision.schedule;
  // Whoever does not train has one part a stage, whatever the schedule is.
  if (decision.chunks > 1 ||
      traitsOf(strategy.schedule.value_or("")).takesChunks)
    strategy.chunks = decision.chunks;
  strategy.recompute = input.pinned.recompute.value_or("auto");
  strategy.tpOverlap = std::to_string(decision.overlapLevel);
}

// How many parameters are stored in parts, and which could not be.
Status Decider::reportStored() {
  if (decision.assignment.stored.empty())
    return {};
  Result<const SeamLayouts *> layouts =
      search.seamLayouts(candidate.degrees, candidate.techniques);
  if (!layouts.ok())
    return layouts.status();
  const std::vector<std::string> whole = (*layouts)->whole(decision.assignment);
  decision.report += fmt::format(
      "stored in parts over dp={}: {} of {} parameters{}{}\n",
      candidate.degrees.dp, decision.assignment.stored.size() - whole.size(),
      decision.assignment.stored.size(), whole.empty() ? "" : ", not ",
      fmt::join(whole, ", "));
  return {};
}

Result<PlanDecision> Decider::run() {
  decision.degrees = candidate.degrees;
  decision.overlapLevel = candidate.techniques.overlap;
  decision.plan = candidate.plan;
  Result<const PlanSearch::Sharding *> sharding =
      search.shardingFor(candidate.degrees, candidate.techniques);
  if (!sharding.ok())
    return sharding.status();
  const StageModel &model = *(*sharding)->model;
  const PipelineShape shape =
      search.shapeOf(candidate.degrees, candidate.techniques);
  takeStages(model, shape);
  MERAK_RETURN_IF_ERROR(takeLayouts());
  decision.gradientBucket = static_cast<int64_t>(shape.reduce.bucketBytes);
  decision.report += candidate.tried;
  decision.report += describeStages(model, shape, decision.plan);
  if (decision.gradientBucket > 0)
    decision.report += fmt::format(
        "gradients reduced over dp={} in buckets of {:.1f} KiB\n",
        candidate.degrees.dp, double(decision.gradientBucket) / 1024);
  takeStrategy();
  takeConversions(model);
  MERAK_RETURN_IF_ERROR(reportStored());
  MERAK_RETURN_IF_ERROR(markRecompute(graph, input.pinned, decision));
  return std::move(decision);
}

Result<PlanDecision> decide(PlanSearch &search, const SearchInput &input,
                            const PlanCandidate &candidate) {
  return Decider(search, input, candidate).run();
}

} // namespace merak::planning
