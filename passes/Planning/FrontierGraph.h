// The search over a graph of operators with configurations: nodes and edges
// have tables of costs, a strategy chooses one configuration for every node,
// and its costs are the sum over nodes and edges. `solve` finds the frontier of
// all of them by eliminating nodes, each step exact:
//
//   a node without neighbours     the union over its configurations
//   leaf fold: one neighbour      its costs go into the neighbour's table
//   node elimination: two         they become a table over the two, K^3
//   products wide elimination: d > 2       a table over the d, K^(d+1), up to a
//   cap edge elimination              tables over the same nodes become their
//   product conditioning                  no node is left that may go: one is
//   fixed to each
//                                 of its configurations, and the results united
//
// All are one operation on tables (`Factor`): the product of those that know
// the node, united over its configurations. Direction of edges plays no part.
// Nodes go in order of (neighbours, product of configurations, number), so that
// leaves go first and a chain is folded from its ends, K^2 products a node
// (LDP).
#pragma once

#include "passes/Planning/Frontier.h"
#include "runtime/core/Status.h"

#include <string>

namespace merak::planning {

class FrontierGraph {
public:
  // One way to run a node (configuration `a`, `b` = -1), or what an edge costs
  // between configurations `a` and `b` of its ends.
  struct Leaf {
    bool isEdge = false;
    int of = 0; // number of the node or edge
    int a = 0, b = -1;
    LifeCost cost;
  };
  struct Node {
    std::string name;
    int configs = 0;
  };
  struct Edge {
    int from = 0, to = 0;
  };
  // A strategy: of every node the configuration, and its costs.
  struct Choice {
    std::vector<int> configs; // -1: none of this graph's leaves names the node
    LifeCost cost;
  };

  // Both return the number of what they add.
  int addNode(std::string name, int configs);
  int addEdge(int from, int to);
  // A configuration, or a pair, may be given several costs: alternatives that
  // differ in nothing that neighbours see. One without any is illegal. Returns
  // the number of the leaf.
  int allow(int node, int config, const LifeCost &cost);
  int allow(int edge, int fromConfig, int toConfig, const LifeCost &cost);

  const std::vector<Node> &nodes() const { return nodes_; }
  const std::vector<Edge> &edges() const { return edges_; }
  const std::vector<Leaf> &leaves() const { return leaves_; }

  // What cannot be searched: numbers that are none of the graph's, negative
  // costs, sums that 64 bits do not hold.
  Status check(const Projection &projection) const;

  // Of leaf numbers of this graph (FrontierTable::leaves).
  Choice choice(const std::vector<int> &leaves) const;

private:
  bool isFine(const Leaf &leaf) const;
  Status checkLeaf(const Leaf &leaf) const;
  std::string nameOf(const Leaf &leaf) const;

  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<Leaf> leaves_;
};

struct EliminationOptions {
  Projection projection;
  // Tuples that cannot become a strategy of at most so many bytes are dropped.
  int64_t capacity = kNoLimit;
  // Entries of a table over three or more nodes, at most.
  int64_t widestTable = 4096;
  // How many searches conditioning may make of one, at most.
  int64_t conditionedRuns = 4096;
  // Not exact: of a node that is conditioned on only so many configurations are
  // tried, by its own costs and those of its cheapest edges. 0: all.
  int bestConfigs = 0;
  // Nodes that stay: the result has an entry for each combination of theirs.
  std::vector<int> keep;
  // Nodes that go first, in this order and whatever it costs.
  std::vector<int> order;
};

// What the search has done. Conditioned searches are counted each.
struct EliminationCounts {
  int unions = 0, leafFolds = 0, nodes = 0, wide = 0, edges = 0;
  int conditioned = 0; // nodes fixed
};

struct FrontierTable {
  std::vector<Frontier> entries; // over `keep`, its last node fastest
  FrontierArena::Index firstLeaf = 0;
  EliminationCounts counts;
  // Names of the nodes of which not all configurations were tried: the result
  // is a heuristic's.
  std::vector<std::string> heuristicNodes;

  // Numbers of the graph's leaves that a tuple is the sum of.
  std::vector<int> leaves(const FrontierArena &arena,
                          FrontierArena::Index tuple) const;
};

Result<FrontierTable> solve(FrontierAlgebra &algebra,
                            const FrontierGraph &graph,
                            const EliminationOptions &options = {});

} // namespace merak::planning
