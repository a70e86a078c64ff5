#include "passes/Planning/FrontierQuery.h"

#include <algorithm>

namespace merak::planning {

// Nanoseconds descend: the last one that fits is the fastest.
std::optional<size_t> fastestWithin(std::span<const Cost> costs,
                                    const CostLimit &limit) {
  auto end =
      std::partition_point(costs.begin(), costs.end(), [&](const Cost &cost) {
        return cost.bytes <= limit.bytes;
      });
  if (end == costs.begin() || end[-1].nanoseconds > limit.nanoseconds)
    return std::nullopt;
  return size_t(end - costs.begin()) - 1;
}

std::optional<DevicePoint> fewestDevices(std::span<const DeviceCurve> curves,
                                         const CostLimit &limit) {
  std::optional<DevicePoint> best;
  for (size_t i = 0; i < curves.size(); ++i)
    if (!best || curves[i].devices < curves[best->curve].devices)
      if (auto point = fastestWithin(curves[i].costs, limit))
        best = DevicePoint{i, *point};
  return best;
}

std::vector<DeviceCurve> profile(std::span<const DeviceCurve> curves,
                                 const CostLimit &limit) {
  std::vector<DeviceCurve> within(curves.begin(), curves.end());
  for (DeviceCurve &curve : within)
    std::erase_if(curve.costs, [&](const Cost &cost) {
      return cost.bytes > limit.bytes || cost.nanoseconds > limit.nanoseconds;
    });
  std::stable_sort(within.begin(), within.end(),
                   [](const DeviceCurve &a, const DeviceCurve &b) {
                     return a.devices < b.devices;
                   });
  return within;
}

} // namespace merak::planning
