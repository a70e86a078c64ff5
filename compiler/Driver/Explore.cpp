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

// Bytes of a limit that only rounding could miss.
constexpr double kRounding = 1 + 1e-6;

// More than any device has; 0 would be what the device of the cluster has.
constexpr double kAnyMemory = 1e18;

// Points of a curve that are compiled to be simulated, at most; and plans that
// are kept for a limit, of which few are compiled.
constexpr size_t kPoints = 32, kWithin = 96;

// On more devices a limit is only the limit of one search: several of them take
// too long to be what somebody expects who has not asked for them.
constexpr int64_t kMostDevices = 64;

// What may be the fastest is priced at most at so much of the fastest that was
// simulated. (Prices of real models are within 10 % of seconds.)
constexpr double kMayWin = 1.15;

// A limit that the user gives asks for the fastest plan within it. It is one of
// the same plans for every limit, so that more memory never makes it slower.
static bool asksWithin(const CompilerOptions &options) {
  return options.memoryLimit > 0 && options.toPhase == "files" &&
         options.fromPhase.empty() && !options.check;
}

bool merak::asksQuestion(const CompilerOptions &options) {
  return !options.frontier.empty() || options.objective != Objective::Time ||
         asksWithin(options);
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
                                const std::string &remark,
                                std::vector<planning::Finalist> tried) {
  startOver(how);
  const std::vector<std::string> &names = phaseNames();
  reasons = remark;
  report += remark;
  isConfirmed = !tried.empty();
  finalists = std::move(tried);
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
  out << fmt::format(
      "{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}",
      o.memoryLimit, fmt::join(o.deviceCounts, ","), o.devices.value_or(0),
      o.microbatch.value_or(0), o.globalBatch.value_or(0), o.train,
      o.chunks.value_or(0), o.gradOverlap, o.gradBucket.value_or(-1),
      o.gradClip, o.precision, o.schedule, o.recompute, o.tpOverlap, o.zero,
      o.sequence, o.context, o.mixed, o.castWeights, o.reshard,
      int(optimizer.kind), optimizer.momentum);
  for (const auto &[axis, degree] : o.mesh)
    out << axis << degree;
  out << o.parts;
  for (const auto &[device, rate] : o.forRates)
    out << ' ' << device << ':' << rate;
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

// Else a model's own mesh may say how many there are.
void Exploration::setDevices(Replanning &how, int64_t devices) const {
  if (!options.deviceCounts.empty() || options.objective == Objective::Devices)
    how.devices = devices;
}

// Finalist `take` of what was found on so many devices.
Replanning Exploration::planOf(int64_t devices, size_t take) const {
  const SearchResult &found = explored.at(devices).found;
  Replanning how;
  setDevices(how, devices);
  how.found = found;
  how.take = take;
  // What is planned again after a decomposition stays as small.
  how.memoryBytes =
      kRounding * double(planning::costOf(found.plan(take)).bytes);
  return how;
}

// Lays out and simulates a plan that was found; none: its buffers do not fit.
std::optional<planning::FrontierPoint>
Exploration::tryPlan(int64_t devices, size_t take, std::string &problem) {
  planning::Finalist &tried = explored.at(devices).tried[take];
  FailureOr<Compilation::Trial> trial =
      compilation.tryPlan(planOf(devices, take), problem);
  tried.failed = failed(trial);
  if (failed(trial))
    return std::nullopt;
  const Decision &decision = *trial->decision;
  tried.expected = decision.plan.cost.seconds;
  tried.simulated = trial->seconds;
  return planning::FrontierPoint{
      .bytes = trial->bytes,
      .seconds = trial->seconds,
      .expectedBytes = decision.plan.cost.fullest(),
      .expectedSeconds = decision.plan.cost.seconds,
      .decisions = planning::decisionsOf(decision),
      .places = planning::placesOf(decision, decision.sharding),
      .strategy = decision.strategy,
      .take = take};
}

// `limit`: bytes of a device for the search; 0: what it has.
bool Exploration::search(int64_t devices, size_t most, double limit,
                         std::string &problem) {
  Replanning how;
  setDevices(how, devices);
  how.explores = most;
  how.memoryBytes = limit;
  FailureOr<SearchResult> found = compilation.searchPlans(how, problem);
  if (failed(found))
    return false;
  Explored &known = explored[devices];
  known.found = std::move(*found);
  for (size_t i = 0; i < known.found.plans(); ++i)
    known.tried.push_back({known.found.plan(i).plan.cost.seconds, std::nullopt,
                           /*failed=*/false});
  return true;
}

// All that the search found on so many devices.
planning::FrontierCurve Exploration::curve(int64_t devices) {
  planning::FrontierCurve curve;
  curve.devices = devices;
  std::string problem;
  if (!search(devices, kPoints, /*limit=*/0, curve.problem))
    return curve;
  curve.priced = explored[devices].found.priced;
  for (size_t i = 0; i < explored[devices].tried.size(); ++i) {
    if (std::optional<planning::FrontierPoint> point =
            tryPlan(devices, i, problem)) {
      ++curve.simulated;
      curve.points.push_back(std::move(*point));
    }
    if (compilation.isInternalError())
      break;
  }
  if (curve.points.empty())
    curve.problem = "no plan's buffers fit: " + problem;
  return curve;
}

LogicalResult Exploration::explore(const std::vector<int64_t> &counts,
                                   const costmodel::Cluster &cluster) {
  if (!options.cluster.empty() && counts.back() > cluster.count)
    return error(fmt::format("--devices: {} has {} devices, not {}",
                             options.cluster, cluster.count, counts.back()));
  frontier.model = options.input;
  frontier.machine = cluster.name;
  frontier.globalBatch =
      train::ConfigAttr::of(compilation.getModule()).getGlobalBatch();
  if (frontier.globalBatch <= 0)
    frontier.globalBatch = options.globalBatch.value_or(1);
  frontier.memoryBytes = options.memoryLimit > 0 ? options.memoryLimit
                                                 : cluster.device().memoryBytes;
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

// The fastest of the plans that fit, without one: as if nobody had asked, since
// a search under the limit itself may find what just fits, or say what lacks.
LogicalResult Exploration::fastestWithin(int64_t devices) {
  std::string problem;
  std::optional<size_t> best;
  std::vector<size_t> order;
  if (devices <= kMostDevices &&
      search(devices, kWithin, kAnyMemory, problem)) {
    const SearchResult &found = explored[devices].found;
    for (size_t i = 0; i < found.plans(); ++i)
      if (double(planning::costOf(found.plan(i)).bytes) <=
          planning::kMayFit * double(options.memoryLimit))
        order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return planning::costOf(found.plan(a)).nanoseconds <
             planning::costOf(found.plan(b)).nanoseconds;
    });
  }
  if (compilation.isInternalError())
    return failure();
  std::vector<planning::Finalist> &tried = explored[devices].tried;
  for (size_t i : order) {
    if (best && tried[i].expected > kMayWin * *tried[*best].simulated)
      break;
    if (tryPlan(devices, i, problem) &&
        (!best || *tried[i].simulated < *tried[*best].simulated))
      best = i;
    if (compilation.isInternalError())
      return failure();
  }
  Replanning how;
  setDevices(how, devices);
  return best ? compilation.plan(planOf(devices, *best),
                                 fmt::format("the fastest of {} plans worth "
                                             "having that fits\n",
                                             tried.size()),
                                 tried)
              : compilation.plan(how, "");
}

LogicalResult Exploration::write() {
  std::ofstream out(options.frontier, std::ios::binary);
  out << (StringRef(options.frontier).ends_with(".html")
              ? frontierPage(frontier)
              : frontier.toJson());
  return out.flush() ? success()
                     : error("cannot write '" + options.frontier + "'");
}

static std::string firstLine(const std::string &text) {
  return text.substr(0, text.find('\n'));
}

void Exploration::describe() {
  report += fmt::format("frontier    {} points on {}, in {}\n",
                        frontier.points(), frontier.machine, options.frontier);
  for (const planning::FrontierCurve &curve : frontier.curves) {
    report += fmt::format("devices {:<3} {} plans priced, {} simulated\n",
                          curve.devices, curve.priced, curve.simulated);
    if (!curve.problem.empty())
      report += "            " + firstLine(curve.problem) + "\n";
    if (!curve.points.empty())
      report += "   point        memory        step   expected (bytes, time)   "
                "decisions\n";
    for (const planning::FrontierPoint &point : curve.points) {
      report += fmt::format(
          "  {:>6} {:>9.2f} MiB {:>11}   {:>+7.1f} %   {:>+7.1f} %      {}\n",
          point.number, double(point.bytes) / kMiB,
          report::humanSeconds(point.seconds),
          100 * planning::errorOf(point.expectedBytes, double(point.bytes)),
          100 * planning::errorOf(point.expectedSeconds, point.seconds),
          fmt::join(point.decisions, "; "));
      if (options.verbose && !point.places.empty())
        report += fmt::format("{:>63}{}\n", "", fmt::join(point.places, "; "));
    }
  }
  if (options.pick.empty())
    for (const std::string &warning : compilation.getWarnings())
      report += "warning: " + warning + "\n";
  for (const planning::LeftOut &one : frontier.leftOut)
    report += fmt::format("left out    {}: {}\n", one.name, one.reason);
}

LogicalResult Exploration::compile(const std::string &pick) {
  Result<const planning::FrontierPoint *> picked = frontier.pick(pick);
  if (!picked.ok())
    return error(picked.status().str());
  const planning::FrontierPoint &point = **picked;
  for (const planning::FrontierCurve &curve : frontier.curves) {
    if (llvm::none_of(curve.points, [&](const planning::FrontierPoint &one) {
          return one.number == point.number;
        }))
      continue;
    const bool isRead = explored.empty();
    Replanning how;
    setDevices(how, curve.devices);
    how.picked = point.strategy;
    if (!isRead)
      how = planOf(curve.devices, point.take);
    const std::string line =
        fmt::format("point {} of {} plans worth having, on {} devices\n",
                    point.number, frontier.points(), curve.devices);
    if (failed(compilation.plan(how, line,
                                isRead ? std::vector<planning::Finalist>()
                                       : explored.at(curve.devices).tried)))
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
      done = asksWithin(options) ? fastestWithin(devices)
                                 : compilation.plan(how, "");
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
  FailureOr<costmodel::Cluster> cluster = machine();
  if (failed(cluster))
    return failure();
  std::vector<int64_t> counts = options.deviceCounts;
  if (counts.empty())
    counts = {options.devices.value_or(cluster->count)};
  if (options.frontier.empty() && options.objective == Objective::Time)
    return failed(fastestWithin(counts.front())) ? failure()
                                                 : compilation.writeFiles();
  frontier.question = question();
  if (!options.pick.empty() && readKnown())
    return compile(options.pick);
  if (failed(explore(counts, *cluster)))
    return failure();
  if (!options.frontier.empty()) {
    if (failed(write()))
      return failure();
    describe();
  }
  if (options.objective == Objective::Memory)
    return compile("smallest");
  return options.pick.empty() ? success() : compile(options.pick);
}
