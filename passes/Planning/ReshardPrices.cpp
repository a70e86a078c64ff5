#include "passes/Planning/ReshardPrices.h"

#include "dialects/Support/MeshAxes.h"
#include "passes/Resharding/Messages.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace merak::planning {

ReshardPrices::Pair ReshardPrices::pairOf(const PipelineStages::Stage &from,
                                          const PipelineStages::Stage &to,
                                          bool split) const {
  Pair pair{{}, {from.dp, from.tp, to.dp, to.tp}, split};
  std::map<int64_t, int64_t> nodes; // in order of appearance
  for (const PipelineStages::Stage *stage : {&from, &to})
    for (int64_t device : stage->devices) {
      const auto [it, isNew] =
          nodes.try_emplace(machine.node(device), int64_t(nodes.size()));
      pair.places.push_back(it->second);
      pair.places.push_back(
          machine.kindOf.empty() ? 0 : machine.kindOf[size_t(device)]);
    }
  return pair;
}

double ReshardPrices::priced(const PipelineStages::Stage &from,
                             const PipelineStages::Stage &to, int64_t bytes,
                             bool split) const {
  const int64_t samples = split ? std::lcm(from.dp, to.dp) : 1;
  auto placed = [&](const PipelineStages::Stage &stage) {
    layout::Factor factor{samples, {}};
    if (split && stage.dp > 1)
      factor.axes = {kDataAxis};
    resharding::Placement placement;
    // A value of bytes, so many samples.
    placement.layout.dims = {
        {{factor}},
        {{{std::max<int64_t>(1, bytes * (split ? to.dp : 1) / samples), {}}}}};
    placement.axes = {{kDataAxis, stage.dp}, {kTensorAxis, stage.tp}};
    placement.devices = stage.devices;
    return placement;
  };
  resharding::ReshardOptions options =
      *resharding::optionsOfPlan(strategy); // its name was read
  options.order = resharding::OrderRule::Size;
  options.orderOptions.bounded = false;
  Result<resharding::Resharding> found =
      resharding::reshard(placed(from), placed(to), 1, machine, options);
  return found.ok() ? found->seconds : std::numeric_limits<double>::infinity();
}

ReshardPrices::Line &ReshardPrices::line(const PipelineStages::Stage &from,
                                         const PipelineStages::Stage &to,
                                         bool split) {
  std::lock_guard lock(mutex);
  std::unique_ptr<Line> &known = lines[pairOf(from, to, split)];
  if (!known)
    known.reset(new Line(*this, from, to, split));
  return *known;
}

double ReshardPrices::Line::at(int power) {
  auto [it, isNew] = known.try_emplace(power);
  if (isNew)
    it->second = prices.priced(from, to, int64_t(1) << power, split);
  return it->second;
}

double ReshardPrices::Line::seconds(double bytes) {
  if (bytes <= 0)
    return 0;
  std::lock_guard lock(mutex);
  const int power = std::clamp(int(std::log2(std::max(1.0, bytes))), 0, 40);
  const double below = std::ldexp(1.0, power);
  const double part = std::max(0.0, bytes - below) / below;
  return part > 0 ? at(power) * (1 - part) + at(power + 1) * part : at(power);
}

double PipelinePrices::seconds(int from, int to, double bytes, bool split) {
  ReshardPrices::Line *line = nullptr;
  {
    std::lock_guard lock(mutex);
    ReshardPrices::Line *&known = lines[{from, to, split}];
    if (!known)
      known = &prices->line(stages[size_t(from)], stages[size_t(to)], split);
    line = known;
  }
  return line->seconds(bytes);
}

} // namespace merak::planning
