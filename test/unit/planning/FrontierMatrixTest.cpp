// Chains of equal blocks: powers and prefixes against the chain as a graph.
#include "passes/Planning/FrontierMatrix.h"
#include "test/unit/planning/FrontierGraphs.h"

#include <gtest/gtest.h>

using namespace merak;
using namespace merak::planning;
using namespace merak::planning::testing;

namespace {

// A block is an operator inside and one at its end, which is the next block's
// begin; at most two ways for each, some pairs illegal.
struct BlockShape {
  int boundary = 3, inner = 2;
  int largest = 40;
};
struct BlockCosts {
  std::vector<LifeCost> boundary, inner;
  std::vector<std::vector<LifeCost>> in, out; // by (boundary, inner), (i, b)
};

BlockCosts randomBlock(Random &random, const BlockShape &shape) {
  auto cost = [&] {
    return LifeCost{pick(random, 0, shape.largest), 0, 0,
                    pick(random, 0, shape.largest)};
  };
  auto fill = [&](auto &list, int count) {
    for (int i = 0; i < count; ++i)
      list.push_back(cost());
  };
  BlockCosts costs;
  fill(costs.boundary, shape.boundary);
  fill(costs.inner, shape.inner);
  for (auto *table : {&costs.in, &costs.out}) {
    table->resize(table == &costs.in ? shape.boundary : shape.inner);
    for (auto &row : *table)
      fill(row, table == &costs.in ? shape.inner : shape.boundary);
  }
  return costs;
}

// `count` blocks one after the other. The first boundary costs nothing: it
// belongs to what stands before.
FrontierGraph chainOf(const BlockCosts &costs, int count) {
  FrontierGraph graph;
  auto addNode = [&](const char *name, const std::vector<LifeCost> &of) {
    int node = graph.addNode(name, int(of.size()));
    for (size_t i = 0; i < of.size(); ++i)
      graph.allow(node, int(i), of[i]);
    return node;
  };
  auto addEdge = [&](int from, int to, const auto &table) {
    int edge = graph.addEdge(from, to);
    for (size_t a = 0; a < table.size(); ++a)
      for (size_t b = 0; b < table[a].size(); ++b)
        if ((a + 2 * b) % 5 != 4) // else illegal
          graph.allow(edge, int(a), int(b), table[a][b]);
  };
  int before = addNode("begin", std::vector<LifeCost>(costs.boundary.size()));
  for (int i = 0; i < count; ++i) {
    int inner = addNode("inner", costs.inner);
    int after = addNode("boundary", costs.boundary);
    addEdge(before, inner, costs.in);
    addEdge(inner, after, costs.out);
    before = after;
  }
  return graph;
}

FrontierTable endsOf(FrontierAlgebra &algebra, const FrontierGraph &graph) {
  EliminationOptions options;
  options.keep = {0, int(graph.nodes().size()) - 1};
  Result<FrontierTable> table = solve(algebra, graph, options);
  EXPECT_TRUE(table.ok()) << table.status().str();
  return std::move(*table);
}

std::vector<std::vector<Cost>> costsOf(const FrontierAlgebra &algebra,
                                       const std::vector<Frontier> &entries) {
  std::vector<std::vector<Cost>> costs;
  for (const Frontier &entry : entries)
    costs.push_back(algebra.costs(entry));
  return costs;
}

TEST(EqualBlocks, PowersAndPrefixesEqualTheChain) {
  Random random(31);
  for (int round = 0; round < 12; ++round) {
    BlockShape shape{pick(random, 1, 4), pick(random, 1, 3), 40};
    BlockCosts costs = randomBlock(random, shape);
    FrontierAlgebra algebra;
    FrontierGraph single = chainOf(costs, 1);
    FrontierTable one = endsOf(algebra, single);
    FrontierMatrix block{shape.boundary, shape.boundary, one.entries};
    EqualBlocks blocks(algebra, block);
    std::vector<FrontierMatrix> prefixes = blocks.prefixes(block, 12);
    for (int count = 1; count <= 13; ++count) {
      FrontierAlgebra unrolled;
      auto expected =
          costsOf(unrolled, endsOf(unrolled, chainOf(costs, count)).entries);
      EXPECT_EQ(costsOf(algebra, blocks.power(count).entries), expected);
      EXPECT_EQ(costsOf(algebra, prefixes[count - 1].entries), expected);
    }
  }
}

// Each block's own tuple, in order: its ends meet those of its neighbours, and
// their costs add up.
TEST(EqualBlocks, TuplesUnrollIntoBlocks) {
  Random random(32);
  BlockCosts costs = randomBlock(random, {3, 2, 40});
  FrontierAlgebra algebra;
  FrontierGraph graph = chainOf(costs, 1);
  FrontierTable one = endsOf(algebra, graph);
  EqualBlocks blocks(algebra, {3, 3, one.entries});
  FrontierMatrix eleven = blocks.power(11);
  int tuples = 0;
  for (int entry = 0; entry < 9; ++entry)
    for (FrontierArena::Index tuple : eleven.entries[entry].points) {
      std::vector<FrontierArena::Index> parts = blocks.blocks(tuple);
      ASSERT_EQ(parts.size(), 11u);
      int at = entry / 3;
      Cost sum;
      for (FrontierArena::Index part : parts) {
        std::vector<int> leaves = one.leaves(algebra.arena(), part);
        expectStrategy(graph, leaves, algebra.cost(part));
        std::vector<int> configs = graph.choice(leaves).configs;
        EXPECT_EQ(configs[0], at);
        at = configs[2];
        sum = sum + algebra.cost(part);
      }
      EXPECT_EQ(at, entry % 3);
      EXPECT_EQ(sum, algebra.cost(tuple));
      ++tuples;
    }
  EXPECT_GT(tuples, 9);
}

// A single row is the dynamic program over a chain: the same as eliminating the
// chain's nodes from its middle, and as folding its leaves.
TEST(EqualBlocks, OneRowIsTheChainProgram) {
  Random random(33);
  for (int round = 0; round < 20; ++round) {
    BlockCosts costs = randomBlock(random, {3, 2, 40});
    FrontierAlgebra algebra;
    FrontierTable one = endsOf(algebra, chainOf(costs, 1));
    EqualBlocks blocks(algebra, {3, 3, one.entries});
    FrontierMatrix start{1, 3, {}};
    for (int i = 0; i < 3; ++i)
      start.entries.push_back(algebra.leaf({0, 0}, 0));
    FrontierMatrix row = blocks.prefixes(start, 9).back();
    std::vector<const Frontier *> parts;
    for (const Frontier &entry : row.entries)
      parts.push_back(&entry);
    std::vector<Cost> program = algebra.costs(algebra.unite(parts));

    FrontierGraph chain = chainOf(costs, 9);
    EliminationOptions middleFirst;
    for (int i = 1; i + 1 < int(chain.nodes().size()); ++i)
      middleFirst.order.push_back(i);
    for (const auto &options : {EliminationOptions(), middleFirst}) {
      FrontierAlgebra other;
      Result<FrontierTable> table = solve(other, chain, options);
      ASSERT_TRUE(table.ok());
      EXPECT_EQ(other.costs(table->entries[0]), program);
      EXPECT_EQ(table->counts.nodes,
                options.order.empty() ? 0 : int(options.order.size()));
    }
  }
}

TEST(EqualBlocks, CapacityEqualsFullFiltered) {
  Random random(34);
  for (int round = 0; round < 20; ++round) {
    BlockCosts costs = randomBlock(random, {3, 2, 40});
    FrontierAlgebra full, pruned;
    FrontierMatrix block{3, 3, endsOf(full, chainOf(costs, 1)).entries};
    FrontierMatrix same{3, 3, endsOf(pruned, chainOf(costs, 1)).entries};
    FrontierMatrix all = EqualBlocks(full, block).power(13);
    int64_t capacity = 0;
    for (const Frontier &entry : all.entries)
      for (FrontierArena::Index point : entry.points)
        capacity = std::max(capacity, full.cost(point).bytes);
    capacity = capacity * 2 / 3;
    auto expected = costsOf(full, all.entries);
    for (auto &entry : expected)
      std::erase_if(entry,
                    [&](const Cost &cost) { return cost.bytes > capacity; });
    EqualBlocks blocks(pruned, same, capacity);
    EXPECT_EQ(costsOf(pruned, blocks.power(13).entries), expected);
    EXPECT_LT(pruned.arena().size(), full.arena().size());
    EXPECT_EQ(costsOf(pruned, blocks.prefixes(same, 12).back().entries),
              expected);
  }
}

// Two blocks of 20 bytes fit into 21, but not with two more of at least 1.
TEST(EqualBlocks, CapacityCountsBlocksToCome) {
  FrontierAlgebra algebra;
  FrontierArena::Index points[] = {algebra.leaf({1, 10}, 0).points[0],
                                   algebra.leaf({10, 1}, 1).points[0]};
  FrontierMatrix block{1, 1, {algebra.reduce({points[0], points[1]})}};
  FrontierMatrix four = EqualBlocks(algebra, block, 21).power(4);
  EXPECT_EQ(algebra.costs(four.entries[0]),
            (std::vector<Cost>{{4, 40}, {13, 31}}));
  EXPECT_EQ(algebra.arena().size(), 2u + 2u + 2u);
}

TEST(EqualBlocks, ThreadsChangeNothing) {
  Random random(35);
  BlockCosts costs = randomBlock(random, {9, 4, 1000000});
  FrontierAlgebra one({1, 0}), three({3, 0});
  std::vector<std::vector<FrontierArena::Index>> points[2];
  for (FrontierAlgebra *algebra : {&one, &three}) {
    FrontierMatrix block{9, 9, endsOf(*algebra, chainOf(costs, 1)).entries};
    for (const Frontier &entry : EqualBlocks(*algebra, block).power(20).entries)
      points[algebra == &three].push_back(entry.points);
  }
  EXPECT_EQ(points[0], points[1]);
  ASSERT_EQ(one.arena().size(), three.arena().size());
  for (FrontierArena::Index i = 0; i < one.arena().size(); ++i)
    ASSERT_TRUE(one.arena()[i].cost == three.arena()[i].cost &&
                one.arena()[i].left == three.arena()[i].left &&
                one.arena()[i].right == three.arena()[i].right);
}

} // namespace
