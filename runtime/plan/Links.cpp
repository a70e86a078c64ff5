#include "runtime/plan/Links.h"

#include <algorithm>

namespace merak {

bool Links::sameNode(std::span<const int> ranks) const {
  return std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
    return rank / perNode == ranks.front() / perNode;
  });
}

const LinkSpeed &Links::between(std::span<const int> ranks) const {
  return sameNode(ranks) ? intra : inter;
}

CollectiveCost collectiveCost(const std::string &collective, double bytes,
                              int members, bool direct) {
  if (members < 2)
    return {};
  const double others = members - 1, share = others / members;
  const double rounds = direct ? 1 : others;
  if (collective == "all_reduce")
    return {2 * bytes * share, 2 * rounds};
  if (collective == "broadcast")
    return {bytes, rounds};
  return {bytes * share, rounds};
}

LinkUse::LinkUse(const Links &links, int ranks)
    : links_(links), ports_(static_cast<size_t>(ranks)) {}

LinkUse::Window LinkUse::occupy(std::span<const int> senders,
                                std::span<const int> receivers, int level,
                                double busy, double extra, double ready) {
  Window window{ready, ready};
  for (int rank : senders)
    window.begin = std::max(window.begin, ports_[rank].out[level]);
  for (int rank : receivers)
    window.begin = std::max(window.begin, ports_[rank].in[level]);
  const double carried = window.begin + busy;
  for (int rank : senders)
    ports_[rank].out[level] = carried;
  for (int rank : receivers)
    ports_[rank].in[level] = carried;
  window.end = carried + extra;
  return window;
}

static double carrySeconds(const LinkSpeed &speed, double bytes) {
  return speed.bandwidth > 0 ? bytes / speed.bandwidth : 0;
}

LinkUse::Window LinkUse::collective(std::span<const int> ranks,
                                    CollectiveCost cost, double ready) {
  if (ranks.size() < 2)
    return {ready, ready};
  const LinkSpeed &speed = links_.between(ranks);
  return occupy(ranks, ranks, links_.sameNode(ranks) ? 0 : 1,
                carrySeconds(speed, cost.bytes), cost.rounds * speed.latency,
                ready);
}

LinkUse::Window LinkUse::transfer(int from, int to, double bytes,
                                  double ready) {
  const int ends[] = {from, to};
  const LinkSpeed &speed = links_.between(ends);
  return occupy({&from, 1}, {&to, 1}, links_.sameNode(ends) ? 0 : 1,
                carrySeconds(speed, bytes), speed.latency, ready);
}

} // namespace merak
