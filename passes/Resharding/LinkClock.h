// The links of a cluster as interfaces that are taken one transfer after
// another, and when transfers are done over them.
#pragma once

#include "passes/Resharding/Transfers.h"

namespace merak::resharding {

enum class Direction { Out, In };

// Numbers and names of interfaces: of a device, or of a node whose devices
// share one; inside the node, or to other nodes; full duplex.
class Interfaces {
public:
  explicit Interfaces(const costmodel::Cluster &cluster) : cluster(cluster) {}
  int count() const { return int(4 * cluster.count); }
  // Of a device, towards `peer`.
  int of(Direction direction, int64_t device, int64_t peer) const;
  bool betweenNodes(int interface) const {
    return interface >= 2 * cluster.count;
  }
  std::string name(int interface) const; // "node 1, in"

private:
  const costmodel::Cluster &cluster;
};

// Of one transfer: when it ran, and what it occupied.
struct TransferTime {
  double begin = 0, end = 0;
  struct Window {
    int interface = 0;
    double begin = 0, end = 0;
  };
  std::vector<Window> windows;
};

// Runs transfers in the order of the calls. Each hop of each chunk takes
// latency + bytes / bandwidth of both its interfaces.
class LinkClock {
public:
  LinkClock(const costmodel::Cluster &cluster, int64_t elementBytes)
      : cluster(cluster), interfaces(cluster), elementBytes(elementBytes),
        free(interfaces.count(), 0) {}

  // Not before `ready`.
  TransferTime run(const Transfer &transfer, double ready);
  // When it would begin.
  double earliest(const Transfer &transfer, double ready) const;

private:
  double hop(int64_t from, int64_t to, double bytes, double ready,
             TransferTime &time);
  void chain(const Transfer &transfer, double ready, TransferTime &time);
  void gather(const Transfer &transfer, double ready, TransferTime &time);

  const costmodel::Cluster &cluster;
  Interfaces interfaces;
  double elementBytes;
  std::vector<double> free; // seconds, by interface
};

} // namespace merak::resharding
