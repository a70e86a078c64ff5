#include "passes/Planning/FrontierGraph.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>

namespace merak::planning {

int FrontierGraph::addNode(std::string name, int configs) {
  nodes_.push_back({std::move(name), configs});
  return int(nodes_.size()) - 1;
}

int FrontierGraph::addEdge(int from, int to) {
  edges_.push_back({from, to});
  return int(edges_.size()) - 1;
}

int FrontierGraph::allow(int node, int config, const LifeCost &cost) {
  leaves_.push_back({false, node, config, -1, cost});
  return int(leaves_.size()) - 1;
}

int FrontierGraph::allow(int edge, int fromConfig, int toConfig,
                         const LifeCost &cost) {
  leaves_.push_back({true, edge, fromConfig, toConfig, cost});
  return int(leaves_.size()) - 1;
}

std::string FrontierGraph::nameOf(const Leaf &leaf) const {
  if (!leaf.isEdge)
    return fmt::format("node '{}'", nodes_[leaf.of].name);
  return fmt::format("edge {} from '{}' to '{}'", leaf.of,
                     nodes_[edges_[leaf.of].from].name,
                     nodes_[edges_[leaf.of].to].name);
}

namespace {

bool inside(int number, size_t count) {
  return number >= 0 && size_t(number) < count;
}

Status checkConfig(const std::string &where, const FrontierGraph::Node &node,
                   int config) {
  if (inside(config, size_t(node.configs)))
    return {};
  return Status::error(
      fmt::format("{}: expected a configuration of '{}' below {}, found {}",
                  where, node.name, node.configs, config));
}

Status checkCost(const std::string &where, const LifeCost &cost) {
  for (int64_t part :
       {cost.stay, cost.inFlight, cost.perMicrobatch, cost.perStep})
    if (part < 0)
      return Status::error(fmt::format(
          "{}: expected costs of at least 0, found {}", where, part));
  return {};
}

// The largest leaf of every table, added up without overflow: no strategy has
// more bytes or nanoseconds.
class LargestSum {
public:
  void add(const FrontierGraph::Leaf &leaf, const Projection &projection) {
    auto &[bytes, nanoseconds] = largest[{leaf.isEdge, leaf.of}];
    auto wide = [](int64_t fixed, int64_t count, int64_t each) {
      return Wide(fixed) + Wide(count) * each;
    };
    bytes = std::max(
        bytes, wide(leaf.cost.stay, projection.inFlight, leaf.cost.inFlight));
    nanoseconds =
        std::max(nanoseconds, wide(leaf.cost.perStep, projection.microbatches,
                                   leaf.cost.perMicrobatch));
  }
  bool fits() const {
    Wide bytes = 0, nanoseconds = 0;
    for (const auto &[table, cost] : largest) {
      bytes += cost.first;
      nanoseconds += cost.second;
    }
    return bytes < kNoLimit && nanoseconds < kNoLimit;
  }

private:
  using Wide = __int128;
  std::map<std::pair<bool, int>, std::pair<Wide, Wide>> largest;
};

} // namespace

bool FrontierGraph::isFine(const Leaf &leaf) const {
  const LifeCost &cost = leaf.cost;
  if (std::min({cost.stay, cost.inFlight, cost.perMicrobatch, cost.perStep}) <
      0)
    return false;
  if (!leaf.isEdge)
    return inside(leaf.a, size_t(nodes_[size_t(leaf.of)].configs));
  const Edge &edge = edges_[size_t(leaf.of)];
  return inside(edge.from, nodes_.size()) && inside(edge.to, nodes_.size()) &&
         inside(leaf.a, size_t(nodes_[size_t(edge.from)].configs)) &&
         inside(leaf.b, size_t(nodes_[size_t(edge.to)].configs));
}

Status FrontierGraph::checkLeaf(const Leaf &leaf) const {
  if (!inside(leaf.of, leaf.isEdge ? edges_.size() : nodes_.size()))
    return Status::error(
        fmt::format("a cost of {} {}: expected a number below {}",
                    leaf.isEdge ? "edge" : "node", leaf.of,
                    leaf.isEdge ? edges_.size() : nodes_.size()));
  if (isFine(leaf)) // of very many, without a name for each
    return {};
  Status status = checkCost(nameOf(leaf), leaf.cost);
  if (!leaf.isEdge) {
    status.merge(checkConfig(nameOf(leaf), nodes_[leaf.of], leaf.a));
    return status;
  }
  const Edge &edge = edges_[leaf.of];
  status.merge(checkConfig(nameOf(leaf), nodes_[edge.from], leaf.a));
  status.merge(checkConfig(nameOf(leaf), nodes_[edge.to], leaf.b));
  return status;
}

Status FrontierGraph::check(const Projection &projection) const {
  Status status;
  if (nodes_.empty())
    status.merge(Status::error("a graph to search needs a node, found none"));
  for (const Node &node : nodes_)
    if (node.configs < 1)
      status.merge(Status::error(fmt::format(
          "node '{}': expected at least one configuration, found {}", node.name,
          node.configs)));
  for (size_t i = 0; i < edges_.size(); ++i)
    if (!inside(edges_[i].from, nodes_.size()) ||
        !inside(edges_[i].to, nodes_.size()) || edges_[i].from == edges_[i].to)
      status.merge(Status::error(fmt::format(
          "edge {}: expected two different nodes below {}, found {} and {}", i,
          nodes_.size(), edges_[i].from, edges_[i].to)));
  if (projection.inFlight < 0 || projection.microbatches < 0)
    status.merge(Status::error(fmt::format(
        "expected a number of microbatches of at least 0, found {} in flight "
        "and {} in a step",
        projection.inFlight, projection.microbatches)));
  if (!status.ok())
    return status; // leaves are named by nodes and edges
  LargestSum sum;
  for (const Leaf &leaf : leaves_) {
    status.merge(checkLeaf(leaf));
    sum.add(leaf, projection);
  }
  if (status.ok() && !sum.fits())
    status.merge(Status::error(
        "the largest costs of all nodes and edges add up to 2^63 or more"));
  return status;
}

FrontierGraph::Choice
FrontierGraph::choice(const std::vector<int> &leaves) const {
  Choice choice{std::vector<int>(nodes_.size(), -1), {}};
  for (int number : leaves) {
    const Leaf &leaf = leaves_[size_t(number)];
    choice.cost = choice.cost + leaf.cost;
    if (!leaf.isEdge)
      choice.configs[leaf.of] = leaf.a;
  }
  return choice;
}

std::vector<int> FrontierTable::leaves(const FrontierArena &arena,
                                       FrontierArena::Index tuple) const {
  std::vector<int> numbers;
  for (FrontierArena::Index leaf : arena.leaves(tuple))
    numbers.push_back(int(leaf - firstLeaf));
  return numbers;
}

} // namespace merak::planning
