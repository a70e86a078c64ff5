#include "passes/Planning/DeviceClasses.h"

#include "passes/Planning/StageMix.h"

#include <algorithm>
#include <map>

namespace merak::planning {

// A degree is used if it is faster by this part than the largest one that
// divides it.
constexpr double kWorthSplitting = 0.05;

DeviceClasses::DeviceClasses(const SearchInput &input, StageMeshes &meshes)
    : input(input), meshes(meshes) {
  const costmodel::Cluster &machine = input.cluster;
  std::map<std::pair<int, double>, std::map<int64_t, std::vector<int64_t>>>
      found;
  for (int64_t device = 0; device < machine.count; ++device) {
    const double rate =
        machine.rateOf.empty() ? 1 : machine.rateOf[size_t(device)];
    const double slowness = 1 / rate < kSlow ? 1 : 1 / rate;
    const int kind =
        machine.kindOf.empty() ? 0 : machine.kindOf[size_t(device)];
    found[{kind, slowness}][machine.node(device)].push_back(device);
  }
  for (const auto &[key, nodes] : found) {
    DeviceClass &of = classes.emplace_back();
    of.slowness = key.second;
    for (const auto &[node, devices] : nodes) {
      of.nodes.push_back(devices);
      of.devices += int64_t(devices.size());
      of.largest = std::max(of.largest, int64_t(devices.size()));
    }
  }
}

std::optional<DeviceClasses::Price>
DeviceClasses::price(int number, int64_t dp, int64_t tp, int64_t microbatches) {
  const DeviceClass &of = at(number);
  const auto placed = placeStages(of.nodes, {dp * tp});
  if (!placed)
    return std::nullopt;
  PipelineStages::Stage stage;
  stage.devices = placed->front();
  stage.dp = dp;
  stage.tp = tp;
  Result<const StageModel *> model = meshes.modelOf(stage, microbatches);
  if (!model.ok())
    return std::nullopt;
  Price price;
  price.seconds = of.slowness * (*model)->seconds(0, (*model)->count());
  double bytes = 0;
  for (const StageParameter &parameter : (*model)->problem.parameters)
    bytes += parameter.bytes + parameter.gradientBytes + parameter.stateBytes;
  if (input.memoryBytes > 0 && bytes > 0)
    price.share = std::min(1.0, input.memoryBytes / bytes);
  return price;
}

std::vector<int64_t> DeviceClasses::tensorDegrees() {
  std::vector<int64_t> degrees;
  std::map<int64_t, double> seconds;
  int64_t most = 1;
  for (const DeviceClass &of : classes)
    most = std::max(most, isGiven(kTensorAxis) ? 1 : of.largest);
  for (int64_t tp = 1; tp <= most; ++tp)
    for (size_t c = 0; c < classes.size(); ++c)
      if (classes[c].largest >= tp) {
        const std::optional<Price> priced =
            price(int(c), 1, tp, input.globalBatch);
        if (!priced)
          break;
        int64_t below = tp - 1;
        while (below > 1 && (tp % below != 0 || !seconds.count(below)))
          --below;
        const double found = priced->seconds / classes[c].slowness;
        if (tp == 1 || found < (1 - kWorthSplitting) * seconds[below]) {
          seconds[tp] = found;
          degrees.push_back(tp);
        }
        break;
      }
  return degrees;
}

} // namespace merak::planning
