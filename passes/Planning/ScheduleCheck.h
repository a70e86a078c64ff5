// Checks a schedule.
#pragma once

#include "passes/Planning/ScheduleSimulate.h"

namespace merak::planning {

struct CheckOptions {
  std::vector<Transfer> transfers;              // empty: chainTransfers
  std::vector<int> inFlight;                    // bound per stage; empty: none
  int stages = 0, microbatches = 0, chunks = 0; // expected; 0: any
  std::string file; // where the schedule comes from, before each problem
};

// Every action exactly once (R all or none on a stage, W, P, U likewise),
// dependences inside a stage, microbatches 0 first in every action but R (so
// that no schedule changes the order of a sum, and both ends of a transfer
// agree), no deadlock (the cycle is printed), microbatches in flight within the
// bound. All problems at once: "FILE: stage 2, position 7: B3 is a duplicate
// ..".
Status checkSchedule(const Schedule &schedule,
                     const CheckOptions &options = {});

// The most microbatches whose F has run and whose B has not, per stage.
std::vector<int> inFlightPeak(const Schedule &schedule);

} // namespace merak::planning
