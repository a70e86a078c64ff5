#include "passes/Resharding/Resharding.h"

#include <algorithm>

namespace merak::resharding {

using costmodel::Cluster;

namespace {

const Transfer &at(const OrderedTransfer &place,
                   const std::vector<const Resharding *> &reshardings) {
  return reshardings[place.resharding]
      ->legs[place.leg]
      .transfers[place.transfer];
}

// The places of a resharding, in its order.
std::vector<OrderedTransfer> placesOf(const Resharding &resharding, int index) {
  std::vector<OrderedTransfer> result;
  for (int leg = 0; leg < int(resharding.legs.size()); ++leg)
    for (int t = 0; t < int(resharding.legs[leg].transfers.size()); ++t)
      result.push_back({index, leg, t});
  return result;
}

} // namespace

std::vector<OrderedTransfer>
totalOrder(const std::vector<const Resharding *> &reshardings,
           const Cluster &cluster) {
  std::vector<std::vector<OrderedTransfer>> queues;
  for (int r = 0; r < int(reshardings.size()); ++r)
    queues.push_back(placesOf(*reshardings[r], r));
  LinkClock clock(cluster, 1);
  std::vector<size_t> next(queues.size(), 0);
  std::vector<OrderedTransfer> result;
  while (true) {
    int first = -1;
    double earliest = 0;
    for (int r = 0; r < int(queues.size()); ++r) {
      if (next[r] == queues[r].size())
        continue;
      const double start =
          clock.earliest(at(queues[r][next[r]], reshardings), 0);
      if (first < 0 || start < earliest) {
        first = r;
        earliest = start;
      }
    }
    if (first < 0)
      return result;
    result.push_back(queues[first][next[first]++]);
    Transfer transfer = at(result.back(), reshardings);
    transfer.begin *= reshardings[first]->elementBytes;
    transfer.end *= reshardings[first]->elementBytes;
    clock.run(transfer, 0);
  }
}

std::vector<OrderedTransfer>
restriction(const std::vector<OrderedTransfer> &order,
            const std::vector<const Resharding *> &reshardings,
            int64_t device) {
  std::vector<OrderedTransfer> result;
  for (const OrderedTransfer &place : order) {
    const std::vector<int64_t> &all = at(place, reshardings).participants;
    if (std::count(all.begin(), all.end(), device))
      result.push_back(place);
  }
  return result;
}

} // namespace merak::resharding
