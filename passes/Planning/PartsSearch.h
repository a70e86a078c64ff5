// The search for stages on meshes of their own (docs/Parts.md): which devices
// form a stage, with which degrees, and which do nothing.
//
//   classes of devices    kind and rate
//   kinds of stages       devices of a class in a node, or whole nodes; dp, tp
//   mixes                 the fastest numbers of each (StageMix.h), by their
//                         number, microbatches and largest tp
//   orders, places        cuts as even as can be, by each stage's own times
//   the best of them      planned as all plans are (CandidateSet.h)
#pragma once

#include "passes/Planning/PlanSearch.h"

namespace merak::planning {

// Whether stages of unlike devices or sizes may win: of devices that differ, or
// whose number is no power of two.
bool hasUnlikeDevices(const costmodel::Cluster &cluster);

// The cluster as if all devices were of the kind on which the model takes
// least.
costmodel::Cluster onFastestKind(const SearchInput &input);

// At most `most` plans on devices of input.cluster that fit, fastest first.
// What certainly takes longer than `limit` seconds is left out; 0: nothing is.
// Plans of one mesh on all devices are not among them. Of degrees only 1 may be
// pinned, which then holds for all stages.
// `meshes` prices stages of the same input on these devices.
std::vector<PlanCandidate> searchParts(const SearchInput &input,
                                       StageMeshes &meshes, double limit,
                                       size_t most);

} // namespace merak::planning
