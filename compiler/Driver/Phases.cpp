#include "compiler/Driver/Phases.h"

#include "codegen/PlanWriter/PlanWriter.h"
#include "compiler/Import/DeviceNotes.h"
#include "compiler/Import/Importer.h"
#include "dialects/Pipe/PipeDialect.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "passes/CostModel/PlanCosts.h"
#include "passes/Graph/Passes.h"
#include "passes/Lowering/Passes.h"
#include "passes/Memory/Passes.h"
#include "passes/Scheduling/AttachSchedule.h"
#include "passes/Sharding/Localize.h"
#include "passes/Sharding/Passes.h"
#include "passes/Sharding/SubPipeline.h"
#include "passes/Staging/CutStages.h"
#include "passes/Staging/Passes.h"
#include "runtime/report/Html.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/raw_ostream.h"
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

using namespace mlir;
using namespace merak;

// In merak.train: see Decision::gradientBucket.
static constexpr StringLiteral kGradientBucketAttr = "gradient_bucket";

LogicalResult Compilation::error(const std::string &message) {
  return emitError(UnknownLoc::get(&context), message);
}

void Compilation::warn(const std::string &message) {
  report += "warning: " + message + "\n";
  if (options.quiet)
    llvm::errs() << "merakc: warning: " << message << "\n";
}

// Runs the pass that closes a phase.
LogicalResult Compilation::verifyWith(std::unique_ptr<Pass> pass) {
  PassManager manager(&context);
  manager.addPass(std::move(pass));
  LogicalResult verified = manager.run(*module);
  isBug |= failed(verified) && options.fromPhase.empty();
  return verified;
}

static LogicalResult readText(const std::string &path, std::string &text) {
  std::ifstream in(path);
  std::stringstream buffer;
  buffer << in.rdbuf();
  text = buffer.str();
  return success(in.good() || in.eof());
}

ImportOptions merak::importOptions(const CompilerOptions &options) {
  ImportOptions import;
  for (const auto &[name, shape] : options.shapes)
    import.shapes[name] = SmallVector<int64_t>(shape.begin(), shape.end());
  import.globalBatch = options.globalBatch.value_or(0);
  import.train = options.train;
  import.dropout = options.dropout;
  import.loss = options.loss;
  import.ownOptimizer = options.optimizerGiven;
  import.freeze = options.freeze;
  import.trainable = options.trainable;
  import.keepShared = options.keepShared;
  return import;
}

// What the model's own training algorithm says, in the terms of --optimizer.
static OptimizerOptions optimizerOf(const ModelTraining &training) {
  OptimizerOptions o;
  o.lr = training.rate;
  o.weightDecay = training.norm;
  o.eps = training.epsilon;
  o.firstCount = training.firstCount;
  o.rate = training.rateProgram;
  if (training.optimizer == "Adam") {
    o.kind = "adam";
    o.beta1 = training.alpha;
    o.beta2 = training.beta;
    o.plainRoot = true;
    o.postDecay = training.normPost;
  } else if (training.optimizer == "Adagrad") {
    o.kind = "adagrad";
    o.lrDecay = training.decay;
  } else {
    o.kind = "sgd";
    o.momentum = training.alpha;
    o.dampening = 1 - training.beta;
    o.nesterov = training.nesterov;
  }
  return o;
}

// Which parameters the file holds otherwise, for writing them back.
static std::string describeWeightUses(const ImportReport &imported) {
  if (imported.splitUses.empty() && imported.foldedUses.empty())
    return "";
  nlohmann::ordered_json splits = nlohmann::ordered_json::array(),
                         folds = nlohmann::ordered_json::array();
  for (const ImportReport::SplitUse &use : imported.splitUses)
    splits.push_back({{"parameter", use.parameter},
                      {"initializer", use.initializer},
                      {"output", use.output},
                      {"input", use.slot}});
  for (const ImportReport::FoldedUse &use : imported.foldedUses)
    folds.push_back({{"parameter", use.parameter},
                     {"initializer", use.initializer},
                     {"transposed", use.transposed},
                     {"functions", use.functions}});
  return nlohmann::ordered_json{{"split_uses", splits}, {"folded_uses", folds}}
             .dump(1) +
         "\n";
}

LogicalResult Compilation::load() {
  // Known before the work rather than after it.
  const std::filesystem::path page(options.report);
  std::error_code missing;
  if (page.has_parent_path() &&
      !std::filesystem::is_directory(page.parent_path(), missing))
    return error("cannot write '" + options.report + "'");
  if (!options.fromPhase.empty()) {
    module = parseSourceFile<ModuleOp>(options.input, &context);
    return success(bool(module));
  }
  ImportReport imported;
  FailureOr<OwningOpRef<ModuleOp>> made =
      importOnnx(options.input, importOptions(options), context, &imported);
  if (failed(made))
    return failure();
  module = std::move(*made);
  noted = imported.strategy;
  if (imported.training && !options.optimizerGiven)
    optimizer = optimizerOf(*imported.training);
  weightUses = describeWeightUses(imported);
  llvm::raw_string_ostream out(report);
  imported.print(out);
  for (const std::string &warning : imported.warnings)
    warn(warning);
  return success();
}

LogicalResult Compilation::graph() {
  PassManager manager(&context);
  buildGraphImportPipeline(manager, options.train && options.dropout,
                           options.train);
  manager.addPass(
      createLowerPrecision({options.precision == "bf16", options.train}));
  DifferentiateOptions differentiate;
  differentiate.train = options.train;
  manager.addPass(createDifferentiate(differentiate));
  if (failed(manager.run(*module)))
    return failure();
  llvm::DenseSet<uint64_t> masks;
  (*module)->walk([&](train::DropoutOp op) { masks.insert(op.getId()); });
  if (!masks.empty())
    report += fmt::format("dropout: {} masks a step, drawn by the --seed of "
                          "merak-run (--dropout=off: none)\n",
                          masks.size());
  return success();
}

static DictionaryAttr optimizerConstants(const OptimizerOptions &o,
                                         MLIRContext *context) {
  Builder b(context);
  SmallVector<NamedAttribute> entries;
  auto number = [&](StringRef name, double value) {
    entries.push_back(b.getNamedAttr(name, b.getF64FloatAttr(value)));
  };
  number("weight_decay", o.kind == "adam" ? 0 : o.weightDecay);
  if (!o.rate.empty())
    entries.push_back(b.getNamedAttr("rate", b.getStringAttr(o.rate)));
  if (o.firstCount)
    entries.push_back(
        b.getNamedAttr("first_count", b.getI64IntegerAttr(*o.firstCount)));
  if (o.kind == "adagrad") {
    number("lr_decay", o.lrDecay);
    number("eps", o.eps);
  } else if (o.kind == "sgd") {
    number("momentum", o.momentum);
    number("dampening", o.dampening);
    entries.push_back(b.getNamedAttr("nesterov", b.getBoolAttr(o.nesterov)));
  } else {
    number("beta1", o.beta1);
    number("beta2", o.beta2);
    number("eps", o.eps);
    if (o.kind == "adam")
      number("l2", o.weightDecay);
    if (o.plainRoot) {
      entries.push_back(b.getNamedAttr("plain_root", b.getBoolAttr(true)));
      number("post_decay", o.postDecay);
    }
  }
  return b.getDictionaryAttr(entries);
}

// The machine to compile for.
FailureOr<costmodel::Cluster> Compilation::readClusterOption() {
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
    return error(fmt::format("--devices: {} has {} devices, not {}",
                             options.cluster, cluster->count, wanted));
  if (cluster.ok()) {
    cluster->count = wanted;
    cluster->perNode = std::min(cluster->perNode, wanted);
    for (auto *entries : {&cluster->kindOf, &cluster->nodeOf})
      entries->resize(std::min<size_t>(entries->size(), wanted));
    cluster->rateOf.resize(std::min<size_t>(cluster->rateOf.size(), wanted));
    return *cluster;
  }
  for (const std::string &message : cluster.status().messages())
    (void)error(message);
  return failure();
}

// Decides and cuts: after this the module holds stage programs.
LogicalResult Compilation::stage() {
  PlannerOptions planner;
  planner.train = options.train;
  FailureOr<costmodel::Cluster> cluster = readClusterOption();
  if (failed(cluster))
    return failure();
  planner.cluster = *cluster;
  if (!options.strategy.empty()) {
    std::string text;
    if (failed(readText(options.strategy, text)))
      return error("cannot read strategy '" + options.strategy + "'");
    Result<planning::Strategy> strategy =
        planning::Strategy::parse(text, options.strategy);
    if (!strategy.ok()) {
      for (const std::string &message : strategy.status().messages())
        (void)error(message);
      return failure();
    }
    planner.pinned = *strategy;
  } else if (noted)
    planner.pinned = *noted;
  for (const auto &[axis, degree] : options.mesh)
    planner.pinned.mesh[axis] = degree;
  if (options.microbatch)
    planner.pinned.microbatch = options.microbatch;
  if (options.schedule != "auto" || !planner.pinned.schedule) {
    planner.pinned.schedule = options.schedule;
    planner.pinned.lists.reset();
  }
  if (options.recompute != "auto" || !planner.pinned.recompute) {
    planner.pinned.recompute = options.recompute;
    planner.pinned.recomputeOps.reset();
  }
  if (!planner.pinned.lists &&
      StringRef(*planner.pinned.schedule).ends_with(".json")) {
    FailureOr<planning::Schedule> file = readSchedule(*planner.pinned.schedule);
    if (failed(file))
      return failure();
    planner.pinned.lists = *file;
    planner.pinned.lists->name = *planner.pinned.schedule;
  }
  // A schedule of chunks asks for as many parts.
  if (planner.pinned.lists)
    planner.pinned.chunks = planner.pinned.lists->chunks;
  if (!options.tpOverlap.empty())
    planner.pinned.tpOverlap = options.tpOverlap;
  else if (!planner.pinned.tpOverlap && !options.cluster.empty())
    planner.pinned.tpOverlap = "auto"; // its links say what is worth it
  auto batch = (*module)->getAttrOfType<IntegerAttr>(kGlobalBatchAttr);
  planner.globalBatch =
      batch ? batch.getInt() : options.globalBatch.value_or(1);
  const OptimizerOptions &o = optimizer;
  planner.statePerParameter = o.states();
  planner.reduction.early = options.gradOverlap;
  planner.reduction.bucketBytes = options.gradBucket;
  if (!plannedAgain)
    plannedBytes = static_cast<double>(
        options.memoryLimit > 0 ? options.memoryLimit
                                : planner.cluster.device().memoryBytes);
  planner.memoryBytes = plannedBytes;
  if (keepsDegrees) {
    planner.pinned.mesh = decided->mesh;
    planner.pinned.microbatch = decided->microbatch;
  }
  OutlineOptions outline;
  outline.train = options.train;
  outline.optimizer = o.kernel();
  outline.constants = optimizerConstants(o, &context);
  outline.gradClip = options.gradClip;
  outline.skipNonFinite = (*module)->hasAttr(kLowPrecisionAttr);
  FailureOr<Decision> decision = cutStages(*module, planner, outline);
  if (failed(decision))
    return failure();
  report += decision->report;
  considered = decision->considered;
  if (!decided)
    decided = decision->strategy;
  if (!options.emitStrategy.empty()) {
    std::ofstream out(options.emitStrategy);
    out << decision->strategy.toJson();
    if (!out.flush())
      return error("cannot write '" + options.emitStrategy + "'");
  }
  if (!options.emitOnnx.empty() && failed(emitOnnx(decision->strategy)))
    return failure();
  Builder b(&context);
  (*module)->setAttr(
      "merak.train",
      b.getDictionaryAttr({
          b.getNamedAttr("mode",
                         b.getStringAttr(options.train ? "train" : "infer")),
          b.getNamedAttr("model", b.getStringAttr(options.input)),
          b.getNamedAttr("global_batch",
                         b.getI64IntegerAttr(planner.globalBatch)),
          b.getNamedAttr("microbatches",
                         b.getI64IntegerAttr(decision->microbatches)),
          b.getNamedAttr("schedule_name",
                         b.getStringAttr(*decision->strategy.schedule)),
          b.getNamedAttr(
              "schedule",
              b.getStringAttr(decision->schedule
                                  ? planning::toJson(*decision->schedule)
                                  : "")),
          b.getNamedAttr("optimizer", b.getStringAttr(o.kind)),
          b.getNamedAttr("constants", optimizerConstants(o, &context)),
          b.getNamedAttr("lr", b.getF64FloatAttr(o.lr)),
          b.getNamedAttr("lr_schedule", b.getStringAttr(o.schedule)),
          b.getNamedAttr("warmup", b.getI64IntegerAttr(o.warmup)),
          b.getNamedAttr("total", b.getI64IntegerAttr(o.total)),
          b.getNamedAttr("min_factor", b.getF64FloatAttr(o.minFactor)),
          b.getNamedAttr("grad_clip", b.getF64FloatAttr(options.gradClip)),
          b.getNamedAttr(kGradientBucketAttr,
                         b.getI64IntegerAttr(decision->gradientBucket)),
          b.getNamedAttr("cluster", b.getStringAttr(planner.cluster.toJson())),
          b.getNamedAttr("device",
                         b.getStringAttr(planner.cluster.device().backend)),
      }));
  return verifyWith(createVerifyStages());
}

// The model again, with what was decided noted at its nodes.
LogicalResult Compilation::emitOnnx(const planning::Strategy &strategy) {
  DeviceNotes notes{strategy, {}};
  module->walk([&](pipe::StageOp stage) {
    stage.walk([&](Operation *op) {
      auto name = dyn_cast<NameLoc>(op->getLoc());
      // What several stages compute belongs to the first.
      if (name)
        notes.stageOf.try_emplace(name.getName().str(), stage.getIndex());
    });
  });
  Status written = writeAnnotated(options.input, options.emitOnnx, notes);
  for (const std::string &message : written.messages())
    (void)error(message);
  return success(written.ok());
}

// The cluster that the stage phase noted in the module.
static Result<costmodel::Cluster> notedCluster(ModuleOp module) {
  auto train = module->getAttrOfType<DictionaryAttr>("merak.train");
  auto json = train ? train.getAs<StringAttr>("cluster") : StringAttr();
  if (!json)
    return Status::error("expected a module after the stage phase");
  return costmodel::parseCluster(json.str(), "cluster");
}

LogicalResult Compilation::shard() {
  if (failed(localize(*module)))
    return failure();
  if (failed(verifyWith(createVerifyShards())))
    return failure();
  if (!(*module)->hasAttr(pipe::kOverlapAttr))
    return success();
  Result<costmodel::Cluster> cluster = notedCluster(*module);
  if (!cluster.ok())
    return error(cluster.status().str());
  if (failed(subPipeline(*module, *cluster)))
    return failure();
  // Values, actions and transfers were made anew.
  if (failed(verifyWith(createVerifyStages())))
    return failure();
  return verifyWith(createVerifyShards());
}

FailureOr<planning::Schedule>
Compilation::readSchedule(const std::string &path) {
  std::string text;
  if (failed(readText(path, text))) {
    (void)error("cannot read schedule '" + path + "'");
    return failure();
  }
  Result<planning::Schedule> parsed = planning::parseSchedule(text, path);
  if (parsed.ok())
    return *parsed;
  for (const std::string &message : parsed.status().messages())
    (void)error(message);
  return failure();
}

LogicalResult Compilation::schedule() {
  auto train = (*module)->getAttrOfType<DictionaryAttr>("merak.train");
  auto mesh = (*module)->getAttrOfType<dist::MeshAttr>(dist::kMeshAttr);
  if (!train || !mesh)
    return error("expected a module after the stage phase");
  std::string name = train.getAs<StringAttr>("schedule_name").str();
  std::optional<planning::Schedule> lists;
  if (auto made = train.getAs<StringAttr>("schedule"); made && !made.empty()) {
    Result<planning::Schedule> parsed =
        planning::parseSchedule(made.str(), name);
    if (!parsed.ok())
      return error(parsed.status().str());
    lists = *parsed;
  }
  planning::Schedule used;
  if (failed(attachSchedule(*module, name,
                            mesh.getSize("mb") / pipe::subBatches(*module),
                            lists ? &*lists : nullptr, &used)))
    return failure();
  if (!options.emitSchedule.empty()) {
    std::ofstream out(options.emitSchedule);
    out << planning::toJson(used);
    if (!out.flush())
      return error("cannot write '" + options.emitSchedule + "'");
  }
  return success();
}

double Compilation::deviceBytes() {
  if (options.memoryLimit > 0)
    return static_cast<double>(options.memoryLimit);
  Result<costmodel::Cluster> cluster = notedCluster(*module);
  return cluster.ok() ? static_cast<double>(cluster->device().memoryBytes) : 0;
}

LogicalResult Compilation::memory() {
  PassManager manager(&context);
  MemoryPipelineOptions memory;
  memory.memoryLimit = static_cast<int64_t>(deviceBytes());
  memory.overlapGradients = options.gradOverlap;
  auto train = (*module)->getAttrOfType<DictionaryAttr>("merak.train");
  if (auto bucket =
          train ? train.getAs<IntegerAttr>(kGradientBucketAttr) : nullptr)
    memory.gradientBucket = options.gradBucket.value_or(bucket.getInt());
  buildMemoryPipeline(manager, memory);
  if (failed(manager.run(*module)))
    return failure();
  report += memoryTable(*module);
  return success();
}

LogicalResult Compilation::plan() {
  PassManager manager(&context);
  buildPlanPipeline(manager);
  return manager.run(*module);
}

LogicalResult Compilation::writeFiles() {
  PlanWriterOptions writer;
  writer.directory = options.output;
  writer.target = options.target;
  writer.decisions = considered;
  writer.decisions.text = report;
  writer.weights = weightUses;
  if (failed(writePlan(*module, writer, &isBug)))
    return failure();
  return options.report.empty() ? success() : writeReport();
}

// Of the finished plan, as `merak-plan report` would make it.
LogicalResult Compilation::writeReport() {
  auto fail = [&](const Status &status) {
    for (const std::string &message : status.messages())
      (void)error("--report: " + message);
    return failure();
  };
  Result<LoadedPlan> plan = loadPlan(options.output);
  if (!plan.ok())
    return fail(plan.status());
  Result<costmodel::PlanCosts> costs = costmodel::planCosts(*plan);
  if (!costs.ok())
    return fail(costs.status());
  Result<report::Simulation> simulation = report::simulate(*plan, *costs);
  if (!simulation.ok())
    return fail(simulation.status());
  std::ofstream out(options.report, std::ios::binary);
  out << report::htmlReport(*plan, *simulation);
  if (!out.flush())
    return error("cannot write '" + options.report + "'");
  return success();
}

// 3-stage.mlir and so on.
LogicalResult Compilation::snapshot(size_t phase) {
  if (options.saveIr.empty())
    return success();
  llvm::sys::fs::create_directories(options.saveIr);
  std::string path = options.saveIr + "/" + std::to_string(phase) + "-" +
                     phaseNames()[phase] + ".mlir";
  std::error_code failure;
  llvm::raw_fd_ostream out(path, failure);
  if (failure)
    return error("cannot write '" + path + "': " + failure.message());
  module->print(out, OpPrintingFlags().enableDebugInfo());
  return success();
}

bool Compilation::plansAgain() {
  constexpr int kAttempts = 4;
  constexpr double kMiB = 1 << 20;
  double limit = deviceBytes();
  plan::ProgramOp largest;
  for (auto program : module->getOps<plan::ProgramOp>())
    if (!largest || program.getArenaBytes() > largest.getArenaBytes())
      largest = program;
  if (limit <= 0 || !largest || largest.getArenaBytes() <= limit ||
      ++plannedAgain > kAttempts)
    return false;
  // Too little was predicted; as much too little will be for another plan.
  double needed = static_cast<double>(largest.getArenaBytes()), predicted = 0;
  for (const report::StageDecision &stage : considered.stages)
    predicted = std::max(predicted, stage.memoryBytes);
  plannedBytes = std::min(plannedBytes, predicted) * limit / needed;
  keepsDegrees = plannedAgain == 1 || keepsDegrees;
  again += fmt::format("buffers of program '{}' took {:.2f} MiB of {:.2f}; "
                       "planned again for {:.2f} MiB\n",
                       largest.getSymName().str(), needed / kMiB, limit / kMiB,
                       plannedBytes / kMiB);
  return true;
}

// From the stage phase on, a failure is held back until no other plan is left
// to try; the first is the one that counts.
LogicalResult Compilation::runPhases(size_t begin, size_t end) {
  using Phase = LogicalResult (Compilation::*)();
  static constexpr Phase phases[] = {nullptr,
                                     &Compilation::graph,
                                     &Compilation::stage,
                                     &Compilation::shard,
                                     &Compilation::schedule,
                                     &Compilation::memory,
                                     &Compilation::plan};
  const auto at = [&](Phase phase) {
    return size_t(llvm::find(phases, phase) - std::begin(phases));
  };
  const size_t stages = at(&Compilation::stage),
               last = at(&Compilation::memory);
  OwningOpRef<ModuleOp> unplanned;
  std::string before;
  std::vector<Diagnostic> first;
  for (size_t phase = begin; phase <= end; ++phase) {
    if (phase == stages && last <= end && !unplanned) {
      unplanned = module->clone();
      before = report;
    }
    std::vector<Diagnostic> held;
    LogicalResult done = success();
    {
      ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
        if (!unplanned || diagnostic.getSeverity() != DiagnosticSeverity::Error)
          return failure();
        held.push_back(std::move(diagnostic));
        return success();
      });
      done = (this->*phases[phase])();
    }
    // With the degrees of the first plan nothing may fit, with others it may.
    const bool freesDegrees = failed(done) && phase == stages && keepsDegrees;
    if (freesDegrees)
      keepsDegrees = false;
    if (freesDegrees ||
        (failed(done) && phase == last && unplanned && plansAgain())) {
      if (first.empty())
        first = std::move(held);
      module = unplanned->clone();
      report = before + again;
      phase = stages - 1;
      continue;
    }
    if (failed(done) && !first.empty() && !isBug) {
      held = std::move(first);
      held.front().attachNote() << "planning for less memory found nothing "
                                   "that fits either";
    }
    for (Diagnostic &diagnostic : held)
      context.getDiagEngine().emit(std::move(diagnostic));
    if (failed(done))
      return failure();
    if (failed(mlir::verify(*module))) {
      isBug = true;
      return failure();
    }
    if (failed(snapshot(phase)))
      return failure();
  }
  return success();
}

LogicalResult Compilation::run() {
  const std::vector<std::string> &names = phaseNames();
  auto indexOf = [&](const std::string &name) -> size_t {
    return llvm::find(names, name) - names.begin();
  };
  if (failed(load()))
    return failure();
  size_t begin = options.fromPhase.empty() ? 0 : indexOf(options.fromPhase);
  size_t end = std::min(indexOf(options.toPhase), names.size() - 1);
  if (options.fromPhase.empty() && failed(snapshot(0)))
    return failure();
  if (failed(runPhases(begin + 1, end)))
    return failure();
  return indexOf(options.toPhase) == names.size() ? writeFiles() : success();
}
