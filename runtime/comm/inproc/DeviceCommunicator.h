// Ranks of one process that share a device: threads that meet on the host as
// other in-process ranks do, while copies and sums are enqueued on the device.
// Events take the place of what barriers promise on the host: after a barrier
// every member's stream waits for the events that the others recorded before
// it, so no stream ever waits for an event to come.
//
// For tests of plans with several ranks on one GPU. Sums run in group order. An
// endpoint must stay until all ranks have finished what they enqueued.
#pragma once

#include "runtime/comm/inproc/InprocCommunicator.h"

namespace merak::runtime {

// `backend`: of the rank; all ranks of the world have one device.
std::unique_ptr<Communicator> deviceCommunicator(InprocWorld &world, int rank,
                                                 Backend &backend);

} // namespace merak::runtime
