// A model that is trained on devices of which some are slower than others or
// gone: what a plan around them has to respect. docs/Stragglers.md explains the
// model; it is that of Malleus (arXiv 2410.13333), section 4.
//
// Rates, prices and times are whole numbers of a ten-thousandth, so that ties
// are decided equally on every machine. A time counts how long one layer of one
// microbatch takes on a full group of normal devices.
#pragma once

#include "passes/CostModel/Cluster.h"

#include <limits>

namespace merak::stragglers {

inline constexpr int64_t kOne = 10000;
// The rate of a device that is gone, and the time of what uses it.
inline constexpr int64_t kFailed = std::numeric_limits<int64_t>::max();

struct Device {
  int64_t node = 0;
  // How many times longer than a normal device it takes for the same work.
  int64_t rate = kOne;
};

// Bytes of one device of a stage that is computed by a full group.
struct StageMemory {
  int64_t limit = 0; // of one device; 0: not limited
  int64_t fixed = 0; // whatever the stage holds, on groups of any size
  int64_t edge = 0;  // more of the first and of the last stage (embeddings)
  // Of one layer, by the number of stages behind its own: earlier stages have
  // more microbatches in flight. A pipeline has at most as many stages, and at
  // most 64.
  std::vector<int64_t> layer;
};

struct Problem {
  std::vector<Device> devices; // by number
  int64_t layers = 0, microbatches = 0;
  // Pipelines, devices of a full group (a power of two), stages of the plan
  // for normal devices.
  int64_t dp = 1, tp = 1, pp = 1;
  // The time of a layer on tp / 2^k devices over that on tp devices; as many
  // sizes of groups as there are prices.
  std::vector<int64_t> shrink{kOne};
  // Groups of a lower rate count as normal.
  int64_t threshold = 12000;
  StageMemory memory;

  bool isLimited() const { return memory.limit > 0; }
};

// All problems at once: numbers below one or so large that times overflow,
// degrees that need more devices than there are, a full group that is no power
// of two or larger than a node, prices of group sizes that fall or begin above
// one, nodes of more than 64 devices, memory that a single layer does not fit
// into.
Status check(const Problem &problem);

// Devices and nodes of a cluster, which says how fast a device is: the rate is
// the inverse.
std::vector<Device> devicesOf(const costmodel::Cluster &cluster);

bool isFailed(const Problem &problem, int device);
// Alive and slower than the threshold.
bool isStraggler(const Problem &problem, int device);

// The time of one layer on these devices: the slowest one's rate times the
// price of the group's size; kFailed if one is gone. Requires a size for which
// there is a price.
int64_t groupRate(const Problem &problem, const std::vector<int> &devices);
// Whether there is a price for groups of this size.
bool isGroupSize(const Problem &problem, int64_t size);

// The longest pipeline.
int64_t mostStages(const Problem &problem);
// How many layers a stage of a group of `size` devices can hold; at least 0.
int64_t layerCap(const Problem &problem, int64_t size, int64_t stagesBehind,
                 bool isEdge);
// Bytes of one device of a stage with so many layers.
int64_t stageBytes(const Problem &problem, int64_t size, int64_t stagesBehind,
                   bool isEdge, int64_t layers);

} // namespace merak::stragglers
