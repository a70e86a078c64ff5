#include "passes/Planning/PipelineSums.h"

#include "passes/CostModel/DeviceGroup.h"

#include "passes/Planning/StageCosts.h"

#include <algorithm>

namespace merak::planning {

// Numbers of reductions that no stage's own replicas have (GradientReduction).
constexpr int kPlaces = 1 << 20;

PipelineSums::PipelineSums(const SearchInput &input)
    : input(input), prices(std::make_shared<ReshardPrices>(
                        input.cluster, input.pinned.reshard.value_or(""))) {}

// One device of each replica.
GradientReduction
PipelineSums::reductionOver(const std::vector<int64_t> &devices, int64_t tp,
                            bool early) {
  GradientReduction reduce;
  reduce.replicas = int64_t(devices.size());
  reduce.place =
      kPlaces + int(places.try_emplace(devices, places.size()).first->second);
  reduce.early = early;
  auto group = std::make_shared<const costmodel::DeviceGroup>(
      devices, input.cluster, std::min(input.cluster.perNode, tp));
  reduce.seconds = [group](double bytes) {
    return group->seconds(costmodel::Collective::AllReduce, bytes);
  };
  reduce.bucketBytes =
      input.reduction.bucketBytes.value_or(worthJoining(reduce.seconds));
  return reduce;
}

// The stage that holds most of what the ops [begin, end) use.
static size_t stageAt(const CutPipeline &of, int begin, int end) {
  const int middle = (begin + end) / 2;
  size_t part = 0;
  while (part + 2 < of.begin.size() && of.begin[part + 1] <= middle)
    ++part;
  return part % of.pipeline->stages.size();
}

static double gradientBytes(const StageModel &model, int begin, int end) {
  double bytes = 0;
  for (const StageParameter &parameter : model.problem.parameters)
    if (std::any_of(parameter.users.begin(), parameter.users.end(),
                    [&](int op) { return op >= begin && op < end; }))
      bytes += parameter.gradientBytes;
  return bytes;
}

double PipelineSums::ofPart(const std::vector<CutPipeline> &all,
                            size_t pipeline, size_t part, bool early) {
  const CutPipeline &own = all[pipeline];
  const size_t number = part % own.pipeline->stages.size();
  const PipelineStages::Stage &stage = own.pipeline->stages[number];
  const int begin = own.begin[part], end = own.begin[part + 1];
  const StageModel &model =
      own.shape->modelOf(int(part), *own.shape->meshes.front().model);
  std::vector<int64_t> devices;
  double sent = 0;
  for (const CutPipeline &other : all) {
    const PipelineStages::Stage &there =
        other.pipeline->stages[stageAt(other, begin, end)];
    for (int64_t d = 0; d < there.dp; ++d)
      devices.push_back(there.devices[size_t(d * there.tp)]);
    if (there.tp != stage.tp)
      sent += prices->line(there, stage, /*split=*/false)
                  .seconds(gradientBytes(model, begin, end));
  }
  if (sent > 0)
    return sent;
  const double weight = own.weight[part];
  GradientReduction over = reductionOver(devices, stage.tp, early);
  const GradientReduction &within = own.shape->meshes[number].reduce;
  if (within.replicas <= 1)
    return model.exposedReduction(begin, end, over, weight);
  over.tensorSeconds = within.tensorSeconds;
  return model.exposedReduction(begin, end, over, weight) -
         model.exposedReduction(begin, end, within, weight);
}

double PipelineSums::seconds(const std::vector<CutPipeline> &all,
                             size_t longest) {
  bool isAlike = true;
  for (const CutPipeline &of : all)
    isAlike &=
        of.begin == all.front().begin &&
        of.pipeline->stages.size() == all.front().pipeline->stages.size();
  double most = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (isAlike && i != longest)
      continue;
    const size_t stages = all[i].pipeline->stages.size();
    for (size_t s = 0; s < stages; ++s) {
      double seconds = 0;
      for (size_t part = s; part + 1 < all[i].begin.size(); part += stages)
        seconds += ofPart(all, i, part, isAlike && input.reduction.early);
      most = std::max(most, seconds);
    }
  }
  return most;
}

} // namespace merak::planning
