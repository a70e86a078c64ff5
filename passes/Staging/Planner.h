// Makes the decisions: degrees, microbatches, shardings, stages, schedule.
#pragma once

#include "passes/CostModel/Cluster.h"
#include "passes/Planning/PlanSearch.h"
#include "passes/Staging/PlanningGraph.h"
#include "runtime/report/Decisions.h"

namespace merak {

struct PlannerOptions {
  costmodel::Cluster cluster;
  planning::Strategy pinned; // what the user decided
  int64_t globalBatch = 1;
  bool train = true;
  double memoryBytes = 0;               // of a device; 0: not limited
  double statePerParameter = 2;         // bytes of optimizer state by bytes
  planning::ReductionOptions reduction; // of gradients over replicas
};

// Everything later phases apply.
struct Decision {
  planning::Strategy strategy; // complete: the decision as a file
  int64_t pp = 1, dp = 1, tp = 1, microbatches = 1;
  int64_t chunks = 1; // parts of the model on each stage
  // Tensor-parallel overlap: with a level above 0 the layouts split the batch
  // over 2 * microbatches, or have the axis "half" (TokenHalves.h).
  int overlapLevel = 0;
  bool halfAxis = false;
  int64_t halves() const { return overlapLevel > 0 && !halfAxis ? 2 : 1; }
  PlanningGraph step;
  planning::Assignment assignment;
  planning::Outcome outcome;
  // By graph op: its part, chunk * pp + stage; only forward ops, others -1.
  std::vector<int> stageOfOp;
  std::vector<char> recompute; // by graph op: whether R computes it again
  // The order of actions where no named schedule is it.
  std::optional<planning::Schedule> schedule;
  // Most bytes of several gradients that one collective reduces; 0: none.
  int64_t gradientBucket = 0;
  planning::SearchReport sharding;
  std::string report; // lines for the user: shardings, stages, numbers
  report::Decisions considered; // the same for the plan's report
};

// Decides everything `options.pinned` leaves open. Ops whose reduction factor
// is split are replaced by their decomposition. Errors are emitted at ops or on
// the module.
mlir::FailureOr<Decision> planStrategy(mlir::ModuleOp module,
                                       const PlannerOptions &options);

} // namespace merak
