#include "passes/Planning/PipelineStages.h"

#include "passes/Resharding/UnitTasks.h"

#include <algorithm>
#include <fmt/format.h>

namespace merak::planning {

int64_t PipelineStages::devices() const {
  int64_t sum = 0;
  for (const Stage &stage : stages)
    sum += int64_t(stage.devices.size());
  return sum;
}

bool PipelineStages::isUniform() const {
  if (!spares.empty())
    return false;
  int64_t next = 0;
  for (const Stage &stage : stages) {
    if (stage.dp != stages[0].dp || stage.tp != stages[0].tp)
      return false;
    for (int64_t device : stage.devices)
      if (device != next++)
        return false;
  }
  return true;
}

int64_t PipelineStages::rankOf(int64_t device) const {
  return device - (std::lower_bound(spares.begin(), spares.end(), device) -
                   spares.begin());
}

std::string PipelineStages::sparesStr() const {
  return resharding::deviceStr(spares);
}

std::string degreeText(const PipelineStages::Stage &stage) {
  return fmt::format("dp={},tp={}", stage.dp, stage.tp);
}

std::string PipelineStages::Stage::str() const {
  return resharding::deviceStr(devices) + " " + degreeText(*this);
}

std::string PipelineStages::str() const {
  std::string text;
  for (const Stage &stage : stages)
    text += (text.empty() ? "" : "; ") + stage.str();
  return text;
}

PipelineStages joined(const std::vector<PipelineStages> &pipelines) {
  PipelineStages all;
  for (const PipelineStages &pipeline : pipelines) {
    all.stages.insert(all.stages.end(), pipeline.stages.begin(),
                      pipeline.stages.end());
    all.spares.insert(all.spares.end(), pipeline.spares.begin(),
                      pipeline.spares.end());
    if (pipeline.microbatches)
      all.microbatches = all.microbatches.value_or(0) + *pipeline.microbatches;
  }
  std::sort(all.spares.begin(), all.spares.end());
  return all;
}

} // namespace merak::planning
