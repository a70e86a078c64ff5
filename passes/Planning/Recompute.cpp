#include "passes/Planning/Recompute.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace merak::planning {

namespace {
// Shares like 2/3 are rounded numbers: 2/3 of 3 parts are 2 parts.
constexpr double kRounding = 1e-9;
} // namespace

Result<std::vector<double>>
stageRatios(int stages, const std::vector<double> &given, bool shifts) {
  Status status;
  if (given.empty() || int(given.size()) > stages)
    status.merge(Status::error(
        fmt::format("expected 1 to {} recomputation ratios, found {}", stages,
                    given.size())));
  for (double ratio : given)
    if (!(ratio >= 0 && ratio <= 1))
      status.merge(Status::error(
          fmt::format("recomputation ratio {} is not between 0 and 1", ratio)));
  if (!status.ok())
    return status;
  std::vector<double> ratios(stages, given.back());
  if (given.size() > 1 || stages == 1) {
    std::copy(given.begin(), given.end(), ratios.begin());
    return ratios;
  }
  double kept = (1 - given[0]) * (stages - 1);
  for (int s = 0; s < stages - 1; ++s)
    ratios[s] = std::max(0.0, 1 - kept / (stages - 1 - s));
  ratios[stages - 1] = 0;
  if (shifts && stages > 2)
    ratios[stages - 2] = ratios[stages - 3];
  return ratios;
}

int recomputedParts(double ratio, int parts) {
  return std::min(parts, int(std::floor(ratio * parts + kRounding)));
}

} // namespace merak::planning
