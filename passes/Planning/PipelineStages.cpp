#include "passes/Planning/PipelineStages.h"

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

std::string deviceText(const std::vector<int64_t> &devices) {
  std::string text;
  for (size_t i = 0; i < devices.size();) {
    size_t end = i + 1;
    while (end < devices.size() && devices[end] == devices[end - 1] + 1)
      ++end;
    text += (text.empty() ? "" : ",") + std::to_string(devices[i]);
    if (end > i + 1)
      text += "-" + std::to_string(devices[end - 1]);
    i = end;
  }
  return text;
}

std::string PipelineStages::sparesStr() const { return deviceText(spares); }

std::string degreeText(const PipelineStages::Stage &stage) {
  return fmt::format("dp={},tp={}", stage.dp, stage.tp);
}

std::string PipelineStages::Stage::str() const {
  return deviceText(devices) + " " + degreeText(*this);
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
