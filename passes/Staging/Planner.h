// Makes the decisions: degrees, microbatches, shardings, stages, schedule.
#pragma once

#include "passes/CostModel/Cluster.h"
#include "passes/Planning/PipelineShares.h"
#include "passes/Planning/PlanDecision.h"
#include "passes/Staging/PlanningGraph.h"
#include "runtime/report/Decisions.h"

namespace merak {

// What a search found, in plain figures that hold for the same graph.
struct SearchResult {
  // For the report: the best one of each degrees, then the plain ones.
  std::vector<planning::PlanCandidate> candidates;
  // For its curve of memory and time besides.
  std::vector<planning::PlanCandidate> drawn;
  // What may be taken, best first (planning::finalists).
  std::vector<planning::PlanCandidate> finalists;
  // The same of stages on meshes of their own, taken by the numbers behind
  // those.
  std::vector<planning::PlanCandidate> parts;
  // The same of several pipelines, by the numbers behind these.
  std::vector<planning::SharedPlan> shares;
  // Null: the number is of another kind.
  const planning::SharedPlan *sharedPlan(size_t number) const {
    const size_t first = finalists.size() + parts.size();
    return number < first ? nullptr : &shares[number - first];
  }
  const planning::PlanCandidate &plan(size_t number) const {
    if (const planning::SharedPlan *shared = sharedPlan(number))
      return shared->plan;
    return number < finalists.size() ? finalists[number]
                                     : parts[number - finalists.size()];
  }
  size_t plans() const {
    return finalists.size() + parts.size() + shares.size();
  }
  int64_t priced = 0; // plans
};

struct PlannerOptions {
  costmodel::Cluster cluster; // all of its devices, those of pinned stages
  planning::Strategy pinned;  // what the user decided
  int64_t globalBatch = 1;
  bool train = true;
  double memoryBytes = 0;       // of a device; 0: not limited
  double statePerParameter = 2; // bytes of optimizer state by bytes
  std::string updateKernel = "adamw_update"; // see planning::StageCostOptions
  double updateTraffic = 4;
  planning::ReductionOptions reduction; // of gradients over replicas
  // Of an earlier search on the same graph, and which of its finalists to take;
  // nothing is searched then.
  std::optional<SearchResult> found;
  size_t take = 0;
  // All plans of memory and time that none beats instead of the fastest, at
  // most so many; their graph is decomposed only when one of them is taken. 0:
  // the fastest.
  size_t explores = 0;
  bool parts = false;  // look for stages on meshes of their own too
  bool shares = false; // and for pipelines that share the microbatches
};

// Everything later phases apply: what planning decided, on the graph of the
// step as it is now, and what it considered, for the plan's report.
struct Decision : planning::PlanDecision {
  PlanningGraph step;
  planning::SearchReport sharding; // on the graph as it was first
  report::Decisions considered;
  std::vector<std::string> tables; // with row-sparse gradients: a line each
  SearchResult found;
  planning::SearchTimes times;
};

// Decides everything `options.pinned` leaves open. Ops whose reduction factor
// is split are replaced by their decomposition. Errors are emitted at ops or on
// the module.
mlir::FailureOr<Decision> planStrategy(mlir::ModuleOp module,
                                       const PlannerOptions &options);

} // namespace merak
