// The search on the graph of the step function. Where what it chose splits the
// reduction of an op that cannot be done in parts, the op is written with ops
// that can, and the choice is planned again on the new graph.
#include "passes/Staging/Planner.h"

#include "dialects/Train/Builders.h"
#include "passes/Planning/ActionOps.h"
#include "passes/Planning/JoinPipelines.h"
#include "passes/Planning/ParetoPlans.h"
#include "passes/Planning/PartsSearch.h"
#include "passes/Planning/StageMeshes.h"
#include "passes/Planning/StageNames.h"
#include "passes/Planning/Submicrobatches.h"
#include "passes/Planning/TablePrices.h"
#include "passes/Staging/DecisionReport.h"
#include "passes/Staging/OwnMeshes.h"
#include "passes/Staging/PlainPlans.h"
#include "passes/Staging/Remarks.h"

#include <fmt/format.h>

#include <limits>
#include <memory>
#include <thread>

using namespace mlir;
using namespace merak;
using namespace merak::train;

static LogicalResult emitAll(Operation *op, const Status &status) {
  for (const std::string &message : status.messages())
    op->emitError(message);
  return failure(!status.ok());
}

// Holds back why there is no plan.
static LogicalResult isError(Diagnostic &reason) {
  return success(reason.getSeverity() == DiagnosticSeverity::Error);
}

namespace {

class Planner {
public:
  Planner(ModuleOp module, const PlannerOptions &options)
      : module(module), options(options), pinned(options.pinned),
        step(module.lookupSymbol<func::FuncOp>("step")) {}

  FailureOr<Decision> run();

private:
  void rebuild();
  LogicalResult check();
  LogicalResult checkStatistics();
  LogicalResult searchConverting();
  LogicalResult exploreBoth();
  void explore(planning::PlanSearch &of, SearchResult &result) const;
  void convert(bool once);
  void searchAnew();
  LogicalResult searchAll();
  LogicalResult searchUniform();
  void takePlain();
  OwnMeshes ownMeshes() {
    return {options, input, *search, found, report, times};
  }
  void standOn(const planning::Strategy &pipeline,
               planning::SearchInput &of) const;
  LogicalResult takeStages();
  LogicalResult takeShares(const planning::SharedPlan &taken);
  LogicalResult choose();
  void drawCurve(const std::vector<planning::PlanCandidate> &priced);
  void reportMesh();
  FailureOr<bool> decompose();
  LogicalResult decomposeOp(Operation *op);
  LogicalResult planAgain();
  LogicalResult decide();
  LogicalResult considerStages(planning::PlanSearch &of,
                               const planning::PlanCandidate &candidate,
                               const planning::PlanDecision &decided);
  LogicalResult decideOthers(const planning::Classes &of,
                             planning::PlanDecision &first);

  ModuleOp module;
  const PlannerOptions &options;
  planning::Strategy pinned; // by the user, or as shares that are taken
  func::FuncOp step;
  std::shared_ptr<SearchedGraph> current;
  planning::SearchInput input; // refers to it
  std::unique_ptr<planning::PlanSearch> search;
  bool wantsPlain = false; // by `search`
  std::unique_ptr<PlainPlans> plain;
  planning::PlanCandidate chosen;
  double sumSeconds = 0; // of chosen shares, see SharedPlan
  int mixed = 0;         // of what was chosen, before its classes were pinned
  SearchResult found;
  planning::SearchTimes times;     // of earlier searches
  planning::SearchReport sharding; // of the graph as it was first
  std::string report;
  report::Decisions considered;
  Decision decision;
};

} // namespace

// The graph as it is now, and a search on it.
void Planner::rebuild() {
  auto next = std::make_shared<SearchedGraph>();
  next->graph = buildPlanningGraph(step);
  next->classes = planning::unify(next->graph.graph);
  input.graph = &next->graph.graph;
  input.classes = &next->classes;
  input.batched = next->graph.batched;
  searchAnew();
  current = std::move(next);
}

void Planner::searchAnew() {
  if (search && wantsPlain) {
    wantsPlain = false;
    plain = std::make_unique<PlainPlans>();
    plain->findBeside(std::move(search), current);
  } else if (search) {
    times.add(search->times);
  }
  search = std::make_unique<planning::PlanSearch>(input);
}

// Statistics of a batch are those of a replica's samples: other replicas would
// make another model of a part of it.
LogicalResult Planner::checkStatistics() {
  if (!planning::joinsSamples(current->graph.graph))
    return success();
  const std::vector<planning::PipelineStages> &pipelines = pinned.pipelines;
  for (const planning::PipelineStages &pipeline : pipelines)
    for (const planning::PipelineStages::Stage &stage : pipeline.stages) {
      const planning::PipelineStages::Stage &first =
          pipelines.front().stages.front();
      if (stage.dp != first.dp)
        return module.emitError()
               << "the model takes statistics over the samples of a replica, "
                  "so "
                  "that all stages need one dp, found "
               << first.dp << " and " << stage.dp;
      // Summed over pipelines as they lie.
      if (pipelines.size() > 1 && stage.tp != first.tp)
        return module.emitError()
               << "the model takes statistics over the samples of a "
                  "microbatch, which stages of several pipelines sum as they "
                  "lie, so that all need one tp, found "
               << first.tp << " and " << stage.tp;
    }
  return success();
}

LogicalResult Planner::check() {
  if (failed(emitAll(module, current->graph.graph.check())))
    return failure();
  if (failed(checkStatistics()))
    return failure();
  return emitAll(module, planning::checkRepeated(
                             current->graph.graph, current->classes,
                             current->graph.batched, current->graph.repeated));
}

// How many of the plans found are reported.
constexpr size_t kReported = 4;

// Stages on meshes of their own: what is decided for all of them has one mesh,
// whose degrees theirs divide.
void Planner::standOn(const planning::Strategy &pipeline,
                      planning::SearchInput &of) const {
  of.machine = options.cluster;
  of.cluster = planning::commonMesh(options.cluster, pipeline.mesh);
  of.pinned = pipeline;
  of.pinned.tpOverlap = "0";
}

// With parameters kept in the type of their uses; without, if no such plan
// fits. Between memory and time lie plans of both.
LogicalResult Planner::searchConverting() {
  const std::string wish = input.pinned.castWeights.value_or("auto");
  if (!options.train || wish == "use" ||
      !planning::convertsAny(current->graph.graph))
    return searchAll();
  convert(/*once=*/true);
  if (wish == "step")
    return searchAll();
  if (options.explores > 0)
    return exploreBoth();
  {
    ScopedDiagnosticHandler held(module.getContext(), isError);
    if (succeeded(searchAll()))
      return success();
  }
  found = {};
  wantsPlain = false;
  report.clear();
  convert(/*once=*/false);
  return searchAll();
}

// Beside each other: what most of the time goes into is one mesh.
LogicalResult Planner::exploreBoth() {
  struct Half {
    std::unique_ptr<planning::PlanSearch> search;
    SearchResult found;
    std::vector<planning::PlanCandidate> known; // to the usual search
  };
  std::vector<Half> halves;
  for (bool once : {true, false}) {
    convert(once);
    ScopedDiagnosticHandler held(module.getContext(), isError);
    const LogicalResult uniform = searchUniform();
    SearchResult own = std::exchange(found, {});
    if (succeeded(uniform)) {
      times.add(std::exchange(search->times, {}));
      const std::vector<planning::PlanCandidate> known = own.finalists;
      halves.push_back({std::exchange(search, nullptr), std::move(own), known});
    }
  }
  if (halves.empty())
    return searchAll(); // which says why
  std::vector<std::thread> others;
  for (size_t i = 1; i < halves.size(); ++i)
    others.emplace_back(
        [&, i] { explore(*halves[i].search, halves[i].found); });
  explore(*halves[0].search, halves[0].found);
  for (std::thread &other : others)
    other.join();
  SearchResult all;
  wantsPlain = options.train;
  for (Half &half : halves) {
    input.convertOnce = half.found.finalists.front().convertOnce;
    search = std::move(half.search);
    found = std::move(half.found);
    drawCurve(found.finalists);
    if (options.parts)
      ownMeshes().searchStages();
    if (&half == &halves.front()) {
      takePlain(); // those of the first half stand for both
      all = std::move(found);
      continue;
    }
    all.finalists =
        planning::mergedPlans(all.finalists, found.finalists, options.explores);
    planning::addKnown(halves.front().known, all.finalists);
    all.parts.insert(all.parts.end(), found.parts.begin(), found.parts.end());
    all.priced += found.priced;
  }
  found = std::move(all);
  return success();
}

// All plans worth having, by those that a search took.
void Planner::explore(planning::PlanSearch &of, SearchResult &result) const {
  result.finalists = planning::paretoPlans(
      of, planning::ownPolicy(input.pinned), options.memoryBytes,
      result.finalists, options.explores);
  result.priced = of.evaluations();
}

// Parameters in the type of their uses, once a step or at each use.
void Planner::convert(bool once) {
  if (input.convertOnce == once && search)
    return;
  input.convertOnce = once;
  searchAnew();
}

// One mesh for all stages, then stages with meshes of their own, and replicas
// as pipelines of their own.
LogicalResult Planner::searchAll() {
  const auto searchMesh = [&] {
    const LogicalResult searched = searchUniform();
    if (succeeded(searched) && options.explores > 0) {
      explore(*search, found);
      drawCurve(found.finalists);
    }
    return searched;
  };
  if (!options.parts) {
    if (failed(searchMesh()))
      return failure();
    ownMeshes().searchShares();
    return success();
  }
  LogicalResult uniform = failure();
  std::vector<Diagnostic> reasons;
  {
    ScopedDiagnosticHandler held(module.getContext(), [&](Diagnostic &reason) {
      if (reason.getSeverity() != DiagnosticSeverity::Error)
        return failure();
      reasons.push_back(std::move(reason));
      return success();
    });
    uniform = searchMesh();
  }
  planning::Stopwatch watch(times.parts);
  if (succeeded(uniform)) {
    ownMeshes().searchBoth();
    return success();
  }
  ownMeshes().searchStages();
  if (found.parts.empty())
    for (Diagnostic &reason : reasons)
      module.getContext()->getDiagEngine().emit(std::move(reason));
  return success(!found.parts.empty());
}

// Shares were chosen: they are planned as if their file had been given.
LogicalResult Planner::takeShares(const planning::SharedPlan &taken) {
  pinned = planning::strategyOf(options.pinned, taken, options.globalBatch);
  sumSeconds = taken.sumSeconds;
  standOn(pinned.ofPipeline(0), input);
  rebuild();
  std::vector<planning::PlanCandidate> first =
      search->search(planning::ownPolicy(input.pinned));
  if (first.empty() || !first.front().problem.empty())
    return module.emitError(first.empty() ? "nothing to plan"
                                          : first.front().problem);
  if (!first.front().fits())
    return emitAll(module,
                   planning::explainMisfit(*search, input, first.front()));
  chosen = std::move(first.front());
  return success();
}

// What was chosen has meshes of its own: it is planned again as if its file had
// been given.
LogicalResult Planner::takeStages() {
  const planning::PlanCandidate taken = chosen;
  const planning::PipelinePlan &plan = taken.plan;
  planning::Strategy stands = input.pinned;
  stands.setPipelines({*taken.stages});
  standOn(stands, input);
  input.pinned.microbatch =
      options.globalBatch / (taken.degrees.dp * taken.degrees.microbatches);
  input.pinned.schedule = plan.schedule.name;
  if (plan.schedule.name == "auto")
    input.pinned.lists = plan.schedule;
  input.pinned.chunks = plan.schedule.chunks;
  input.pinned.recompute = taken.recompute;
  if (const std::vector<std::string> begins =
          planning::beginNames(current->graph.graph, plan.begin);
      !begins.empty())
    input.pinned.stageBegins = begins;
  rebuild();
  std::vector<planning::PlanCandidate> again =
      search->search(planning::ownPolicy(input.pinned));
  if (again.empty() || !again.front().problem.empty())
    return module.emitError(again.empty() ? "nothing to plan"
                                          : again.front().problem);
  chosen = std::move(again.front());
  chosen.stages = taken.stages;
  return success();
}

// The best mesh and what follows from it; everything considered is reported.
LogicalResult Planner::searchUniform() {
  Result<std::vector<planning::Degrees>> degrees = search->degrees();
  if (!degrees.ok())
    return emitAll(module, degrees.status());
  std::vector<planning::PlanCandidate> all =
      search->search(planning::ownPolicy(input.pinned));
  if (!all.front().problem.empty()) // the first mesh's reasons stand for all
    return module.emitError(all.front().problem);
  if (!all.front().fits())
    return emitAll(module,
                   planning::explainMisfit(*search, input, all.front()));
  found.finalists = takenOf(*search, input, all, options.explores == 0);
  if (options.explores > 0) {
    // Prices tell the best of several degrees apart less surely than one from
    // another limit: all that were planned in full are simulated.
    std::vector<planning::PlanCandidate> known = found.finalists;
    for (const planning::PlanCandidate &candidate : all)
      if (candidate.full && candidate.fits() &&
          llvm::none_of(known, [&](const planning::PlanCandidate &other) {
            return other.degrees == candidate.degrees;
          })) {
        known.push_back(candidate);
        known.back().others.clear();
      }
    found.finalists = std::move(known);
  } else {
    drawCurve(all);
  }
  found.priced = search->evaluations();
  all.resize(std::min(all.size(), kReported));
  found.candidates = std::move(all);
  wantsPlain = options.train;
  return success();
}

// The plain ways to train, which nothing but the report waits for.
void Planner::takePlain() {
  if (wantsPlain) {
    wantsPlain = false;
    plain = std::make_unique<PlainPlans>();
    plain->find(*search);
  }
  if (!plain)
    return;
  plain->wait();
  times.add(plain->times);
  llvm::append_range(found.candidates, plain->plain);
  llvm::append_range(found.drawn, plain->singleAxis);
  plain.reset();
}

// Points of the report's curve that no list has: what is worth having of all
// that was priced. The plain ways with one axis alone come after them.
void Planner::drawCurve(const std::vector<planning::PlanCandidate> &priced) {
  std::vector<planning::Cost> costs;
  std::vector<const planning::PlanCandidate *> fitting;
  for (const planning::PlanCandidate &candidate : priced)
    if (candidate.fits()) {
      costs.push_back(planning::costOf(candidate));
      fitting.push_back(&candidate);
    }
  for (size_t i : planning::undominated(costs)) {
    found.drawn.push_back(*fitting[i]);
    found.drawn.back().others.clear();
  }
}

LogicalResult Planner::choose() {
  if (options.found) {
    found = *options.found;
  } else if (failed(searchConverting())) {
    return failure();
  }
  chosen = found.plan(options.take);
  convert(chosen.convertOnce);
  const planning::SharedPlan *shared = found.sharedPlan(options.take);
  if (shared ? failed(takeShares(*shared))
             : chosen.stages && failed(takeStages()))
    return failure();
  Result<planning::Assignment> assignment =
      search->assign(chosen.degrees, chosen.techniques.context, sharding);
  if (!assignment.ok())
    return emitAll(module, assignment.status());
  reportMesh();
  return success();
}

void Planner::reportMesh() {
  const planning::Degrees &d = chosen.degrees;
  const int64_t samples = options.globalBatch / (d.dp * d.microbatches);
  // What was searched may have such stages too.
  const std::vector<planning::PipelineStages> &pipelines =
      pinned.pipelines.empty() ? input.pinned.pipelines : pinned.pipelines;
  for (auto [number, pipeline] : llvm::enumerate(pipelines)) {
    for (auto [index, stage] : llvm::enumerate(pipeline.stages))
      report += fmt::format(
          "{}stage {} on devices {}\n",
          pipelines.size() > 1 ? fmt::format("pipeline {}, ", number) : "",
          index, stage.str());
    if (!pipeline.spares.empty())
      report += fmt::format("spare devices {}\n", pipeline.sparesStr());
  }
  if (!pipelines.empty())
    report += "degrees of all stages divide those of\n";
  report += fmt::format("mesh pp={} dp={} tp={}, {} microbatches of {} "
                        "samples\n",
                        d.pp, d.dp, d.tp, d.microbatches, samples);
  if (chosen.techniques.overlap > 0 && samples % 2 == 0)
    report += fmt::format(
        "tensor-parallel overlap {}: submicrobatches of {} samples{}\n",
        chosen.techniques.overlap, samples / 2,
        planning::joinsSamples(current->graph.graph)
            ? ", joined for the statistics of their microbatch"
            : "");
  const std::string asked = options.pinned.tpOverlap.value_or("0");
  if (asked != "0" && asked != "auto" && d.tp == 1)
    report += "tensor-parallel overlap: nothing to hide, tp is 1\n";
  if (d.tp > 1)
    report += sharding.str();
}

LogicalResult Planner::decomposeOp(Operation *op) {
  auto decomposable = dyn_cast<DecomposableOpInterface>(op);
  if (!decomposable)
    return op->emitError("no decomposition is known for '")
           << op->getName() << "', whose reduction is split";
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
  return success();
}

// Replaces ops that have a split reduction they cannot do in parts. Returns
// whether the graph changed.
FailureOr<bool> Planner::decompose() {
  Result<const planning::SeamLayouts *> layouts =
      search->seamLayouts(chosen.degrees, chosen.techniques);
  if (!layouts.ok())
    return emitAll(module, layouts.status());
  Result<planning::Assignment> assignment =
      search->assign(chosen.degrees, chosen.techniques);
  if (!assignment.ok())
    return emitAll(module, assignment.status());
  Result<planning::Outcome> outcome =
      planning::apply(current->graph.graph, (*layouts)->classes(), *assignment);
  if (!outcome.ok())
    return emitAll(module, outcome.status());
  bool changed = false;
  for (auto [index, op] : llvm::enumerate(outcome->ops)) {
    if (!op.decompose)
      continue;
    if (failed(decomposeOp(current->graph.ops[index])))
      return failure();
    changed = true;
  }
  return changed;
}

// The degrees and classes that were chosen, on the new graph.
LogicalResult Planner::planAgain() {
  planning::SearchPolicy policy = planning::ownPolicy(input.pinned);
  policy.overlap = {chosen.techniques.overlap};
  policy.zero = {chosen.techniques.zero};
  policy.sequence = {chosen.techniques.sequence};
  policy.context = {chosen.techniques.context};
  policy.mixed = {0}; // seams and classes are the strategy's by now
  // Beside its best plan no others are worth their time. It takes about as long
  // as on the graph before.
  constexpr double kUnlimited = std::numeric_limits<double>::infinity();
  const auto planWithin = [&](double limit) {
    return search->plan(chosen.degrees, policy, /*quick=*/false, limit);
  };
  const bool asksForOthers = options.explores > 0;
  planning::PlanCandidate again = planWithin(
      asksForOthers   ? 0
      : chosen.fits() ? planning::kWorthKeeping * chosen.plan.cost.seconds
                      : kUnlimited);
  if (!asksForOthers && !again.fits())
    again = planWithin(kUnlimited);
  if (!again.problem.empty())
    return module.emitError(again.problem);
  again.decomposed = true;
  for (planning::PlanCandidate &other : again.others)
    other.decomposed = true;
  again.stages = chosen.stages;
  chosen = std::move(again);
  if (options.found || options.explores > 0 || chosen.stages)
    return success();
  // What else has these degrees was planned on the graph before.
  std::vector<planning::PlanCandidate> rest = chosen.others;
  llvm::copy_if(found.finalists, std::back_inserter(rest),
                [&](const planning::PlanCandidate &finalist) {
                  return !(finalist.degrees == chosen.degrees);
                });
  found.finalists = planning::finalists(rest, kFinalists - 1);
  found.finalists.insert(found.finalists.begin(), chosen);
  // Who takes one of them finds its layouts on the graph as it was.
  for (planning::PlanCandidate &finalist : found.finalists)
    if (finalist.decomposed && finalist.degrees == chosen.degrees)
      finalist.techniques.mixed = mixed;
  return success();
}

// For the report.
LogicalResult Planner::considerStages(planning::PlanSearch &of,
                                      const planning::PlanCandidate &candidate,
                                      const planning::PlanDecision &decided) {
  Result<const planning::PlanSearch::Sharding *> priced =
      of.sharding(candidate.degrees, candidate.techniques);
  if (!priced.ok())
    return emitAll(module, priced.status());
  for (report::StageDecision &stage :
       consideredStages(*(*priced)->model,
                        of.shapeOf(candidate.degrees, candidate.techniques),
                        decided.plan, options.memoryBytes))
    considered.stages.push_back(std::move(stage));
  return success();
}

// The other pipelines, on the same graph and with the layouts of the first.
LogicalResult Planner::decideOthers(const planning::Classes &of,
                                    planning::PlanDecision &first) {
  std::vector<planning::PlanDecision> all;
  planning::Strategy open = pinned;
  open.classes = first.strategy.classes;
  open.parameters.clear();
  open.castWeights = first.strategy.castWeights;
  all.push_back(std::move(first));
  struct Searched {
    std::unique_ptr<planning::PlanSearch> search;
    std::vector<planning::PlanCandidate> found;
  };
  std::map<size_t, Searched> searched; // by the first of those that are alike
  for (size_t i = 1; i < pinned.pipelines.size(); ++i) {
    planning::SearchInput own = input;
    standOn(open.ofPipeline(i), own);
    size_t like = 1;
    while (like < i &&
           (pinned.lists || !searched.contains(like) ||
            !planning::areAlike(pinned.pipelines[like], pinned.pipelines[i],
                                options.cluster)))
      ++like;
    auto [known, isNew] = searched.try_emplace(like);
    if (isNew) {
      known->second.search = std::make_unique<planning::PlanSearch>(own);
      known->second.found =
          known->second.search->search(planning::ownPolicy(own.pinned));
      times.add(known->second.search->times);
    }
    planning::PlanSearch &ofPipeline = *known->second.search;
    const std::vector<planning::PlanCandidate> &found = known->second.found;
    const auto fail = [&](const Status &status) {
      for (const std::string &message : status.messages())
        module.emitError() << "pipeline " << i << ": " << message;
      return failure();
    };
    if (found.empty() || !found.front().problem.empty())
      return fail(Status::error(found.empty() ? "nothing to plan"
                                              : found.front().problem));
    if (!found.front().fits())
      return fail(planning::explainMisfit(ofPipeline, own, found.front()));
    Result<planning::PlanDecision> decided =
        planning::decide(ofPipeline, own, found.front());
    if (!decided.ok())
      return fail(decided.status());
    if (failed(considerStages(ofPipeline, found.front(), *decided)))
      return failure();
    all.push_back(std::move(*decided));
  }
  // The pipelines train beside each other.
  planning::PipelineCost &cost = chosen.plan.cost;
  for (const planning::PlanDecision &one : all) {
    const planning::PipelineCost &other = one.plan.cost;
    if (other.seconds > cost.seconds)
      cost = other;
  }
  cost.seconds += sumSeconds;
  Result<planning::PlanDecision> decided =
      planning::joinPipelines(current->graph.graph, of, pinned, std::move(all));
  if (!decided.ok())
    return emitAll(module, decided.status());
  first = std::move(*decided);
  if (sumSeconds > 0)
    first.plan.cost.seconds = cost.seconds;
  // Gradients go over pipelines even where each has one replica.
  std::vector<int64_t> holders;
  for (const planning::PipelineStages &pipeline : pinned.pipelines)
    holders.push_back(pipeline.stages.front().devices.front());
  if (!input.reduction.bucketBytes)
    first.gradientBucket =
        std::max(first.gradientBucket,
                 static_cast<int64_t>(planning::worthJoining([&](double bytes) {
                   return costmodel::collectiveSeconds(
                       costmodel::Collective::AllReduce, bytes, holders,
                       options.cluster, 1);
                 })));
  return success();
}

LogicalResult Planner::decide() {
  takePlain();
  Result<planning::PlanDecision> decided =
      planning::decide(*search, input, chosen);
  if (!decided.ok())
    return emitAll(module, decided.status());
  if (failed(considerStages(*search, chosen, *decided)))
    return failure();
  if (pinned.pipelines.size() > 1) {
    Result<const planning::SeamLayouts *> layouts =
        search->seamLayouts(chosen.degrees, chosen.techniques);
    if (!layouts.ok())
      return emitAll(module, layouts.status());
    if (failed(decideOthers((*layouts)->classes(), *decided)))
      return failure();
  }
  static_cast<planning::PlanDecision &>(decision) = std::move(*decided);
  // Of the graph as it is now: a decomposed op takes another time.
  std::vector<planning::PlanCandidate> candidates{chosen};
  llvm::copy_if(found.candidates, std::back_inserter(candidates),
                [&](const planning::PlanCandidate &other) {
                  return !other.policy.empty() ||
                         !(other.degrees == chosen.degrees);
                });
  considered.candidates = consideredCandidates(candidates, options.globalBatch);
  considerDrawn(found.drawn, options.globalBatch, considered.candidates);
  decision.tables =
      planning::describeTables(current->graph.graph, decision, options.cluster);
  for (const std::string &line : decision.tables)
    report += line + "\n";
  decision.report = planning::describe(candidates, options.memoryBytes) +
                    report + decision.report;
  decision.sharding = std::move(sharding);
  decision.considered = std::move(considered);
  decision.found = std::move(found);
  times.add(search->times);
  decision.times = times;
  decision.step = std::move(current->graph);
  remarkDecision(module, decision);
  return success();
}

FailureOr<Decision> Planner::run() {
  if (!step)
    return module.emitError("expected a function @step");
  input.cluster = options.cluster;
  input.pinned = options.pinned;
  input.globalBatch = options.globalBatch;
  input.train = options.train;
  input.statePerParameter = options.statePerParameter;
  input.updateKernel = options.updateKernel;
  input.updateTraffic = options.updateTraffic;
  input.memoryBytes = options.memoryBytes;
  input.reduction = options.reduction;
  if (!options.pinned.pipelines.empty())
    standOn(options.pinned.ofPipeline(0), input);
  rebuild();
  if (input.pinned.pipelines.empty() && !input.cluster.kindOf.empty()) {
    input.cluster = planning::onFastestKind(input);
    input.machine = options.cluster;
    rebuild();
  }
  if (failed(check()) || failed(choose()))
    return failure();
  bool changed = false;
  while (true) {
    std::vector<planning::Strategy::SplitClass> splits =
        search->classesOf(chosen.degrees, chosen.techniques);
    std::vector<planning::Strategy::SeamUse> seams =
        search->seamsOf(chosen.degrees, chosen.techniques);
    planning::PlanSearch::AxisParts parts =
        search->partsNamed(chosen.degrees, chosen.techniques);
    FailureOr<bool> decomposed = decompose();
    if (failed(decomposed))
      return failure();
    if (!*decomposed)
      break;
    changed = true;
    input.pinned.classes = std::move(splits);
    input.pinned.seams = std::move(seams);
    input.pinned.parts = std::move(parts);
    if (chosen.techniques.mixed > 0)
      mixed = chosen.techniques.mixed;
    chosen.techniques.mixed = 0;
    rebuild();
  }
  if ((changed && !chosen.decomposed && failed(planAgain())) ||
      failed(decide()))
    return failure();
  return std::move(decision);
}

FailureOr<Decision> merak::planStrategy(ModuleOp module,
                                        const PlannerOptions &options) {
  return Planner(module, options).run();
}
