#include "test/unit/planning/FrontierGraphs.h"

#include <gtest/gtest.h>
#include <map>
#include <set>

namespace merak::planning::testing {

std::vector<Cost> undominated(std::vector<Cost> costs) {
  std::vector<Cost> best;
  for (const Cost &cost : costs) {
    bool dominated = false;
    for (const Cost &other : costs)
      dominated |= other != cost && other.bytes <= cost.bytes &&
                   other.nanoseconds <= cost.nanoseconds;
    if (!dominated && std::find(best.begin(), best.end(), cost) == best.end())
      best.push_back(cost);
  }
  std::sort(best.begin(), best.end(),
            [](const Cost &a, const Cost &b) { return a.bytes < b.bytes; });
  return best;
}

namespace {

// Tables of leaves: nodes first, then edges.
class Enumerator {
public:
  Enumerator(const FrontierGraph &graph, const Projection &projection)
      : graph(graph), configs(graph.nodes().size()) {
    for (const FrontierGraph::Leaf &leaf : graph.leaves())
      costs[{leaf.isEdge, leaf.of, leaf.a, leaf.b}].push_back(
          project(leaf.cost, projection));
  }

  Enumeration run() {
    nextNode(0, {});
    return std::move(found);
  }

private:
  void nextNode(size_t node, Cost sum) {
    if (node == graph.nodes().size())
      return nextEdge(0, sum);
    int &config = configs[node];
    for (config = 0; config < graph.nodes()[node].configs; ++config)
      forLeaves(false, node, config, -1,
                [&](Cost cost) { nextNode(node + 1, sum + cost); });
  }
  void nextEdge(size_t edge, Cost sum) {
    if (edge == graph.edges().size()) {
      found.costs.push_back(sum);
      found.configs.push_back(configs);
      return;
    }
    const FrontierGraph::Edge &ends = graph.edges()[edge];
    forLeaves(true, edge, configs[ends.from], configs[ends.to],
              [&](Cost cost) { nextEdge(edge + 1, sum + cost); });
  }
  template <typename Body>
  void forLeaves(bool isEdge, size_t of, int a, int b, const Body &body) {
    auto found = costs.find({isEdge, int(of), a, b});
    if (found != costs.end())
      for (const Cost &cost : found->second)
        body(cost);
  }

  const FrontierGraph &graph;
  std::vector<int> configs;
  std::map<std::tuple<bool, int, int, int>, std::vector<Cost>> costs;
  Enumeration found;
};

} // namespace

Enumeration allStrategies(const FrontierGraph &graph,
                          const Projection &projection) {
  return Enumerator(graph, projection).run();
}

// Sorted first: comparing every pair of thousands takes too long.
std::vector<Cost> frontierOf(const FrontierGraph &graph,
                             const Projection &projection) {
  std::vector<Cost> costs = allStrategies(graph, projection).costs, best;
  std::sort(costs.begin(), costs.end(), [](const Cost &a, const Cost &b) {
    return std::pair(a.bytes, a.nanoseconds) <
           std::pair(b.bytes, b.nanoseconds);
  });
  for (const Cost &cost : costs)
    if (best.empty() || cost.nanoseconds < best.back().nanoseconds)
      best.push_back(cost);
  return best;
}

FrontierGraph randomGraph(Random &random, const RandomGraph &shape) {
  FrontierGraph graph;
  auto cost = [&] {
    auto any = [&] { return pick(random, 0, shape.largest); };
    return LifeCost{any(), any(), any(), any()};
  };
  auto ways = [&] { return pick(random, 1, shape.alternatives); };
  for (int i = 0; i < shape.nodes; ++i) {
    int configs = pick(random, 1, shape.configs);
    int node = graph.addNode("n" + std::to_string(i), configs);
    for (int config = 0; config < configs; ++config)
      for (int way = ways(); way > 0; --way)
        graph.allow(node, config, cost());
  }
  for (int i = 0; i < shape.edges && shape.nodes > 1; ++i) {
    int from = pick(random, 0, shape.nodes - 1);
    int to = (from + pick(random, 1, shape.nodes - 1)) % shape.nodes;
    int edge = graph.addEdge(from, to);
    for (int a = 0; a < graph.nodes()[from].configs; ++a)
      for (int b = 0; b < graph.nodes()[to].configs; ++b)
        if (pick(random, 1, 100) > shape.illegalPercent)
          for (int way = ways(); way > 0; --way)
            graph.allow(edge, a, b, cost());
  }
  return graph;
}

void expectStrategy(const FrontierGraph &graph, const std::vector<int> &leaves,
                    const Cost &cost, const Projection &projection) {
  FrontierGraph::Choice choice = graph.choice(leaves);
  EXPECT_EQ(project(choice.cost, projection), cost);
  std::set<std::pair<bool, int>> tables;
  for (int number : leaves) {
    const FrontierGraph::Leaf &leaf = graph.leaves()[number];
    EXPECT_TRUE(tables.insert({leaf.isEdge, leaf.of}).second);
    if (!leaf.isEdge)
      continue;
    const FrontierGraph::Edge &edge = graph.edges()[leaf.of];
    EXPECT_EQ(choice.configs[edge.from], leaf.a);
    EXPECT_EQ(choice.configs[edge.to], leaf.b);
  }
  EXPECT_EQ(tables.size(), graph.nodes().size() + graph.edges().size());
}

} // namespace merak::planning::testing
