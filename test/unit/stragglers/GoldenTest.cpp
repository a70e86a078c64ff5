// Every golden vector: allocations, plans, what the planner reaches beside
// them.
#include "Golden.h"

#include "passes/Stragglers/Allocation.h"
#include "passes/Stragglers/GradientGroups.h"

#include <algorithm>
#include <gtest/gtest.h>

namespace merak::stragglers {
namespace {

using nlohmann::json;

// The file gives times with at most four decimals.
void expectTime(int64_t time, const json &expected, double tolerance = 0) {
  EXPECT_NEAR(double(time) / kOne, expected.get<double>(), tolerance + 1e-9);
}

TEST(Golden, LayersOfStages) {
  int compared = 0;
  for (const json &entry : golden()["lower_layers"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    const Problem problem = goldenModel(entry["model"]);
    std::vector<GroupClass> groups;
    std::vector<Part> parts;
    const size_t stages = entry["y"].size();
    for (size_t j = 0; j < stages; ++j) {
      const int64_t ratio = entry["memory_ratio"][j];
      groups.push_back({tenThousandths(entry["y"][j]), problem.tp / ratio});
      const int64_t cap =
          layerCap(problem, groups.back().size, int64_t(stages - 1 - j),
                   j == 0 || j + 1 == stages);
      EXPECT_EQ(cap, entry["caps"][j].get<int64_t>()) << j;
      parts.push_back({groups.back().rate, 0, 0, cap});
    }
    const auto layers = allocate(parts, entry["layers_total"]);
    const SolvedPipeline solved = solveInOrder(problem, groups);
    ++compared;
    if (entry["objective"].is_null()) {
      EXPECT_FALSE(layers);
      EXPECT_FALSE(solved.fits());
      continue;
    }
    ASSERT_TRUE(layers);
    expectTime(longest(parts, *layers), entry["objective"]);
    // The greedy rule decides ties as the file does.
    EXPECT_EQ(json(*layers), entry["one_optimum"]);
    // Without empty stages it can only get faster.
    ASSERT_TRUE(solved.fits());
    EXPECT_LE(solved.time.slowest, longest(parts, *layers));
  }
  EXPECT_EQ(compared, 15);
}

TEST(Golden, MicrobatchesOfPipelines) {
  int compared = 0;
  for (const json &entry : golden()["lower_microbatches"]) {
    SCOPED_TRACE(entry.dump());
    std::vector<PipelineWork> work;
    std::vector<Part> parts;
    for (size_t i = 0; i < entry["o"].size(); ++i) {
      const int64_t o = tenThousandths(entry["o"][i]);
      work.push_back({{o, o}, entry["stages"][i]});
      parts.push_back({o, 0, entry["stages"][i]});
    }
    const auto found =
        shareMicrobatches(work, entry["microbatches_total"], Objective::Steady);
    ++compared;
    ASSERT_EQ(!found, entry["objective"].is_null());
    if (!found)
      continue;
    expectTime(longest(parts, *found), entry["objective"]);
    EXPECT_EQ(longest(parts, *found),
              longest(parts, entry["one_optimum"].get<std::vector<int64_t>>()));
  }
  EXPECT_EQ(compared, 9);
}

TEST(Golden, PlansAsTheyAreScored) {
  for (const json &entry : golden()["cases"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    const Problem problem = goldenProblem(entry);
    const Score uniform = scoreOf(problem, uniformPlan(problem));
    expectTime(uniform.steady, entry["uniform"]["objective"]);
    expectTime(uniform.filled, entry["uniform"]["with_fill_and_drain"]);
    EXPECT_EQ(idealTime(problem) / kOne, entry["ideal"].get<double>());
    EXPECT_NEAR(theoryTime(problem) / kOne, entry["theory"].get<double>(),
                1e-3);
    const json &best = entry["best"];
    const Plan plan = goldenBest(entry);
    EXPECT_EQ(verify(problem, plan).str(), "");
    const Score score = scoreOf(problem, plan);
    expectTime(score.steady, best["objective"]);
    expectTime(score.filled, best["with_fill_and_drain"], 1e-3);
    EXPECT_NEAR(relaxedTime(problem, plan) / kOne,
                best["relaxed_bound_of_these_groups"].get<double>(), 1e-3);
    EXPECT_NEAR(double(peakBytes(problem, plan)) / 1e6,
                best["peak_memory_mb"].get<double>(), 0.1);
    EXPECT_EQ(json(standbyDevices(problem, plan)), best["suspended"]);
    for (size_t i = 0; i < plan.pipelines.size(); ++i)
      for (size_t j = 0; j < plan.pipelines[i].stages.size(); ++j)
        expectTime(groupRate(problem, plan.pipelines[i].stages[j].devices),
                   best["pipelines"][i]["stages"][j]["y"]);
  }
}

TEST(Golden, Situations) {
  int compared = 0;
  for (const json &entry : golden()["cases"]) {
    SCOPED_TRACE(entry["name"].get<std::string>());
    const Problem problem = goldenProblem(entry);
    const Result<Replanning> found = replan(problem, uniformPlan(problem));
    ASSERT_TRUE(found.ok()) << found.status().str();
    ASSERT_EQ(found->reached.size(), 4u);
    for (const Reached &reached : found->reached)
      EXPECT_EQ(verify(problem, reached.plan).str(), "");
    const Score layers = found->reached[size_t(Reaction::Layers)].score;
    const json &rebalance = entry["rebalance_only"];
    expectTime(layers.steady, rebalance["objective"]);
    // Of equal steady steps ours is the one that is filled first.
    EXPECT_LE(double(layers.filled) / kOne,
              rebalance["with_fill_and_drain"].get<double>() + 1e-2);
    const double steady = double(found->best().score.steady) / kOne;
    EXPECT_LE(steady, 1.02 * entry["best"]["objective"].get<double>());
    EXPECT_LE(steady, rebalance["objective"].get<double>() + 1e-9);
    EXPECT_GE(steady * (1 + 1e-9), found->bound / kOne);
    ++compared;
  }
  EXPECT_EQ(compared, 11);
}

// Cutting healthy nodes pays in the steady step, and costs more to fill; the
// planner does not do it.
TEST(Golden, GroupingTrap) {
  const json &trap = golden()["grouping_trap"];
  const Problem problem = goldenModel("70B");
  Plan grouping;
  for (int64_t i = 0; i < 2; ++i) {
    Pipeline &pipeline = grouping.pipelines.emplace_back();
    pipeline.microbatches = 32;
    for (int j = 0; j < 8; ++j) {
      const int first = int(i * 32) + j * 4;
      pipeline.stages.push_back({{first, first + 1, first + 2, first + 3}, 10});
    }
  }
  EXPECT_EQ(verify(problem, grouping).str(), "");
  expectTime(scoreOf(problem, grouping).steady, trap["objective_tp4"]);
  expectTime(scoreOf(problem, grouping).filled,
             trap["with_fill_and_drain_tp4"]);
  const Plan full = uniformPlan(problem);
  expectTime(scoreOf(problem, full).steady, trap["objective_tp8"]);
  expectTime(scoreOf(problem, full).filled, trap["with_fill_and_drain_tp8"]);
  for (const auto &[name, sum] : trap["sum_inverse_y_of_one_node"].items()) {
    const int size = name == "8 x 1" ? 1 : name[0] - '0';
    std::vector<int> group;
    for (int d = 0; d < size; ++d)
      group.push_back(d);
    EXPECT_NEAR(8.0 / size * kOne / double(groupRate(problem, group)),
                sum.get<double>(), 1e-4);
  }
  const Result<Replanning> found = replan(problem, full);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->best().plan, full);
}

TEST(Golden, GradientGroups) {
  int compared = 0;
  for (const json &entry : golden()["split_groups"]["vectors"]) {
    EXPECT_EQ(json(gradientGroups(entry["tp_groups_holding_the_layer"])),
              entry["communicators_in_issue_order"]);
    ++compared;
  }
  EXPECT_EQ(compared, 5);
}

} // namespace
} // namespace merak::stragglers
