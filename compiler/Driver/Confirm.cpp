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
    const planning::PlanCandidate &plan = notes.decision->found.finalists[i];
    lines += fmt::format(
        "plan {}, {}{}: {} expected, {}{}\n", plan.degrees.str(),
        plan.plan.schedule.name, plan.techniques.str(),
        report::humanSeconds(finalist.expected),
        finalist.failed
            ? "its buffers do not fit"
            : report::humanSeconds(*finalist.simulated) + " simulated",
        i == again.take ? "; taken" : "");
  }
  return lines;
}

// After the last phase with the plan `again.take`, or after a failure of it.
bool Compilation::triesAnother(bool failed) {
  const size_t taken = again.take;
  if (!isConfirmed) {
    if (finalists.empty())
      for (const planning::PlanCandidate &plan :
           notes.decision->found.finalists)
        finalists.push_back({plan.plan.cost.seconds, std::nullopt, false});
    finalists[taken].failed = failed;
    if (!failed) // as it was priced last, after what had to be decomposed
      finalists[taken].expected = notes.decision->plan.cost.seconds;
    finalists[taken].simulated = failed ? std::nullopt : simulatedStep();
    if (!failed && !finalists[taken].simulated)
      return false;
    std::optional<size_t> next =
        planning::nextFinalist(finalists, kMostSimulated);
    isConfirmed = !next;
    again.take = next ? *next : *planning::bestFinalist(finalists);
    if (!again.found)
      again.found = notes.decision->found;
    if (again.take != taken)
      return true;
  }
  notes.simulated = finalists[again.take].simulated;
  report += confirmedLines();
  return false;
}
