// Plans of one change of placement: strategy, sender and order of its tasks.
#pragma once

#include "passes/Resharding/Resharding.h"

namespace merak::resharding {

// Without times.
Leg planLeg(const Placement &source, const Placement &target,
            std::vector<UnitTask> tasks, int64_t elementBytes,
            const costmodel::Cluster &cluster, const ReshardOptions &options);

// Runs the legs one behind the other: a device sends what it got in the leg
// before when it has all of it. A message that does not lie in the local tensor
// as it is takes the device's memory twice over before and after. Fills the
// times of the legs; returns the end of the last transfer.
double predict(std::vector<Leg> &legs, int64_t elementBytes,
               const costmodel::Cluster &cluster);

} // namespace merak::resharding
