#include "passes/CostModel/Cost.h"

#include <algorithm>

namespace merak::costmodel {

double opSeconds(const Device &device, double flops, double bytes) {
  double compute = flops > 0 ? flops / device.flops : 0;
  double memory = bytes > 0 ? bytes / device.memoryBandwidth : 0;
  return std::max(compute, memory) + device.launchSeconds;
}

double ringBytes(Collective kind, double bytes, int64_t devices) {
  if (devices <= 1)
    return 0;
  double share = double(devices - 1) / double(devices);
  switch (kind) {
  case Collective::AllReduce:
    return 2 * bytes * share;
  case Collective::AllGather:
  case Collective::ReduceScatter:
  case Collective::AllToAll:
    return bytes * share;
  case Collective::Broadcast:
    return bytes;
  }
  return 0;
}

double collectiveSeconds(Collective kind, double bytes, int64_t devices,
                         const Link &link) {
  if (devices <= 1)
    return 0;
  int64_t steps = devices - 1;
  if (kind == Collective::AllReduce)
    steps *= 2; // reduce-scatter, then all-gather
  return double(steps) * link.latency +
         ringBytes(kind, bytes, devices) / link.bandwidth;
}

double collectiveSeconds(Collective kind, double bytes,
                         const std::vector<int64_t> &devices,
                         const Cluster &cluster) {
  double seconds = 0;
  int64_t count = int64_t(devices.size());
  for (int64_t i = 0; i < count; ++i) {
    const Link &link =
        cluster.between(devices[i], devices[size_t((i + 1) % count)]);
    seconds = std::max(seconds, collectiveSeconds(kind, bytes, count, link));
  }
  return seconds;
}

double transferSeconds(const Link &link, double bytes) {
  return link.latency + bytes / link.bandwidth;
}

} // namespace merak::costmodel
