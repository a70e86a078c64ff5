#include "passes/Resharding/LinkClock.h"

#include "passes/CostModel/Cost.h"

#include <algorithm>
#include <fmt/format.h>
#include <set>

namespace merak::resharding {

using costmodel::Cluster;
using costmodel::Link;

int Interfaces::of(Direction direction, int64_t device, int64_t peer) const {
  const bool outside = cluster.node(device) != cluster.node(peer);
  const Link &link = outside ? cluster.inter : cluster.intra;
  const int64_t owner = link.shared ? cluster.node(device) : device;
  return int((2 * outside + int(direction)) * cluster.count + owner);
}

std::string Interfaces::name(int interface) const {
  const int64_t kind = interface / cluster.count;
  const Link &link = kind >= 2 ? cluster.inter : cluster.intra;
  return fmt::format("{} {}, {}{}", link.shared ? "node" : "device",
                     interface % cluster.count, kind % 2 ? "in" : "out",
                     kind >= 2 ? "" : " inside");
}

double LinkClock::hop(int64_t from, int64_t to, double bytes, double ready,
                      TransferTime &time) {
  const Link &link = cluster.between(from, to);
  const int out = interfaces.of(Direction::Out, from, to);
  const int in = interfaces.of(Direction::In, to, from);
  const double begin = std::max({ready, free[out], free[in]});
  const double end = begin + link.latency + bytes / link.bandwidth;
  free[out] = free[in] = end;
  for (int interface : {out, in}) {
    auto known = std::find_if(
        time.windows.begin(), time.windows.end(),
        [&](const auto &window) { return window.interface == interface; });
    if (known == time.windows.end())
      time.windows.push_back({interface, begin, end});
    else
      known->end = end;
  }
  return end;
}

void LinkClock::chain(const Transfer &transfer, double ready,
                      TransferTime &time) {
  const double bytes =
      double(transfer.end - transfer.begin) * elementBytes / transfer.chunks;
  for (int chunk = 0; chunk < transfer.chunks; ++chunk) {
    double arrived = ready;
    for (size_t i = 1; i < transfer.participants.size(); ++i)
      arrived = hop(transfer.participants[i - 1], transfer.participants[i],
                    bytes, arrived, time);
    time.end = std::max(time.end, arrived);
  }
}

namespace {

// What a collective of these devices occupies.
std::set<int> ring(const std::vector<int64_t> &members,
                   const Interfaces &interfaces) {
  std::set<int> result;
  for (size_t i = 0; i < members.size(); ++i) {
    const int64_t next = members[(i + 1) % members.size()];
    result.insert(interfaces.of(Direction::Out, members[i], next));
    result.insert(interfaces.of(Direction::In, next, members[i]));
  }
  return result;
}

} // namespace

void LinkClock::gather(const Transfer &transfer, double ready,
                       TransferTime &time) {
  const std::set<int> used = ring(transfer.participants, interfaces);
  double begin = ready;
  for (int interface : used)
    begin = std::max(begin, free[interface]);
  time.end = begin + costmodel::collectiveSeconds(
                         costmodel::Collective::AllGather,
                         double(transfer.end - transfer.begin) * elementBytes,
                         transfer.participants, cluster);
  for (int interface : used) {
    free[interface] = time.end;
    time.windows.push_back({interface, begin, time.end});
  }
}

TransferTime LinkClock::run(const Transfer &transfer, double ready) {
  TransferTime time{ready, ready, {}};
  if (transfer.kind == TransferKind::Gather)
    gather(transfer, ready, time);
  else if (transfer.kind != TransferKind::Copy)
    chain(transfer, ready, time);
  for (size_t i = 0; i < time.windows.size(); ++i)
    time.begin =
        i ? std::min(time.begin, time.windows[i].begin) : time.windows[i].begin;
  return time;
}

double LinkClock::earliest(const Transfer &transfer, double ready) const {
  if (transfer.kind == TransferKind::Copy)
    return ready;
  if (transfer.kind == TransferKind::Gather) {
    for (int interface : ring(transfer.participants, interfaces))
      ready = std::max(ready, free[interface]);
    return ready;
  }
  const int64_t from = transfer.participants[0], to = transfer.participants[1];
  return std::max({ready, free[interfaces.of(Direction::Out, from, to)],
                   free[interfaces.of(Direction::In, to, from)]});
}

} // namespace merak::resharding
