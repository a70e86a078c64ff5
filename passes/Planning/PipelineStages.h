// Pipelines of stages on meshes of their own, as a strategy has them. Several
// train the same model: each takes its share of the microbatches of a step, and
// gradients are summed over all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace merak::planning {

struct PipelineStages {
  struct Stage {
    std::vector<int64_t> devices; // row major over dp, tp
    int64_t dp = 1, tp = 1;
    std::optional<std::string> begin; // first op; of no or of all but the first
    bool operator==(const Stage &) const = default;
    std::string str() const; // "0-3 dp=2,tp=2"
  };
  std::optional<int64_t> microbatches; // a step; of several: given
  std::vector<Stage> stages;
  std::vector<int64_t> spares; // devices that do nothing, ascending
  // Of several pipelines, which need not be alike, what a strategy says once of
  // a single one: parts of the model on each stage, the first op of each part
  // but part 0, the ops to recompute.
  std::optional<int64_t> chunks;
  std::optional<std::vector<std::string>> partBegins, recomputeOps;
  bool operator==(const PipelineStages &) const = default;

  int64_t devices() const; // of the stages
  // Whether all stages have the same degrees and the devices stand in order: a
  // plan of one mesh.
  bool isUniform() const;
  // Of a device of a stage: ranks are numbered without the spares.
  int64_t rankOf(int64_t device) const;
  std::string sparesStr() const; // "3,5-7"
  std::string str() const;       // of all stages, "0-3 dp=2,tp=2; 4 dp=1,tp=1"
};

// The stages of all pipelines, one after the other, and all spares: whose ranks
// those of a plan are.
PipelineStages joined(const std::vector<PipelineStages> &pipelines);

std::string degreeText(const PipelineStages::Stage &stage); // "dp=2,tp=2"

} // namespace merak::planning
