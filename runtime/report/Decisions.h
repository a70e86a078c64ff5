// What the compiler considered and decided, kept in the plan, so that a report
// can be made from the plan alone. Numbers are predictions for the cluster that
// the plan was compiled for; 0 means "not known".
#pragma once

#include "runtime/plan/plan.pb.h"

#include <cstdint>
#include <string>
#include <vector>

namespace merak::report {

// One configuration of the whole training step.
struct CandidatePlan {
  std::string name; // e.g. "pure data parallelism"; empty: only its degrees
  int64_t pp = 1, dp = 1, tp = 1;
  int64_t microbatches = 1; // a step and replica
  int64_t microbatch = 0;   // samples
  std::string schedule, recompute;
  int64_t tpOverlap = 0;     // level
  double seconds = 0;        // a step
  double memoryBytes = 0;    // of the fullest rank
  double exposedSeconds = 0; // communication that hides behind nothing
  double bubbleSeconds = 0;  // of the idlest stage
  bool chosen = false;
  bool feasible = true;
  std::string why; // why chosen, or why not
  // Another point of the curve of memory and time: drawn, but listed nowhere.
  bool onlyDrawn = false;
};

// One pipeline stage of the chosen configuration.
struct StageDecision {
  std::string first, last;                        // its first and last op
  double forwardSeconds = 0, backwardSeconds = 0; // a microbatch
  double memoryBytes = 0;                         // at the peak
  double memoryLimit = 0;
  int64_t opsRecomputed = 0, ops = 0;
  double recomputedBytes = 0;  // a microbatch, not kept because recomputed
  double recomputeSeconds = 0; // a microbatch
  std::string why;             // of the recomputation
};

struct Decisions {
  std::vector<CandidatePlan> candidates; // best first, as far as they compare
  std::vector<StageDecision> stages;
  std::string text; // what merakc printed
};

planpb::Decisions toProto(const Decisions &decisions);
Decisions decisionsOf(const planpb::PlanFile &file);

} // namespace merak::report
