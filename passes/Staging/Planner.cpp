#include "passes/Staging/Planner.h"

#include "dialects/Train/Builders.h"
#include "passes/CostModel/Cost.h"
#include "passes/Staging/MarkRecompute.h"
#include <fmt/format.h>
#include <numeric>

using namespace mlir;
using namespace merak;
using namespace merak::train;

static LogicalResult report(Operation *op, const Status &status) {
  for (const std::string &message : status.messages())
    op->emitError(message);
  return failure(!status.ok());
}

namespace {

struct Degrees {
  int64_t pp = 1, dp = 1, tp = 1, microbatches = 1;
};

// One choice of degrees and what it gives.
struct Candidate {
  Degrees degrees;
  planning::Assignment assignment;
  planning::SearchReport sharding;
  planning::PartitionCost cost;
  double seconds = 0;
};

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
  FailureOr<std::vector<Degrees>> enumerateDegrees();
  Status checkDegrees(const Degrees &degrees);
  int64_t chooseMicrobatches(int64_t pp, int64_t dp);
  Result<Candidate> evaluate(const Degrees &degrees);
  Status assignPinned(planning::Assignment &assignment);
  FailureOr<bool> decompose(const planning::Outcome &outcome);
  LogicalResult applyAssignment();
  LogicalResult cut();
  void finishStrategy();
  void describe(const std::vector<Candidate> &considered);

  ModuleOp module;
  const PlannerOptions &options;
  func::FuncOp step;
  planning::Classes classes;
  Decision decision;
};

} // namespace

Status Planner::checkDegrees(const Degrees &d) {
  Status status;
  if (options.globalBatch % (d.dp * d.microbatches) != 0)
    status.merge(Status::error(fmt::format(
        "global batch {} does not divide into {} replicas x {} microbatches",
        options.globalBatch, d.dp, d.microbatches)));
  return status;
}

// Pipelines want several microbatches a stage: the largest number up to twice
// the stages that divides the samples of a replica.
int64_t Planner::chooseMicrobatches(int64_t pp, int64_t dp) {
  int64_t samples = options.globalBatch / dp;
  if (pp == 1)
    return 1;
  for (int64_t m = std::min(2 * pp, samples); m > 1; --m)
    if (samples % m == 0)
      return m;
  return 1;
}

// All meshes of the cluster's size that agree with the pinned degrees.
FailureOr<std::vector<Degrees>> Planner::enumerateDegrees() {
  int64_t devices = options.cluster.count;
  auto pinned = [&](const char *axis) -> int64_t {
    auto it = options.pinned.mesh.find(axis);
    return it == options.pinned.mesh.end() ? 0 : it->second;
  };
  int64_t product = 1;
  for (const char *axis : {"pp", "dp", "tp"})
    product *= std::max<int64_t>(1, pinned(axis));
  bool allPinned = pinned("pp") && pinned("dp") && pinned("tp");
  if (devices % product != 0 || (allPinned && product != devices)) {
    module.emitError(fmt::format(
        "mesh needs {} ranks, which does not fit the {} of the cluster",
        product, devices));
    return failure();
  }
  std::vector<Degrees> all;
  Status problems;
  for (int64_t pp = 1; pp <= devices; ++pp)
    for (int64_t tp = 1; tp <= devices / pp; ++tp) {
      if (devices % (pp * tp) != 0)
        continue;
      Degrees d{pp, devices / (pp * tp), tp, 1};
      auto agrees = [&](const char *axis, int64_t degree) {
        return pinned(axis) == 0 || pinned(axis) == degree;
      };
      if (!agrees("pp", d.pp) || !agrees("dp", d.dp) || !agrees("tp", d.tp))
        continue;
      if (options.globalBatch % d.dp != 0) {
        problems.merge(Status::error(
            fmt::format("global batch {} does not divide over dp={}",
                        options.globalBatch, d.dp)));
        continue;
      }
      int64_t samples = options.globalBatch / d.dp;
      if (options.pinned.microbatch) {
        if (samples % *options.pinned.microbatch != 0) {
          problems.merge(Status::error(fmt::format(
              "microbatch {} does not divide the {} samples of a replica "
              "(global batch {}, dp={})",
              *options.pinned.microbatch, samples, options.globalBatch, d.dp)));
          continue;
        }
        d.microbatches = samples / *options.pinned.microbatch;
      } else {
        d.microbatches = chooseMicrobatches(d.pp, d.dp);
      }
      all.push_back(d);
    }
  if (all.empty())
    return report(module, problems), failure();
  return all;
}

// Classes that a strategy file names.
Status Planner::assignPinned(planning::Assignment &assignment) {
  Status status;
  for (const planning::Strategy::SplitClass &split : options.pinned.classes) {
    std::vector<int> found =
        planning::findAnchor(decision.step.graph, classes, split.anchor);
    if (found.empty()) {
      status.merge(Status::error(fmt::format(
          "strategy splits dimension {} of '{}', which the model lacks",
          split.anchor.dim, split.anchor.tensor)));
      continue;
    }
    for (const std::string &axis : split.axes)
      if (axis != "mb" && axis != "dp")
        assignment.axes[found.front()].push_back(axis);
  }
  return status;
}

Result<Candidate> Planner::evaluate(const Degrees &d) {
  Candidate candidate;
  candidate.degrees = d;
  const planning::Graph &graph = decision.step.graph;
  MERAK_RETURN_IF_ERROR(planning::assignBatch(
      graph, classes, decision.step.batched,
      {{planning::kMicrobatchAxis, d.microbatches}, {"dp", d.dp}},
      candidate.assignment));
  candidate.assignment.mesh.push_back({"tp", d.tp});
  if (d.tp > 1 && !options.pinned.classes.empty()) {
    MERAK_RETURN_IF_ERROR(assignPinned(candidate.assignment));
  } else if (d.tp > 1) {
    planning::SearchOptions search;
    search.axis = "tp";
    search.size = d.tp;
    for (const auto &[name, axes] : options.pinned.parameters)
      for (size_t dim = 0; dim < axes.dims.size(); ++dim) {
        bool split = llvm::is_contained(axes.dims[dim], "tp");
        search.pins.push_back({name, static_cast<int>(dim), split ? "tp" : ""});
      }
    Result<planning::SearchResult> found = planning::searchTensorParallel(
        graph, classes, candidate.assignment, search);
    if (!found.ok())
      return found.status();
    candidate.assignment = found->assignment;
    candidate.sharding = found->report;
  }
  Result<planning::Outcome> outcome =
      planning::apply(graph, classes, candidate.assignment);
  if (!outcome.ok())
    return outcome.status();
  candidate.cost = planning::costOf(graph, classes, candidate.assignment);
  const costmodel::Device &device = options.cluster.device();
  double compute = device.flops() > 0 ? candidate.cost.contractionFlops /
                                            device.flops() / double(d.pp)
                                      : 0;
  double bubble = 1 + double(d.pp - 1) / double(d.microbatches);
  double communication = options.cluster.intra.bandwidth > 0
                             ? candidate.cost.communicatedBytes /
                                   options.cluster.intra.bandwidth /
                                   double(d.pp)
                             : 0;
  candidate.seconds = compute * bubble + communication;
  return candidate;
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
      return report(module, outcome.status());
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

// Cuts the forward ops; each carries the time of its gradients.
LogicalResult Planner::cut() {
  const planning::Graph &graph = decision.step.graph;
  decision.stageOfOp.assign(graph.ops.size(), -1);
  planning::CutProblem problem;
  problem.stages = static_cast<int>(decision.pp);
  problem.secondsPerByte = 1 / std::max(1.0, options.cluster.inter.bandwidth);
  // Ops without a gradient cost every stage a forward pass at most. Without
  // training nothing has a gradient, and all ops would be everywhere.
  problem.duplicateSeconds = options.train ? 1e30 : 0;
  const costmodel::Device &device = options.cluster.device();
  double share = 1 / (double(decision.dp) * double(decision.microbatches));
  std::map<int64_t, int> cutOpOfId;
  std::vector<int> graphOpOf;
  // Values with a gradient: floats that depend on a parameter.
  std::vector<char> hasGradient(graph.tensors.size(), 0);
  for (size_t t = 0; t < graph.tensors.size(); ++t)
    hasGradient[t] = graph.tensors[t].parameter;
  for (auto [index, op] : llvm::enumerate(graph.ops)) {
    bool depends =
        llvm::any_of(op.operands, [&](int t) { return hasGradient[t] != 0; });
    for (auto [result, value] :
         llvm::zip(op.results, decision.step.ops[index]->getResults()))
      hasGradient[result] =
          depends && isa<FloatType>(tensorTypeOf(value).getElementType());
  }
  auto seconds = [&](size_t index) {
    return costmodel::opSeconds(device,
                                decision.outcome.ops[index].localFlops /
                                    double(decision.microbatches),
                                graph.ops[index].bytes * share);
  };
  for (auto [index, op] : llvm::enumerate(graph.ops)) {
    if (op.phase != planning::Phase::Forward)
      continue;
    planning::CutOp cutOp;
    cutOp.name = op.name;
    cutOp.seconds = seconds(index);
    cutOp.operands = op.operands;
    cutOp.results = op.results;
    if (auto id = decision.step.ops[index]->getAttrOfType<IntegerAttr>(kIdAttr))
      cutOpOfId.try_emplace(id.getInt(), static_cast<int>(problem.ops.size()));
    graphOpOf.push_back(static_cast<int>(index));
    problem.ops.push_back(std::move(cutOp));
  }
  for (auto [index, op] : llvm::enumerate(graph.ops))
    if (op.phase == planning::Phase::Backward)
      if (auto of =
              decision.step.ops[index]->getAttrOfType<IntegerAttr>(kOfAttr))
        if (auto it = cutOpOfId.find(of.getInt()); it != cutOpOfId.end())
          problem.ops[it->second].seconds += seconds(index);
  for (const planning::GraphTensor &tensor : graph.tensors) {
    planning::CutTensor cutTensor;
    cutTensor.name = tensor.name;
    cutTensor.bytes = double(tensor.bytes()) * share;
    cutTensor.gradientBytes =
        options.train && hasGradient[&tensor - graph.tensors.data()]
            ? cutTensor.bytes
            : 0;
    cutTensor.available = tensor.input || tensor.parameter || tensor.constant;
    problem.tensors.push_back(std::move(cutTensor));
  }
  if (options.pinned.stageBegins)
    problem.begins = *options.pinned.stageBegins;
  Result<planning::StageCut> cut = planning::cutStages(problem);
  if (!cut.ok())
    return report(module, cut.status());
  std::vector<std::string> begins;
  for (int s = 0; s < problem.stages; ++s) {
    if (s > 0 && cut->begin[s] < static_cast<int>(problem.ops.size()))
      begins.push_back(problem.ops[cut->begin[s]].name);
    for (int i = cut->begin[s]; i < cut->begin[s + 1]; ++i)
      decision.stageOfOp[graphOpOf[i]] = s;
  }
  decision.strategy.stageBegins = begins;
  decision.stageSeconds = cut->seconds;
  decision.report += cut->str(problem);
  return success();
}

void Planner::finishStrategy() {
  planning::Strategy &strategy = decision.strategy;
  strategy.mesh = {
      {"pp", decision.pp}, {"dp", decision.dp}, {"tp", decision.tp}};
  strategy.globalBatch = options.globalBatch;
  strategy.microbatch =
      options.globalBatch / (decision.dp * decision.microbatches);
  strategy.schedule = options.pinned.schedule.value_or("1f1b");
  if (*strategy.schedule == "auto")
    strategy.schedule = "1f1b";
  strategy.recompute = options.pinned.recompute.value_or("auto");
}

void Planner::describe(const std::vector<Candidate> &considered) {
  std::string &text = decision.report;
  for (const Candidate &c : considered)
    text += fmt::format("candidate pp={} dp={} tp={} microbatches={}: "
                        "{:.3g} s predicted, {:.0f} bytes sent a rank\n",
                        c.degrees.pp, c.degrees.dp, c.degrees.tp,
                        c.degrees.microbatches, c.seconds,
                        c.cost.communicatedBytes);
  text +=
      fmt::format("mesh pp={} dp={} tp={}, {} microbatches of {} samples\n",
                  decision.pp, decision.dp, decision.tp, decision.microbatches,
                  options.globalBatch / (decision.dp * decision.microbatches));
  if (decision.tp > 1)
    text += decision.sharding.str();
}

FailureOr<Decision> Planner::run() {
  if (!step) {
    module.emitError("expected a function @step");
    return failure();
  }
  rebuild();
  if (failed(report(module, decision.step.graph.check())))
    return failure();
  FailureOr<std::vector<Degrees>> degrees = enumerateDegrees();
  if (failed(degrees))
    return failure();
  std::vector<Candidate> candidates;
  Status problems;
  for (const Degrees &d : *degrees) {
    Result<Candidate> candidate = evaluate(d);
    if (candidate.ok())
      candidates.push_back(std::move(*candidate));
    else
      problems.merge(candidate.status());
  }
  if (candidates.empty())
    return report(module, problems), failure();
  const Candidate *best = &candidates.front();
  for (const Candidate &candidate : candidates)
    if (candidate.seconds < best->seconds)
      best = &candidate;
  decision.pp = best->degrees.pp;
  decision.dp = best->degrees.dp;
  decision.tp = best->degrees.tp;
  decision.microbatches = best->degrees.microbatches;
  decision.assignment = best->assignment;
  decision.sharding = best->sharding;
  describe(candidates);
  if (failed(applyAssignment()) || failed(cut()))
    return failure();
  finishStrategy();
  if (failed(report(module, markRecompute(decision, options.pinned))))
    return failure();
  return std::move(decision);
}

FailureOr<Decision> merak::planStrategy(ModuleOp module,
                                        const PlannerOptions &options) {
  return Planner(module, options).run();
}
