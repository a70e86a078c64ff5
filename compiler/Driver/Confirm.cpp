// Where the figures of the search are closer to each other than to the truth,
// the plan itself decides: the last phase's module is simulated as the plan
// that it will be, and the next best plans too if they might be faster.
#include "codegen/PlanWriter/PlanWriter.h"
#include "compiler/Driver/Phases.h"
#include "passes/CostModel/PlanCosts.h"
#include "runtime/plan/Print.h"
#include "runtime/plan/Verify.h"
#include "runtime/report/Simulate.h"

#include <fmt/format.h>

using namespace mlir;
using namespace merak;

// Plans that are compiled to be compared, at most.
constexpr size_t kMostSimulated = 4;

// None: it is no plan that could be simulated, as writing it will say.
std::optional<double> Compilation::simulatedStep() {
  planning::Stopwatch watch(times.confirmation);
  PlanWriterOptions writer;
  writer.target = options.target;
  ScopedDiagnosticHandler silent(&context, [](Diagnostic &) {});
  FailureOr<LoadedPlan> plan = describePlan(*module, writer);
  if (failed(plan) || !verifyStructure(*plan).ok() ||
      !verifyMatching(*plan).ok())
    return std::nullopt;
  Result<costmodel::PlanCosts> costs = costmodel::planCosts(*plan);
  if (!costs.ok())
    return std::nullopt;
  Result<report::Simulation> simulation = report::simulate(*plan, *costs);
  if (!simulation.ok())
    return std::nullopt;
  return simulation->stepSeconds;
}

std::string Compilation::confirmedLines() const {
  std::string lines;
  for (size_t i = 0; i < finalists.size(); ++i) {
    const planning::Finalist &finalist = finalists[i];
    if (!finalist.simulated && !finalist.failed)
      continue;
    const planning::PlanCandidate &plan = again.found->plan(i);
    const planning::SharedPlan *shared = again.found->sharedPlan(i);
    lines += fmt::format(
        "plan {}, {}{}: {} expected, {}{}\n",
        shared ? "of pipelines, " + shared->str() +
                     (shared->haveOneMesh()
                          ? fmt::format(" of {} stages with tp={}",
                                        plan.degrees.pp, plan.degrees.tp)
                          : "")
        : plan.stages
            ? fmt::format("stages on devices {}, {} microbatches",
                          plan.stages->str(), plan.degrees.microbatches)
            : plan.degrees.str(),
        plan.plan.schedule.name, plan.techniques.str(),
        report::humanSeconds(finalist.expected),
        finalist.failed
            ? "its buffers do not fit"
            : report::humanSeconds(*finalist.simulated) + " simulated",
        i == again.take ? "; taken" : "");
  }
  return lines;
}

// Beside stages with meshes of their own, and pipelines, the best plan of one
// mesh.
void Compilation::compareParts() {
  const size_t uniform = again.found->finalists.size();
  const size_t parts = uniform + again.found->parts.size();
  const auto bestOf = [&](size_t begin, size_t end) {
    const std::vector<planning::Finalist> kind(
        finalists.begin() + std::ptrdiff_t(begin),
        finalists.begin() + std::ptrdiff_t(end));
    const std::optional<size_t> best = planning::bestFinalist(kind);
    return best ? kind[*best].simulated : std::nullopt;
  };
  if (parts > uniform)
    notes.parts = {bestOf(0, uniform), bestOf(uniform, parts)};
  if (finalists.size() > parts)
    notes.shares = {bestOf(0, uniform), bestOf(parts, finalists.size())};
}

// After the last phase with the plan `again.take`, or after a failure of it.
bool Compilation::triesAnother(bool failed) {
  const size_t taken = again.take;
  if (!isConfirmed) {
    const SearchResult &found =
        again.found ? *again.found : notes.decision->found;
    const size_t uniform = found.finalists.size();
    if (finalists.empty())
      for (size_t i = 0; i < found.plans(); ++i)
        finalists.push_back(
            {found.plan(i).plan.cost.seconds, std::nullopt, false});
    finalists[taken].failed = failed;
    if (!failed) // as it was priced last, after what had to be decomposed
      finalists[taken].expected = notes.decision->plan.cost.seconds;
    finalists[taken].simulated = failed ? std::nullopt : simulatedStep();
    if (!failed && !finalists[taken].simulated)
      return false;
    std::optional<size_t> next = planning::nextOfKinds(
        finalists, {uniform, uniform + found.parts.size()}, kMostSimulated);
    isConfirmed = !next;
    again.take = next ? *next : *planning::bestFinalist(finalists);
    if (!again.found)
      again.found = notes.decision->found;
    if (again.take != taken)
      return true;
  }
  notes.simulated = finalists[again.take].simulated;
  compareParts();
  report += confirmedLines();
  return false;
}
