// Predicts the timeline of a plan: runs its programs with instruction times
// from a few machine numbers, respecting streams, events, call waits and
// blocking communication, exactly as the runtime would.
#pragma once

#include "runtime/plan/Plan.h"
#include "runtime/report/Timeline.h"

namespace merak::report {

// An instruction takes the larger of arithmetic and memory time, at least
// `launchSeconds`. A transfer takes latency plus bytes over bandwidth; a
// collective of n members the time of a ring.
struct MachineCosts {
  double flopsPerSecond = 0;
  double bytesPerSecond = 0;
  double launchSeconds = 0;
  double linkLatencySeconds = 0;
  double linkBytesPerSecond = 0;

  // Plausible numbers for the plan's device ("cpu", "cuda").
  static MachineCosts of(const std::string &device);
};

struct Simulation {
  double stepSeconds = 0;
  // A row for each class of ranks that behave alike; on the compute stream one
  // span per uninterrupted stretch of a call.
  Timeline timeline;
  std::vector<RowUse> use; // by row
};

// `detailed`: one span per instruction instead. Requires verifyStructure and
// verifyMatching to have passed; a plan that gets stuck is an error.
Result<Simulation> simulate(const LoadedPlan &plan, const MachineCosts &costs,
                            bool detailed = false);

// Bytes that an instruction moves: as the compiler wrote it, else the size of
// its operands.
double instructionBytes(const planpb::Program &program,
                        const planpb::Instruction &instruction);

} // namespace merak::report
