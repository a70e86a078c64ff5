// Checks a schedule and assigns slots to its values.
#pragma once

#include "passes/Planning/ScheduleSimulate.h"

namespace merak::planning {

struct CheckOptions {
  std::vector<Transfer> transfers; // empty: chainTransfers
  std::vector<int> inFlight;       // bound per stage; empty: none
};

// Every action exactly once (R all or none on a stage, W, P, U likewise),
// dependences inside a stage, both ends of each transfer in one order, no
// deadlock (the cycle is printed), microbatches in flight within the bound.
Status checkSchedule(const Schedule &schedule,
                     const CheckOptions &options = {});

// The most microbatches whose F has run and whose B has not, per stage.
std::vector<int> inFlightPeak(const Schedule &schedule);

// Values written by action `from` and last read by action `to` of the same
// microbatch on one stage (and chunk): how many copies are live at once, and
// which one each microbatch uses.
struct SlotAssignment {
  int slots = 0;
  std::vector<int> slotOf; // per microbatch; -1: the action does not occur
};
SlotAssignment assignSlots(const Schedule &schedule, int stage, Action from,
                           Action to, int chunk = 0);

} // namespace merak::planning
