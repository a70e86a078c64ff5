#include "compiler/Driver/Phases.h"

#include "codegen/PlanWriter/PlanWriter.h"
#include "compiler/Pipeline/Pipelines.h"
#include "dialects/Pipe/PipeDialect.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassInstrumentation.h"
#include "mlir/Pass/PassManager.h"
#include "onnx/Import/DeviceNotes.h"
#include "passes/CostModel/PlanCosts.h"
#include "passes/Memory/Passes.h"
#include "passes/Scheduling/AttachSchedule.h"
#include "runtime/report/Html.h"
#include "support/ReadFile.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/raw_ostream.h"
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>

using namespace mlir;
using namespace merak;

LogicalResult Compilation::error(const std::string &message) {
  return emitError(UnknownLoc::get(&context), message);
}

void Compilation::warn(const std::string &message) {
  report += "warning: " + message + "\n";
  warnings.push_back(message);
  if (options.quiet)
    llvm::errs() << "merakc: warning: " << message << "\n";
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
                      {"input", use.slot},
                      {"copy", use.copy},
                      {"functions", use.functions}});
  for (const ImportReport::FoldedUse &use : imported.foldedUses)
    folds.push_back({{"parameter", use.parameter},
                     {"initializer", use.initializer},
                     {"permutation", use.permutation},
                     {"functions", use.functions}});
  return nlohmann::ordered_json{{"split_uses", splits}, {"folded_uses", folds}}
             .dump(1) +
         "\n";
}

// Known before the work rather than after it.
LogicalResult Compilation::checkOutputs() {
  for (const std::string &file : {options.report, options.frontier}) {
    const std::filesystem::path page(file);
    std::error_code missing;
    if (page.has_parent_path() &&
        !std::filesystem::is_directory(page.parent_path(), missing))
      return error("cannot write '" + file + "'");
  }
  return success();
}

namespace {
// A phase ends with a check of what it made: that one fails is never the
// user's doing.
struct CheckWatch : PassInstrumentation {
  explicit CheckWatch(bool &failed) : failed(failed) {}
  void runAfterPassFailed(Pass *pass, Operation *) override {
    failed |= pass->getArgument().starts_with("merak-verify");
  }
  bool &failed;
};
} // namespace

LogicalResult Compilation::runPhase(const std::string &phase) {
  PassManager manager(&context);
  bool checkFailed = false;
  // A module that does not verify is our fault (see runPhases), but a manager
  // tells of it as of any failure, and as often as there are passes. So phases
  // that end with a check of their own are verified there, as a whole.
  manager.enableVerifier(phase == "graph" || phase == "memory" ||
                         phase == "plan");
  manager.addInstrumentation(std::make_unique<CheckWatch>(checkFailed));
  buildPhasePipeline(phase, manager, options, &notes, again);
  LogicalResult done = manager.run(*module);
  isBug |= checkFailed && options.fromPhase.empty();
  if (failed(done))
    return failure();
  if (phase == "import")
    reportImport();
  else if (phase == "graph")
    reportGraph();
  else if (phase == "stage")
    return reportStages();
  else if (phase == "schedule" && !options.emitSchedule.empty() && !isTrial)
    return emitSchedule();
  else if (phase == "memory")
    report += memoryTable(*module);
  return success();
}

LogicalResult Compilation::emit(const std::string &path,
                                const std::string &text) {
  std::ofstream out(path);
  out << text;
  return out.flush() ? success() : error("cannot write '" + path + "'");
}

// A full disk is the user's to mend.
LogicalResult Compilation::closeFile(llvm::raw_fd_ostream &out,
                                     const std::string &path) {
  out.close();
  const std::error_code failure = out.error();
  out.clear_error();
  return failure ? error("cannot write '" + path + "': " + failure.message())
                 : success();
}

LogicalResult Compilation::emitSchedule() {
  planning::Schedule used;
  if (failed(attachDecidedSchedule(*module, "", &used)))
    return failure();
  return emit(options.emitSchedule, planning::toJson(used));
}

void Compilation::reportImport() {
  weightUses = describeWeightUses(notes.imported);
  llvm::raw_string_ostream out(report);
  notes.imported.print(out);
  for (const std::string &warning : notes.imported.warnings)
    warn(warning);
}

void Compilation::reportGraph() {
  llvm::DenseSet<uint64_t> masks;
  (*module)->walk([&](train::DropoutOp op) { masks.insert(op.getId()); });
  if (!masks.empty())
    report += fmt::format("dropout: {} masks a step, drawn by the --seed of "
                          "merak-run (--dropout=off: none)\n",
                          masks.size());
}

LogicalResult Compilation::reportStages() {
  const Decision &decision = *notes.decision;
  times.search.add(decision.times);
  report += decision.report;
  if (!decided)
    decided = decision.strategy;
  if (isTrial)
    return success();
  if (!options.emitStrategy.empty() &&
      failed(emit(options.emitStrategy, decision.strategy.toJson())))
    return failure();
  return options.emitOnnx.empty() ? success() : emitOnnx(decision.strategy);
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

// What a device may use, as the memory phase has it; 0: not limited.
double Compilation::deviceBytes() {
  if (options.memoryLimit > 0)
    return static_cast<double>(options.memoryLimit);
  return static_cast<double>(dist::ClusterAttr::of(*module).getMemoryBytes());
}

// Of stages that lie on devices of their own: ranks are numbered without
// spares.
static std::vector<int64_t> devicesOfRanks(const planning::Strategy &strategy) {
  std::vector<int64_t> devices;
  for (const planning::PipelineStages &pipeline : strategy.pipelines)
    for (const planning::PipelineStages::Stage &stage : pipeline.stages)
      devices.insert(devices.end(), stage.devices.begin(), stage.devices.end());
  llvm::sort(devices);
  return devices;
}

LogicalResult Compilation::writeFiles() {
  PlanWriterOptions writer;
  writer.directory = options.output;
  writer.target = options.target;
  if (notes.decision)
    writer.decisions = notes.decision->considered;
  writer.predictedStepSeconds = notes.simulated.value_or(0);
  writer.decisions.text = report;
  writer.options = options.given;
  if (notes.decision)
    writer.devices = devicesOfRanks(notes.decision->strategy);
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
  return closeFile(out, path);
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
  for (const report::StageDecision &stage : notes.decision->considered.stages)
    predicted = std::max(predicted, stage.memoryBytes);
  const double before = again.memoryBytes > 0 ? again.memoryBytes : limit;
  again.memoryBytes = std::min(before, predicted) * limit / needed;
  if (plannedAgain == 1)
    again.degrees = decided;
  reasons += fmt::format("buffers of program '{}' took {:.2f} MiB of {:.2f}; "
                         "planned again for {:.2f} MiB\n",
                         largest.getSymName().str(), needed / kMiB,
                         limit / kMiB, again.memoryBytes / kMiB);
  return true;
}

// From the stage phase on, failures and remarks are held back until it is known
// that they are about the plan to be written.
LogicalResult Compilation::runHeld(const std::string &phase,
                                   std::vector<Diagnostic> &held) {
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
    const DiagnosticSeverity severity = diagnostic.getSeverity();
    if (!unplanned || (severity != DiagnosticSeverity::Error &&
                       severity != DiagnosticSeverity::Remark))
      return failure();
    held.push_back(std::move(diagnostic));
    return success();
  });
  return runPhase(phase);
}

bool Compilation::goesBack(const std::string &phase, bool failed, bool writes) {
  if (!unplanned || isBug)
    return false;
  bool back = false;
  if (again.found) {
    back = (failed || phase == "plan") && triesAnother(failed);
  } else if (failed && phase == "stage") {
    // With the degrees of the first plan nothing may fit, with others it may.
    back = again.degrees.has_value();
    again.degrees.reset();
  } else if (failed) {
    back = phase == "memory" && plansAgain();
  } else {
    back = writes && phase == "plan" && triesAnother(false);
  }
  if (!back)
    return false;
  module = unplanned->module->clone();
  report = unplanned->report + reasons;
  warnings.resize(unplanned->warnings);
  return true;
}

// The first failure is the one that counts.
LogicalResult Compilation::runPhases(size_t begin, size_t end) {
  const std::vector<std::string> &names = phaseNames();
  const auto at = [&](StringRef phase) {
    return size_t(llvm::find(names, phase) - names.begin());
  };
  const bool writes = at(options.toPhase) == names.size();
  std::vector<Diagnostic> first, held;
  const auto tell = [&] {
    for (Diagnostic &diagnostic : held)
      context.getDiagEngine().emit(std::move(diagnostic));
    held.clear();
  };
  for (size_t phase = begin; phase <= end; ++phase) {
    if (phase == at("stage") && at("memory") <= end && !unplanned)
      unplanned.emplace(module->clone(), report, warnings.size());
    LogicalResult done = failure();
    {
      planning::Stopwatch watch(times.phase(names[phase]));
      done = runHeld(names[phase], held);
    }
    if (goesBack(names[phase], failed(done), writes)) {
      llvm::erase_if(held, [](const Diagnostic &diagnostic) {
        return diagnostic.getSeverity() != DiagnosticSeverity::Error;
      });
      if (first.empty())
        first = std::move(held);
      held.clear();
      phase = at("stage") - 1;
      continue;
    }
    if (failed(done) && !first.empty() && !isBug) {
      held = std::move(first);
      held.front().attachNote() << "planning for less memory found nothing "
                                   "that fits either";
    }
    if (failed(done) || phase == end)
      tell();
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
  planning::Stopwatch watch(times.all);
  const std::vector<std::string> &names = phaseNames();
  auto indexOf = [&](const std::string &name) -> size_t {
    return llvm::find(names, name) - names.begin();
  };
  if (failed(checkOutputs()))
    return failure();
  size_t begin = 0;
  if (options.fromPhase.empty()) {
    module = ModuleOp::create(UnknownLoc::get(&context));
  } else {
    if (const std::string why = whyNoFile(options.input); !why.empty())
      return error("cannot read '" + options.input + "': " + why);
    module = parseSourceFile<ModuleOp>(options.input, &context);
    if (!module)
      return failure();
    begin = indexOf(options.fromPhase) + 1;
  }
  size_t end = std::min(indexOf(options.toPhase), names.size() - 1);
  if (failed(runPhases(begin, end)))
    return failure();
  if (indexOf(options.toPhase) < names.size())
    return success();
  planning::Stopwatch files(times.phase("files"));
  return writeFiles();
}
