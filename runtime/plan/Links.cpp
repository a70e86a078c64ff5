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

RingCost ringCost(const std::string &collective, double bytes, int members) {
  if (members < 2)
    return {};
  const double rounds = members - 1, share = rounds / members;
  if (collective == "all_reduce")
    return {2 * bytes * share, 2 * rounds};
  if (collective == "broadcast")
    return {bytes, rounds};
  return {bytes * share, rounds};
}

LinkUse::LinkUse(const Links &links, int ranks)
    : links_(links), ports_(static_cast<size_t>(ranks)) {}

LinkUse::Window LinkUse::take(const LinkSpeed &speed, RingCost cost,
                              double ready, std::span<double *const> ports) {
  Window window{ready, ready};
  for (const double *port : ports)
    window.begin = std::max(window.begin, *port);
  const double carried =
      window.begin + (speed.bandwidth > 0 ? cost.bytes / speed.bandwidth : 0);
  for (double *port : ports)
    *port = carried;
  window.end = carried + cost.rounds * speed.latency;
  return window;
}

LinkUse::Window LinkUse::ring(std::span<const int> ranks, RingCost cost,
                              double ready) {
  if (ranks.size() < 2)
    return {ready, ready};
  const int level = links_.sameNode(ranks) ? 0 : 1;
  std::vector<double *> ports;
  for (int rank : ranks) {
    ports.push_back(&ports_[rank].out[level]);
    ports.push_back(&ports_[rank].in[level]);
  }
  return take(links_.between(ranks), cost, ready, ports);
}

LinkUse::Window LinkUse::transfer(int from, int to, double bytes,
                                  double ready) {
  const int ends[] = {from, to};
  const int level = links_.sameNode(ends) ? 0 : 1;
  double *ports[] = {&ports_[from].out[level], &ports_[to].in[level]};
  return take(links_.between(ends), {bytes, 1}, ready, ports);
}

} // namespace merak
