// The search over graphs against the golden file (brute force in another
// language) and against brute force here, with every way to eliminate.
#include "passes/Planning/FrontierGraph.h"
#include "passes/Planning/FrontierQuery.h"
#include "test/unit/planning/FrontierGraphs.h"
#include "test/unit/planning/GoldenFile.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <numeric>

using namespace merak;
using namespace merak::planning;
using namespace merak::planning::testing;
using nlohmann::json;

namespace {

// ------------------------------------------------------------------- golden

const json &golden() {
  static const json file = planning::test::goldenFile("frontier.json");
  return file;
}

Cost costOf(const json &tuple) { return {tuple[0], tuple[1]}; }
std::vector<Cost> costsOf(const json &tuples) {
  std::vector<Cost> costs;
  for (const json &tuple : tuples)
    costs.push_back(costOf(tuple));
  return costs;
}
LifeCost lifeOf(const json &tuple) { return {tuple[0], 0, 0, tuple[1]}; }

FrontierGraph graphOf(const json &entry) {
  FrontierGraph graph;
  for (const json &node : entry["nodes"]) {
    const json &configs = node["configs"];
    int number = graph.addNode("n" + node["id"].dump(), int(configs.size()));
    for (size_t i = 0; i < configs.size(); ++i)
      graph.allow(number, int(i), lifeOf(configs[i]));
  }
  for (const json &edge : entry["edges"]) {
    int number = graph.addEdge(edge["src"], edge["dst"]);
    const json &table = edge["table"];
    for (size_t a = 0; a < table.size(); ++a)
      for (size_t b = 0; b < table[a].size(); ++b)
        graph.allow(number, int(a), int(b), lifeOf(table[a][b]));
  }
  return graph;
}

struct Solved {
  FrontierAlgebra algebra;
  FrontierTable table;
  std::vector<Cost> costs(size_t entry = 0) const {
    return algebra.costs(table.entries[entry]);
  }
};
Solved solved(const FrontierGraph &graph,
              const EliminationOptions &options = {},
              const FrontierOptions &algebraOptions = {}) {
  Solved result{FrontierAlgebra(algebraOptions), {}};
  Result<FrontierTable> table = solve(result.algebra, graph, options);
  EXPECT_TRUE(table.ok()) << table.status().str();
  if (table.ok())
    result.table = std::move(*table);
  return result;
}

void expectStrategies(const FrontierGraph &graph, const Solved &solved,
                      const Projection &projection = {}) {
  for (const Frontier &entry : solved.table.entries)
    for (FrontierArena::Index point : entry.points)
      expectStrategy(graph, solved.table.leaves(solved.algebra.arena(), point),
                     solved.algebra.cost(point), projection);
}

TEST(FrontierGolden, EveryGraph) {
  EXPECT_EQ(golden()["graphs"].size(), 25u);
  for (const json &entry : golden()["graphs"]) {
    SCOPED_TRACE(entry["name"]);
    FrontierGraph graph = graphOf(entry);
    Solved result = solved(graph);
    EXPECT_EQ(result.costs(), costsOf(entry["frontier"]));
    EXPECT_EQ(result.costs().back(), costOf(entry["min_time_any_memory"]));
    EXPECT_EQ(result.costs().front(), costOf(entry["min_memory_any_time"]));
    expectStrategies(graph, result);
  }
}

// Answered from the frontier, and by a search that drops what cannot fit.
TEST(FrontierGolden, EveryCapacity) {
  int queries = 0;
  for (const json &entry : golden()["graphs"]) {
    SCOPED_TRACE(entry["name"]);
    FrontierGraph graph = graphOf(entry);
    std::vector<Cost> full = solved(graph).costs();
    for (const json &query : entry["mini_time_queries"]) {
      EliminationOptions options;
      options.capacity = query["capacity"];
      for (const auto &costs : {full, solved(graph, options).costs()}) {
        auto found = fastestWithin(costs, {options.capacity});
        ASSERT_EQ(found.has_value(), !query["answer"].is_null());
        if (found) {
          EXPECT_EQ(costs[*found], costOf(query["answer"]));
        }
      }
      ++queries;
    }
  }
  EXPECT_EQ(queries, 170);
}

// Which eliminations suffice; the irreducible ones need a wide table or,
// without one, conditioning.
TEST(FrontierGolden, KindsTellWhatSuffices) {
  for (const json &entry : golden()["graphs"]) {
    SCOPED_TRACE(entry["name"]);
    FrontierGraph graph = graphOf(entry);
    EliminationOptions narrow;
    narrow.widestTable = 0;
    Solved result = solved(graph, narrow), wide = solved(graph);
    const EliminationCounts &counts = result.table.counts;
    EXPECT_EQ(result.costs(), costsOf(entry["frontier"]));
    EXPECT_EQ(counts.wide, 0);
    EXPECT_EQ(wide.table.counts.conditioned, 0);
    std::string kind = entry["kind"];
    EXPECT_EQ(counts.conditioned > 0, kind == "irreducible");
    EXPECT_EQ(wide.table.counts.wide > 0, kind == "irreducible");
    if (kind == "chain" || kind == "tree") {
      EXPECT_EQ(counts.nodes + counts.edges, 0);
      EXPECT_EQ(counts.leafFolds + counts.unions, int(graph.nodes().size()));
    }
    if (kind == "fan") {
      EXPECT_GT(counts.nodes, 0);
    }
    EXPECT_TRUE(result.table.heuristicNodes.empty());
  }
}

TEST(FrontierGolden, FixedNodes) {
  int fixed = 0;
  for (const json &entry : golden()["graphs"]) {
    if (!entry.contains("fixed_node"))
      continue;
    SCOPED_TRACE(entry["name"]);
    const json &expected = entry["fixed_node"]["frontier_by_config"];
    EliminationOptions options;
    options.keep = {entry["fixed_node"]["node"]};
    Solved result = solved(graphOf(entry), options);
    ASSERT_EQ(result.table.entries.size(), expected.size());
    for (size_t config = 0; config < expected.size(); ++config)
      EXPECT_EQ(result.costs(config), costsOf(expected[config]));
    ++fixed;
  }
  EXPECT_EQ(fixed, 5);
}

// Configurations are [memory, compute, communication] and do not fit after
// pruning by the last two; they do here.
TEST(FrontierGolden, PruningTrap) {
  const json &trap = golden()["pruning_trap"];
  FrontierGraph graph;
  for (const json &configs : trap["nodes"]) {
    int node = graph.addNode("op", int(configs.size()));
    for (size_t i = 0; i < configs.size(); ++i)
      graph.allow(node, int(i),
                  {configs[i][0], 0, configs[i][1], configs[i][2]});
  }
  EliminationOptions options;
  Solved result = solved(graph);
  EXPECT_EQ(result.costs(), costsOf(trap["frontier_memory_time"]));
  EXPECT_EQ(result.costs().front().bytes, trap["min_memory_true"]);
  options.capacity = trap["capacity"];
  Solved fitting = solved(graph, options);
  Frontier &frontier = fitting.table.entries[0];
  ASSERT_FALSE(frontier.empty());
  Cost best = fitting.algebra.cost(frontier.points.back());
  EXPECT_EQ(best, (Cost{trap["answer"]["memory"], trap["answer"]["time"]}));
  auto choice = graph.choice(
      fitting.table.leaves(fitting.algebra.arena(), frontier.points.back()));
  EXPECT_EQ(choice.configs, trap["answer"]["witness"].get<std::vector<int>>());
}

TEST(FrontierGolden, Modes) {
  const json &modes = golden()["modes"];
  std::vector<DeviceCurve> curves;
  for (const auto &[devices, entry] : modes["graphs"].items()) {
    curves.push_back({std::stoi(devices), solved(graphOf(entry)).costs()});
    EXPECT_EQ(curves.back().costs, costsOf(modes["frontiers"][devices]));
  }
  EXPECT_EQ(modes["queries"].size(), 50u);
  for (const json &query : modes["queries"]) {
    SCOPED_TRACE(query.dump());
    std::vector<DeviceCurve> asked = curves;
    bool time = query["mode"] == "mini_time";
    if (time)
      std::erase_if(asked, [&](const DeviceCurve &curve) {
        return curve.devices != query["devices"];
      });
    auto found = fewestDevices(asked, {query["capacity"]});
    const json &answer = query["answer"];
    ASSERT_EQ(found.has_value(), !answer.is_null());
    if (!found)
      continue;
    const DeviceCurve &curve = asked[found->curve];
    EXPECT_EQ(curve.costs[found->point],
              costOf(time ? answer : answer["point"]));
    if (!time) {
      EXPECT_EQ(curve.devices, answer["devices"]);
    }
  }
}

// ------------------------------------------------------------- random graphs

RandomGraph randomShape(Random &random) {
  RandomGraph shape;
  shape.nodes = pick(random, 1, 6);
  shape.edges = pick(random, 0, 9);
  shape.largest = pick(random, 0, 1) ? 4 : 1000; // many ties, or none
  shape.illegalPercent = pick(random, 0, 2) * 20;
  return shape;
}

TEST(FrontierGraph, EqualsBruteForce) {
  Random random(11);
  int without = 0;
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE(round);
    FrontierGraph graph = randomGraph(random, randomShape(random));
    EliminationOptions options;
    options.projection = {pick(random, 0, 4), pick(random, 1, 8)};
    options.widestTable = pick(random, 0, 1) ? 4096 : 0;
    Solved result = solved(graph, options);
    EXPECT_EQ(result.costs(), frontierOf(graph, options.projection));
    expectStrategies(graph, result, options.projection);
    without += result.costs().empty();
  }
  EXPECT_GT(without, 0); // graphs without a legal strategy are among them
}

TEST(FrontierGraph, AlternativesOfOneConfiguration) {
  Random random(12);
  for (int round = 0; round < 60; ++round) {
    RandomGraph shape{3, 3, 2, 60, 10, 3};
    FrontierGraph graph = randomGraph(random, shape);
    Solved result = solved(graph);
    EXPECT_EQ(result.costs(), frontierOf(graph));
    expectStrategies(graph, result);
  }
}

TEST(FrontierGraph, AnyOrderGivesTheSame) {
  Random random(13);
  for (int round = 0; round < 100; ++round) {
    FrontierGraph graph = randomGraph(random, randomShape(random));
    std::vector<Cost> expected = solved(graph).costs();
    EliminationOptions options;
    options.order.resize(graph.nodes().size());
    std::iota(options.order.begin(), options.order.end(), 0);
    for (int shuffles = 0; shuffles < 5; ++shuffles) {
      std::shuffle(options.order.begin(), options.order.end(), random);
      EXPECT_EQ(solved(graph, options).costs(), expected);
    }
  }
}

// The table over nodes that are kept, in the order asked for, against
// strategies with these configurations.
TEST(FrontierGraph, KeptNodesInTheOrderAsked) {
  Random random(14);
  for (int round = 0; round < 60; ++round) {
    RandomGraph shape = randomShape(random);
    shape.nodes = pick(random, 2, 5);
    FrontierGraph graph = randomGraph(random, shape);
    EliminationOptions options;
    options.keep = {shape.nodes - 1, 0};
    options.widestTable = round % 2 ? 4096 : 0;
    Solved result = solved(graph, options);
    Enumeration all = allStrategies(graph);
    int columns = graph.nodes()[0].configs;
    ASSERT_EQ(int(result.table.entries.size()),
              columns * graph.nodes()[shape.nodes - 1].configs);
    for (size_t entry = 0; entry < result.table.entries.size(); ++entry) {
      std::vector<Cost> costs;
      for (size_t i = 0; i < all.costs.size(); ++i)
        if (all.configs[i][shape.nodes - 1] == int(entry) / columns &&
            all.configs[i][0] == int(entry) % columns)
          costs.push_back(all.costs[i]);
      EXPECT_EQ(result.costs(entry), undominated(costs));
    }
    expectStrategies(graph, result);
  }
}

// Two nodes merged into one with the products of their configurations.
FrontierGraph pairMerged(const FrontierGraph &graph, int first, int second) {
  FrontierGraph merged;
  const auto &nodes = graph.nodes();
  int width = nodes[second].configs;
  std::vector<int> number(nodes.size());
  for (int i = 0; i < int(nodes.size()); ++i)
    if (i != second)
      number[i] = merged.addNode(nodes[i].name,
                                 nodes[i].configs * (i == first ? width : 1));
  number[second] = number[first];
  // Configurations of the merged node that a configuration of either stands
  // for.
  auto configs = [&](int node, int config) {
    std::vector<int> all{config};
    if (node == first)
      for (all.clear(); int(all.size()) < width;)
        all.push_back(config * width + int(all.size()));
    if (node == second)
      for (all.clear(); int(all.size()) < nodes[first].configs;)
        all.push_back(int(all.size()) * width + config);
    return all;
  };
  for (const auto &edge : graph.edges())
    if (number[edge.from] != number[edge.to])
      merged.addEdge(number[edge.from], number[edge.to]);
  int between = merged.addNode("own", nodes[first].configs * width);
  int own = merged.addEdge(number[first], between);
  for (int config = 0; config < nodes[first].configs * width; ++config)
    merged.allow(between, config, {});
  // Costs of both nodes and of the edges between them, all in one table.
  for (int a = 0; a < nodes[first].configs; ++a)
    for (int b = 0; b < width; ++b) {
      std::vector<LifeCost> sums{{}};
      auto times = [&](auto &&belongs) {
        std::vector<LifeCost> next;
        for (const auto &sum : sums)
          for (const auto &leaf : graph.leaves())
            if (belongs(leaf))
              next.push_back(sum + leaf.cost);
        sums = next;
      };
      for (auto [node, config] : {std::pair{first, a}, std::pair{second, b}})
        times([&, node = node, config = config](const auto &leaf) {
          return !leaf.isEdge && leaf.of == node && leaf.a == config;
        });
      for (int i = 0; i < int(graph.edges().size()); ++i) {
        const auto &edge = graph.edges()[i];
        if (number[edge.from] == number[edge.to])
          times([&](const auto &leaf) {
            return leaf.isEdge && leaf.of == i &&
                   leaf.a == (edge.from == first ? a : b) &&
                   leaf.b == (edge.to == first ? a : b);
          });
      }
      for (const LifeCost &sum : sums)
        merged.allow(own, a * width + b, a * width + b, sum);
    }
  for (int config = 0; config < nodes[first].configs * width; ++config)
    merged.allow(number[first], config, {});
  for (const auto &leaf : graph.leaves())
    if (!leaf.isEdge && number[leaf.of] != number[first])
      merged.allow(number[leaf.of], leaf.a, leaf.cost);
  std::vector<int> edgeNumber;
  int next = 0;
  for (const auto &edge : graph.edges())
    edgeNumber.push_back(number[edge.from] == number[edge.to] ? -1 : next++);
  for (const auto &leaf : graph.leaves())
    if (leaf.isEdge && edgeNumber[leaf.of] >= 0)
      for (int a : configs(graph.edges()[leaf.of].from, leaf.a))
        for (int b : configs(graph.edges()[leaf.of].to, leaf.b))
          merged.allow(edgeNumber[leaf.of], a, b, leaf.cost);
  return merged;
}

TEST(FrontierGraph, ConditioningEqualsPairMerge) {
  Random random(15);
  EliminationOptions narrow;
  narrow.widestTable = 0;
  for (int round = 0; round < 60; ++round) {
    RandomGraph shape{5, 3, 10, 50, 10, 1};
    FrontierGraph graph = randomGraph(random, shape);
    Solved conditioned = solved(graph, narrow);
    EXPECT_EQ(conditioned.costs(), solved(pairMerged(graph, 1, 3)).costs());
  }
  // A complete graph is conditioned on.
  Random other(16);
  FrontierGraph complete = randomGraph(other, {5, 3, 40, 50, 0, 1});
  EXPECT_GT(solved(complete, narrow).table.counts.conditioned, 0);
}

TEST(FrontierGraph, CapacityPrunedEqualsFullFiltered) {
  Random random(17);
  size_t records = 0, prunedRecords = 0;
  for (int round = 0; round < 150; ++round) {
    FrontierGraph graph = randomGraph(random, randomShape(random));
    Solved full = solved(graph);
    std::vector<Cost> expected = full.costs();
    if (expected.empty())
      continue;
    EliminationOptions options;
    options.widestTable = round % 2 ? 4096 : 0;
    options.capacity = pick(random, int(expected.front().bytes) - 1,
                            int(expected.back().bytes));
    std::erase_if(expected, [&](const Cost &cost) {
      return cost.bytes > options.capacity;
    });
    Solved pruned = solved(graph, options);
    EXPECT_EQ(pruned.costs(), expected);
    if (round % 2) {
      records += full.algebra.arena().size();
      prunedRecords += pruned.algebra.arena().size();
    }
  }
  EXPECT_LT(prunedRecords, records); // it drops before the end
}

// Of the sum of a node and one of its edges, what does not fit together with
// the other edge is not made: 10 of (0, 20), (5, 10), (10, 0) beside 5 in 12
// bytes.
TEST(FrontierGraph, CapacityCountsTablesToCome) {
  FrontierGraph graph;
  for (const char *name : {"a", "b", "c"})
    graph.addNode(name, 1);
  for (int end : {0, 2}) {
    graph.addEdge(1, end);
    graph.allow(end, 0, {});
  }
  for (LifeCost cost : {LifeCost{0, 0, 0, 10}, LifeCost{5, 0, 0, 0}}) {
    graph.allow(1, 0, cost);
    graph.allow(0, 0, 0, cost);
  }
  graph.allow(1, 0, 0, {5, 0, 0, 5});
  EliminationOptions options;
  options.order = {1};
  options.capacity = 12;
  Solved result = solved(graph, options);
  EXPECT_EQ(result.costs(), (std::vector<Cost>{{5, 25}, {10, 15}}));
  // 7 leaves, and 2 tuples in each of the products: with either edge, with the
  // other end, with the one before.
  EXPECT_EQ(result.algebra.arena().size(), 7u + 4 * 2u);
}

// With frontiers cut to their fastest tuple the search is a scalar one.
TEST(FrontierGraph, FastestTupleEqualsScalarDynamicProgram) {
  Random random(18);
  for (int round = 0; round < 50; ++round) {
    RandomGraph shape{12, 4, 0, 100, 0, 1};
    FrontierGraph graph = randomGraph(random, shape);
    for (int i = 1; i < shape.nodes; ++i) {
      int edge = graph.addEdge(i - 1, i);
      for (int a = 0; a < graph.nodes()[i - 1].configs; ++a)
        for (int b = 0; b < graph.nodes()[i].configs; ++b)
          graph.allow(edge, a, b, {0, 0, pick(random, 0, 50), 0});
    }
    std::vector<int64_t> node, best;
    auto timeOf = [&](bool isEdge, int of, int a, int b) {
      int64_t least = kNoLimit;
      for (const auto &leaf : graph.leaves())
        if (leaf.isEdge == isEdge && leaf.of == of && leaf.a == a &&
            leaf.b == b)
          least = std::min(least, project(leaf.cost, {}).nanoseconds);
      return least;
    };
    for (int i = 0; i < shape.nodes; ++i) {
      std::vector<int64_t> next;
      for (int b = 0; b < graph.nodes()[i].configs; ++b) {
        int64_t least = i ? kNoLimit : 0;
        for (size_t a = 0; a < best.size(); ++a)
          least = std::min(least, best[a] + timeOf(true, i - 1, int(a), b));
        next.push_back(least + timeOf(false, i, b, -1));
      }
      best = next;
    }
    EXPECT_EQ(solved(graph).costs().back().nanoseconds,
              *std::min_element(best.begin(), best.end()));
  }
}

TEST(FrontierGraph, MoreConfigurationsAndMemoryNeverHurt) {
  Random random(19);
  for (int round = 0; round < 60; ++round) {
    FrontierGraph graph = randomGraph(random, {5, 3, 6, 60, 0, 1});
    std::vector<Cost> before = solved(graph).costs();
    graph.allow(pick(random, 0, 4), 0,
                {pick(random, 0, 60), 0, 0, pick(random, 0, 60)});
    std::vector<Cost> after = solved(graph).costs();
    int64_t last = kNoLimit;
    for (int64_t bytes = 0; bytes <= before.back().bytes; bytes += 5) {
      auto old = fastestWithin(before, {bytes}),
           now = fastestWithin(after, {bytes});
      EXPECT_TRUE(now || !old);
      if (!now)
        continue;
      EXPECT_LE(after[*now].nanoseconds, last);
      last = after[*now].nanoseconds;
      if (old) {
        EXPECT_LE(last, before[*old].nanoseconds);
      }
    }
  }
}

// Records too, not only results: a plan's text is made of them. Tables are
// large enough that several threads take part.
TEST(FrontierGraph, ThreadsChangeNothing) {
  Random random(20);
  FrontierGraph graph = randomGraph(random, {14, 12, 24, 1000000, 5, 2});
  EliminationOptions options;
  options.widestTable = 2000;
  Solved one = solved(graph, options);
  ASSERT_FALSE(one.costs().empty());
  for (int threads : {1, 2, 7}) {
    Solved other = solved(graph, options, {threads, 0});
    EXPECT_EQ(other.table.entries[0].points, one.table.entries[0].points);
    ASSERT_EQ(other.algebra.arena().size(), one.algebra.arena().size());
    for (FrontierArena::Index i = 0; i < one.algebra.arena().size(); ++i) {
      const auto &a = one.algebra.arena()[i], &b = other.algebra.arena()[i];
      ASSERT_TRUE(a.cost == b.cost && a.left == b.left && a.right == b.right)
          << "record " << i;
    }
  }
}

TEST(FrontierGraph, BucketsKeepTheirBoundInGraphs) {
  Random random(21);
  for (int round = 0; round < 60; ++round) {
    FrontierGraph graph = randomGraph(random, {6, 4, 7, 1000, 0, 1});
    Solved exact = solved(graph), bucketed = solved(graph, {}, {1, 200});
    std::vector<Cost> kept = bucketed.costs();
    int64_t slack = bucketed.table.entries[0].slack;
    // A product for every table but the first.
    EXPECT_LE(slack, 199 * 12);
    for (const Cost &cost : exact.costs()) {
      auto other = fastestWithin(kept, {cost.bytes + slack});
      ASSERT_TRUE(other);
      EXPECT_LE(kept[*other].nanoseconds, cost.nanoseconds);
    }
    expectStrategies(graph, bucketed);
  }
}

// --------------------------------------------------- heuristic and refusals

TEST(FrontierGraph, HeuristicIsNamedAndNeverBetter) {
  Random random(22);
  FrontierGraph graph = randomGraph(random, {6, 4, 40, 100, 0, 1});
  EliminationOptions options;
  options.widestTable = 0;
  std::vector<Cost> exact = solved(graph, options).costs();
  options.bestConfigs = 1;
  Solved some = solved(graph, options);
  EXPECT_FALSE(some.table.heuristicNodes.empty());
  EXPECT_EQ(some.table.heuristicNodes[0].substr(0, 1), "n");
  for (const Cost &cost : some.costs()) {
    auto better = fastestWithin(exact, {cost.bytes});
    ASSERT_TRUE(better);
    EXPECT_LE(exact[*better].nanoseconds, cost.nanoseconds);
  }
  expectStrategies(graph, some);
  options.bestConfigs = 4; // all there are
  Solved all = solved(graph, options);
  EXPECT_TRUE(all.table.heuristicNodes.empty());
  EXPECT_EQ(all.costs(), exact);
}

std::string refusal(const FrontierGraph &graph,
                    const EliminationOptions &options = {}) {
  FrontierAlgebra algebra;
  Result<FrontierTable> table = solve(algebra, graph, options);
  return table.ok() ? "" : table.status().str();
}

TEST(FrontierGraph, SaysWhatItCannotEliminate) {
  FrontierGraph graph;
  for (int i = 0; i < 4; ++i)
    for (int config = graph.addNode("op" + std::to_string(i), 3), c = 0; c < 3;
         ++c)
      graph.allow(config, c, {1, 0, 0, 1});
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < i; ++j)
      for (int edge = graph.addEdge(i, j), c = 0; c < 9; ++c)
        graph.allow(edge, c / 3, c % 3, {});
  EliminationOptions options;
  options.widestTable = 26;
  options.conditionedRuns = 2;
  EXPECT_EQ(refusal(graph, options),
            "no exact elimination: node 'op0' has 3 neighbours, whose "
            "configurations make 27 combinations, expected at most 26; and to "
            "try each of its 3 takes 3 searches, expected at most 2");
  options.conditionedRuns = 3;
  EXPECT_EQ(refusal(graph, options), "");
  options = {};
  options.keep = {0, 4};
  options.order = {1, 1};
  EXPECT_EQ(refusal(graph, options),
            "nodes to keep: expected each at most once and below 4, found 4\n"
            "nodes in order: expected each at most once and below 4, found 1");
}

TEST(FrontierGraph, SaysWhatIsWrongWithAGraph) {
  FrontierGraph graph;
  EXPECT_EQ(refusal(graph), "a graph to search needs a node, found none");
  int a = graph.addNode("a", 2), b = graph.addNode("b", 0);
  graph.addEdge(a, a);
  EXPECT_EQ(refusal(graph),
            "node 'b': expected at least one configuration, found 0\n"
            "edge 0: expected two different nodes below 2, found 0 and 0");
  FrontierGraph costs;
  a = costs.addNode("a", 2), b = costs.addNode("b", 1);
  int edge = costs.addEdge(a, b);
  costs.allow(a, 2, {1, -5, 0, 0});
  costs.allow(edge, 0, 1, {});
  costs.allow(7, 0, {});
  EXPECT_EQ(refusal(costs),
            "node 'a': expected costs of at least 0, found -5\n"
            "node 'a': expected a configuration of 'a' below 2, found 2\n"
            "edge 0 from 'a' to 'b': expected a configuration of 'b' below 1, "
            "found 1\n"
            "a cost of node 7: expected a number below 2");
  EliminationOptions options;
  options.projection = {-1, 2};
  EXPECT_EQ(refusal(costs, options),
            "expected a number of microbatches of at least 0, found -1 in "
            "flight and 2 in a step");
  FrontierGraph large;
  large.allow(large.addNode("a", 1), 0, {0, int64_t(1) << 62, 0, 0});
  EXPECT_EQ(refusal(large), "");
  options.projection = {2, 1};
  EXPECT_EQ(refusal(large, options),
            "the largest costs of all nodes and edges add up to 2^63 or more");
}

} // namespace
