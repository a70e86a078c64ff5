// The stage phase: reads what the user pinned, decides the rest, cuts the step
// into stage programs and notes on the module what later phases ask for.
#include "compiler/Pipeline/Phases.h"
#include "compiler/Pipeline/Registration.h"
#include "dialects/Dist/StageMesh.h"
#include "dialects/Pipe/PipeDialect.h"
#include "dialects/Train/TrainDialect.h"
#include "onnx/Import/Importer.h"
#include "passes/Planning/PartsSearch.h"
#include "passes/Planning/PipelineShares.h"
#include "passes/Planning/StageMeshes.h"
#include "passes/Staging/CutStages.h"
#include "support/ReadFile.h"

#include <fmt/format.h>

using namespace mlir;
using namespace merak;

static LogicalResult readText(const std::string &path, std::string &text) {
  return success(readFile(path, text).empty());
}

namespace {

struct PlanStages : PassWrapper<PlanStages, OperationPass<ModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(PlanStages)

  PlanStages(const CompilerOptions &options, PhaseNotes *notes,
             const Replanning &again)
      : options(options), notes(notes), again(again) {
    if (again.devices)
      this->options.devices = again.devices;
  }

  StringRef getArgument() const override { return "plan-stages"; }
  StringRef getDescription() const override {
    return "decide what the options leave open and cut the step into stages";
  }
  void getDependentDialects(DialectRegistry &registry) const override {
    registerAllDialects(registry);
  }

  void runOnOperation() override {
    if (failed(run()))
      signalPassFailure();
  }

private:
  LogicalResult run();
  LogicalResult fail(const std::string &message) {
    return emitError(UnknownLoc::get(&getContext()), message);
  }
  LogicalResult fail(const Status &status) {
    for (const std::string &message : status.messages())
      (void)fail(message);
    return failure();
  }
  FailureOr<costmodel::Cluster> cluster();
  LogicalResult slowDown(costmodel::Cluster &cluster);
  FailureOr<planning::Schedule> readSchedule(const std::string &path);
  LogicalResult pin(planning::Strategy &pinned);
  bool hasRowSparseGradients();
  LogicalResult fitPipelines(PlannerOptions &planner);
  Status fitSeveral(const planning::Strategy &pinned, int64_t microbatches);
  FailureOr<bool> searchesParts(const PlannerOptions &planner);
  bool searchesShares(const PlannerOptions &planner) const;
  void note(const Decision &decision, const PlannerOptions &planner,
            const Optimizer &optimizer);

  CompilerOptions options;
  PhaseNotes *notes;
  Replanning again;
  std::optional<planning::Strategy> noted; // decisions that the model brings
  costmodel::Cluster machine;              // what the plan is for
};

} // namespace

// The first devices of a larger cluster.
static void takeFirst(costmodel::Cluster &cluster, int64_t wanted) {
  cluster.count = wanted;
  cluster.perNode = std::min(cluster.perNode, wanted);
  for (auto *entries : {&cluster.kindOf, &cluster.nodeOf})
    entries->resize(std::min<size_t>(entries->size(), wanted));
  cluster.rateOf.resize(std::min<size_t>(cluster.rateOf.size(), wanted));
}

// What the cluster's file says of a device's speed is that of a healthy one.
LogicalResult PlanStages::slowDown(costmodel::Cluster &cluster) {
  LogicalResult result = success();
  for (const auto &[device, rate] : options.forRates) {
    if (device >= cluster.count) {
      result = fail(fmt::format("--for-rates: there is no device {} of {}",
                                device, cluster.count));
      continue;
    }
    cluster.rateOf.resize(size_t(cluster.count), 1);
    cluster.rateOf[size_t(device)] /= rate;
  }
  return result;
}

// The machine to compile for.
FailureOr<costmodel::Cluster> PlanStages::cluster() {
  int64_t meshSize = 1;
  std::map<std::string, int64_t> mesh;
  if (noted && options.strategy.empty())
    mesh = noted->mesh;
  for (const auto &[axis, degree] : options.mesh)
    mesh[axis] = degree;
  for (const auto &[axis, degree] : mesh)
    meshSize *= degree;
  if (options.cluster.empty())
    return costmodel::defaultCluster(options.devices.value_or(meshSize));
  Result<costmodel::Cluster> cluster = costmodel::readCluster(options.cluster);
  // --devices takes the first ones of a larger cluster.
  int64_t wanted = options.devices.value_or(cluster.ok() ? cluster->count : 0);
  if (cluster.ok() && wanted > cluster->count)
    return fail(fmt::format("--devices: {} has {} devices, not {}",
                            options.cluster, cluster->count, wanted));
  if (cluster.ok()) {
    takeFirst(*cluster, wanted);
    return *cluster;
  }
  return fail(cluster.status());
}

FailureOr<planning::Schedule>
PlanStages::readSchedule(const std::string &path) {
  std::string text;
  if (failed(readText(path, text)))
    return fail("cannot read schedule '" + path + "'");
  Result<planning::Schedule> parsed = planning::parseSchedule(text, path);
  if (parsed.ok())
    return *parsed;
  return fail(parsed.status());
}

// What is decided already: by --strategy or the model, then by single options.
LogicalResult PlanStages::pin(planning::Strategy &pinned) {
  if (again.picked) {
    pinned = *again.picked;
    return success();
  }
  if (!options.strategy.empty()) {
    std::string text;
    if (failed(readText(options.strategy, text)))
      return fail("cannot read strategy '" + options.strategy + "'");
    Result<planning::Strategy> strategy =
        planning::Strategy::parse(text, options.strategy);
    if (!strategy.ok())
      return fail(strategy.status());
    pinned = *strategy;
  } else if (noted) {
    pinned = *noted;
  }
  for (const auto &[axis, degree] : options.mesh)
    pinned.mesh[axis] = degree;
  if (options.microbatch)
    pinned.microbatch = options.microbatch;
  if (options.schedule != "auto" || !pinned.schedule) {
    pinned.schedule = options.schedule;
    pinned.lists.reset();
  }
  if (options.recompute != "auto" || !pinned.recompute) {
    pinned.recompute = options.recompute;
    pinned.recomputeOps.reset();
  }
  if (!pinned.lists && StringRef(*pinned.schedule).ends_with(".json")) {
    FailureOr<planning::Schedule> file = readSchedule(*pinned.schedule);
    if (failed(file))
      return failure();
    pinned.lists = *file;
    pinned.lists->name = *pinned.schedule;
  }
  // A schedule of chunks asks for as many parts.
  if (pinned.lists)
    pinned.chunks = pinned.lists->chunks;
  else if (options.chunks)
    pinned.chunks = options.chunks;
  if (!options.tpOverlap.empty())
    pinned.tpOverlap = options.tpOverlap;
  else if (!pinned.tpOverlap && !options.cluster.empty())
    pinned.tpOverlap = "auto"; // its links say what is worth it
  const int64_t any = planning::Strategy::kAuto;
  if (!options.zero.empty())
    pinned.zero = options.zero == "auto" ? any : options.zero[0] - '0';
  if (!options.sequence.empty())
    pinned.sequence =
        options.sequence == "auto" ? any : options.sequence == "on";
  if (!options.context.empty())
    pinned.context = options.context == "auto" ? any : options.context == "on";
  if (options.mixed == "auto" ||
      (options.mixed.empty() && pinned.pipelines.empty() &&
       hasRowSparseGradients()))
    pinned.mixed = any;
  if (!options.castWeights.empty())
    pinned.castWeights = options.castWeights;
  if (!options.reshard.empty())
    pinned.reshard = options.reshard;
  if (again.degrees) {
    pinned.mesh = again.degrees->mesh;
    pinned.microbatch = again.degrees->microbatch;
  }
  return success();
}

// Whether they are gathered, or split by columns or rows, is layouts.
bool PlanStages::hasRowSparseGradients() {
  bool found = false;
  getOperation().walk(
      [&](train::UpdateOp update) { found |= bool(update.getIds()); });
  return found;
}

// What pipelines that share a step's microbatches cannot.
Status PlanStages::fitSeveral(const planning::Strategy &pinned,
                              int64_t microbatches) {
  Status status;
  auto refuse = [&](bool wrong, const std::string &message) {
    if (wrong)
      status.merge(Status::error(message));
  };
  if (pinned.lists)
    refuse(pinned.lists->stages != pinned.mesh.at(kPipelineAxis) ||
               pinned.lists->microbatches != microbatches,
           fmt::format("the lists of the schedule are for {} stages and {} "
                       "microbatches, the pipelines have {} and {}",
                       pinned.lists->stages, pinned.lists->microbatches,
                       pinned.mesh.at(kPipelineAxis), microbatches));
  return status;
}

// Stages on meshes of their own.
LogicalResult PlanStages::fitPipelines(PlannerOptions &planner) {
  planning::Strategy &pinned = planner.pinned;
  if (pinned.pipelines.empty())
    return success();
  const planning::PipelineStages pipeline = planning::joined(pinned.pipelines);
  const bool several = pinned.pipelines.size() > 1;
  const int64_t devices = pipeline.devices() + int64_t(pipeline.spares.size());
  Status status;
  auto refuse = [&](bool wrong, const std::string &message) {
    if (wrong)
      status.merge(Status::error(message));
  };
  refuse(options.devices && !again.devices && *options.devices != devices,
         fmt::format("--devices is {}, the stages of the strategy have {}",
                     options.devices.value_or(0), devices));
  refuse(!options.cluster.empty() && planner.cluster.count < devices,
         fmt::format("{} has {} devices, the stages of the strategy {}",
                     options.cluster, planner.cluster.count, devices));
  refuse(!options.mesh.empty(),
         "--mesh cannot stand beside the stages of the strategy, which have "
         "meshes of their own");
  refuse(
      options.microbatch.has_value(),
      "--microbatch cannot stand beside the stages of the strategy: replicas "
      "of different stages have different samples; give 'microbatches'");
  const int64_t dp = pinned.mesh[kDataAxis];
  const int64_t microbatches = pipeline.microbatches.value_or(1); // of a step
  const bool fits = planner.globalBatch % (microbatches * dp) == 0;
  refuse(!fits,
         fmt::format("the global batch of {} is no multiple of {} "
                     "microbatch{} x {}, the least common multiple of the "
                     "stages' dp",
                     planner.globalBatch, microbatches,
                     microbatches == 1 ? "" : "es", dp));
  if (fits && pipeline.microbatches)
    pinned.microbatch = planner.globalBatch / (microbatches * dp);
  const bool uniform = !several && pipeline.isUniform();
  auto alone = [&](bool asked, const char *what) {
    refuse(asked && !uniform,
           fmt::format("stages on meshes of their own are not made with {} yet",
                       what));
  };
  alone(pinned.zero && *pinned.zero != 0, "parameters stored in parts (zero)");
  alone(!pinned.stored.empty(), "stored parameters");
  alone(!pinned.seams.empty(), "seams");
  alone(pinned.sequence && *pinned.sequence != 0, "sequence parallelism");
  alone(pinned.context && *pinned.context != 0, "context parallelism");
  alone(pinned.mixed && *pinned.mixed != 0, "mixed layouts");
  alone(pinned.tpOverlap && *pinned.tpOverlap != "0" &&
            *pinned.tpOverlap != "auto",
        "tensor-parallel overlap");
  if (several)
    status.merge(fitSeveral(pinned, microbatches));
  if (!status.ok())
    return fail(status);
  if (options.cluster.empty())
    planner.cluster = costmodel::defaultCluster(devices);
  else
    takeFirst(planner.cluster, devices);
  if (uniform)
    pinned.pipelines.clear();
  else if (pinned.tpOverlap)
    pinned.tpOverlap = "0"; // "auto" is what a cluster asks for
  return success();
}

// Asked for, whatever a search would take.
static bool isOn(const std::optional<int64_t> &level) {
  return level && *level != 0 && *level != planning::Strategy::kAuto;
}

// Where nothing that is asked for says otherwise: if the devices differ, or
// their number is no power of two; of others one mesh is hardly beaten.
FailureOr<bool> PlanStages::searchesParts(const PlannerOptions &planner) {
  if (again.picked)
    return false;
  const planning::Strategy &pinned = planner.pinned;
  const char *against = nullptr;
  auto refuse = [&](bool wrong, const char *what) {
    if (wrong && !against)
      against = what;
  };
  refuse(!pinned.pipelines.empty(), "the strategy has stages already");
  for (const auto &[axis, degree] : pinned.mesh)
    refuse(axis == kPipelineAxis || degree != 1, "degrees are given");
  refuse(pinned.stageBegins.has_value() || !pinned.parts.empty(),
         "stages are given");
  refuse(pinned.microbatch.has_value(),
         "replicas of different stages have different samples, and "
         "the microbatch is given");
  refuse(isOn(pinned.zero) || !pinned.stored.empty(),
         "they are not made with parameters stored in parts (zero) yet");
  refuse(isOn(pinned.sequence), "they are not made with sequence parallelism "
                                "yet");
  refuse(isOn(pinned.context), "they are not made with context parallelism "
                               "yet");
  refuse(!pinned.seams.empty() || !pinned.classes.empty() ||
             !pinned.parameters.empty(),
         "the strategy has layouts already");
  refuse(pinned.tpOverlap && *pinned.tpOverlap != "0" &&
             *pinned.tpOverlap != "auto",
         "they are not made with tensor-parallel overlap yet");
  if (against && options.parts == "auto")
    return fail(fmt::format("--parts=auto: {}", against));
  const bool isAsked =
      options.parts == "auto" ||
      (options.parts.empty() && planning::hasUnlikeDevices(planner.cluster));
  return !against && isAsked && !again.degrees &&
         (!again.devices || again.explores > 0);
}

// Where devices are slow or of several kinds, and nothing is asked for that
// several pipelines are refused.
bool PlanStages::searchesShares(const PlannerOptions &planner) const {
  const planning::Strategy &pinned = planner.pinned;
  const bool isGiven =
      !pinned.pipelines.empty() || isOn(pinned.zero) || isOn(pinned.sequence) ||
      isOn(pinned.context) || !pinned.stored.empty() || !pinned.seams.empty() ||
      !pinned.parts.empty() || !pinned.classes.empty() ||
      !pinned.parameters.empty() || pinned.lists || pinned.recomputeOps ||
      (pinned.tpOverlap && *pinned.tpOverlap != "0" &&
       *pinned.tpOverlap != "auto");
  const bool isAlone = options.parts == "off" || options.delayedGradients ||
                       options.delayedRows || !options.emitOnnx.empty() ||
                       again.explores > 0 || again.picked || again.devices;
  return !isGiven && !isAlone &&
         (planning::hasSlowDevices(planner.cluster) ||
          planning::hasSeveralKinds(planner.cluster));
}

LogicalResult PlanStages::run() {
  ModuleOp module = getOperation();
  if (auto text = module->getAttrOfType<StringAttr>(kStrategyAttr)) {
    Result<planning::Strategy> strategy =
        planning::Strategy::parse(text.str(), "the model's own decisions");
    if (!strategy.ok())
      return fail(strategy.status());
    noted = *strategy;
  }
  PlannerOptions planner;
  planner.train = options.train;
  FailureOr<costmodel::Cluster> found = cluster();
  if (failed(found))
    return failure();
  planner.cluster = *found;
  if (failed(pin(planner.pinned)))
    return failure();
  const auto config = train::ConfigAttr::of(module);
  planner.globalBatch = config.getGlobalBatch() > 0
                            ? config.getGlobalBatch()
                            : options.globalBatch.value_or(1);
  // Stages may say how many devices there are.
  if (failed(fitPipelines(planner)) || failed(slowDown(planner.cluster)))
    return failure();
  FailureOr<bool> parts = searchesParts(planner);
  if (failed(parts))
    return failure();
  planner.parts = *parts;
  planner.shares = searchesShares(planner);
  const Optimizer optimizer = config.getOptimizer() && !options.optimizerGiven
                                  ? config.getOptimizer().getValue()
                                  : options.optimizer;
  planner.statePerParameter = static_cast<double>(optimizer.states().size());
  // Gradient, parameter and states, as its instruction counts them
  // (ActionLowering::lowerUpdate).
  planner.updateKernel = optimizer.kernel();
  planner.updateTraffic =
      2 + planner.statePerParameter *
              (optimizer.kind == OptimizerKind::Sgd ? 2 : 1);
  planner.reduction.early = options.gradOverlap;
  planner.reduction.bucketBytes = options.gradBucket;
  planner.memoryBytes =
      again.memoryBytes > 0
          ? again.memoryBytes
          : static_cast<double>(options.memoryLimit > 0
                                    ? options.memoryLimit
                                    : planner.cluster.device().memoryBytes);
  planner.found = again.found;
  planner.take = again.take;
  planner.explores = again.explores;
  OutlineOptions outline;
  outline.train = options.train;
  outline.optimizer = optimizer;
  outline.gradClip = options.gradClip;
  outline.scalesLoss = options.train && config.scalesLoss();
  FailureOr<Decision> decision = cutStages(module, planner, outline);
  if (failed(decision))
    return failure();
  machine = planner.cluster;
  if (!decision->strategy.pipelines.empty())
    machine = planning::devicesOf(
        planner.cluster, planning::joined(decision->strategy.pipelines));
  note(*decision, planner, optimizer);
  if (notes)
    notes->decision = std::move(*decision);
  return success();
}

// The orders of a schedule that its name does not say.
static ArrayAttr ordersOf(const Decision &decision, MLIRContext *context) {
  if (!decision.schedule)
    return {};
  SmallVector<Attribute> orders;
  for (const std::vector<Step> &order : decision.schedule->order)
    orders.push_back(pipe::ScheduleAttr::get(context, order));
  return ArrayAttr::get(context, orders);
}

void PlanStages::note(const Decision &decision, const PlannerOptions &planner,
                      const Optimizer &optimizer) {
  ModuleOp module = getOperation();
  MLIRContext *context = &getContext();
  module->removeAttr(kStrategyAttr);
  const costmodel::Device &device = planner.cluster.device();
  const Type low = train::ConfigAttr::of(module).getLowPrecision();
  const bool clips = options.train && options.gradClip > 0;
  module->setAttr(
      train::kConfigAttr,
      train::ConfigAttr::get(
          context,
          options.train ? train::StepMode::train : train::StepMode::infer,
          options.input, planner.globalBatch,
          options.train ? train::OptimizerAttr::get(context, optimizer)
                        : train::OptimizerAttr(),
          clips ? Builder(context).getF64FloatAttr(options.gradClip)
                : FloatAttr(),
          low));
  module->setAttr(dist::kClusterAttr,
                  dist::ClusterAttr::get(context, device.backend,
                                         device.memoryBytes, machine.toJson()));
  if (decision.strategy.reshard)
    module->setAttr(dist::kReshardAttr,
                    StringAttr::get(context, *decision.strategy.reshard));
  module->setAttr(pipe::kDecisionAttr,
                  pipe::DecisionAttr::get(
                      context, *decision.strategy.schedule,
                      ordersOf(decision, context),
                      decision.schedule ? decision.schedule->microbatches : 0,
                      decision.gradientBucket));
}

std::unique_ptr<Pass> merak::createPlanStages(const CompilerOptions &options,
                                              PhaseNotes *notes,
                                              const Replanning &again) {
  return std::make_unique<PlanStages>(options, notes, again);
}
