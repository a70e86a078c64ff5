#include "passes/CostModel/DeviceGroup.h"
#include "passes/Planning/StageProblemBuilder.h"

#include <algorithm>
#include <memory>

namespace merak::planning {

bool StageProblemBuilder::isBetweenSubmicrobatches(
    const Conversion &conversion) {
  return conversion.axes.size() == 1 &&
         conversion.axes[0] == kSubmicrobatchAxis;
}

double StageProblemBuilder::joinSeconds(const Conversion &conversion) const {
  if (conversion.kind == ConversionKind::Slice)
    return 0;
  costmodel::Kernel kernel;
  kernel.name = conversion.kind == ConversionKind::AllGather ? "concat" : "add";
  kernel.bytes = 2 * bytes(conversion.tensor);
  return costmodel::kernelSeconds(device, kernel) / hostShare;
}

double StageProblemBuilder::collective(const Conversion &conversion) const {
  using Kind = costmodel::Collective;
  int64_t n = 1;
  for (const std::string &axis : conversion.axes) {
    auto it = mesh.find(axis);
    n *= it == mesh.end() ? 1 : it->second;
  }
  if (n <= 1 || conversion.bytes <= 0)
    return 0;
  // The buffer behind the bytes that a ring sends.
  double share = double(n - 1) / double(n);
  Kind kind = Kind::AllGather;
  double buffer = conversion.bytes / share / (tokens ? 1 : submicrobatches());
  switch (conversion.kind) {
  case ConversionKind::AllReduceSum:
  case ConversionKind::AllReduceMax:
    kind = Kind::AllReduce;
    buffer /= 2;
    break;
  case ConversionKind::ReduceScatter:
    kind = Kind::ReduceScatter;
    break;
  case ConversionKind::AllToAll:
    kind = Kind::AllToAll;
    break;
  default:
    break;
  }
  const Group group = groupOf(conversion.axes);
  return costmodel::collectiveSeconds(kind, buffer * sentShare(conversion, n),
                                      group.devices, options.cluster,
                                      group.sharing);
}

// Slices of a table are summed before they go to the other replicas where that
// makes them fewer (passes/Sharding/CoalesceSlices.cpp).
double StageProblemBuilder::sentShare(const Conversion &conversion,
                                      int64_t members) const {
  const auto found = sums.find(conversion.tensor);
  if (found == sums.end() || device.backend != "cpu" || options.overlap > 0 ||
      (conversion.kind != ConversionKind::AllGather &&
       conversion.kind != ConversionKind::AllToAll) ||
      !std::all_of(
          conversion.axes.begin(), conversion.axes.end(),
          [](const std::string &axis) { return isOn(axis, kDataAxis); }))
    return 1;
  const GraphOp &op = *found->second;
  // Sums of 16 bits would be rounded once more.
  if (graph.tensors[size_t(op.operands[0])].elementBytes != 4)
    return 1;
  return op.touched->sentShare(
      double(graph.tensors[size_t(op.operands[1])].elements()) /
      double(options.microbatches * members));
}

StageProblemBuilder::Group
StageProblemBuilder::groupOf(const std::vector<std::string> &axes) const {
  Group group;
  int64_t least = options.cluster.count;
  for (const std::string &axis : axes) {
    auto stride = strides.find(axis);
    auto size = mesh.find(axis);
    if (stride == strides.end() || size == mesh.end() || size->second == 1)
      continue;
    least = std::min(least, stride->second);
    const size_t before = group.devices.size();
    for (int64_t i = 1; i < size->second; ++i)
      for (size_t k = 0; k < before; ++k)
        group.devices.push_back(std::min(group.devices[k] + i * stride->second,
                                         options.cluster.count - 1));
  }
  std::sort(group.devices.begin(), group.devices.end());
  group.sharing = std::min(options.cluster.perNode, least);
  return group;
}

static ParameterLinks linksOver(const std::vector<int64_t> &devices,
                                int64_t sharing,
                                const StageCostOptions &options) {
  // What searches copy often has it in common.
  auto group = std::make_shared<const costmodel::DeviceGroup>(
      devices, options.cluster, sharing);
  auto over = [&](costmodel::Collective kind) {
    return [kind, group](double bytes) { return group->seconds(kind, bytes); };
  };
  ParameterLinks links;
  links.gather = over(costmodel::Collective::AllGather);
  links.scatter = over(costmodel::Collective::ReduceScatter);
  links.bucketBytes = options.reduction.bucketBytes.value_or(
      worthJoining(over(costmodel::Collective::AllReduce)));
  links.beside = options.reduction.early;
  return links;
}

ParameterLinks parameterLinks(const StageCostOptions &options,
                              int64_t replicas) {
  std::vector<int64_t> devices;
  for (int64_t i = 0; i < replicas; ++i)
    devices.push_back(std::min(i * options.tp, options.cluster.count - 1));
  return linksOver(
      devices,
      std::min({options.cluster.perNode, options.cluster.count, options.tp}),
      options);
}

void StageProblemBuilder::makeLinks() {
  for (const auto &[axis, stride] : strides)
    if (isOn(axis, kDataAxis) && mesh.at(axis) > 1)
      dataAxes.push_back(axis);
  if (dataAxes.empty())
    return;
  const Group group = groupOf(dataAxes);
  out.links = linksOver(group.devices, group.sharing, options);
}

bool StageProblemBuilder::isOverReplicas(const Conversion &conversion) const {
  std::vector<std::string> axes = conversion.axes;
  std::sort(axes.begin(), axes.end());
  return !dataAxes.empty() && axes == dataAxes;
}

bool StageProblemBuilder::isBeside(const Conversion &conversion) const {
  return isOverReplicas(conversion) &&
         ((isOfEach(graph, conversion) && !isStacked(graph, conversion)) ||
          (conversion.life == GatherLife::Use &&
           conversion.kind == ConversionKind::AllGather));
}

int StageProblemBuilder::actionOf(const Conversion &conversion) const {
  if (conversion.phase == Phase::Update || conversion.prologue ||
      conversion.isGatheredOnce() || conversion.kind == ConversionKind::Slice ||
      conversion.kind == ConversionKind::Accumulate ||
      (conversion.op >= 0 && isLate(conversion.op)))
    return -1;
  if (conversion.phase == Phase::Forward)
    return 0;
  bool weight =
      conversion.op >= 0 &&
      (graph.ops[conversion.op].weightGradient || isOfEach(graph, conversion));
  return weight ? 2 : 1;
}

} // namespace merak::planning
