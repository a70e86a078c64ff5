// What sums of gradients over several pipelines take besides those over the
// replicas of each, which the plans of the pipelines have (docs/Parts.md,
// "Several pipelines").
//
//   stages that split alike   one collective over the replicas of all holders
//   the same cuts in all      beside the last backward pass; else as if behind
//                             it, which holds for all but the first ones
//   unlike tp                 each holder sends its part to the others
#pragma once

#include "passes/Planning/ReshardPrices.h"
#include "passes/Planning/StageMeshes.h"

namespace merak::planning {

// A pipeline as it is cut: positions of its parts and, of each, the seconds of
// the last W, beside which sums may be.
struct CutPipeline {
  const PipelineStages *pipeline = nullptr;
  const PipelineShape *shape = nullptr;
  std::vector<int> begin;
  std::vector<double> weight;
};

class PipelineSums {
public:
  explicit PipelineSums(const SearchInput &input);

  // Seconds by which the update is later for the stage that waits longest.
  // `longest`: the pipeline that is done last, for which the others wait where
  // all have the same cuts.
  double seconds(const std::vector<CutPipeline> &all, size_t longest);

private:
  GradientReduction reductionOver(const std::vector<int64_t> &devices,
                                  int64_t tp, bool early);
  double ofPart(const std::vector<CutPipeline> &all, size_t pipeline,
                size_t part, bool early);

  const SearchInput &input;
  const std::shared_ptr<ReshardPrices> prices;
  std::map<std::vector<int64_t>, size_t> places; // of holders of a stage
};

} // namespace merak::planning
