// The algebra of frontiers against its definitions: every product made and
// every pair compared.
#include "passes/Planning/Frontier.h"
#include "passes/Planning/FrontierQuery.h"
#include "test/unit/planning/FrontierGraphs.h"

#include <gtest/gtest.h>

using namespace merak::planning;
using namespace merak::planning::testing;

namespace {

std::vector<Cost> randomCosts(Random &random, int count, int largest) {
  std::vector<Cost> costs;
  for (int i = 0; i < count; ++i)
    costs.push_back({pick(random, 0, largest), pick(random, 0, largest)});
  return costs;
}

Frontier frontier(FrontierAlgebra &algebra, const std::vector<Cost> &costs) {
  FrontierArena::Index number = algebra.reserveLeaves(costs.size());
  std::vector<FrontierArena::Index> points;
  for (const Cost &cost : costs)
    points.push_back(algebra.leaf(cost, number++).points[0]);
  return algebra.reduce(points);
}

std::vector<Cost> sums(const std::vector<Cost> &a, const std::vector<Cost> &b) {
  std::vector<Cost> all;
  for (const Cost &x : a)
    for (const Cost &y : b)
      all.push_back(x + y);
  return all;
}

Frontier unite(const FrontierAlgebra &algebra, const Frontier &a,
               const Frontier &b) {
  const Frontier *parts[] = {&a, &b};
  return algebra.unite(parts);
}

TEST(FrontierAlgebra, ReduceEqualsPairwiseComparison) {
  Random random(1);
  for (int round = 0; round < 200; ++round) {
    FrontierAlgebra algebra;
    std::vector<Cost> costs = randomCosts(random, pick(random, 0, 30), 12);
    Frontier once = frontier(algebra, costs);
    EXPECT_EQ(algebra.costs(once), undominated(costs));
    EXPECT_EQ(algebra.reduce(once.points).points, once.points);
  }
}

// Of equal tuples always the first; what is dropped keeps its record.
TEST(FrontierAlgebra, KeepsTheFirstOfEquals) {
  FrontierAlgebra algebra;
  Frontier kept =
      frontier(algebra, {{5, 5}, {3, 9}, {3, 9}, {5, 5}, {5, 7}, {6, 5}});
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(algebra.arena().leaves(kept.points[0]),
            std::vector<FrontierArena::Index>{1});
  EXPECT_EQ(algebra.arena().leaves(kept.points[1]),
            std::vector<FrontierArena::Index>{0});
  EXPECT_EQ(algebra.arena().size(), 6u);
  std::vector<FrontierArena::Index> many = kept.points;
  for (int i = 0; i < 200; ++i)
    many.push_back(algebra.leaf({5 - i % 2 * 2, 5 + i % 2 * 4}, 9).points[0]);
  EXPECT_EQ(algebra.reduce(many).points, kept.points);
}

TEST(FrontierAlgebra, ProductAndUnionCommuteAndAssociate) {
  Random random(2);
  for (int round = 0; round < 200; ++round) {
    FrontierAlgebra algebra;
    auto any = [&] {
      return frontier(algebra, randomCosts(random, pick(random, 0, 12), 40));
    };
    Frontier a = any(), b = any(), c = any();
    auto times = [&](const Frontier &x, const Frontier &y) {
      return algebra.product(x, y);
    };
    EXPECT_EQ(algebra.costs(times(a, b)), algebra.costs(times(b, a)));
    EXPECT_EQ(algebra.costs(times(times(a, b), c)),
              algebra.costs(times(a, times(b, c))));
    EXPECT_EQ(algebra.costs(unite(algebra, a, b)),
              algebra.costs(unite(algebra, b, a)));
    EXPECT_EQ(algebra.costs(unite(algebra, unite(algebra, a, b), c)),
              algebra.costs(unite(algebra, a, unite(algebra, b, c))));
    EXPECT_EQ(algebra.costs(times(unite(algebra, a, b), c)),
              algebra.costs(unite(algebra, times(a, c), times(b, c))));
  }
}

// Long and short sides, dense ties, limits; the leaves of every tuple add up.
TEST(FrontierAlgebra, MergedProductsEqualMaterialisedOnes) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    FrontierAlgebra algebra;
    int largest = round % 3 ? 1000 : 20;
    std::vector<std::vector<Cost>> costs;
    std::vector<Frontier> fronts;
    for (int i = 0; i < 6; ++i) {
      costs.push_back(
          randomCosts(random, pick(random, 0, i < 2 ? 30 : 6), largest));
      fronts.push_back(frontier(algebra, costs.back()));
    }
    int64_t limit = round % 2 ? kNoLimit : largest;
    Frontier result = std::move(algebra.tabulate(
        1,
        [&](size_t, std::vector<FrontierTerm> &terms) {
          for (int i : {0, 2, 4})
            terms.push_back({&fronts[i], &fronts[i + 1]});
        },
        limit)[0]);
    std::vector<Cost> all;
    for (int i : {0, 2, 4})
      for (const Cost &cost : sums(costs[i], costs[i + 1]))
        if (cost.bytes <= limit)
          all.push_back(cost);
    EXPECT_EQ(algebra.costs(result), undominated(all));
    std::vector<Cost> flat;
    for (const auto &list : costs)
      flat.insert(flat.end(), list.begin(), list.end());
    for (FrontierArena::Index point : result.points) {
      auto leaves = algebra.arena().leaves(point);
      ASSERT_EQ(leaves.size(), 2u);
      EXPECT_LT(leaves[0], leaves[1]); // left stays left
      EXPECT_EQ(flat[leaves[0]] + flat[leaves[1]], algebra.cost(point));
    }
  }
}

TEST(FrontierAlgebra, NothingTimesAnythingIsNothing) {
  FrontierAlgebra algebra;
  Frontier none, one = frontier(algebra, {{1, 1}});
  EXPECT_TRUE(algebra.product(none, one).empty());
  EXPECT_TRUE(algebra.product(one, none).empty());
  EXPECT_EQ(unite(algebra, none, one).points, one.points);
}

// Costs that differ in their last digit, of a size that the hull multiplies.
TEST(FrontierAlgebra, LargeCostsKeepTheirLastDigit) {
  FrontierAlgebra algebra;
  const int64_t bytes = int64_t(1) << 60, time = int64_t(1) << 59;
  Frontier a = frontier(algebra, {{bytes, time + 2}, {bytes + 1, time}});
  Frontier b = frontier(algebra, {{7, 3}, {8, 0}});
  EXPECT_EQ(algebra.costs(algebra.product(a, b)),
            (std::vector<Cost>{{bytes + 7, time + 5},
                               {bytes + 8, time + 2},
                               {bytes + 9, time}}));
}

// Every exact tuple has one in its place that is as fast and no larger than the
// slack says; the slack is no larger than a bucket for each product; the ends
// are exact.
TEST(FrontierAlgebra, BucketsKeepTheirBound) {
  Random random(4);
  int dropped = 0;
  for (int round = 0; round < 100; ++round) {
    const int64_t width = pick(random, 1, 60);
    FrontierAlgebra exact, bucketed({1, width});
    std::vector<Cost> first = randomCosts(random, 20, 500);
    Frontier a = frontier(exact, first), b = frontier(bucketed, first);
    const int products = 5;
    for (int i = 0; i < products; ++i) {
      std::vector<Cost> more = randomCosts(random, 20, 500);
      a = exact.product(a, frontier(exact, more));
      b = bucketed.product(b, frontier(bucketed, more));
    }
    EXPECT_LE(b.slack, products * (width - 1));
    std::vector<Cost> kept = bucketed.costs(b);
    for (const Cost &cost : exact.costs(a)) {
      auto other = fastestWithin(kept, {cost.bytes + b.slack, kNoLimit});
      ASSERT_TRUE(other);
      EXPECT_LE(kept[*other].nanoseconds, cost.nanoseconds);
    }
    EXPECT_EQ(kept.front().bytes, exact.cost(a.points.front()).bytes);
    EXPECT_EQ(kept.back().nanoseconds, exact.cost(a.points.back()).nanoseconds);
    EXPECT_LE(kept.size(), size_t(kept.back().bytes / width -
                                  kept.front().bytes / width + 2));
    dropped += b.slack > 0;
  }
  EXPECT_GT(dropped, 50); // the bound was put to a test
}

TEST(FrontierAlgebra, SlackAddsUpOverProducts) {
  FrontierAlgebra algebra({1, 100});
  Frontier a = frontier(algebra, {{1, 9}, {10, 8}, {60, 7}, {99, 5}});
  Frontier zero = frontier(algebra, {{0, 0}});
  Frontier once = algebra.product(a, zero); // drops 10 and 60 for 99
  EXPECT_EQ(algebra.costs(once), (std::vector<Cost>{{1, 9}, {99, 5}}));
  EXPECT_EQ(once.slack, 89);
  // (2, 18), (100, 14), (198, 10): 100 goes for 198.
  EXPECT_EQ(algebra.product(once, once).slack, 89 + 89 + 98);
  EXPECT_EQ(unite(algebra, once, zero).slack, 89);
}

TEST(FrontierCosts, ProjectionIsAdditive) {
  LifeCost a{100, 10, 5, 2}, b{1, 2, 3, 4};
  Projection projection{3, 8};
  EXPECT_EQ(project(a, projection), (Cost{130, 42}));
  EXPECT_EQ(project(a, projection) + project(b, projection),
            project(a + b, projection));
}

TEST(FrontierQuery, FastestWithinLimits) {
  std::vector<Cost> costs{{10, 9}, {20, 5}, {40, 1}};
  EXPECT_FALSE(fastestWithin(costs, {9}));
  EXPECT_EQ(fastestWithin(costs, {10}), 0u);
  EXPECT_EQ(fastestWithin(costs, {39}), 1u);
  EXPECT_EQ(fastestWithin(costs, {}), 2u);
  EXPECT_FALSE(fastestWithin(costs, {39, 4}));
  EXPECT_EQ(fastestWithin(costs, {40, 4}), 2u);
  EXPECT_FALSE(fastestWithin({}, {}));
}

// 8 devices need more memory than 4 here: looking by bisection would miss 2.
TEST(FrontierQuery, FewestDevicesNeedNotBeMonotone) {
  std::vector<DeviceCurve> curves{
      {8, {{30, 2}}}, {2, {{20, 9}, {25, 6}}}, {4, {{50, 1}}}, {1, {{90, 9}}}};
  auto fewest = fewestDevices(curves, {26});
  ASSERT_TRUE(fewest);
  EXPECT_EQ(fewest->curve, 1u);
  EXPECT_EQ(fewest->point, 1u);
  EXPECT_EQ(fewestDevices(curves, {100, 5})->curve, 2u);
  EXPECT_FALSE(fewestDevices(curves, {19}));
  std::vector<DeviceCurve> shown = profile(curves, {40, 8});
  ASSERT_EQ(shown.size(), 4u);
  EXPECT_EQ(shown[0].devices, 1);
  EXPECT_TRUE(shown[0].costs.empty());
  EXPECT_EQ(shown[1].costs, (std::vector<Cost>{{25, 6}}));
  EXPECT_EQ(shown[3].costs, (std::vector<Cost>{{30, 2}}));
}

} // namespace
