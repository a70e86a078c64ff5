// From a graph, its sharding and a cluster to the times and bytes of a stage
// problem.
//
// Compute: a contraction by the roofline of its local shape; other ops by the
// bytes they move, where a value that only passes between two of them is
// taken to stay in registers (they fuse). Communication: collectives of the
// sharding on the links that their group spans. Sub-pipelined tensor
// parallelism hides part of it (Overlap).
#pragma once

#include "passes/CostModel/Cost.h"
#include "passes/Planning/ActionKernels.h"
#include "passes/Planning/Partition.h"
#include "passes/Planning/StageProblem.h"

#include <optional>

namespace merak::planning {

struct Degrees {
  int64_t pp = 1, dp = 1, tp = 1, microbatches = 1;
  auto operator<=>(const Degrees &) const = default;
  std::string str() const; // "pp=2 dp=1 tp=2, 4 microbatches"
};

struct ReductionOptions {
  bool early = false;                // see GradientReduction
  std::optional<double> bucketBytes; // none: worthJoining
};

struct StageCostOptions {
  costmodel::Cluster cluster;
  int64_t tp = 1, microbatches = 1; // of the assignment
  bool train = true;
  double statePerParameter = 2; // bytes of optimizer state by bytes
  // The kernel that updates a parameter, and the bytes that it reads and
  // writes by bytes of the parameter.
  std::string updateKernel = "adamw_update";
  double updateTraffic = 4;
  // Level of sub-pipelined tensor parallelism (docs/Planning.md), 0 to 3.
  int overlap = 0;
  ReductionOptions reduction; // of gradients over replicas
  // Parameters that are read in another type are converted once a step and kept
  // (convertedOnce), not at each use.
  bool convertOnce = false;
};

// The ops of each action and the kernels that do them, of one graph,
// assignment, kind of device and number of microbatches: the same at all levels
// of overlap.
struct ListedKernels {
  std::array<ActionOps, kLists> lists;
  std::array<ListKernels, kLists> kernels;
  bool known = false;
};

// Requires apply() of the same graph and assignment. Submicrobatches are those
// of the tokens where the assignment splits kSubmicrobatchAxis
// (Submicrobatches.h), else of the samples. Degrees but tp matter only through
// the samples of a microbatch and how many microbatches read a sum before they
// add to it. `listed`: if not known yet, it is filled.
StageProblem makeStageProblem(const Graph &graph, const Assignment &assignment,
                              const Outcome &outcome,
                              const StageCostOptions &options,
                              ListedKernels *listed = nullptr);

// Ranks are pp-major, tp-minor. Links between stages, gradient reduction over
// dp; neighbours on a node share the links that leave it.
PipelineShape makePipelineShape(const costmodel::Cluster &cluster,
                                const Degrees &degrees, double memoryBytes,
                                const ReductionOptions &reduction = {});

// Over the replicas of a mesh whose axes have no parts.
ParameterLinks parameterLinks(const StageCostOptions &options,
                              int64_t replicas);

// Bytes from which on it is not worth while to join two messages: where a
// message takes twice its latency, if it takes latency + bytes / bandwidth
// (Hockney's n_1/2, 1994). A power of two. Larger buckets gain little, and hide
// less: the last one has nothing left to hide behind.
double worthJoining(const std::function<double(double bytes)> &seconds);

} // namespace merak::planning
