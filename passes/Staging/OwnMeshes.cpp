#include "passes/Staging/OwnMeshes.h"

#include "passes/Planning/ParetoPlans.h"
#include "passes/Planning/PartsSearch.h"
#include "passes/Planning/PlanSketch.h"
#include "passes/Planning/StageMeshes.h"

#include "llvm/ADT/STLExtras.h"

#include <fmt/format.h>

#include <thread>

using namespace merak;

// Plans of stages on meshes of their own that are kept of a search, and of
// shares; searches between memory and time, and what their limits are to the
// memory of the best plan of one mesh before.
constexpr size_t kParts = 3, kShares = 3;
constexpr int kPartLimits = 5;
constexpr double kPartsShrink = 0.75;

std::vector<planning::PlanCandidate>
merak::takenOf(planning::PlanSearch &of, const planning::SearchInput &with,
               const std::vector<planning::PlanCandidate> &all, bool sketches) {
  std::vector<planning::PlanCandidate> best =
      planning::finalists(all, kFinalists);
  for (planning::PlanCandidate &moved :
       planning::neighbouringCuts(of, with, best))
    best.push_back(std::move(moved));
  if (sketches)
    planning::sketchPlans(of, with, best);
  if (best.empty())
    best = {all.front()};
  return best;
}

// Beside each other. Each has prices of its own, so that neither depends on
// what the other did first, nor on whether there are two threads.
void OwnMeshes::searchBoth() {
  std::optional<planning::SharesQuestion> question;
  if (options.shares)
    question = askForShares();
  planning::SearchInput machine = input;
  machine.cluster = options.cluster;
  planning::StageMeshes meshes(input, options.cluster);
  std::optional<planning::DraftedShares> drafted;
  std::thread beside;
  if (question)
    beside = std::thread([&] { drafted.emplace(machine, meshes, *question); });
  searchStages();
  if (beside.joinable())
    beside.join();
  if (found.parts.empty())
    report += "stages with meshes of their own: none promises less\n";
  if (drafted)
    takeShared(drafted->plans(fastestFound(), kShares));
}

// Those that promise less than the best of one mesh. Of plans that lie between
// memory and time, under smaller limits too: what fits one of these need not be
// among the fastest without it.
void OwnMeshes::searchStages() {
  planning::SearchInput machine = input;
  machine.cluster = options.cluster;
  for (int limits = options.explores > 0 ? kPartLimits : 1; limits > 0;
       --limits) {
    const planning::PlanCandidate *best = nullptr; // of one mesh
    for (const planning::PlanCandidate &finalist : found.finalists)
      if ((machine.memoryBytes <= 0 ||
           finalist.plan.cost.fullest() <= machine.memoryBytes) &&
          (!best || finalist.plan.cost.seconds < best->plan.cost.seconds))
        best = &finalist;
    const std::vector<planning::PlanCandidate> parts =
        planning::searchParts(machine, search.stageMeshes(),
                              best ? best->plan.cost.seconds : 0, kParts);
    for (const planning::PlanCandidate &candidate : parts)
      if (llvm::none_of(found.parts, [&](const planning::PlanCandidate &other) {
            return planning::costOf(other) == planning::costOf(candidate);
          }))
        found.parts.push_back(candidate);
    if (!best && parts.empty())
      break;
    machine.memoryBytes =
        kPartsShrink * (best ? *best : parts.front()).plan.cost.fullest();
    search.limitMemory(machine.memoryBytes);
  }
  search.limitMemory(input.memoryBytes);
}

// Where the stages of the only mesh begin if no device is slow, which a run may
// have by now.
void OwnMeshes::takeHealthyCuts(planning::SharesQuestion &question) {
  planning::SearchInput healthy = input;
  healthy.cluster.rateOf.clear();
  healthy.machine.rateOf.clear();
  planning::PlanSearch of(healthy);
  const std::vector<planning::PlanCandidate> all =
      of.search(planning::ownPolicy(healthy.pinned));
  times.add(of.times);
  if (!all.empty() && all.front().fits()) {
    const planning::PlanCandidate best =
        takenOf(of, healthy, all, options.explores == 0).front();
    if (best.degrees.dp == question.degrees.front().dp)
      question.begin = best.plan.begin;
  }
  question.onlyThese = healthy.pinned.stageBegins.has_value();
}

// Seconds of the best that was found so far, 0: nothing was.
double OwnMeshes::fastestFound() const {
  double least = 0;
  for (const auto *plans : {&found.finalists, &found.parts})
    for (const planning::PlanCandidate &plan : *plans)
      if (least == 0 || plan.plan.cost.seconds < least)
        least = plan.plan.cost.seconds;
  return least;
}

// The replicas of one mesh with shares of their own, and pipelines on devices
// that are alike, where devices are slow or of several kinds; nothing: there
// are none.
std::optional<planning::SharesQuestion> OwnMeshes::askForShares() {
  planning::SharesQuestion question;
  Result<std::vector<planning::Degrees>> all = search.degrees();
  const int64_t most = planning::hasSeveralKinds(options.cluster)
                           ? options.cluster.count // some are joined
                           : planning::kMostPipelines;
  for (planning::Degrees d : all.ok() ? *all : decltype(question.degrees)()) {
    d.microbatches = 1;
    if (d.dp > 1 && d.dp <= most && !llvm::is_contained(question.degrees, d))
      question.degrees.push_back(d);
  }
  question.classes = options.parts;
  if (question.degrees.empty() && !question.classes)
    return {};
  const auto isGiven = [&](const char *axis) {
    return input.pinned.mesh.contains(axis);
  };
  if (isGiven(kPipelineAxis) && question.degrees.size() == 1)
    takeHealthyCuts(question);
  question.leavesOut = !isGiven(kDataAxis);
  question.limit = fastestFound();
  return question;
}

void OwnMeshes::searchShares() {
  if (!options.shares)
    return;
  planning::Stopwatch watch(times.parts);
  const std::optional<planning::SharesQuestion> question = askForShares();
  if (!question)
    return;
  planning::SearchInput machine = input;
  machine.cluster = options.cluster;
  takeShared(planning::searchShares(machine, search.stageMeshes(), *question,
                                    kShares));
}

void OwnMeshes::takeShared(std::vector<planning::SharedPlan> shares) {
  found.shares = std::move(shares);
  if (found.shares.empty())
    report += "pipelines with shares of the microbatches: none promises less\n";
  for (const planning::SharedPlan &plan : found.shares)
    report += fmt::format(
        "pipelines with shares of the microbatches: {}{}, {:.4g} ms expected\n",
        plan.str(),
        plan.haveOneMesh() ? fmt::format(", pp={} tp={}", plan.plan.degrees.pp,
                                         plan.plan.degrees.tp)
                           : "",
        1e3 * plan.plan.plan.cost.seconds);
}
