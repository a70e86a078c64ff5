// One rank of a run with many, without the others: every other rank is taken to
// hold what this one holds. The sums are those of equal parts, so that losses
// mean nothing but depend on everything that a step computes and communicates.
//
// Communication goes through DenseCommunicator, as with NCCL, and its calls are
// work on streams of the emulated device, which may be captured. For plans of
// data and tensor parallelism; nobody sends anything to a rank of a pipeline.
#pragma once

#include "runtime/comm/World.h"
#include "runtime/launch/LaunchIdentity.h"
#include "test/unit/cuda/EmulatedDevice.h"

namespace merak::cuda {

Result<std::unique_ptr<runtime::World>>
openMirrorWorld(std::shared_ptr<EmulatedDevice> device,
                const runtime::LaunchIdentity &identity);

} // namespace merak::cuda
