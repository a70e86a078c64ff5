// Stages on meshes of their own (docs/Parts.md) as the search prices them: each
// by its own degrees, on its own devices, with the links between it and the
// next one.
#pragma once

#include "passes/Planning/PlanSearch.h"
#include "passes/Planning/ReshardPrices.h"

namespace merak::planning {

// The devices that stages have, in their order: what their plan runs on. The
// ranks are these, without gaps. No stages: all devices.
costmodel::Cluster devicesOf(const costmodel::Cluster &machine,
                             const PipelineStages &pipeline);
// What stands for them where one mesh has to hold for all stages: its degrees,
// which those of every stage divide, on as many devices of the first kind.
costmodel::Cluster commonMesh(const costmodel::Cluster &machine,
                              const std::map<std::string, int64_t> &mesh);

// All devices in stages of one mesh.
PipelineStages uniformStages(const Degrees &degrees);

// Prices are made once for stages that differ only in where they are.
class StageMeshes {
public:
  // `input` says what is planned; of what it pins, degrees and stages do not
  // matter. `machine` has the devices. `owner`: a search of the same input,
  // whose prices hold for stages inside a node on its kind of device.
  StageMeshes(const SearchInput &input, const costmodel::Cluster &machine,
              PlanSearch *owner = nullptr);
  ~StageMeshes();

  // Of all ops on the stage's mesh, with so many microbatches, if its devices
  // were as fast as their kind. Errors: no layout has these degrees.
  Result<const StageModel *> modelOf(const PipelineStages::Stage &stage,
                                     int64_t microbatches,
                                     const Techniques &techniques = {});
  // Its models live as long as this.
  Result<PipelineShape> shapeOf(const PipelineStages &pipeline,
                                int64_t microbatches,
                                const Techniques &techniques = {});

private:
  // What stages have in common whose prices are alike: kind of device, nodes
  // of the devices that meet in order of appearance (none: all are in one
  // node).
  using Place = std::pair<int, std::vector<int64_t>>;
  PlanSearch &searchAt(const Place &place, const PipelineStages::Stage &stage);
  // Of its first devices.
  std::vector<int64_t> nodesOf(const PipelineStages::Stage &stage,
                               size_t first) const;
  Result<const StageModel *> modelAt(const Place &place,
                                     const PipelineStages::Stage &stage,
                                     int64_t microbatches,
                                     const Techniques &techniques);
  BoundaryLink linkBetween(const PipelineStages::Stage &a,
                           const PipelineStages::Stage &b) const;
  int64_t mostInNode(const PipelineStages::Stage &stage) const;
  // The machine with the stage's devices first, all of one kind.
  costmodel::Cluster machineAt(const Place &place,
                               const PipelineStages::Stage &stage) const;
  int kindOf(int64_t device) const {
    return machine.kindOf.empty() ? 0 : machine.kindOf[size_t(device)];
  }

  const GradientReduction &reductionOf(const PipelineStages::Stage &stage,
                                       int64_t microbatches);

  SearchInput input;
  const costmodel::Cluster machine;
  const std::shared_ptr<ReshardPrices> prices; // shapes have it too
  PlanSearch *const owner;
  std::optional<costmodel::Device> owned; // the owner's kind
  int64_t inFirstNode = 0;                // of the owner's devices
  std::map<std::tuple<std::vector<int64_t>, int64_t, int64_t>,
           GradientReduction>
      reductions; // by nodes, dp, tp
  std::map<Place, std::unique_ptr<PlanSearch>> searches;
};

} // namespace merak::planning
