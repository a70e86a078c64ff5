// Graphs for the tests of the frontier search, and what it must find: all
// strategies, one by one.
#pragma once

#include "passes/Planning/FrontierGraph.h"

#include <random>

namespace merak::planning::testing {

using Random = std::mt19937;
inline int pick(Random &random, int low, int high) {
  return low + int(random() % unsigned(high - low + 1));
}

// The undominated ones, by comparison of every pair.
std::vector<Cost> undominated(std::vector<Cost> costs);

struct Enumeration {
  std::vector<Cost> costs;
  std::vector<std::vector<int>> configs;
};
// Every strategy that is legal. A cost of each of its tables is chosen in every
// way, where there are several.
Enumeration allStrategies(const FrontierGraph &graph,
                          const Projection &projection = {});
// What is undominated of them.
std::vector<Cost> frontierOf(const FrontierGraph &graph,
                             const Projection &projection = {});

struct RandomGraph {
  int nodes = 4, configs = 4;
  int edges = 5;
  int largest = 30;       // cost
  int illegalPercent = 0; // of the pairs
  int alternatives = 1;
};
FrontierGraph randomGraph(Random &random, const RandomGraph &shape);

// The configurations are legal and cost what the tuple says; returns the four
// costs. Every table of the graph gives exactly one leaf.
void expectStrategy(const FrontierGraph &graph, const std::vector<int> &leaves,
                    const Cost &cost, const Projection &projection = {});

} // namespace merak::planning::testing
