// An agent that stands by: it joins the one that leads a run (AgentLead.h) and
// goes on with the run if that one is lost, as if the run alone had been.
//
//   join ─► what the run needs is here? ─► keep what the leader knows
//                                                │ leader gone, or silent
//            follow whoever leads  ◄── in turn ──┤
//                                                └─► hosts grant the next
//                                                    start ─► lead (Agent.h)
#pragma once

#include "runtime/launch/Agent.h"

namespace merak::runtime {

// `options.standby`, `options.agentSeconds` count; all else comes from the
// leader. The exit code of the run; 1: no agent leads it, and this one may
// not; 2: something that a run needs is not here.
int runStandby(const AgentOptions &options, const PlanPrices &prices);

} // namespace merak::runtime
