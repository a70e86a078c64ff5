#include "passes/Planning/StageMeshes.h"

#include "passes/CostModel/ClusterNodes.h"
#include "passes/CostModel/DeviceGroup.h"

#include <algorithm>
#include <map>
#include <set>

namespace merak::planning {

costmodel::Cluster devicesOf(const costmodel::Cluster &machine,
                             const PipelineStages &pipeline) {
  std::vector<int64_t> used;
  for (const PipelineStages::Stage &stage : pipeline.stages)
    used.insert(used.end(), stage.devices.begin(), stage.devices.end());
  std::sort(used.begin(), used.end());
  if (used.empty() || used.back() + 1 == int64_t(used.size())) {
    costmodel::Cluster first = machine; // of a larger cluster
    if (!used.empty() && machine.count != int64_t(used.size())) {
      first.count = int64_t(used.size());
      first.perNode = std::min(first.perNode, first.count);
      for (auto *entries : {&first.kindOf, &first.nodeOf})
        entries->resize(std::min(entries->size(), used.size()));
      first.rateOf.resize(std::min(first.rateOf.size(), used.size()));
    }
    return first;
  }
  return costmodel::onDevices(machine, used);
}

costmodel::Cluster commonMesh(const costmodel::Cluster &machine,
                              const std::map<std::string, int64_t> &mesh) {
  costmodel::Cluster out = machine;
  out.kindOf.clear();
  out.nodeOf.clear();
  out.rateOf.clear();
  out.count = 1;
  for (const auto &[axis, degree] : mesh)
    out.count *= degree;
  return out;
}

PipelineStages uniformStages(const Degrees &d) {
  PipelineStages pipeline;
  int64_t device = 0;
  for (int64_t s = 0; s < d.pp; ++s) {
    PipelineStages::Stage &stage = pipeline.stages.emplace_back();
    stage.dp = d.dp;
    stage.tp = d.tp;
    for (int64_t i = 0; i < d.dp * d.tp; ++i)
      stage.devices.push_back(device++);
  }
  return pipeline;
}

StageMeshes::StageMeshes(const SearchInput &given,
                         const costmodel::Cluster &machine, PlanSearch *owner)
    : input(given), machine(machine),
      prices(std::make_shared<ReshardPrices>(
          machine, given.pinned.reshard.value_or(""))),
      owner(owner) {
  if (owner && given.pinned.classes.empty() && given.pinned.parts.empty()) {
    const costmodel::Cluster &cluster = given.cluster;
    owned = cluster.device();
    while (inFirstNode < cluster.count && cluster.node(inFirstNode) == 0)
      ++inFirstNode;
  }
  input.pinned.pipelines.clear();
  input.pinned.mesh.clear();
  input.pinned.parts.clear();
  input.pinned.microbatch.reset();
  input.pinned.stageBegins.reset();
}

StageMeshes::~StageMeshes() = default;

std::vector<int64_t> StageMeshes::nodesOf(const PipelineStages::Stage &stage,
                                          size_t first) const {
  std::vector<int64_t> nodes, seen;
  for (size_t i = 0; i < first; ++i) {
    const int64_t device = stage.devices[i];
    const auto it = std::find(seen.begin(), seen.end(), machine.node(device));
    nodes.push_back(it - seen.begin());
    if (it == seen.end())
      seen.push_back(machine.node(device));
  }
  return seen.size() == 1 ? std::vector<int64_t>() : nodes;
}

costmodel::Cluster
StageMeshes::machineAt(const Place &place,
                       const PipelineStages::Stage &stage) const {
  std::vector<int64_t> order = stage.devices, rest;
  std::set<int64_t> own(order.begin(), order.end());
  if (place.second.empty()) { // whatever their number: of the largest node
    std::map<int64_t, std::vector<int64_t>> nodes;
    for (int64_t device = 0; device < machine.count; ++device)
      nodes[machine.node(device)].push_back(device);
    order = std::max_element(nodes.begin(), nodes.end(),
                             [](const auto &a, const auto &b) {
                               return a.second.size() < b.second.size();
                             })
                ->second;
    own = {order.begin(), order.end()};
  }
  for (int64_t device = 0; device < machine.count; ++device)
    if (!own.count(device))
      rest.push_back(device);
  order.insert(order.end(), rest.begin(), rest.end());
  costmodel::Cluster out = costmodel::onDevices(machine, order);
  out.kinds = {machine.kinds[size_t(place.first)]};
  out.kindOf.clear();
  out.rateOf.clear();
  return out;
}

PlanSearch &StageMeshes::searchAt(const Place &place,
                                  const PipelineStages::Stage &stage) {
  std::unique_ptr<PlanSearch> &search = searches[place];
  if (!search) {
    SearchInput of = input;
    of.cluster = machineAt(place, stage);
    search = std::make_unique<PlanSearch>(of);
  }
  return *search;
}

Result<const StageModel *>
StageMeshes::modelAt(const Place &place, const PipelineStages::Stage &stage,
                     int64_t microbatches, const Techniques &techniques) {
  const bool isOwned = owned && place.second.empty() &&
                       stage.tp <= inFirstNode &&
                       machine.kinds[size_t(place.first)] == *owned;
  Result<const PlanSearch::Sharding *> sharding =
      (isOwned ? *owner : searchAt(place, stage))
          .sharding({1, stage.dp, stage.tp, microbatches}, techniques);
  if (!sharding.ok())
    return sharding.status();
  return (*sharding)->model.get();
}

// A stage waits for the slowest of its devices.
Result<const StageModel *>
StageMeshes::modelOf(const PipelineStages::Stage &stage, int64_t microbatches,
                     const Techniques &techniques) {
  std::set<int> kinds;
  for (int64_t device : stage.devices)
    kinds.insert(kindOf(device));
  // Replicas meet in prices of parameters that they share.
  const std::vector<int64_t> nodes = nodesOf(
      stage, techniques.zero > 0 ? stage.devices.size() : size_t(stage.tp));
  const StageModel *slowest = nullptr;
  for (int kind : kinds) {
    Result<const StageModel *> model =
        modelAt({kind, nodes}, stage, microbatches, techniques);
    if (!model.ok())
      return model.status();
    const int ops = (*model)->count();
    if (!slowest || (*model)->seconds(0, ops) > slowest->seconds(0, ops))
      slowest = *model;
  }
  return slowest;
}

int64_t StageMeshes::mostInNode(const PipelineStages::Stage &stage) const {
  std::map<int64_t, int64_t> perNode;
  int64_t most = 1;
  for (int64_t device : stage.devices)
    most = std::max(most, ++perNode[machine.node(device)]);
  return most;
}

BoundaryLink StageMeshes::linkBetween(const PipelineStages::Stage &a,
                                      const PipelineStages::Stage &b) const {
  int64_t from = a.devices.front(), to = b.devices.front();
  for (int64_t device : b.devices)
    if (machine.node(device) != machine.node(from))
      to = device;
  for (int64_t device : a.devices)
    if (machine.node(from) == machine.node(to) &&
        machine.node(device) != machine.node(to))
      from = device;
  const costmodel::Link &link = machine.between(from, to);
  const bool leaves = machine.node(from) != machine.node(to);
  BoundaryLink out{link.latency, 1 / link.bandwidth, a.tp > 1 || b.tp > 1};
  for (const PipelineStages::Stage *stage : {&a, &b})
    if (stage->tp > 1)
      out.shared &=
          leaves == (machine.node(stage->devices.front()) !=
                     machine.node(stage->devices[size_t(stage->tp - 1)]));
  if (link.shared && leaves) {
    out.sharedBefore = mostInNode(a);
    out.sharedAfter = mostInNode(b);
  }
  return out;
}

const GradientReduction &
StageMeshes::reductionOf(const PipelineStages::Stage &stage,
                         int64_t microbatches) {
  const std::vector<int64_t> nodes = nodesOf(stage, stage.devices.size());
  auto [it, isNew] = reductions.try_emplace({nodes, stage.dp, stage.tp});
  if (isNew) {
    it->second = makePipelineShape(machineAt({0, nodes}, stage),
                                   {1, stage.dp, stage.tp, microbatches},
                                   input.memoryBytes, input.reduction)
                     .reduce;
    it->second.place = int(reductions.size());
  }
  return it->second;
}

Result<PipelineShape> StageMeshes::shapeOf(const PipelineStages &pipeline,
                                           int64_t microbatches,
                                           const Techniques &techniques) {
  PipelineShape shape;
  shape.stages = int(pipeline.stages.size());
  shape.microbatches = int(microbatches);
  shape.memoryBytes = input.memoryBytes;
  double bucket = 0; // one for all of a plan
  std::vector<int64_t> ranks;
  for (size_t s = 0; s < pipeline.stages.size(); ++s) {
    const PipelineStages::Stage &stage = pipeline.stages[s];
    Result<const StageModel *> model = modelOf(stage, microbatches, techniques);
    if (!model.ok())
      return model.status();
    StageMesh mesh{*model, reductionOf(stage, microbatches),
                   int64_t(stage.devices.size()), input.memoryBytes};
    bucket = std::max(bucket, mesh.reduce.bucketBytes);
    double rate = 1;
    for (int64_t device : stage.devices) {
      const double bytes = double(machine.device(device).memoryBytes);
      if (bytes > 0 && mesh.memoryBytes > 0)
        mesh.memoryBytes = std::min(mesh.memoryBytes, bytes);
      if (!machine.rateOf.empty())
        rate = std::min(rate, machine.rateOf[size_t(device)]);
      ranks.push_back(device);
    }
    shape.slowness.push_back(1 / rate);
    shape.meshes.push_back(std::move(mesh));
    if (s > 0)
      shape.links.push_back(linkBetween(pipeline.stages[s - 1], stage));
  }
  for (StageMesh &mesh : shape.meshes)
    mesh.reduce.bucketBytes = bucket;
  // One all-reduce over all ranks of the parts that each has of the squares.
  std::sort(ranks.begin(), ranks.end());
  if (ranks.size() > 1)
    shape.stageNorm =
        [all = costmodel::DeviceGroup(ranks, machine)](double bytes) {
          return all.seconds(costmodel::Collective::AllReduce, bytes);
        };
  shape.reduce = shape.meshes.front().reduce;
  if (ranks.size() > 1)
    shape.reshard =
        [all = std::make_shared<PipelinePrices>(prices, pipeline.stages)](
            int from, int to, double bytes, bool split) {
          return all->seconds(from, to, bytes, split);
        };
  return shape;
}

} // namespace merak::planning
