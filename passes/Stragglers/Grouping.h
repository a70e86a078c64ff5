// How a node's devices are cut into groups.
//
// Healthy devices form full groups. What is left of a node that has a straggler
// or lost a device is cut, from the fast end on, into full groups and powers of
// two below: a strictly falling sequence of sizes for the healthy ones and
// another one that may start anywhere (one straggler of eight: 4 + 2 + 1 and
// the straggler by itself, or all eight together). Cutting a healthy node would
// pay in steady state where half a group takes less than twice the time, but
// makes pipelines that are long to fill; so it is not done.
#pragma once

#include "passes/Stragglers/StageLayers.h"

namespace merak::stragglers {

// Groups of a node; devices in none stand by.
struct Grouping {
  std::vector<std::vector<int>> groups;
  std::vector<GroupClass> classes; // of the groups
  double speed = 0;                // sum of 1 / rate over the groups
};
struct NodeGroupings {
  int64_t node = 0;
  // At least one unless all devices are gone. The fastest first. None whose
  // groups are some of another's, since groups may stand by.
  std::vector<Grouping> groupings;
  bool isWhole = true; // no grouping was left out because there were too many
};

struct GroupingOptions {
  size_t most = 24; // groupings of a node
};
// By node, ascending. `old` is the plan that runs: devices that were a full
// group in it stay one where they can.
std::vector<NodeGroupings> groupingsOf(const Problem &problem, const Plan &old,
                                       const GroupingOptions &options = {});

} // namespace merak::stragglers
