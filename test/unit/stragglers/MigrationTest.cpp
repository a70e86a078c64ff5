// Devices of a new plan where they keep most.
#include "BruteForce.h"
#include "Golden.h"
#include "Situations.h"

#include "passes/Stragglers/Migration.h"
#include "passes/Stragglers/Restart.h"

#include <gtest/gtest.h>
#include <random>

namespace merak::stragglers {
namespace {

TEST(Migration, WhatMoves) {
  const Problem problem = goldenModel("32B");
  const Plan old = uniformPlan(problem);
  EXPECT_EQ(movedLayers(old, old), 0);
  // Two devices change their slices: each moves half of 15 layers.
  Plan swapped = old;
  std::swap(swapped.pipelines[0].stages[0].devices[0],
            swapped.pipelines[0].stages[0].devices[1]);
  EXPECT_EQ(movedLayers(old, swapped), 15);
  // Layers 13 and 14 go to the next stage.
  Plan shifted = old;
  shifted.pipelines[3].stages[0].layers = 13;
  shifted.pipelines[3].stages[1].layers = 17;
  EXPECT_EQ(movedLayers(old, shifted), 2);
  // One device alone holds whole tensors: half of each layer is new to it.
  Plan alone = old;
  alone.pipelines[1].stages[2].devices.pop_back();
  EXPECT_EQ(movedLayers(old, alone), 7.5);
}

TEST(Migration, RestoresWhatWasShuffled) {
  const Problem problem = goldenModel("32B");
  const Plan old = uniformPlan(problem);
  std::mt19937 random(7);
  for (int i = 0; i < 20; ++i) {
    Plan plan = old;
    const auto stage = [&]() -> Stage & {
      return plan.pipelines[random() % 4].stages[random() % 4];
    };
    for (int k = 0; k < 10; ++k) {
      std::swap(stage().devices, stage().devices);
      std::swap(stage().devices[0], stage().devices[1]);
    }
    std::swap(plan.pipelines[0], plan.pipelines[random() % 4]);
    // A plan holds no device twice: the swaps above may have met one stage.
    if (!verify(problem, plan).ok())
      continue;
    EXPECT_EQ(movedLayers(old, keepPlaces(problem, old, plan)), 0) << i;
  }
}

TEST(Migration, NeverMovesMore) {
  for (int s = 1; s <= kSituations; ++s)
    for (int64_t devices : {32, 64, 128}) {
      SCOPED_TRACE(situationName(s));
      const Problem problem = situationProblem(s, devices);
      const Plan old = uniformPlan(problem);
      const std::vector<NodeGroupings> nodes = groupingsOf(problem, old);
      const DivisionProblem division(problem, nodes, problem.dp);
      SearchOptions options;
      options.steps = 2000;
      const DivisionResult result = divide(division, options);
      std::vector<std::vector<int>> spare;
      const Plan plan = planOf(division, nodes, result.found.best().division,
                               Objective::Steady, spare);
      const Plan kept = keepPlaces(problem, old, plan, spare);
      EXPECT_EQ(verify(problem, kept).str(), "");
      EXPECT_EQ(scoreOf(problem, kept), scoreOf(problem, plan));
      EXPECT_LE(movedLayers(old, kept), movedLayers(old, plan));
    }
}

// The device that is gone is replaced by the spare group, nothing else moves.
TEST(Migration, SpareTakesThePlace) {
  Problem problem = goldenModel("70B");
  for (int i = 0; i < 8; ++i)
    problem.devices.push_back({8, kOne});
  problem.shrink = {kOne}; // full groups only
  problem.devices[9].rate = kFailed;
  const Plan old = uniformPlan(problem);
  const Result<Replanning> found = replan(problem, old);
  ASSERT_TRUE(found.ok()) << found.status().str();
  Plan expected = old;
  expected.pipelines[0].stages[1].devices = {64, 65, 66, 67, 68, 69, 70, 71};
  EXPECT_EQ(found->best().plan, expected);
  EXPECT_EQ(found->best().moved, 20);
}

// Groups that were full and healthy stay together.
TEST(Migration, HealthyGroupsStayTogether) {
  Problem problem = goldenModel("32B");
  problem.devices[2].rate = 47900;
  const std::vector<NodeGroupings> nodes =
      groupingsOf(problem, uniformPlan(problem));
  const std::vector<std::vector<int>> expected = {{0, 1}, {4, 5}, {6, 7}};
  for (const Grouping &grouping : nodes[0].groupings)
    for (const std::vector<int> &group : expected)
      EXPECT_NE(
          std::find(grouping.groups.begin(), grouping.groups.end(), group),
          grouping.groups.end());
}

TEST(Restart, TakesTheBestNodes) {
  Problem problem = goldenModel("70B");
  problem.devices[3].rate = 54200;
  // Seven nodes: one pipeline of seven stages, or three of two, which do not
  // fit; 64 microbatches of ceil(80 / 7) layers.
  const auto plan = restartedPlan(problem);
  ASSERT_TRUE(plan);
  EXPECT_EQ(verify(problem, *plan).str(), "");
  for (const Pipeline &pipeline : plan->pipelines)
    for (const Stage &stage : pipeline.stages)
      EXPECT_NE(problem.devices[size_t(stage.devices.front())].node, 0);
  EXPECT_EQ(scoreOf(problem, *plan).steady, 12 * 64 * kOne);
  // A little slow is better than lost.
  problem.devices[3].rate = 11900;
  EXPECT_EQ(scoreOf(problem, *restartedPlan(problem)).steady, 640 * kOne);
  for (Device &device : problem.devices)
    device.rate = kFailed;
  EXPECT_FALSE(restartedPlan(problem));
}

} // namespace
} // namespace merak::stragglers
