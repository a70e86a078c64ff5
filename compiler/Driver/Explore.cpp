#include "compiler/Driver/Explore.h"

#include "codegen/PlanWriter/PlanWriter.h"
#include "compiler/Driver/FrontierPage.h"
#include "compiler/Pipeline/Techniques.h"
#include "dialects/Plan/PlanDialect.h"
#include "passes/CostModel/Cluster.h"
#include "passes/Planning/ParetoPlans.h"
#include "passes/Planning/PlanWords.h"
#include "runtime/report/Timeline.h"
#include "llvm/Support/xxhash.h"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <sstream>

using namespace mlir;
using namespace merak;

constexpr double kMiB = 1 << 20;

// A plan may take this much more than it was priced at: what a device cannot
// hold is found when its buffers are laid out.
constexpr double kRounding = 1 + 1e-6;

bool merak::asksQuestion(const CompilerOptions &options) {
  return !options.frontier.empty() || options.objective != Objective::Time;
}

// ------------------------------------------------------------ one compilation

// Where run() would be after the training graph.
void Compilation::startOver(const Replanning &how) {
  module = unplanned->module->clone();
  report = unplanned->report;
  warnings.resize(unplanned->warnings);
  again = how;
  plannedAgain = 0;
  decided.reset();
  reasons.clear();
  finalists.clear();
  isConfirmed = false;
  notes.decision.reset();
  notes.simulated.reset();
}

LogicalResult Compilation::prepare() {
  if (failed(checkOutputs()))
    return failure();
  module = ModuleOp::create(UnknownLoc::get(&context));
  const size_t graph = llvm::find(phaseNames(), "graph") - phaseNames().begin();
  if (failed(runPhases(0, graph)))
    return failure();
  unplanned.emplace(module->clone(), report, warnings.size());
  return success();
}

// From the stage phase to `last`. What is a bug of ours is told at once.
LogicalResult Compilation::runTrial(const Replanning &how, const char *last,
                                    std::string &problem) {
  startOver(how);
  isTrial = true;
  problem.clear();
  std::vector<Diagnostic> held;
  LogicalResult done = success();
  for (auto phase = llvm::find(phaseNames(), "stage");
       succeeded(done) && phase != phaseNames().end(); ++phase) {
    done = runHeld(*phase, held);
    if (*phase == last)
      break;
  }
  isTrial = false;
  for (Diagnostic &diagnostic : held)
    if (diagnostic.getSeverity() == DiagnosticSeverity::Error) {
      if (problem.empty())
        problem = diagnostic.str();
      if (isBug)
        context.getDiagEngine().emit(std::move(diagnostic));
    }
  if (failed(done) && problem.empty())
    problem = "a phase failed without a message";
  return done;
}

FailureOr<SearchResult> Compilation::searchPlans(const Replanning &how,
                                                 std::string &problem) {
  if (failed(runTrial(how, "stage", problem)))
    return failure();
  return notes.decision->found;
}

int64_t Compilation::fullestBytes() {
  int64_t most = 0;
  for (auto program : module->getOps<plan::ProgramOp>())
    most = std::max(most, static_cast<int64_t>(program.getArenaBytes()));
  return most;
}

FailureOr<Compilation::Trial> Compilation::tryPlan(const Replanning &how,
                                                   std::string &problem) {
  if (failed(runTrial(how, "plan", problem)))
    return failure();
  const std::optional<double> seconds = simulatedStep();
  if (!seconds) {
    problem = "its plan cannot be simulated";
    return failure();
  }
  return Trial{fullestBytes(), *seconds, &*notes.decision};
}

LogicalResult Compilation::plan(const Replanning &how,
                                const std::string &remark) {
  startOver(how);
  const std::vector<std::string> &names = phaseNames();
  reasons = remark;
  report += remark;
  return runPhases(llvm::find(names, "stage") - names.begin(),
                   names.size() - 1);
}

// ------------------------------------------------------------ the exploration

LogicalResult Exploration::error(const std::string &message) {
  return emitError(UnknownLoc::get(&context), message);
}

FailureOr<costmodel::Cluster> Exploration::machine() {
  int64_t ranks = options.devices.value_or(1);
  if (!options.devices)
    for (const auto &[axis, degree] : options.mesh)
      ranks *= degree;
  if (!options.deviceCounts.empty())
    ranks = options.deviceCounts.back();
  if (options.cluster.empty())
    return costmodel::defaultCluster(ranks);
  Result<costmodel::Cluster> cluster = costmodel::readCluster(options.cluster);
  if (cluster.ok())
    return *cluster;
  for (const std::string &message : cluster.status().messages())
    (void)error(message);
  return failure();
}

static std::string contents(const std::string &path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// All that decides the answer, in one number: the training graph, the machine
// and every option that the search looks at.
std::string Exploration::question() {
  std::string text;
  llvm::raw_string_ostream out(text);
  compilation.getModule().print(
      out, OpPrintingFlags().elideLargeElementsAttrs(/*largeElementLimit=*/64));
  const CompilerOptions &o = options;
  const Optimizer &optimizer = o.optimizer;
  out << fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}",
                     o.memoryLimit, fmt::join(o.deviceCounts, ","),
                     o.devices.value_or(0), o.microbatch.value_or(0),
                     o.globalBatch.value_or(0), o.train, o.chunks.value_or(0),
                     o.gradOverlap, o.gradBucket.value_or(-1), o.gradClip,
                     o.precision, o.schedule, o.recompute, o.tpOverlap, o.zero,
                     o.sequence, int(optimizer.kind), optimizer.momentum);
  for (const auto &[axis, degree] : o.mesh)
    out << axis << degree;
  for (const std::string &file : {o.cluster, o.strategy, o.schedule})
    out << contents(file);
  return fmt::format("{:016x}", llvm::xxh3_64bits(StringRef(text)));
}

// A file that answers this very question is not made again.
bool Exploration::readKnown() {
  const std::string text = unpackPage(contents(options.frontier));
  if (text.empty())
    return false;
  Result<planning::PlanFrontier> known =
      planning::PlanFrontier::parse(text, options.frontier);
  if (!known.ok() || known->question != frontier.question)
    return false;
  frontier = std::move(*known);
  return true;
}

// What the search found on so many devices, laid out and simulated.
planning::FrontierCurve Exploration::curve(int64_t devices) {
  planning::FrontierCurve curve;
  curve.devices = devices;
  Replanning how;
  how.devices = devices;
  how.explores = true;
  std::string problem;
  FailureOr<SearchResult> found = compilation.searchPlans(how, problem);
  if (failed(found)) {
    curve.problem = problem.substr(0, problem.find('\n'));
    return curve;
  }
  curve.priced = found->priced;
  how.found = *found;
  for (size_t i = 0; i < found->finalists.size(); ++i) {
    how.take = i;
    // What is planned again after a decomposition stays as small.
    how.memoryBytes =
        kRounding * double(planning::costOf(found->finalists[i]).bytes);
    FailureOr<Compilation::Trial> trial = compilation.tryPlan(how, problem);
    if (failed(trial)) {
      if (compilation.isInternalError())
        break;
      continue; // more than it was priced at: another point takes its place
    }
    ++curve.simulated;
    const Decision &decision = *trial->decision;
    curve.points.push_back(
        {.bytes = trial->bytes,
         .seconds = trial->seconds,
         .expectedBytes = decision.plan.cost.fullest(),
         .expectedSeconds = decision.plan.cost.seconds,
         .decisions = planning::inWords(decision, decision.sharding),
         .strategy = decision.strategy});
  }
  if (curve.points.empty())
    curve.problem = "no plan's buffers fit: " + problem;
  return curve;
}

LogicalResult Exploration::explore(const std::vector<int64_t> &counts) {
  FailureOr<costmodel::Cluster> cluster = machine();
  if (failed(cluster))
    return failure();
  frontier.model = options.input;
  frontier.machine = cluster->name;
  frontier.globalBatch =
      train::ConfigAttr::of(compilation.getModule()).getGlobalBatch();
  if (frontier.globalBatch <= 0)
    frontier.globalBatch = options.globalBatch.value_or(1);
  frontier.memoryBytes = options.memoryLimit > 0
                             ? options.memoryLimit
                             : cluster->device().memoryBytes;
  frontier.leftOut = leftOut(options);
  for (int64_t devices : counts) {
    frontier.curves.push_back(curve(devices));
    if (compilation.isInternalError())
      return failure();
  }
  frontier.reduce();
  if (frontier.points() > 0)
    return success();
  // With most devices it was closest.
  const planning::FrontierCurve &last = frontier.curves.back();
  return error(frontier.curves.size() == 1
                   ? last.problem
                   : fmt::format("no plan on any of {} numbers of devices; on "
                                 "{}: {}",
                                 frontier.curves.size(), last.devices,
                                 last.problem));
}

LogicalResult Exploration::write() {
  std::ofstream out(options.frontier, std::ios::binary);
  out << (StringRef(options.frontier).ends_with(".html")
              ? frontierPage(frontier)
              : frontier.toJson());
  return out.flush() ? success()
                     : error("cannot write '" + options.frontier + "'");
}

void Exploration::describe() {
  report += fmt::format("frontier    {} points on {}, in {}\n",
                        frontier.points(), frontier.machine, options.frontier);
  for (const planning::FrontierCurve &curve : frontier.curves) {
    report += fmt::format("devices {:<3} {} plans priced, {} simulated\n",
                          curve.devices, curve.priced, curve.simulated);
    if (!curve.problem.empty())
      report += "            " + curve.problem + "\n";
    for (const planning::FrontierPoint &point : curve.points)
      report += fmt::format(
          "  {:>4} {:>11.2f} MiB {:>10} expected {:+.1f} %, {:+.1f} %  {}\n",
          point.number, double(point.bytes) / kMiB,
          report::humanSeconds(point.seconds),
          100 * planning::errorOf(point.expectedBytes, double(point.bytes)),
          100 * planning::errorOf(point.expectedSeconds, point.seconds),
          fmt::join(point.decisions, "; "));
  }
  for (const planning::LeftOut &one : frontier.leftOut)
    report += fmt::format("left out    {}: {}\n", one.name, one.reason);
}

LogicalResult Exploration::compile(const std::string &pick) {
  Result<const planning::FrontierPoint *> point = frontier.pick(pick);
  if (!point.ok())
    return error(point.status().str());
  for (const planning::FrontierCurve &curve : frontier.curves)
    for (const planning::FrontierPoint &one : curve.points)
      if (one.number == (*point)->number) {
        Replanning how;
        how.devices = curve.devices;
        how.picked = one.strategy;
        const std::string line = fmt::format(
            "point {} of {} plans worth having on {} devices: {}\n", one.number,
            frontier.points(), curve.devices, fmt::join(one.decisions, "; "));
        if (failed(compilation.plan(how, line)))
          return failure();
        return compilation.writeFiles();
      }
  return failure();
}

// More devices need not need less memory: every number is tried, upward.
LogicalResult Exploration::fewestDevices() {
  FailureOr<costmodel::Cluster> cluster = machine();
  if (failed(cluster))
    return failure();
  const int64_t most = options.devices.value_or(cluster->count);
  std::string problem;
  for (int64_t devices = 1; devices <= most; ++devices) {
    Replanning how;
    how.devices = devices;
    if (failed(compilation.searchPlans(how, problem))) {
      if (compilation.isInternalError())
        return failure();
      continue;
    }
    std::string why;
    LogicalResult done = failure();
    {
      ScopedDiagnosticHandler held(&context, [&](Diagnostic &diagnostic) {
        if (diagnostic.getSeverity() != DiagnosticSeverity::Error)
          return failure();
        why = diagnostic.str();
        return success();
      });
      done = compilation.plan(
          how,
          fmt::format("{} of {} devices: no plan fits fewer\n", devices, most));
    }
    if (succeeded(done))
      return compilation.writeFiles();
    if (compilation.isInternalError())
      return error(why);
    problem = why;
  }
  return error(fmt::format("--objective=devices: no plan on 1 to {} devices: "
                           "{}",
                           most, problem));
}

LogicalResult Exploration::run() {
  if (failed(compilation.prepare()))
    return failure();
  if (options.objective == Objective::Devices)
    return fewestDevices();
  frontier.question = question();
  const bool isKnown = !options.pick.empty() && readKnown();
  if (!isKnown) {
    std::vector<int64_t> counts = options.deviceCounts;
    if (counts.empty()) {
      FailureOr<costmodel::Cluster> cluster = machine();
      if (failed(cluster))
        return failure();
      counts = {options.devices.value_or(cluster->count)};
    }
    if (failed(explore(counts)))
      return failure();
    if (!options.frontier.empty()) {
      if (failed(write()))
        return failure();
      describe();
    }
  }
  if (options.objective == Objective::Memory)
    return compile("smallest");
  return options.pick.empty() ? success() : compile(options.pick);
}
