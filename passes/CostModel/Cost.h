// Predicted times: ops by the roofline, collectives and transfers by the
// alpha-beta model on a ring.
#pragma once

#include "passes/CostModel/Cluster.h"

namespace merak::costmodel {

// max(flops / rate, bytes / memory bandwidth) + launch.
double opSeconds(const Device &device, double flops, double bytes);

enum class Collective {
  AllReduce,
  AllGather,
  ReduceScatter,
  AllToAll,
  Broadcast
};
// `bytes`: the largest buffer of the collective, that is the whole tensor for
// all-reduce and broadcast, the gathered one for all-gather, the unreduced one
// for reduce-scatter, a device's own buffer for all-to-all.
// Bytes that each of n devices sends: all-reduce 2 b (n-1)/n, the others but
// broadcast b (n-1)/n, broadcast (pipelined ring) b.
double ringBytes(Collective kind, double bytes, int64_t devices);
// steps * latency + ringBytes / bandwidth, steps 2(n-1) or n-1.
double collectiveSeconds(Collective kind, double bytes, int64_t devices,
                         const Link &link);
// The slowest link of the group carries the ring.
double collectiveSeconds(Collective kind, double bytes,
                         const std::vector<int64_t> &devices,
                         const Cluster &cluster);
double transferSeconds(const Link &link, double bytes);

} // namespace merak::costmodel
