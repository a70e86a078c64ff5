// The steps of a run: what is written, measured, saved and changed between
// them, until the last one or until something ends it.
#pragma once

#include "runtime/launch/AsRank.h"
#include "runtime/launch/RunCopies.h"
#include "runtime/launch/RunMain.h"
#include "runtime/launch/RunOptions.h"
#include "runtime/launch/Session.h"

#include <memory>
#include <string>

namespace merak::runtime {

// What the tool's main knows of costs.
struct Costs {
  ExpectedSeconds expected;
  PlanPrices prices;
};

// How a run ended that has no error, or which code stands for its error.
struct RunEnd {
  std::string early;  // why it ended before its last step, if it did
  bool again = false; // to be started again with another plan
  int failureCode = kFailed;
};

// For people, on rank 0's process; nothing if it is empty.
void tellNote(const std::string &note, bool leads);

// From the state that the session has, with saves and copies as the options
// say. `session` is another one after the plan was changed. `copies`: null,
// none are kept; `world`: null for one process. What the run's processes do
// together, all do.
Status runSteps(std::unique_ptr<Session> &session, const RunOptions &options,
                const Costs &costs, const BackendFactory &factory, World *world,
                RunCopies *copies, RunEnd &end);

} // namespace merak::runtime
