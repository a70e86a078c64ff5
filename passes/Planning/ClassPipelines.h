// A pipeline on each class of devices, with degrees of its own, that share the
// microbatches of a step (docs/Parts.md): which degrees are worth cutting and
// planning. If layers could be cut anywhere, p equal stages would each take a
// p-th of the model's time for a microbatch.
#pragma once

#include "passes/Planning/DeviceClasses.h"
#include "passes/Stragglers/StageLayers.h"

namespace merak::planning {

struct ClassPipelines {
  double seconds = 0;       // of the longest, without the sums over pipelines
  int64_t microbatches = 1; // of the step
  std::vector<PipelineStages> pipelines; // by class; spares in the first
  // Whether all have the same numbers of stages and of devices for tensor
  // parallelism, so that their stages can hold the same layers.
  bool isAlike() const;
};

// Of a pipeline that has one unit of microbatches at least: seconds of the
// first one, and of each that follows; in whole nanoseconds.
stragglers::PipelineWork workOf(double first, double next);

// Of all numbers of microbatches that divide the batch; two pipelines at least,
// of which each trains one microbatch at least. At most `most` of those that
// are alike, and as many others, fastest first. Of degrees only 1 may be
// pinned, which then holds for all.
std::vector<ClassPipelines> classPipelines(const SearchInput &input,
                                           StageMeshes &meshes, size_t most);

} // namespace merak::planning
