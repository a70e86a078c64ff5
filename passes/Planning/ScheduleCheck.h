// Checks, simulates and assigns slots for a schedule.
#pragma once

#include "passes/Planning/Schedule.h"

#include <map>

namespace merak::planning {

// A value that goes from an action of one stage to an action of another, for
// every microbatch.
struct Transfer {
  int fromStage = 0, toStage = 0;
  Action fromAction = Action::F, toAction = Action::F;
  int fromChunk = 0, toChunk = 0;
};
// F to the next virtual stage, B to the one before.
std::vector<Transfer> chainTransfers(const Schedule &schedule);

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

// Seconds (or units) of each action on one stage, per chunk execution.
struct ActionTimes {
  double P = 0, F = 1, R = 0, B = 2, W = 0, U = 0;
  double of(Action action) const;
};
struct TimedStep {
  Step step;
  double start = 0, end = 0;
};
struct Timeline {
  double total = 0;
  std::vector<double> busy; // per stage
  std::vector<std::vector<TimedStep>> stages;
  double idleFraction() const; // mean over stages
};
struct SimulateOptions {
  std::vector<ActionTimes> times; // one per stage, or one for all
  // Time of a transfer forward and backward, asynchronous, one at a time per
  // boundary and direction.
  double forwardTransfer = 0, backwardTransfer = 0;
  std::vector<Transfer> transfers; // empty: chainTransfers
};
// Requires checkSchedule().ok(). One action at a time per stage, in order.
Timeline simulate(const Schedule &schedule, const SimulateOptions &options);
// One cell a unit, "--" idle; times must be whole numbers.
std::string timelineStr(const Timeline &timeline);

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
