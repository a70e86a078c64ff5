// Ranks that are processes and compute on devices, whose host memory goes from
// process to process by another transport than their devices' memory: MPI
// beside NCCL. Both have one store, so one of them is aborted when the other
// is, and a process that is lost is missed by both.
#pragma once

#include "runtime/comm/World.h"

#include <functional>

namespace merak::runtime {

// A world of devices in a store that another world has, which outlives it.
using DeviceWorldFactory =
    std::function<Result<std::unique_ptr<World>>(std::unique_ptr<Store>)>;

// `hosts`: of processes with one rank each; has the store. Communicators are
// those of `hosts` for backends of hosts, else those that `open` makes.
Result<std::unique_ptr<World>> pairWorlds(std::unique_ptr<World> hosts,
                                          const DeviceWorldFactory &open);

} // namespace merak::runtime
