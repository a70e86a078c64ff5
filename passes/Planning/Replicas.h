// The replicas of a mesh as pipelines, and which of them take the same.
#pragma once

#include "passes/CostModel/Cluster.h"
#include "passes/Planning/PipelineStages.h"
#include "passes/Planning/StageCosts.h"

namespace merak::planning {

// Whether a device takes so much longer than the fastest that it is not normal.
bool hasSlowDevices(const costmodel::Cluster &cluster);

// Whether devices are of several kinds.
bool hasSeveralKinds(const costmodel::Cluster &cluster);

// The replicas of a mesh whose devices stand row major over pp, dp and tp.
std::vector<PipelineStages> replicasOf(const Degrees &degrees);

// Whether pipelines differ in nothing but where equal devices are: what is
// planned of one holds for the other.
bool areAlike(const PipelineStages &a, const PipelineStages &b,
              const costmodel::Cluster &machine);

// Replicas that are alike as one pipeline each, with as many replicas.
std::vector<PipelineStages>
joinedReplicas(const std::vector<PipelineStages> &replicas,
               const costmodel::Cluster &machine);

// The nodes of the devices of a pipeline, numbered as they appear.
std::vector<int64_t> nodesOf(const PipelineStages &pipeline,
                             const costmodel::Cluster &machine);

} // namespace merak::planning
