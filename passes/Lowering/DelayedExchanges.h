// When rows and gradients that the step before left are exchanged
// (train.delayed).
#pragma once

#include "dialects/Plan/PlanDialect.h"

namespace merak::lowering {

// Gradients, which stand in front of a call's first use of one, onto a stream
// of their own, behind what lookups of that call exchange, if they may.
//
// Rows onto a stream of their own, the last of all in rank: nothing waits for
// them before the end of the step. They go into the first forward call, behind
// what its lookups exchange and gradients, which the computation waits for;
// streams of the others are set. A call waits before it begins for what it
// needs of other streams; so the update becomes several calls: what leads to
// the exchange of the prior rows, which needs no other gradient, what is done
// until they are there, and the rest.
void placeDelayed(plan::ProgramOp program);

} // namespace merak::lowering
