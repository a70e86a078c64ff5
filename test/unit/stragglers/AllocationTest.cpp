// Allocations, orders and assignments against brute force.
#include "passes/Stragglers/Allocation.h"
#include "passes/Stragglers/Assignment.h"
#include "passes/Stragglers/StageLayers.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <numeric>
#include <random>

namespace merak::stragglers {
namespace {

using Units = std::vector<int64_t>;

// Calls `visit` with all ways to hand out the units.
template <typename Visit>
void forEach(const std::vector<Part> &parts, int64_t left, Units &units,
             const Visit &visit) {
  const size_t j = units.size();
  if (j == parts.size()) {
    if (left == 0)
      visit(units);
    return;
  }
  for (int64_t n = parts[j].least; n <= std::min(parts[j].most, left); ++n) {
    units.push_back(n);
    forEach(parts, left - n, units, visit);
    units.pop_back();
  }
}

std::optional<int64_t> bruteForce(const std::vector<Part> &parts,
                                  int64_t total) {
  std::optional<int64_t> best;
  Units units;
  forEach(parts, total, units, [&](const Units &found) {
    const int64_t time = longest(parts, found);
    best = best ? std::min(*best, time) : time;
  });
  return best;
}

// The rule of the header without a heap or a level to start from.
std::optional<Units> oneByOne(const std::vector<Part> &parts, int64_t left) {
  Units units;
  for (const Part &part : parts) {
    units.push_back(part.least);
    left -= part.least;
  }
  if (left < 0)
    return std::nullopt;
  for (; left > 0; --left) {
    size_t best = parts.size();
    int64_t ends = 0;
    for (size_t j = 0; j < parts.size(); ++j) {
      const int64_t end = parts[j].base + (units[j] + 1) * parts[j].price;
      if (units[j] < parts[j].most && (best == parts.size() || end < ends)) {
        best = j;
        ends = end;
      }
    }
    if (best == parts.size())
      return std::nullopt;
    ++units[best];
  }
  return units;
}

std::vector<Part> randomParts(std::mt19937 &random, size_t most, int limit) {
  std::vector<Part> parts(1 + random() % most);
  for (Part &part : parts) {
    part.price = random() % 3 ? int64_t(1 + random() % 30)
                              : int64_t(10000 + random() % 60000);
    if (random() % 3 == 0)
      part.base = int64_t(random() % 50) - 10;
    part.least = random() % 3 ? 0 : int64_t(random() % 4);
    if (random() % 2)
      part.most = part.least + int64_t(random() % size_t(limit));
  }
  return parts;
}

TEST(Allocation, IsBestOfAll) {
  std::mt19937 random(1);
  int infeasible = 0;
  for (int i = 0; i < 5000; ++i) {
    const std::vector<Part> parts = randomParts(random, 4, 6);
    const int64_t total = int64_t(random() % 13);
    const auto found = allocate(parts, total);
    const auto best = bruteForce(parts, total);
    ASSERT_EQ(bool(found), bool(best)) << i;
    infeasible += !found;
    if (!found)
      continue;
    ASSERT_EQ(std::accumulate(found->begin(), found->end(), int64_t(0)), total);
    for (size_t j = 0; j < parts.size(); ++j) {
      ASSERT_GE((*found)[j], parts[j].least);
      ASSERT_LE((*found)[j], parts[j].most);
    }
    ASSERT_EQ(longest(parts, *found), *best) << i;
  }
  EXPECT_GT(infeasible, 500);
}

TEST(Allocation, StartsFromALevelAndEndsAsOneByOne) {
  std::mt19937 random(2);
  for (int i = 0; i < 3000; ++i) {
    const std::vector<Part> parts = randomParts(random, 12, 90);
    const int64_t total = int64_t(random() % 400);
    ASSERT_EQ(allocate(parts, total), oneByOne(parts, total)) << i;
  }
}

TEST(Allocation, OfNothing) {
  EXPECT_EQ(allocate({}, 0), Units());
  EXPECT_FALSE(allocate({}, 1));
  EXPECT_EQ(allocate({{7, 0, 0, 0}, {9}}, 3), (Units{0, 3}));
  EXPECT_FALSE(allocate({{7, 0, 4}}, 3));
}

TEST(Assignment, IsBestOfAll) {
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    const size_t rows = 1 + random() % 5, columns = rows + random() % 3;
    std::vector<std::vector<int64_t>> values(rows, Units(columns));
    for (auto &row : values)
      for (int64_t &value : row)
        value = int64_t(random() % 20) - 5;
    std::vector<int> order(columns);
    std::iota(order.begin(), order.end(), 0);
    int64_t best = -1000;
    do
      best = std::max(best, valueOf(values, order));
    while (std::next_permutation(order.begin(), order.end()));
    const std::vector<int> found = bestAssignment(values);
    ASSERT_EQ(valueOf(values, found), best) << i;
    std::vector<int> used = found;
    std::sort(used.begin(), used.end());
    ASSERT_EQ(std::unique(used.begin(), used.end()), used.end());
  }
  EXPECT_TRUE(bestAssignment({}).empty());
}

// Stages of a memory that binds.
Problem randomMemory(std::mt19937 &random) {
  Problem problem;
  problem.layers = int64_t(4 + random() % 12);
  problem.microbatches = 8;
  problem.tp = 4;
  problem.shrink = {kOne, 19000, 36000};
  problem.memory.fixed = int64_t(random() % 10);
  problem.memory.edge = int64_t(random() % 20);
  int64_t layer = int64_t(8 + random() % 6);
  for (int d = 0; d < 5; ++d, layer += int64_t(random() % 6))
    problem.memory.layer.push_back(layer);
  problem.memory.limit =
      problem.memory.fixed + problem.memory.edge + int64_t(30 + random() % 150);
  return problem;
}

std::vector<GroupClass> randomGroups(std::mt19937 &random, size_t most) {
  std::vector<GroupClass> groups(1 + random() % most);
  for (GroupClass &group : groups) {
    group.size = int64_t(1) << random() % 3;
    group.rate = kOne * (4 / group.size);
    if (random() % 3 == 0)
      group.rate += int64_t(random() % 50000);
  }
  return groups;
}

// The slowest stage of the groups in this order if each has a layer.
std::optional<int64_t> slowestInOrder(const Problem &problem,
                                      const std::vector<GroupClass> &groups) {
  std::vector<Part> parts;
  for (size_t j = 0; j < groups.size(); ++j) {
    const size_t behind = groups.size() - 1 - j;
    const int64_t cap = layerCap(problem, groups[j].size, int64_t(behind),
                                 j == 0 || behind == 0);
    if (cap < 1)
      return std::nullopt;
    parts.push_back({groups[j].rate, 0, 1, cap});
  }
  const auto layers = allocate(parts, problem.layers);
  return layers ? std::optional(longest(parts, *layers)) : std::nullopt;
}

TEST(StageLayers, BestOrderOfAll) {
  std::mt19937 random(4);
  int binds = 0, unfit = 0;
  for (int i = 0; i < 1500; ++i) {
    const Problem problem = randomMemory(random);
    const std::vector<GroupClass> groups = randomGroups(random, 5);
    // The best of all orders of all groups, and of all orders of some.
    int64_t all = kFailed, some = kFailed;
    for (size_t set = 1; set < size_t(1) << groups.size(); ++set) {
      std::vector<GroupClass> chosen;
      for (size_t j = 0; j < groups.size(); ++j)
        if (set >> j & 1)
          chosen.push_back(groups[j]);
      std::sort(chosen.begin(), chosen.end());
      do {
        const int64_t time = slowestInOrder(problem, chosen).value_or(kFailed);
        some = std::min(some, time);
        if (chosen.size() == groups.size())
          all = std::min(all, time);
      } while (std::next_permutation(chosen.begin(), chosen.end()));
    }
    const SolvedPipeline found = solveInAnyOrder(problem, groups);
    unfit += !found.fits();
    ASSERT_LE(found.time.slowest, all) << i;
    ASSERT_GE(found.time.slowest, some) << i;
    if (!found.fits())
      continue;
    // It is what its groups reach in its order.
    std::vector<GroupClass> stages;
    for (int group : found.groups)
      stages.push_back(groups[size_t(group)]);
    ASSERT_EQ(found.time.slowest, slowestInOrder(problem, stages)) << i;
    std::stable_sort(stages.begin(), stages.end(), std::greater<>());
    binds += slowestInOrder(problem, stages) != found.time.slowest;
  }
  // Both happen: slowest first is not the best order, nothing fits.
  EXPECT_GT(binds, 20);
  EXPECT_GT(unfit, 20);
}

// A stage without layers is taken out: its neighbour becomes the first one.
TEST(StageLayers, EmptyStageIsTakenOut) {
  Problem problem;
  problem.layers = 8;
  problem.microbatches = 8;
  problem.memory = {100, 0, 30, {10, 20, 30}};
  const std::vector<GroupClass> groups = {{90000, 1}, {kOne, 1}, {kOne, 1}};
  const SolvedPipeline found = solveInOrder(problem, groups);
  ASSERT_TRUE(found.fits());
  EXPECT_EQ(found.groups, (std::vector<int>{1, 2}));
  // Beside 30 of the embedding it holds 70 / 20 layers, the last one 70 / 10.
  EXPECT_EQ(found.layers, (Units{3, 5}));
  EXPECT_EQ(found.time.slowest, 5 * kOne);
}

TEST(StageLayers, MicrobatchesFillSlowPipelinesLess) {
  const std::vector<PipelineWork> work = {{{2 * kOne, 10 * kOne}, 2},
                                          {{kOne, 2 * kOne}, 1}};
  EXPECT_EQ(shareMicrobatches(work, 9, Objective::Steady), (Units{3, 6}));
  // 10 + 2 against 2 + 6: one more microbatch on the fast one costs less than
  // filling the slow one twice.
  EXPECT_EQ(shareMicrobatches(work, 9, Objective::Filled), (Units{2, 7}));
  EXPECT_FALSE(shareMicrobatches(work, 2, Objective::Steady));
}

} // namespace
} // namespace merak::stragglers
