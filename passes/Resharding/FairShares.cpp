#include "passes/Resharding/FairShares.h"

#include "passes/Resharding/LinkClock.h"

#include <algorithm>
#include <map>
#include <set>

namespace merak::resharding {

using costmodel::Cluster;

namespace {

// A transfer under way, or not begun, of a fluid simulation.
struct Flow {
  std::set<int> interfaces;
  double left = 0; // bytes
  double rate = 0;
  int before = 0; // transfers that it waits for
  std::vector<int> after;
};

class FairShares {
public:
  FairShares(const std::vector<Transfer> &transfers, bool inOrder,
             double elementBytes, const Cluster &cluster)
      : interfaces(cluster),
        capacity(interfaces.count(), cluster.intra.bandwidth) {
    for (int i = int(2 * cluster.count); i < interfaces.count(); ++i)
      capacity[i] = cluster.inter.bandwidth;
    std::map<int64_t, int> last; // by device
    for (const Transfer &transfer : transfers) {
      if (transfer.kind == TransferKind::Gather ||
          transfer.kind == TransferKind::Copy)
        continue;
      flows.push_back(flowOf(transfer, elementBytes));
      for (int64_t device : transfer.participants) {
        auto [at, isNew] = last.insert({device, int(flows.size()) - 1});
        if (!isNew && inOrder)
          depend(at->second, int(flows.size()) - 1);
        at->second = int(flows.size()) - 1;
      }
    }
  }

  double run() {
    double now = 0;
    for (std::vector<int> active = started(); !active.empty();
         active = started()) {
      share(active);
      double step = -1;
      for (int f : active) {
        const double seconds = flows[f].left / flows[f].rate;
        step = step < 0 ? seconds : std::min(step, seconds);
      }
      now += step;
      for (int f : active)
        advance(flows[f], step);
    }
    return now;
  }

private:
  Flow flowOf(const Transfer &transfer, double elementBytes) const {
    Flow flow;
    flow.left = double(transfer.end - transfer.begin) * elementBytes;
    for (size_t i = 1; i < transfer.participants.size(); ++i) {
      const int64_t from = transfer.participants[i - 1];
      const int64_t to = transfer.participants[i];
      flow.interfaces.insert(interfaces.of(Direction::Out, from, to));
      flow.interfaces.insert(interfaces.of(Direction::In, to, from));
    }
    return flow;
  }
  void depend(int first, int second) {
    std::vector<int> &after = flows[first].after;
    if (std::find(after.begin(), after.end(), second) == after.end()) {
      after.push_back(second);
      ++flows[second].before;
    }
  }
  std::vector<int> started() const {
    std::vector<int> active;
    for (size_t f = 0; f < flows.size(); ++f)
      if (flows[f].left > 0 && flows[f].before == 0)
        active.push_back(int(f));
    return active;
  }
  void advance(Flow &flow, double seconds) {
    const double moved = flow.rate * seconds;
    flow.left = flow.left - moved <= 1e-9 * moved ? 0 : flow.left - moved;
    if (flow.left == 0)
      for (int next : flow.after)
        --flows[next].before;
  }
  // Progressive filling: the interface with the least for each of its flows
  // decides their rate, then the next one of the others.
  void share(std::vector<int> open) {
    std::vector<double> left = capacity;
    while (!open.empty()) {
      std::map<int, int> users;
      for (int f : open)
        for (int interface : flows[f].interfaces)
          ++users[interface];
      int tightest = -1;
      for (auto [interface, count] : users)
        if (tightest < 0 ||
            left[interface] / count < left[tightest] / users[tightest])
          tightest = interface;
      const double rate = left[tightest] / users[tightest];
      std::erase_if(open, [&](int f) {
        if (!flows[f].interfaces.count(tightest))
          return false;
        flows[f].rate = rate;
        for (int interface : flows[f].interfaces)
          left[interface] -= rate;
        return true;
      });
    }
  }

  Interfaces interfaces;
  std::vector<double> capacity; // bytes a second
  std::vector<Flow> flows;
};

} // namespace

double fairSeconds(const std::vector<Transfer> &transfers, bool inOrder,
                   int64_t elementBytes, const Cluster &cluster) {
  return FairShares(transfers, inOrder, double(elementBytes), cluster).run();
}

} // namespace merak::resharding
