// Questions to frontiers: the three modes of TensorOpt (arXiv 2004.10856), with
// a deadline.
#pragma once

#include "passes/Planning/Frontier.h"

#include <optional>

namespace merak::planning {

// What a plan may cost.
struct CostLimit {
  int64_t bytes = kNoLimit;
  int64_t nanoseconds = kNoLimit;
};

// A frontier's costs (FrontierAlgebra::costs) on a number of devices.
struct DeviceCurve {
  int devices = 0;
  std::vector<Cost> costs;
};

// The number of the fastest tuple within the limit.
std::optional<size_t> fastestWithin(std::span<const Cost> costs,
                                    const CostLimit &limit);

struct DevicePoint {
  size_t curve = 0; // in the list asked
  size_t point = 0;
};
// The fewest devices that a tuple within the limit exists for, and the fastest
// there. Looks at every curve: a mesh of more devices need not need less
// memory, where sizes do not divide.
std::optional<DevicePoint> fewestDevices(std::span<const DeviceCurve> curves,
                                         const CostLimit &limit);

// What is within the limit for each number of devices, ascending; those for
// which nothing is have no costs.
std::vector<DeviceCurve> profile(std::span<const DeviceCurve> curves,
                                 const CostLimit &limit);

} // namespace merak::planning
