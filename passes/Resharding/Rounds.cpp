#include "passes/Resharding/Rounds.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>

namespace merak::resharding {

namespace {

using costmodel::Cluster;
using Round = std::vector<PlannedMessage>;

class Pricer {
public:
  Pricer(const std::vector<double> &copied, const Cluster &cluster)
      : cluster_(cluster), interfaces_(cluster), clock_(cluster, 1),
        ready_(size_t(cluster.count), 0), seconds_(interfaces_.count(), 0),
        bytes_(seconds_) {
    for (size_t device = 0; device < copied.size(); ++device)
      ready_[device] = memorySeconds(int64_t(device), copied[device]);
  }

  void add(const Round &round) {
    std::map<int64_t, double> received;
    for (const PlannedMessage &message : round) {
      ready_[size_t(message.sender)] +=
          memorySeconds(message.sender, double(message.bytes));
      received[message.receiver] += double(message.bytes);
    }
    // What a device sends goes one after the other, and so does what it
    // receives, over whichever links.
    std::vector<double> sending = ready_, receiving = ready_;
    std::map<int64_t, double> end;
    for (const PlannedMessage &message : round) {
      count(message);
      const Transfer transfer{
          0, TransferKind::Message, {message.sender, message.receiver},
          0, message.bytes,         1};
      double &out = sending[size_t(message.sender)];
      double &in = receiving[size_t(message.receiver)];
      out = in = clock_.run(transfer, std::max(out, in)).end;
      for (int64_t device : transfer.participants)
        end[device] = std::max(end[device], out);
    }
    for (const auto &[device, done] : end)
      ready_[size_t(device)] = done + memorySeconds(device, received[device]);
  }

  RoundsPrice result() const {
    RoundsPrice price = price_;
    price.seconds = *std::max_element(ready_.begin(), ready_.end());
    price.bound = *std::max_element(seconds_.begin(), seconds_.end());
    for (int i = 0; i < interfaces_.count(); ++i)
      if (bytes_[size_t(i)] > price.fullestBytes &&
          interfaces_.betweenNodes(i) == (price.between > 0)) {
        price.fullest = i;
        price.fullestBytes = bytes_[size_t(i)];
      }
    return price;
  }

private:
  double memorySeconds(int64_t device, double bytes) const {
    const double bandwidth = cluster_.device(device).memoryBandwidth;
    return bandwidth > 0 ? 2 * bytes / bandwidth : 0;
  }

  void count(const PlannedMessage &message) {
    const int64_t from = message.sender, to = message.receiver;
    const double bytes = double(message.bytes);
    const costmodel::Link &link = cluster_.between(from, to);
    (cluster_.node(from) == cluster_.node(to) ? price_.inside
                                              : price_.between) += bytes;
    for (int interface : {interfaces_.of(Direction::Out, from, to),
                          interfaces_.of(Direction::In, to, from)}) {
      seconds_[size_t(interface)] += link.latency + bytes / link.bandwidth;
      bytes_[size_t(interface)] += bytes;
    }
  }

  const Cluster &cluster_;
  Interfaces interfaces_;
  LinkClock clock_;
  std::vector<double> ready_;           // by device
  std::vector<double> seconds_, bytes_; // by interface
  RoundsPrice price_;
};

} // namespace

Result<RoundsPrice> priceRounds(const std::vector<Round> &rounds,
                                const std::vector<double> &copied,
                                const Cluster &cluster) {
  int64_t devices = int64_t(copied.size());
  for (const Round &round : rounds)
    for (const PlannedMessage &message : round)
      devices = std::max({devices, message.sender + 1, message.receiver + 1});
  if (devices > cluster.count)
    return Status::error(fmt::format(
        "the cluster has {} devices, {} are needed", cluster.count, devices));
  Pricer pricer(copied, cluster);
  for (const Round &round : rounds)
    pricer.add(round);
  return pricer.result();
}

} // namespace merak::resharding
