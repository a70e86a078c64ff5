// Which forward ops the backward pass computes again.
#pragma once

#include "passes/Planning/PlanDecision.h"

namespace merak::planning {

// Fills `decision.recompute` from `decision.strategy` (mode, schedule, ops) and
// the ops that `pinned` names, and writes the choice back to the strategy.
// Requires degrees, stages and the schedule's name. Errors: ops that the model
// lacks.
//   none   nothing
//   auto   what `decision.recompute` holds already, planning's choice
//   full   all of every stage; of the last one not under last and scp, whose
//          orders have no recomputation there
//   RATIO  the first blocks of a stage, by Merak's rule (merakc --help)
Status markRecompute(const Graph &graph, const Strategy &pinned,
                     PlanDecision &decision);

} // namespace merak::planning
