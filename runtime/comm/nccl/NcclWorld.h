// A world of processes with one rank and one GPU each, which communicate
// through NCCL and meet in a store.
//
// Every group has a communicator for each stream that uses it, transfers one
// for each pair of streams: NCCL's operations on one communicator must be
// issued in one order, those of two streams have none. They are made before the
// first step, by all ranks in one order, and their kernels fit on the device at
// once. A watcher asks all communicators for errors, and aborts them when the
// run is aborted, so that kernels that wait for a lost rank end within a
// second.
#pragma once

#include "runtime/comm/World.h"

namespace merak::runtime {

// Opens libnccl; the store has all ranks. One sentence if the library is
// missing or too old.
Result<std::unique_ptr<World>> openNcclWorld(std::unique_ptr<Store> store);

// `NCCL: built with 2.28.3, found 2.29.2`, or why it is not found.
std::string ncclVersions();

} // namespace merak::runtime
