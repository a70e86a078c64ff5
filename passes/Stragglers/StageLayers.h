// The lower level: which stage of a pipeline computes how many layers, in which
// order the stages stand, and which pipeline trains how many microbatches.
// All exact.
#pragma once

#include "passes/Stragglers/Plan.h"

#include <optional>

namespace merak::stragglers {

// What matters of a group that becomes a stage: equal ones are interchangeable.
struct GroupClass {
  int64_t rate = kOne; // of a layer; never kFailed
  int64_t size = 1;    // devices
  auto operator<=>(const GroupClass &) const = default;
};
GroupClass classOf(const Problem &problem, const std::vector<int> &devices);

// A pipeline of given groups.
struct SolvedPipeline {
  // The groups that compute, as stages from first to last, by their number
  // among those given; the others would have no layer.
  std::vector<int> groups;
  std::vector<int64_t> layers; // of these
  PipelineTime time;           // kFailed: does not fit
  // Layers for which there is no memory.
  int64_t missing = 0;
  bool fits() const { return missing == 0; }
};

// The stages in this order. The slowest stage is as fast as it can be; of these
// solutions one whose sum over all stages is least. A stage without a layer is
// taken out, which moves the embedding to its neighbour and gives earlier
// stages more room.
SolvedPipeline solveInOrder(const Problem &problem,
                            const std::vector<GroupClass> &groups);
// The stages in the best order. Slowest first where that is as good as if
// memory did not matter; else stages are assigned to positions, for the least
// time at which all layers have a place.
SolvedPipeline solveInAnyOrder(const Problem &problem,
                               const std::vector<GroupClass> &groups);

enum class Objective { Steady, Filled };

// Microbatches of each pipeline, at least as many as it has stages. `Steady`:
// the steady step is least, and of these the filled one. `Filled`: only that.
// Nothing, if there are too few microbatches.
struct PipelineWork {
  PipelineTime time;
  int64_t stages = 0;
};
std::optional<std::vector<int64_t>>
shareMicrobatches(const std::vector<PipelineWork> &pipelines,
                  int64_t microbatches, Objective objective);

} // namespace merak::stragglers
