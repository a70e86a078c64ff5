// Links between ranks: how fast they are, and their use as shared resources.
// Both the emulation of links between in-process ranks and the simulator
// reserve transfers here, so that a prediction and a run mean the same.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace merak {

struct LinkSpeed {
  double latency = 0;   // seconds
  double bandwidth = 0; // bytes a second, in each direction; 0: no limit
  bool operator==(const LinkSpeed &) const = default;
};

// `perNode` consecutive ranks form a node. Every rank has a link inside its
// node and one to other nodes, both full duplex.
struct Links {
  int64_t perNode = 1;
  LinkSpeed intra, inter;
  // In collectives each member reads from all others at once; else from its
  // neighbour in a ring.
  bool direct = false;
  bool operator==(const Links &) const = default;

  bool sameNode(std::span<const int> ranks) const;
  // What the ranks meet over; several ranks form a ring, which is as fast as
  // its slowest link.
  const LinkSpeed &between(std::span<const int> ranks) const;
};

// Bytes that each member sends in a collective of n members, and how many
// messages after each other. `bytes`: the larger of a member's input and
// output. An all-reduce is a reduce-scatter followed by an all-gather
// (Patarasuk and Yuan, 2009); a broadcast is pipelined.
struct CollectiveCost {
  double bytes = 0;
  double rounds = 0;
};
CollectiveCost collectiveCost(const std::string &collective, double bytes,
                              int members, bool direct);

// When the links are free. A link carries one transfer after another, in the
// order of the calls: transfers that overlap share its bandwidth.
class LinkUse {
public:
  struct Window {
    double begin = 0, end = 0;
  };
  LinkUse(const Links &links, int ranks);

  // Each of `ranks` sends `bytes` and receives as many; a transfer has no
  // earlier begin than `ready`. Links are taken for the bytes, not for the
  // latency of `rounds` messages, which only delays the end.
  Window collective(std::span<const int> ranks, CollectiveCost cost,
                    double ready);
  bool direct() const { return links_.direct; }
  Window transfer(int from, int to, double bytes, double ready);
  // The general form: takes the links of `senders` and `receivers` for `busy`
  // seconds; the end comes `extra` seconds later. Level 0: inside a node.
  Window occupy(std::span<const int> senders, std::span<const int> receivers,
                int level, double busy, double extra, double ready);

private:
  // Free from then on: by rank; inside the node, then to other nodes.
  struct Ports {
    double out[2] = {0, 0}, in[2] = {0, 0};
  };
  Links links_;
  std::vector<Ports> ports_;
};

} // namespace merak
