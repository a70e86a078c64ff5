#include "passes/Planning/SteadyTimes.h"

#include <algorithm>

namespace merak::planning {

SteadyTimes steadyTimes(const StageModel &model, const PipelineShape &shape,
                        const std::vector<int> &begin, bool train) {
  SteadyTimes times;
  const int parts = int(begin.size()) - 1;
  std::vector<double> busy(size_t(shape.stages));
  for (int v = 0; v < parts; ++v) {
    if (train)
      times.exchange =
          std::max(times.exchange, exchangeSeconds(shape, v, begin));
    const double seconds =
        shape.slownessOf(v) *
        shape.modelOf(v, model).seconds(begin[size_t(v)], begin[size_t(v) + 1]);
    busy[size_t(v % shape.stages)] += seconds;
    times.all += seconds;
    if (v + 1 < parts) {
      const BoundaryCost boundary =
          boundaryOf(model, shape, v, begin[size_t(v) + 1]);
      times.all += boundary.forward + boundary.backward;
      times.slowest =
          std::max({times.slowest, boundary.forward, boundary.backward});
    }
  }
  for (double seconds : busy)
    times.slowest = std::max(times.slowest, seconds);
  if (parts > shape.stages)
    times.all = times.slowest +
                (times.all - times.slowest) * double(shape.stages) / parts;
  return times;
}

} // namespace merak::planning
