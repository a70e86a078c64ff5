// A plan around stragglers: pipelines of stages on groups of devices, layers of
// each stage, microbatches of each pipeline; how long its step takes, and
// whether it respects what it has to.
#pragma once

#include "passes/Stragglers/Problem.h"

namespace merak::stragglers {

struct Stage {
  std::vector<int> devices; // by slice of the tensors
  int64_t layers = 0;
  bool operator==(const Stage &) const = default;
};
struct Pipeline {
  std::vector<Stage> stages;
  int64_t microbatches = 0;
  bool operator==(const Pipeline &) const = default;
};
// Devices that are in no stage stand by: they run nothing, whether they are
// slow, too many, or gone.
struct Plan {
  std::vector<Pipeline> pipelines;
  bool operator==(const Plan &) const = default;
};

// Times are those of Problem.h; kFailed where a device that is gone has work.
struct Score {
  // The longest of microbatches * slowest stage over the pipelines: a step
  // without the filling and draining of pipelines.
  int64_t steady = kFailed;
  // With them: (microbatches - 1) * slowest stage + all stages once.
  int64_t filled = kFailed;
  bool operator==(const Score &) const = default;
};

// The stage that a microbatch takes longest in, and all of them.
struct PipelineTime {
  int64_t slowest = 0, all = 0;
};
PipelineTime timeOf(const Problem &problem, const Pipeline &pipeline);
Score scoreOf(const Problem &problem, const Plan &plan);

// Ascending; of these the ones that are gone are `failedDevices`.
std::vector<int> standbyDevices(const Problem &problem, const Plan &plan);
std::vector<int> failedDevices(const Problem &problem);
// Of the device that needs most.
int64_t peakBytes(const Problem &problem, const Plan &plan);

// All that a plan breaks, from its devices and numbers alone: devices twice,
// gone or unknown, groups across nodes or of a size without a price, layers and
// microbatches that do not add up, more stages than microbatches or than memory
// is known for, stages that do not fit.
Status verify(const Problem &problem, const Plan &plan);

// dp pipelines of pp full groups of devices as they are numbered, layers and
// microbatches as equal as they can be (further ones go to later stages, which
// need less memory, and to earlier pipelines). Regards no rates.
Plan uniformPlan(const Problem &problem);

// The step of normal devices that compute all the time: layers * microbatches
// over the number of full groups that all devices would make.
double idealTime(const Problem &problem);
// ideal * N / ((N - n) + sum of 1 / x over the n stragglers): each device works
// at its speed. Linear in devices, so no bound where groups of half the size
// take less than twice the time. Infinite if no device is left.
double theoryTime(const Problem &problem);
// No plan of the same groups has a shorter steady step: layers * microbatches
// over the sum of the groups' speeds.
double relaxedTime(const Problem &problem, const Plan &plan);

} // namespace merak::stragglers
