// Runs a schedule on paper: when each action starts and ends, how busy the
// stages are, how many bytes each holds. Planning scores stage cuts,
// recomputation and schedules with it, so it must stay fast: one pass over the
// actions, no map (64 stages x 512 microbatches take milliseconds).
#pragma once

#include "passes/Planning/Schedule.h"

namespace merak::planning {

// A value that goes from an action of one stage to an action of another, for
// every microbatch.
struct Transfer {
  int fromStage = 0, toStage = 0;
  Action fromAction = Action::F, toAction = Action::F;
  int fromChunk = 0, toChunk = 0;
  bool operator==(const Transfer &) const = default;
};
// F to the virtual stage `distance` further on, B as far back; none between
// chunks of one stage if others lie between them.
std::vector<Transfer> chainTransfers(const Schedule &schedule,
                                     int distance = 1);

// Seconds (or units) of each action on one stage, per chunk execution.
struct ActionTimes {
  double P = 0, F = 1, R = 0, B = 2, W = 0, U = 0;
  double of(Action action) const;
};

// Between virtual stages v and v+1: seconds and bytes of one microbatch.
struct BoundaryCost {
  double forward = 0, backward = 0;
  double forwardBytes = 0, backwardBytes = 0;
};

// Bytes a stage holds. `kept` is what F leaves when the stage recomputes and
// `recomputed` what R adds, together the full set of activations; a stage
// without R in the schedule holds both from F on.
struct StageMemory {
  double fixed = 0;      // all the time: weights, gradients, optimizer state
  double kept = 0;       // from the start of F to the end of W (of B without W)
  double recomputed = 0; // from the start of R to the same end
  double untilB = 0;     // from the start of F to the end of B
  double pending = 0;    // from the start of B to the end of W
};

// Per-stage data: one entry for all, one per stage, or one per virtual stage
// (chunk c of stage s at c * stages + s).
struct SimulateOptions {
  std::vector<ActionTimes> times;
  std::vector<StageMemory> memory; // empty: bytes are not counted
  // Asynchronous, one at a time per pair of devices and direction. Per
  // boundary, or empty: the same on all.
  std::vector<BoundaryCost> boundaries;
  double forwardTransfer = 0, backwardTransfer = 0;
  std::vector<Transfer> transfers; // empty: chainTransfers
  // Besides these, from W to W: parts of sums over the gradients of several
  // stages. They take no time of their own: boundaries hold their bytes.
  std::vector<Transfer> weightSums;
  // Seconds that each stage is busy before its first action; empty: none.
  std::vector<double> setup;
  // Record each action and the bytes over time; off to score candidates.
  bool record = true;
};

struct TimedStep {
  Step step;
  double start = 0, end = 0;
};
struct MemoryPoint {
  double time = 0, bytes = 0; // held from here on
};
struct Timeline {
  double total = 0;
  bool finished = true;     // false: a deadlock, the rest is what ran
  std::vector<double> busy; // per stage
  // The most activation sets materialised at once: of microbatches between R
  // (F on a stage without R) and W (B without W).
  std::vector<int> fullSets;
  std::vector<double> peakBytes; // with `memory`
  std::vector<double> sentBytes; // with `boundaries`
  std::vector<std::vector<TimedStep>> stages;
  std::vector<std::vector<MemoryPoint>> memory;
  double idleFraction() const; // mean over stages
};

// One action at a time per stage, in order. Requires that each action stands
// once (checkSchedule).
Timeline simulate(const Schedule &schedule, const SimulateOptions &options);
// One cell a unit, "--" idle; times must be whole numbers.
std::string timelineStr(const Timeline &timeline);

} // namespace merak::planning
