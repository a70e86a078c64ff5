#include "runtime/plan/Verify.h"
#include "runtime/plan/Execution.h"
#include "runtime/plan/Partial.h"

namespace merak {

Status verifyProgress(const LoadedPlan &plan) {
  CommunicationMap map(plan);
  Execution execution(
      plan, map, [](const ExecutionSite &) { return 0.0; }, nullptr);
  if (execution.run())
    return {};
  return Status::error(execution.explainDeadlock());
}

Status verifyPlan(const LoadedPlan &plan) {
  // Everything else takes indices as they are.
  MERAK_RETURN_IF_ERROR(verifyStructure(plan));
  Status status = verifyShares(plan);
  for (size_t i = 0; i < plan.programs.size(); ++i)
    status.merge(verifyMemory(plan, static_cast<int>(i)));
  for (const planpb::Program &program : plan.programs) {
    status.merge(verifyPartials(program));
    status.merge(verifyDelayed(program));
    status.merge(verifyCopies(program));
  }
  status.merge(verifyEntries(plan));
  status.merge(verifyLossScale(plan));
  Status matching = verifyMatching(plan);
  status.merge(matching);
  // Ends that do not match get stuck too, but the reason is known already.
  if (matching.ok()) {
    status.merge(verifyProgress(plan));
    status.merge(verifyReplication(plan));
  }
  return status;
}

} // namespace merak
