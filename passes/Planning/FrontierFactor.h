// Tables of frontiers over the configurations of several nodes, and their
// products: what FrontierElimination.cpp eliminates nodes with.
#pragma once

#include "passes/Planning/Frontier.h"

namespace merak::planning {

// Nodes, ascending, with their numbers of configurations. Entries of a table
// over them stand with the last node fastest: over nodes 2 and 5 of 3 and 4
// configurations, entry (1, 2) is number 1*4 + 2 = 6.
struct FactorScope {
  std::vector<int> nodes;
  std::vector<int> configs;

  size_t entries() const;
  bool has(int node) const;
  FactorScope without(int node) const;
  static FactorScope unite(const FactorScope &a, const FactorScope &b);
};

struct Factor {
  FactorScope scope;
  std::vector<Frontier> entries;
  int64_t leastBytes = 0; // of all tuples; 0 if there are none
};

// Finds an entry of one table by the number of one over other nodes.
class EntryMap {
public:
  // Nodes of `from` that `to` does not have make no difference.
  EntryMap(const FactorScope &from, const FactorScope &to);
  size_t operator()(size_t entry) const;

private:
  struct Digit {
    size_t configs, stride;
  };
  std::vector<Digit> digits; // of `from`, last node first
};

// How far apart entries are that differ by one in the configuration of `node`;
// 0 if the scope lacks it.
size_t strideOf(const FactorScope &scope, int node);

Factor makeFactor(const FrontierAlgebra &algebra, FactorScope scope,
                  std::vector<Frontier> entries);
// The product of two tables, over the nodes of both.
Factor join(FrontierAlgebra &algebra, const Factor &a, const Factor &b,
            int64_t limit);
// The same, united over the configurations of `node`, which both have.
Factor joinOver(FrontierAlgebra &algebra, const Factor &a, const Factor &b,
                int node, int64_t limit);
// One table, united over the configurations of a node.
Factor uniteOver(const FrontierAlgebra &algebra, const Factor &factor,
                 int node);
// The entries with one configuration of a node.
Factor slice(const FrontierAlgebra &algebra, const Factor &factor, int node,
             int config);

} // namespace merak::planning
