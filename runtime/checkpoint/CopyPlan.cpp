#include "runtime/checkpoint/CopyPlan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace merak::runtime {
namespace {

int hostCount(const std::vector<int> &hostOfRank) {
  return hostOfRank.empty()
             ? 0
             : *std::max_element(hostOfRank.begin(), hostOfRank.end()) + 1;
}

// What is kept together, and by whom so far.
struct Unit {
  std::vector<int> ranks, items;
  int64_t bytes = 0;
  std::set<int> holders, keepers; // hosts
};

// Items of the same ranks, in runs of at most `most` bytes, or of one item.
std::vector<Unit> unitsOf(const std::vector<CopyItem> &items,
                          const std::vector<int> &hostOfRank, int64_t most) {
  std::map<std::vector<int>, std::vector<int>> classes;
  for (size_t i = 0; i < items.size(); ++i)
    classes[items[i].ranks].push_back(int(i));
  std::vector<Unit> units;
  for (const auto &[ranks, members] : classes) {
    const size_t first = units.size();
    for (int item : members) {
      if (units.size() == first ||
          units.back().bytes + items[size_t(item)].bytes > most)
        units.push_back({ranks, {}, 0, {}, {}});
      units.back().items.push_back(item);
      units.back().bytes += items[size_t(item)].bytes;
    }
    for (size_t u = first; u < units.size(); ++u)
      for (int rank : ranks)
        units[u].holders.insert(hostOfRank[size_t(rank)]);
  }
  return units;
}

class Keepers {
public:
  Keepers(std::vector<Unit> &units, int hosts, int each)
      : units_(units), each_(size_t(each)), kept_(size_t(hosts), 0) {
    order_.resize(units.size());
    std::iota(order_.begin(), order_.end(), size_t(0));
    std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
      return units[a].bytes > units[b].bytes;
    });
  }

  // What leaves no choice comes first, so that choices see all of it.
  void choose() {
    for (Unit &unit : units_)
      if (unit.holders.size() <= each_)
        for (int host : unit.holders)
          keep(unit, host);
    for (size_t u : order_)
      if (units_[u].holders.size() > each_)
        fill(units_[u], &units_[u].holders);
    for (size_t u : order_)
      fill(units_[u], nullptr);
  }

private:
  void keep(Unit &unit, int host) {
    if (unit.keepers.insert(host).second)
      kept_[size_t(host)] += unit.bytes;
  }
  // Of hosts that keep as much the next behind the first holder is taken, so
  // that neighbours do not all send to one.
  void fill(Unit &unit, const std::set<int> *among) {
    const int hosts = int(kept_.size()), first = *unit.holders.begin();
    while (unit.keepers.size() < each_) {
      int best = -1;
      for (int i = 0; i < hosts; ++i) {
        const int host = (first + i) % hosts;
        if (unit.keepers.count(host) || (among && !among->count(host)))
          continue;
        if (best < 0 || kept_[size_t(host)] < kept_[size_t(best)])
          best = host;
      }
      keep(unit, best);
    }
  }

  std::vector<Unit> &units_;
  size_t each_;
  std::vector<int64_t> kept_; // bytes by host
  std::vector<size_t> order_; // of units
};

// The rank with the smallest number in `load`, to which `bytes` are added.
int leastLoaded(const std::vector<int> &ranks, std::vector<int64_t> &load,
                int64_t bytes) {
  const int best =
      *std::min_element(ranks.begin(), ranks.end(), [&](int a, int b) {
        return load[size_t(a)] < load[size_t(b)];
      });
  load[size_t(best)] += bytes;
  return best;
}

// Which process of a host does what.
class Processes {
public:
  explicit Processes(const std::vector<int> &hostOfRank)
      : hostOfRank_(hostOfRank), ranksOf_(size_t(hostCount(hostOfRank))),
        written_(hostOfRank.size()), sent_(hostOfRank.size()) {
    for (size_t rank = 0; rank < hostOfRank.size(); ++rank)
      ranksOf_[size_t(hostOfRank[rank])].push_back(int(rank));
  }

  CopyPart part(const Unit &unit) {
    CopyPart part{unit.items, unit.bytes, {}};
    std::vector<int> sources;
    std::map<int, int> writers; // by host
    for (int host : unit.keepers) {
      if (!unit.holders.count(host))
        continue;
      std::vector<int> here;
      for (int rank : unit.ranks)
        if (hostOfRank_[size_t(rank)] == host)
          here.push_back(rank);
      writers[host] = leastLoaded(here, written_, unit.bytes);
      sources.push_back(writers[host]);
    }
    for (int host : unit.keepers) {
      if (const auto writer = writers.find(host); writer != writers.end())
        part.keepers.push_back({host, writer->second, writer->second});
      else
        part.keepers.push_back(
            {host, leastLoaded(ranksOf_[size_t(host)], written_, unit.bytes),
             leastLoaded(sources, sent_, unit.bytes)});
    }
    return part;
  }

  const std::vector<int> &ranksOf(int host) const {
    return ranksOf_[size_t(host)];
  }

private:
  const std::vector<int> &hostOfRank_;
  std::vector<std::vector<int>> ranksOf_;
  std::vector<int64_t> written_, sent_; // bytes by rank
};

} // namespace

std::vector<CopyPart> planCopies(const std::vector<CopyItem> &items,
                                 const std::vector<int> &hostOfRank,
                                 int copies) {
  const int hosts = hostCount(hostOfRank);
  if (hosts == 0)
    return {};
  const int each = std::min(copies + 1, hosts);
  int64_t all = 0;
  for (const CopyItem &item : items)
    all += item.bytes;
  const int64_t evenShare = (all * each + hosts - 1) / hosts;
  std::vector<Unit> units = unitsOf(items, hostOfRank, evenShare);
  Keepers(units, hosts, each).choose();
  Processes processes(hostOfRank);
  std::vector<CopyPart> parts;
  for (const Unit &unit : units)
    parts.push_back(processes.part(unit));
  return parts;
}

std::vector<CopyTransfer> transfersOf(const std::vector<CopyPart> &parts) {
  std::vector<CopyTransfer> transfers;
  for (size_t i = 0; i < parts.size(); ++i)
    for (const CopyKeeper &keeper : parts[i].keepers)
      if (keeper.isSent())
        transfers.push_back({int(i), keeper.from, keeper.rank});
  return transfers;
}

std::vector<CopyTransfer>
planFetches(const std::vector<int64_t> &partBytes,
            const std::vector<std::vector<int>> &wanted,
            const std::vector<std::vector<int>> &present,
            const std::vector<int> &hostOfRank) {
  const Processes processes(hostOfRank);
  std::vector<std::set<int>> hostsOf(partBytes.size());
  for (size_t host = 0; host < present.size(); ++host)
    for (int part : present[host])
      hostsOf[size_t(part)].insert(int(host));
  std::vector<int64_t> sentByHost(present.size()), sent(hostOfRank.size());
  std::set<std::pair<int, int>> done; // part, host
  std::vector<CopyTransfer> transfers;
  for (size_t rank = 0; rank < wanted.size(); ++rank)
    for (int part : wanted[rank]) {
      const int host = hostOfRank[rank];
      const std::set<int> &sources = hostsOf[size_t(part)];
      if (sources.count(host) || sources.empty() ||
          !done.insert({part, host}).second)
        continue;
      const int64_t bytes = partBytes[size_t(part)];
      const int source =
          leastLoaded({sources.begin(), sources.end()}, sentByHost, bytes);
      transfers.push_back({part,
                           leastLoaded(processes.ranksOf(source), sent, bytes),
                           int(rank)});
    }
  return transfers;
}

} // namespace merak::runtime
