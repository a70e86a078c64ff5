// Predicts a step of a plan: runs its programs with the instruction times of a
// machine, respecting streams, events, call waits and blocking communication,
// exactly as the runtime would. The link of a rank carries one message after
// another.
#pragma once

#include "runtime/plan/Plan.h"
#include "runtime/report/Costs.h"
#include "runtime/report/MemoryUse.h"
#include "runtime/report/Timeline.h"

namespace merak::report {

// What one rank of a row communicates in a step, by kind and partners.
struct Traffic {
  int row = 0;
  std::string kind; // "all_reduce", "send", ...
  std::string over; // axes of the group, or where the peer is: "pp=1"
  int64_t count = 0;
  double bytes = 0;   // of the messages, all together
  double seconds = 0; // from when all are there
};

struct Simulation {
  double stepSeconds = 0;
  // A row for each class of ranks that behave alike; on the compute stream one
  // span per uninterrupted stretch of a call.
  Timeline timeline;
  std::vector<RowUse> use;       // by row
  std::vector<MemoryUse> memory; // by row
  std::vector<Traffic> traffic;  // by row, most bytes first
};

// Step time, use of each row, bytes of each collective and peaks of memory, a
// line each.
std::string describe(const Simulation &simulation);

// "stage 0, ranks 0-3" for each class of ranks.
std::vector<std::string> rowLabels(const LoadedPlan &plan,
                                   const CommunicationMap &map);

// `detailed`: one span per instruction instead. Requires verifyStructure and
// verifyMatching to have passed; a plan that gets stuck is an error.
Result<Simulation> simulate(const LoadedPlan &plan, const Costs &costs,
                            bool detailed = false);

} // namespace merak::report
