#include "passes/Staging/Planner.h"

#include "dialects/Train/Builders.h"
#include "passes/CostModel/Cost.h"
#include "passes/Planning/TokenHalves.h"
#include "passes/Staging/Considered.h"
#include "passes/Staging/MarkRecompute.h"
#include <fmt/format.h>
#include <numeric>

using namespace mlir;
using namespace merak;
using namespace merak::train;

static LogicalResult emitAll(Operation *op, const Status &status) {
  for (const std::string &message : status.messages())
    op->emitError(message);
  return failure(!status.ok());
}

namespace {

class Planner {
public:
  Planner(ModuleOp module, const PlannerOptions &options)
      : module(module), options(options),
        step(module.lookupSymbol<func::FuncOp>("step")) {}

  FailureOr<Decision> run();

private:
  void rebuild() {
    decision.step = buildPlanningGraph(step);
    classes = planning::unify(decision.step.graph);
  }
  FailureOr<planning::PlanCandidate> choose();
  FailureOr<bool> decompose(const planning::Outcome &outcome);
  LogicalResult applyAssignment();
  LogicalResult planStages(const planning::PlanCandidate &candidate);
  int64_t samples() const { // of a microbatch
    return options.globalBatch / (decision.dp * decision.microbatches);
  }
  // Whether halves are positions of the axis "half" (TokenHalves.h).
  bool halvesByAxis() const {
    return decision.overlapLevel > 0 &&
           (samples() % 2 != 0 || planning::joinsSamples(decision.step.graph));
  }
  LogicalResult splitByAxis();
  LogicalResult splitSamples();
  void finishStrategy();

  ModuleOp module;
  const PlannerOptions &options;
  func::FuncOp step;
  planning::Classes classes;
  bool decomposed = false;
  std::string scheduleName;
  Decision decision;
};

} // namespace

// The best mesh and what follows from it; everything considered is reported.
FailureOr<planning::PlanCandidate> Planner::choose() {
  planning::SearchInput input;
  input.graph = &decision.step.graph;
  input.classes = &classes;
  input.batched = decision.step.batched;
  input.cluster = options.cluster;
  input.pinned = options.pinned;
  input.globalBatch = options.globalBatch;
  input.train = options.train;
  input.statePerParameter = options.statePerParameter;
  input.memoryBytes = options.memoryBytes;
  input.reduction = options.reduction;
  planning::PlanSearch search(input);
  Result<std::vector<planning::Degrees>> degrees = search.degrees();
  if (!degrees.ok())
    return emitAll(module, degrees.status());
  planning::Way own = planning::ownWay(options.pinned);
  std::vector<planning::PlanCandidate> found = search.search(own);
  if (!found.front().problem.empty()) {
    // The first mesh's reasons stand for all.
    module.emitError(found.front().problem);
    return failure();
  }
  planning::PlanCandidate best = found.front();
  if (!best.fits())
    return emitAll(module, planning::explainMisfit(search, input, best));
  found.resize(std::min<size_t>(found.size(), 4));
  for (const planning::Way &way : planning::plainWays()) {
    std::vector<planning::PlanCandidate> plain = search.search(way, 1);
    if (!plain.empty() && options.train)
      found.push_back(plain.front());
  }
  decision.report += planning::describe(found, options.memoryBytes);
  decision.considered.candidates =
      consideredCandidates(found, options.globalBatch);
  const planning::Degrees &d = best.degrees;
  decision.pp = d.pp;
  decision.dp = d.dp;
  decision.tp = d.tp;
  decision.microbatches = d.microbatches;
  decision.overlapLevel = best.overlap;
  Result<planning::Assignment> assignment = search.assign(d, decision.sharding);
  if (!assignment.ok())
    return emitAll(module, assignment.status());
  decision.assignment = *assignment;
  return best;
}

// Replaces ops that have a split reduction they cannot do in parts. Returns
// whether the graph changed.
FailureOr<bool> Planner::decompose(const planning::Outcome &outcome) {
  bool changed = false;
  for (auto [index, opOutcome] : llvm::enumerate(outcome.ops)) {
    if (!opOutcome.decompose)
      continue;
    Operation *op = decision.step.ops[index];
    auto decomposable = dyn_cast<DecomposableOpInterface>(op);
    if (!decomposable) {
      op->emitError("no decomposition is known for '")
          << op->getName() << "', whose reduction is split";
      return failure();
    }
    OpBuilder b(op);
    Operation *before = op->getPrevNode();
    SmallVector<Value> values = decomposable.decompose(b);
    for (Operation *piece = before ? before->getNextNode()
                                   : &op->getBlock()->front();
         piece != op; piece = piece->getNextNode())
      for (StringRef name : {kRoleAttr, kIdAttr, kOfAttr})
        if (Attribute attribute = op->getAttr(name))
          piece->setAttr(name, attribute);
    op->replaceAllUsesWith(values);
    op->erase();
    changed = true;
  }
  return changed;
}

// Applies the chosen assignment, decomposing until nothing asks for it. A
// class survives decompositions through its anchor.
LogicalResult Planner::applyAssignment() {
  while (true) {
    Result<planning::Outcome> outcome =
        planning::apply(decision.step.graph, classes, decision.assignment);
    if (!outcome.ok())
      return emitAll(module, outcome.status());
    std::vector<planning::Strategy::SplitClass> splits;
    for (const auto &[cls, axes] : decision.assignment.axes)
      splits.push_back(
          {planning::anchorOf(decision.step.graph, classes, cls), axes});
    FailureOr<bool> changed = decompose(*outcome);
    if (failed(changed))
      return failure();
    if (!*changed) {
      decision.outcome = std::move(*outcome);
      decision.strategy.classes = splits;
      return success();
    }
    decomposed = true;
    rebuild();
    decision.assignment.axes.clear();
    for (const planning::Strategy::SplitClass &split : splits) {
      std::vector<int> found =
          planning::findAnchor(decision.step.graph, classes, split.anchor);
      // Refined further by now: the major part that the axes divide.
      int64_t ways = 1;
      for (const std::string &axis : split.axes)
        ways *= decision.assignment.sizeOf(axis);
      for (int cls : found)
        if (classes.classes[cls].splittable &&
            classes.classes[cls].size % ways == 0) {
          decision.assignment.axes[cls] = split.axes;
          break;
        }
    }
  }
}

// Stages, recomputation and schedule. Ops that were decomposed since the search
// make it plan again, with the degrees given.
LogicalResult Planner::planStages(const planning::PlanCandidate &candidate) {
  planning::StageCostOptions costs;
  costs.cluster = options.cluster;
  costs.tp = decision.tp;
  costs.microbatches = decision.microbatches;
  costs.train = options.train;
  costs.statePerParameter = options.statePerParameter;
  costs.overlap = candidate.overlap;
  const planning::Graph &graph = decision.step.graph;
  planning::StageProblem problem = planning::makeStageProblem(
      graph, decision.assignment, decision.outcome, costs);
  planning::StageModel model(problem);
  planning::PipelineShape shape =
      planning::makePipelineShape(options.cluster, candidate.degrees,
                                  options.memoryBytes, options.reduction);
  decision.gradientBucket = static_cast<int64_t>(shape.reduce.bucketBytes);
  planning::PipelinePlan plan = candidate.plan;
  std::string tried = candidate.tried;
  if (decomposed) {
    planning::Way way = planning::ownWay(options.pinned);
    planning::Attempts attempts(way, false, options.pinned.stageBegins);
    attempts.add(model, shape, candidate.overlap);
    attempts.improve();
    if (!attempts.best())
      return emitAll(module, attempts.problems);
    plan = attempts.best()->plan;
    tried = attempts.str();
  }
  decision.stageOfOp.assign(graph.ops.size(), -1);
  decision.recompute.assign(graph.ops.size(), 0);
  std::vector<char> recompute = plan.recomputed(model);
  const std::vector<std::string> names = forwardNames(graph);
  std::vector<std::string> begins;
  size_t position = 0, stage = 0;
  for (auto [index, op] : llvm::enumerate(graph.ops)) {
    if (op.phase != planning::Phase::Forward)
      continue;
    if (static_cast<int>(position) == plan.begin[stage + 1]) {
      ++stage;
      begins.push_back(names[index]);
    }
    decision.stageOfOp[index] = static_cast<int>(stage);
    decision.recompute[index] = recompute[position++];
  }
  decision.strategy.stageBegins = begins;
  decision.chunks = plan.schedule.chunks;
  scheduleName = plan.schedule.name;
  if (options.pinned.lists)
    decision.schedule = options.pinned.lists;
  else if (scheduleName == "auto")
    decision.schedule = plan.schedule;
  decision.report += tried;
  decision.report += planning::describeStages(model, shape, plan);
  decision.considered.stages =
      consideredStages(model, plan, options.memoryBytes);
  return success();
}

// The layouts of tensor-parallel overlap where halves are of the samples: the
// batch over twice as many positions of "mb". What was planned for whole
// microbatches stays.
LogicalResult Planner::splitSamples() {
  if (decision.overlapLevel == 0 || halvesByAxis())
    return success();
  planning::Assignment halves;
  Status status = planning::assignBatch(
      decision.step.graph, classes, decision.step.batched,
      {{kMicrobatchAxis, 2 * decision.microbatches}, {kDataAxis, decision.dp}},
      halves);
  if (!status.ok())
    return emitAll(module, status);
  halves.mesh.push_back({kTensorAxis, decision.tp});
  for (const auto &[cls, axes] : decision.assignment.axes)
    if (llvm::is_contained(axes, kTensorAxis))
      halves.axes[cls].push_back(kTensorAxis);
  Result<planning::Outcome> outcome =
      planning::apply(decision.step.graph, classes, halves);
  if (!outcome.ok())
    return emitAll(module, outcome.status());
  decision.assignment = std::move(halves);
  decision.outcome = std::move(*outcome);
  return success();
}

// Where a microbatch has an odd number of samples, or they are needed together:
// an axis for its tokens or samples, by which the stages are priced, too.
LogicalResult Planner::splitByAxis() {
  if (!halvesByAxis())
    return success();
  const bool tokens = samples() % 2 != 0;
  Result<planning::Assignment> halves =
      tokens ? planning::splitTokens(decision.step.graph, classes,
                                     decision.assignment)
             : planning::splitBatch(decision.step.graph, classes,
                                    decision.step.batched, decision.assignment);
  if (!halves.ok())
    return emitAll(module, halves.status());
  Result<planning::Outcome> outcome =
      planning::apply(decision.step.graph, classes, *halves);
  if (!outcome.ok())
    return emitAll(module, outcome.status());
  decision.halfAxis = true;
  for (const auto &[cls, axes] : halves->axes)
    if (tokens && llvm::is_contained(axes, kHalfAxis)) {
      planning::ClassAnchor anchor =
          planning::anchorOf(decision.step.graph, classes, cls);
      decision.report += fmt::format(
          "tensor-parallel overlap {}: halves of {} tokens (dimension {} of "
          "'{}')\n",
          decision.overlapLevel, anchor.size / 2, anchor.dim, anchor.tensor);
    }
  decision.assignment = std::move(*halves);
  decision.outcome = std::move(*outcome);
  return success();
}

void Planner::finishStrategy() {
  planning::Strategy &strategy = decision.strategy;
  strategy.mesh = {{kPipelineAxis, decision.pp},
                   {kDataAxis, decision.dp},
                   {kTensorAxis, decision.tp}};
  strategy.globalBatch = options.globalBatch;
  strategy.microbatch = samples();
  strategy.schedule = options.pinned.schedule.value_or("auto");
  if (*strategy.schedule == "auto")
    strategy.schedule = scheduleName;
  strategy.lists = decision.schedule;
  if (decision.chunks > 1)
    strategy.chunks = decision.chunks;
  strategy.recompute = options.pinned.recompute.value_or("auto");
  strategy.tpOverlap = std::to_string(decision.overlapLevel);
}

FailureOr<Decision> Planner::run() {
  if (!step) {
    module.emitError("expected a function @step");
    return failure();
  }
  rebuild();
  if (failed(emitAll(module, decision.step.graph.check())) ||
      failed(
          emitAll(module, planning::checkRepeated(decision.step.graph, classes,
                                                  decision.step.batched,
                                                  decision.step.repeated))))
    return failure();
  FailureOr<planning::PlanCandidate> best = choose();
  if (failed(best))
    return failure();
  decision.report += fmt::format(
      "mesh pp={} dp={} tp={}, {} microbatches of {} samples\n", decision.pp,
      decision.dp, decision.tp, decision.microbatches, samples());
  if (decision.overlapLevel > 0 && samples() % 2 == 0)
    decision.report +=
        fmt::format("tensor-parallel overlap {}: halves of {} samples{}\n",
                    decision.overlapLevel, samples() / 2,
                    planning::joinsSamples(decision.step.graph)
                        ? ", joined for the statistics of their microbatch"
                        : "");
  std::string asked = options.pinned.tpOverlap.value_or("0");
  if (asked != "0" && asked != "auto" && decision.tp == 1)
    decision.report += "tensor-parallel overlap: nothing to hide, tp is 1\n";
  if (decision.tp > 1)
    decision.report += decision.sharding.str();
  if (failed(applyAssignment()) || failed(splitByAxis()) ||
      failed(planStages(*best)) || failed(splitSamples()))
    return failure();
  if (decision.gradientBucket > 0)
    decision.report +=
        fmt::format("gradients reduced over dp={} in buckets of {:.1f} KiB\n",
                    decision.dp, double(decision.gradientBucket) / 1024);
  finishStrategy();
  if (failed(emitAll(module, markRecompute(decision, options.pinned))))
    return failure();
  return std::move(decision);
}

FailureOr<Decision> merak::planStrategy(ModuleOp module,
                                        const PlannerOptions &options) {
  return Planner(module, options).run();
}
