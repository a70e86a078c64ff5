// The search of FrontierGraph.h: which node goes next, and what is done where
// none may.
#include "passes/Planning/FrontierFactor.h"
#include "passes/Planning/FrontierGraph.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <numeric>
#include <set>

namespace merak::planning {
namespace {

// ------------------------------------------------------------------- tables

// The tables that are left, one for the same nodes.
class FactorSet {
public:
  explicit FactorSet(size_t nodes) : ofNode(nodes) {}

  // Returns whether a table for the same nodes was there; now it is the
  // product.
  bool add(FrontierAlgebra &algebra, Factor factor, int64_t capacity);
  Factor take(int number);
  std::vector<Factor> takeAll();
  // The tables that know a node, small ones first.
  std::vector<Factor> takeOf(int node);
  const std::set<int> &of(int node) const { return ofNode[node]; }
  const Factor &operator[](int number) const { return factors.at(number); }
  FactorScope neighbours(int node) const;
  // Bytes left for what is in none of them: each takes its least at least.
  int64_t room(int64_t capacity) const {
    return capacity == kNoLimit ? kNoLimit : capacity - leastBytes;
  }

private:
  std::map<int, Factor> factors; // by number, in the order they were made
  std::map<std::vector<int>, int> ofScope;
  std::vector<std::set<int>> ofNode;
  int64_t leastBytes = 0;
  int next = 0;
};

bool FactorSet::add(FrontierAlgebra &algebra, Factor factor, int64_t capacity) {
  auto same = ofScope.find(factor.scope.nodes);
  bool merged = same != ofScope.end();
  if (merged) {
    Factor older = take(same->second);
    factor = join(algebra, older, factor, room(capacity));
  }
  leastBytes += factor.leastBytes;
  ofScope[factor.scope.nodes] = next;
  for (int node : factor.scope.nodes)
    ofNode[node].insert(next);
  factors.emplace(next++, std::move(factor));
  return merged;
}

Factor FactorSet::take(int number) {
  Factor factor = std::move(factors.at(number));
  factors.erase(number);
  ofScope.erase(factor.scope.nodes);
  for (int node : factor.scope.nodes)
    ofNode[node].erase(number);
  leastBytes -= factor.leastBytes;
  return factor;
}

std::vector<Factor> FactorSet::takeAll() {
  std::vector<Factor> all;
  while (!factors.empty())
    all.push_back(take(factors.begin()->first));
  return all;
}

std::vector<Factor> FactorSet::takeOf(int node) {
  std::vector<Factor> taken;
  while (!ofNode[node].empty())
    taken.push_back(take(*ofNode[node].begin()));
  std::stable_sort(taken.begin(), taken.end(),
                   [](const Factor &a, const Factor &b) {
                     return a.entries.size() < b.entries.size();
                   });
  return taken;
}

FactorScope FactorSet::neighbours(int node) const {
  std::map<int, int> configsOf;
  for (int number : ofNode[node]) {
    const FactorScope &scope = factors.at(number).scope;
    for (size_t i = 0; i < scope.nodes.size(); ++i)
      configsOf.emplace(scope.nodes[i], scope.configs[i]);
  }
  configsOf.erase(node);
  FactorScope all;
  for (const auto &[other, configs] : configsOf) {
    all.nodes.push_back(other);
    all.configs.push_back(configs);
  }
  return all;
}

// The tables of the graph's nodes and edges, of its leaves with projected
// costs.
class TableMaker {
public:
  explicit TableMaker(const FrontierGraph &graph) : graph(graph) {
    for (int node = 0; node < int(graph.nodes().size()); ++node)
      addTable({node});
    for (const FrontierGraph::Edge &edge : graph.edges())
      addTable({std::min(edge.from, edge.to), std::max(edge.from, edge.to)});
  }

  void addLeaf(const FrontierGraph::Leaf &leaf, FrontierArena::Index record) {
    size_t table = leaf.of + (leaf.isEdge ? graph.nodes().size() : 0);
    size_t entry = leaf.a;
    if (leaf.isEdge) {
      const FrontierGraph::Edge &edge = graph.edges()[leaf.of];
      entry = leaf.a * strideOf(scopes[table], edge.from) +
              leaf.b * strideOf(scopes[table], edge.to);
    }
    points[table][entry].push_back(record);
  }

  std::vector<Factor> make(const FrontierAlgebra &algebra) {
    std::vector<Factor> factors;
    for (size_t table = 0; table < scopes.size(); ++table) {
      std::vector<Frontier> entries;
      for (auto &entry : points[table])
        entries.push_back(algebra.reduce(std::move(entry)));
      factors.push_back(makeFactor(algebra, scopes[table], std::move(entries)));
    }
    return factors;
  }

private:
  void addTable(std::vector<int> nodes) {
    FactorScope scope{std::move(nodes), {}};
    for (int node : scope.nodes)
      scope.configs.push_back(graph.nodes()[node].configs);
    points.emplace_back(scope.entries());
    scopes.push_back(std::move(scope));
  }

  const FrontierGraph &graph;
  std::vector<FactorScope> scopes; // nodes, then edges
  std::vector<std::vector<std::vector<FrontierArena::Index>>> points;
};

// ------------------------------------------------------------------- search

// One search. Conditioning makes further ones, of copies of it.
class Elimination {
public:
  Elimination(FrontierAlgebra &algebra, const FrontierGraph &graph,
              const EliminationOptions &options, FrontierTable &report)
      : algebra(algebra), graph(graph), options(options), report(report),
        tables(graph.nodes().size()), keep(options.keep) {
    std::sort(keep.begin(), keep.end());
  }

  void addTables();
  // The table over the nodes that are kept.
  Result<Factor> run();

private:
  // Who goes first: the fewest neighbours, the smallest table.
  struct Turn {
    size_t degree;
    double combinations; // of the node and its neighbours
    int node;
    auto operator<=>(const Turn &) const = default;
  };

  // Drops what does not fit even beside the least of all other tables.
  void cutEach(std::vector<Factor> &factors) const;
  void addTable(Factor factor);
  void updateTurn(int node);
  bool mayGo(const Turn &turn) const;
  void eliminate(int node);
  void count(size_t neighbours);
  Factor product(std::vector<Factor> factors, int over);
  Result<Factor> condition();
  void fix(int node, int config);
  std::vector<int> configsToTry(int node);
  Cost bestWith(int node, int config) const;

  FrontierAlgebra &algebra;
  const FrontierGraph &graph;
  const EliminationOptions &options;
  FrontierTable &report;
  FactorSet tables;
  std::vector<int> keep;
  std::set<Turn> queue;
  std::map<int, Turn> turns; // of the nodes in `queue`
  int64_t runs = 1;          // searches, of which this is one
};

void Elimination::addTables() {
  TableMaker maker(graph);
  report.firstLeaf = algebra.reserveLeaves(graph.leaves().size());
  for (size_t i = 0; i < graph.leaves().size(); ++i) {
    const FrontierGraph::Leaf &leaf = graph.leaves()[i];
    Cost cost = project(leaf.cost, options.projection);
    FrontierArena::Index number = report.firstLeaf + FrontierArena::Index(i);
    maker.addLeaf(leaf, algebra.leaf(cost, number).points[0]);
  }
  std::vector<Factor> factors = maker.make(algebra);
  cutEach(factors);
  for (Factor &factor : factors)
    addTable(std::move(factor));
  for (int node = 0; node < int(graph.nodes().size()); ++node)
    if (!std::binary_search(keep.begin(), keep.end(), node))
      updateTurn(node);
}

void Elimination::cutEach(std::vector<Factor> &factors) const {
  if (options.capacity == kNoLimit)
    return;
  int64_t least = 0;
  for (const Factor &factor : factors)
    least += factor.leastBytes;
  for (Factor &factor : factors)
    for (Frontier &entry : factor.entries)
      algebra.cut(entry, options.capacity - (least - factor.leastBytes));
}

void Elimination::addTable(Factor factor) {
  bool isEdge = factor.scope.nodes.size() > 1;
  if (tables.add(algebra, std::move(factor), options.capacity) && isEdge)
    ++report.counts.edges;
}

void Elimination::updateTurn(int node) {
  FactorScope scope = tables.neighbours(node);
  double combinations = graph.nodes()[node].configs;
  for (int configs : scope.configs)
    combinations *= configs;
  if (turns.contains(node))
    queue.erase(turns[node]);
  turns[node] = {scope.nodes.size(), combinations, node};
  queue.insert(turns[node]);
}

bool Elimination::mayGo(const Turn &turn) const {
  return turn.degree <= 2 ||
         turn.combinations <=
             double(options.widestTable) * graph.nodes()[turn.node].configs;
}

void Elimination::count(size_t neighbours) {
  EliminationCounts &counts = report.counts;
  int *const of[] = {&counts.unions, &counts.leafFolds, &counts.nodes,
                     &counts.wide};
  ++*of[std::min<size_t>(neighbours, 3)];
}

// The product of all, united over the configurations of `over` (-1: of
// nothing). The last table, the largest, is joined and united at once, so that
// no table over the node and all its neighbours is made.
Factor Elimination::product(std::vector<Factor> factors, int over) {
  Factor all = std::move(factors[0]);
  if (factors.size() == 1)
    return over < 0 ? std::move(all) : uniteOver(algebra, all, over);
  int64_t room = tables.room(options.capacity), rest = 0;
  for (size_t i = 1; i < factors.size(); ++i)
    rest += factors[i].leastBytes;
  for (size_t i = 1; i < factors.size(); ++i) {
    rest -= factors[i].leastBytes;
    int64_t limit = room == kNoLimit ? kNoLimit : room - rest;
    all = over >= 0 && i + 1 == factors.size()
              ? joinOver(algebra, all, factors[i], over, limit)
              : join(algebra, all, factors[i], limit);
  }
  return all;
}

void Elimination::eliminate(int node) {
  FactorScope neighbours = tables.neighbours(node);
  count(neighbours.nodes.size());
  queue.erase(turns[node]);
  turns.erase(node);
  addTable(product(tables.takeOf(node), node));
  for (int neighbour : neighbours.nodes)
    if (turns.contains(neighbour))
      updateTurn(neighbour);
}

Result<Factor> Elimination::run() {
  if (runs == 1)
    for (int node : options.order)
      if (turns.contains(node))
        eliminate(node);
  while (!queue.empty()) {
    auto turn = std::find_if(queue.begin(), queue.end(),
                             [&](const Turn &turn) { return mayGo(turn); });
    if (turn == queue.end())
      return condition();
    eliminate(turn->node);
  }
  return product(tables.takeAll(), -1);
}

// ------------------------------------------------------------- conditioning

// Whatever passes through the node with the most neighbours is cut.
Result<Factor> Elimination::condition() {
  Turn turn = *std::max_element(
      queue.begin(), queue.end(), [](const Turn &a, const Turn &b) {
        return a.degree != b.degree ? a.degree < b.degree : a > b;
      });
  const FrontierGraph::Node &node = graph.nodes()[turn.node];
  std::vector<int> configs = configsToTry(turn.node);
  int64_t needed = runs * int64_t(configs.size());
  if (needed > options.conditionedRuns)
    return Status::error(fmt::format(
        "no exact elimination: node '{}' has {} neighbours, whose "
        "configurations make {:.0f} combinations, expected at most {}; and to "
        "try each of its {} takes {} searches, expected at most {}",
        node.name, turn.degree, turn.combinations / node.configs,
        options.widestTable, configs.size(), needed, options.conditionedRuns));
  ++report.counts.conditioned;
  std::vector<Factor> results;
  for (int config : configs) {
    Elimination search = *this;
    search.runs = needed;
    search.fix(turn.node, config);
    Result<Factor> result = search.run();
    if (!result.ok())
      return result.status();
    results.push_back(std::move(*result));
  }
  Factor united = results[0];
  for (size_t entry = 0; entry < united.entries.size(); ++entry) {
    std::vector<const Frontier *> parts;
    for (const Factor &result : results)
      parts.push_back(&result.entries[entry]);
    united.entries[entry] = algebra.unite(parts);
  }
  return makeFactor(algebra, united.scope, std::move(united.entries));
}

void Elimination::fix(int node, int config) {
  FactorScope neighbours = tables.neighbours(node);
  queue.erase(turns[node]);
  turns.erase(node);
  for (const Factor &factor : tables.takeOf(node))
    addTable(slice(algebra, factor, node, config));
  for (int neighbour : neighbours.nodes)
    if (turns.contains(neighbour))
      updateTurn(neighbour);
}

// The least bytes and nanoseconds with a configuration, in its own table and,
// for each table that it shares, in the best entry of that.
Cost Elimination::bestWith(int node, int config) const {
  Cost sum;
  for (int number : tables.of(node)) {
    Cost best{kNoLimit, kNoLimit};
    Factor part = slice(algebra, tables[number], node, config);
    for (const Frontier &entry : part.entries)
      if (!entry.empty()) {
        Cost last = algebra.cost(entry.points.back());
        best.bytes = std::min(best.bytes, algebra.leastBytes(entry));
        best.nanoseconds = std::min(best.nanoseconds, last.nanoseconds);
      }
    if (best.bytes == kNoLimit)
      return best; // illegal with everything
    sum = sum + best;
  }
  return sum;
}

// All of them, or the fastest, the smallest, the second fastest, ...
std::vector<int> Elimination::configsToTry(int node) {
  std::vector<int> fast(graph.nodes()[node].configs), small, chosen;
  std::iota(fast.begin(), fast.end(), 0);
  if (options.bestConfigs == 0 || options.bestConfigs >= int(fast.size()))
    return fast;
  std::vector<Cost> best;
  for (int config : fast)
    best.push_back(bestWith(node, config));
  auto by = [&](auto member) {
    return [&best, member](int a, int b) {
      return best[a].*member < best[b].*member;
    };
  };
  small = fast;
  std::stable_sort(fast.begin(), fast.end(), by(&Cost::nanoseconds));
  std::stable_sort(small.begin(), small.end(), by(&Cost::bytes));
  for (size_t i = 0; int(chosen.size()) < options.bestConfigs; ++i)
    for (int config : {fast[i], small[i]})
      if (std::find(chosen.begin(), chosen.end(), config) == chosen.end() &&
          int(chosen.size()) < options.bestConfigs)
        chosen.push_back(config);
  std::vector<std::string> &names = report.heuristicNodes;
  const std::string &name = graph.nodes()[node].name;
  if (std::find(names.begin(), names.end(), name) == names.end())
    names.push_back(name);
  return chosen;
}

Status checkNumbers(const std::vector<int> &nodes, size_t count,
                    const char *what) {
  Status status;
  std::set<int> seen;
  for (int node : nodes)
    if (node < 0 || size_t(node) >= count || !seen.insert(node).second)
      status.merge(Status::error(fmt::format(
          "nodes {}: expected each at most once and below {}, found {}", what,
          count, node)));
  return status;
}

} // namespace

Result<FrontierTable> solve(FrontierAlgebra &algebra,
                            const FrontierGraph &graph,
                            const EliminationOptions &options) {
  Status status = graph.check(options.projection);
  size_t nodes = graph.nodes().size();
  status.merge(checkNumbers(options.keep, nodes, "to keep"));
  status.merge(checkNumbers(options.order, nodes, "in order"));
  if (!status.ok())
    return status;
  FrontierTable table;
  Elimination elimination(algebra, graph, options, table);
  elimination.addTables();
  Result<Factor> result = elimination.run();
  if (!result.ok())
    return result.status();
  FactorScope asked; // as the caller orders them
  for (int node : options.keep) {
    asked.nodes.push_back(node);
    asked.configs.push_back(graph.nodes()[node].configs);
  }
  EntryMap map(asked, result->scope);
  for (size_t entry = 0; entry < asked.entries(); ++entry)
    table.entries.push_back(result->entries[map(entry)]);
  return table;
}

} // namespace merak::planning
