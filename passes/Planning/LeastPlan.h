// What no quick plan of parameters in parts takes less than, by a model of the
// same ops that stores them whole: with what its stages have to recompute to
// find a place. A sharding of the parts, and a plan of it, cost several times
// as much as this.
#pragma once

#include "passes/Planning/CandidateSet.h"

namespace merak::planning {

// Which part of them a device has, at least.
struct StoredShares {
  double parameters = 1, gradients = 1, state = 1;
  // At a level of ZeRO.
  static StoredShares of(int level, int64_t replicas);
  double bytes(const StageCost &cost) const {
    return parameters * cost.parameterBytes + gradients * cost.gradientBytes +
           state * cost.stateBytes;
  }
};

// Of the only cuts of `options`, which compare none, under any of their
// schedules. With a limit: of one that is not above it; of those that are no
// more than is needed to know it, which may be less than they take. `least`
// is of parameters in parts, `model` of whole ones. Infinite where each has a
// stage without a place.
double leastOfOnlyCuts(const StageModel &model, const LeastSeconds &least,
                       const StoredShares &shares, const PipelineShape &shape,
                       const PipelineOptions &options);

// Whether all that a CandidateSet plans quickly, if it searches for cuts, takes
// longer than `limit`, or has no place.
bool isSlowerInParts(const SearchPolicy &policy, const LeastSeconds &least,
                     const StoredShares &shares, const PipelineShape &shape,
                     double limit);

} // namespace merak::planning
