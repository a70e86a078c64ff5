#include "passes/Resharding/Transfers.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace merak::resharding {

using costmodel::Cluster;
using costmodel::Link;

const std::vector<std::string> &strategyNames() {
  static const std::vector<std::string> names{"send-recv",      "local-gather",
                                              "scatter-gather", "broadcast",
                                              "convert",        "alpa"};
  return names;
}

const std::string &nameOf(Strategy strategy) {
  return strategyNames()[size_t(strategy)];
}

bool parseStrategy(const std::string &name, Strategy &strategy) {
  const std::vector<std::string> &names = strategyNames();
  auto found = std::find(names.begin(), names.end(), name);
  strategy = Strategy(found - names.begin());
  return found != names.end();
}

const char *nameOf(TransferKind kind) {
  static const char *const names[] = {"copy", "message", "broadcast", "gather"};
  return names[int(kind)];
}

Strategy resolve(Strategy strategy, const UnitTask &task,
                 const Cluster &cluster) {
  if (strategy != Strategy::Alpa)
    return strategy;
  for (int64_t device : task.receivers)
    if (cluster.node(device) != cluster.node(task.receivers[0]))
      return Strategy::SendRecv;
  return Strategy::LocalGather;
}

int64_t partBegin(const std::vector<int64_t> &shape, int64_t i, int64_t n) {
  int64_t size = 1;
  for (int64_t extent : shape)
    size *= extent;
  int64_t row = 1;
  for (size_t d = shape.size(); d-- > 0 && row * shape[d] <= size / (4 * n);)
    row *= shape[d];
  // Sizes are at most kMostElements, so that this does not overflow.
  const int64_t even = i * (size / n) + i * (size % n) / n;
  return (even + row / 2) / row * row;
}

std::vector<std::vector<int64_t>>
receiversByNode(const UnitTask &task, int64_t sender, const Cluster &cluster) {
  std::map<int64_t, std::vector<int64_t>> nodes;
  for (int64_t device : task.receivers)
    nodes[cluster.node(device)].push_back(device);
  std::vector<std::vector<int64_t>> result;
  for (auto &[node, devices] : nodes) {
    std::sort(devices.begin(), devices.end());
    std::rotate(devices.begin(),
                devices.begin() + task.sourceTile % int64_t(devices.size()),
                devices.end());
    const bool own = node == cluster.node(sender);
    result.insert(own ? result.begin() : result.end(), std::move(devices));
  }
  return result;
}

namespace {

// Makes the transfers of one task.
class Expansion {
public:
  Expansion(const UnitTask &task, int index, int64_t sender)
      : index(index), sender(sender), size(task.elements()), shape(task.shape) {
    for (int64_t keeper : task.keepers)
      add(TransferKind::Copy, {keeper}, 0, size);
  }

  void message(int64_t receiver, int64_t begin, int64_t end) {
    if (begin < end)
      add(TransferKind::Message, {sender, receiver}, begin, end);
  }
  // A part to each, then all parts to all.
  void scatterAndGather(const std::vector<int64_t> &members) {
    const int64_t n = int64_t(members.size());
    for (int64_t i = 0; i < n; ++i)
      message(members[i], partBegin(shape, i, n), partBegin(shape, i + 1, n));
    if (n > 1)
      add(TransferKind::Gather, members, 0, size);
  }
  void broadcast(const std::vector<int64_t> &receivers, int chunks) {
    if (receivers.size() == 1)
      return message(receivers[0], 0, size);
    std::vector<int64_t> chain{sender};
    chain.insert(chain.end(), receivers.begin(), receivers.end());
    add(TransferKind::Broadcast, std::move(chain), 0, size);
    done.back().chunks = chunks;
  }
  std::vector<Transfer> take() { return std::move(done); }

private:
  void add(TransferKind kind, std::vector<int64_t> participants, int64_t begin,
           int64_t end) {
    done.push_back({index, kind, std::move(participants), begin, end, 1});
  }

  int index;
  int64_t sender, size;
  const std::vector<int64_t> &shape;
  std::vector<Transfer> done;
};

std::vector<int64_t> joined(const std::vector<std::vector<int64_t>> &nodes) {
  std::vector<int64_t> all;
  for (const std::vector<int64_t> &node : nodes)
    all.insert(all.end(), node.begin(), node.end());
  return all;
}

} // namespace

std::vector<Transfer> transfersOf(const UnitTask &task, int index,
                                  int64_t sender, Strategy strategy, int chunks,
                                  const Cluster &cluster) {
  Expansion out(task, index, sender);
  if (task.receivers.empty())
    return out.take();
  const std::vector<std::vector<int64_t>> nodes =
      receiversByNode(task, sender, cluster);
  switch (resolve(strategy, task, cluster)) {
  case Strategy::LocalGather:
    for (const std::vector<int64_t> &node : nodes)
      out.scatterAndGather(node);
    break;
  case Strategy::ScatterGather:
    out.scatterAndGather(joined(nodes));
    break;
  case Strategy::Broadcast:
    out.broadcast(joined(nodes), chunks);
    break;
  default:
    for (int64_t device : joined(nodes))
      out.message(device, 0, task.elements());
  }
  return out.take();
}

double chainSeconds(double bytes, int chunks, const std::vector<int64_t> &chain,
                    const Cluster &cluster) {
  double sum = 0, longest = 0;
  for (size_t i = 1; i < chain.size(); ++i) {
    const Link &link = cluster.between(chain[i - 1], chain[i]);
    const double hop = bytes / chunks / link.bandwidth + link.latency;
    sum += hop;
    longest = std::max(longest, hop);
  }
  return sum + (chunks - 1) * longest;
}

int chunkCount(double bytes, const std::vector<int64_t> &chain,
               const Cluster &cluster) {
  double each = 0, slowest = 0, latency = 0; // seconds a byte
  for (size_t i = 1; i < chain.size(); ++i) {
    const Link &link = cluster.between(chain[i - 1], chain[i]);
    each += 1 / link.bandwidth;
    slowest = std::max(slowest, 1 / link.bandwidth);
    latency = std::max(latency, link.latency);
  }
  const double most =
      std::clamp<double>(std::floor(bytes / kSmallestChunk), 1, kMostChunks);
  const double best =
      latency > 0 ? std::sqrt(bytes * (each - slowest) / latency) : most;
  const int below = int(std::clamp(std::floor(best), 1.0, most));
  const int above = std::min(below + 1, int(most));
  return chainSeconds(bytes, above, chain, cluster) <
                 chainSeconds(bytes, below, chain, cluster)
             ? above
             : below;
}

} // namespace merak::resharding
