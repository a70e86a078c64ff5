// Messages in rounds, as a migration sends them: what they take, and which link
// carries the most.
#pragma once

#include "passes/Resharding/Resharding.h"

namespace merak::resharding {

struct RoundsPrice {
  double seconds = 0; // until the last device has unpacked what it got
  // No order of these messages is faster: of the busiest interface, its
  // latencies and bytes.
  double bound = 0;
  double inside = 0, between = 0; // bytes, in nodes and from node to node
  // The interface that carries the most bytes; -1: nothing is sent. Between
  // nodes, if anything goes there.
  int fullest = -1;
  double fullestBytes = 0;
};

// In each round a device packs what it sends and then sends and receives in the
// order of the messages, both at the same time; it unpacks when it has all, and
// begins its next round then, without waiting for others. `copied`: bytes that
// each device copies within its memory first. Packing, unpacking and copying
// read and write each byte at the bandwidth of the device's memory. Errors:
// devices that the cluster lacks.
Result<RoundsPrice>
priceRounds(const std::vector<std::vector<PlannedMessage>> &rounds,
            const std::vector<double> &copied,
            const costmodel::Cluster &cluster);

} // namespace merak::resharding
