// The planner against brute force on small clusters, and what must hold of its
// plans whatever the rates are.
#include "BruteForce.h"
#include "Golden.h"

#include "passes/Stragglers/Migration.h"

#include <gtest/gtest.h>
#include <random>

namespace merak::stragglers {
namespace {

Problem smallProblem(std::mt19937 &random) {
  Problem problem;
  const int64_t nodes = int64_t(2 + random() % 2);
  const int64_t perNode = int64_t(2) << random() % 2;
  problem.tp = std::min<int64_t>(perNode, int64_t(2) << random() % 2);
  problem.shrink = {kOne, int64_t(17000 + random() % 4000)};
  if (problem.tp == 4)
    problem.shrink.push_back(problem.shrink.back() * 2);
  for (int64_t i = 0; i < nodes * perNode; ++i)
    problem.devices.push_back({i / perNode, kOne});
  for (size_t slow = 1 + random() % 3; slow-- > 0;)
    problem.devices[random() % problem.devices.size()].rate =
        random() % 6 ? int64_t(12000 + random() % 50000) : kFailed;
  const int64_t groups = nodes * (perNode / problem.tp);
  problem.dp = groups > 2 && random() % 2 ? 2 : 1;
  problem.pp = groups / problem.dp;
  problem.layers = std::max(problem.pp, int64_t(4 + random() % 5));
  problem.microbatches = int64_t(6 + random() % 5);
  if (random() % 3 == 0)
    return problem;
  problem.memory = {0, 3, int64_t(random() % 10), {10, 12, 14, 15, 18, 19}};
  problem.memory.limit = int64_t(35 + random() % 70);
  return problem;
}

TEST(Replan, BruteForceFindsNothingBetter) {
  std::mt19937 random(5);
  int compared = 0, proved = 0, fewer = 0, without = 0;
  for (int i = 0; i < 400; ++i) {
    const Problem problem = smallProblem(random);
    ASSERT_EQ(check(problem).str(), "") << i;
    const Plan uniform = uniformPlan(problem);
    Problem normal = problem;
    for (Device &device : normal.devices)
      device.rate = kOne;
    if (!verify(normal, uniform).ok())
      continue; // the model does not fit anyway
    const int64_t best = bestSteady(problem, plannerGroupings(problem));
    ReplanOptions options;
    options.search.ranking = 0;
    options.search.steps = 2000;
    const Result<Replanning> found = replan(problem, uniform, options);
    if (best == kFailed) {
      // Only fewer pipelines may do it.
      ++without;
      EXPECT_TRUE(!found ||
                  found->best().plan.pipelines.size() < size_t(problem.dp))
          << i;
      continue;
    }
    ASSERT_TRUE(found.ok()) << i << ": " << found.status().str();
    const Reached &reached = found->reached.back();
    ASSERT_EQ(verify(problem, reached.plan).str(), "") << i;
    // Fewer pipelines may be better than the best of dp.
    const bool isFewer = reached.plan.pipelines.size() < size_t(problem.dp);
    fewer += isFewer;
    if (isFewer)
      ASSERT_LT(reached.score.steady, best) << i;
    else
      ASSERT_EQ(reached.score.steady, best) << i;
    ASSERT_LE(best, bestSteady(problem, goldenGroupings(problem))) << i;
    ++compared;
    proved += found->optimal;
  }
  EXPECT_GT(compared, 150);
  EXPECT_GT(fewer, 0);
  EXPECT_EQ(proved, compared - fewer);
  EXPECT_GT(without, 5);
}

// Without the enumeration the searches alone come near.
TEST(Replan, SearchesAloneComeNear) {
  std::mt19937 random(6);
  double sum = 0;
  int compared = 0;
  for (int i = 0; i < 120; ++i) {
    const Problem problem = smallProblem(random);
    const std::vector<NodeGroupings> nodes =
        groupingsOf(problem, uniformPlan(problem));
    const int64_t best = bestSteady(problem, plannerGroupings(problem));
    if (best == kFailed)
      continue;
    const DivisionProblem division(problem, nodes, problem.dp);
    SearchOptions options;
    options.nodes = 0;
    options.steps = 5000;
    options.ranking = 0;
    const DivisionResult result = divide(division, options);
    ASSERT_FALSE(result.found.isEmpty()) << i;
    EXPECT_FALSE(result.optimal);
    const double ratio = double(result.found.bestTime()) / double(best);
    EXPECT_LE(ratio, 1.02) << i;
    sum += ratio;
    ++compared;
  }
  EXPECT_GT(compared, 50);
  EXPECT_LE(sum / compared, 1.001);
}

Problem randomRates(const std::string &model, int64_t scale, uint32_t seed,
                    bool failures) {
  std::mt19937 random(seed);
  Problem problem = goldenModel(model, scale);
  for (Device &device : problem.devices)
    if (random() % 10 == 0)
      device.rate = failures && random() % 3 == 0
                        ? kFailed
                        : int64_t(12000 + random() % 90000);
    else
      device.rate = int64_t(10000 + random() % 1500);
  return problem;
}

TEST(Replan, PlansAreSoundAndReactionsFollowEachOther) {
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    const Problem problem =
        randomRates(seed % 2 ? "70B" : "32B", 1 + seed % 3, seed, seed > 6);
    const Plan uniform = uniformPlan(problem);
    const Result<Replanning> found = replan(problem, uniform);
    ASSERT_TRUE(found.ok()) << found.status().str();
    ASSERT_EQ(found->reached.size(), 4u);
    int64_t last = kFailed;
    for (const Reached &reached : found->reached) {
      SCOPED_TRACE(nameOf(reached.reaction));
      EXPECT_LE(reached.score.steady, last);
      last = reached.score.steady;
      if (!reached.status.ok())
        continue;
      EXPECT_EQ(verify(problem, reached.plan).str(), "");
      EXPECT_EQ(scoreOf(problem, reached.plan), reached.score);
      EXPECT_GE(reached.moved, 0);
    }
    // Nothing moves for other numbers of microbatches.
    EXPECT_EQ(found->reached[1].moved, 0);
    EXPECT_GE(double(found->best().score.steady), found->bound * (1 - 1e-9));
  }
}

TEST(Replan, AnyNumberOfThreadsGivesThePlan) {
  for (uint32_t seed : {1u, 2u, 3u}) {
    const Problem problem = randomRates("70B", 2, seed, true);
    const Plan uniform = uniformPlan(problem);
    ReplanOptions options;
    options.search.threads = 1;
    const Result<Replanning> one = replan(problem, uniform, options);
    ASSERT_TRUE(one.ok()) << one.status().str();
    for (int threads : {1, 2, 5, 0}) {
      options.search.threads = threads;
      const Result<Replanning> found = replan(problem, uniform, options);
      ASSERT_TRUE(found.ok());
      EXPECT_EQ(found->best().plan, one->best().plan) << threads;
      EXPECT_EQ(found->reached.back().plan, one->reached.back().plan);
    }
  }
}

TEST(Replan, NoiseChangesNothing) {
  Problem problem = goldenModel("70B");
  for (size_t i = 0; i < problem.devices.size(); ++i)
    problem.devices[i].rate = 9000 + int64_t(i * 37 % 2900);
  const Plan uniform = uniformPlan(problem);
  const Result<Replanning> found = replan(problem, uniform);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->best().reaction, Reaction::None);
  EXPECT_EQ(found->best().plan, uniform);
  EXPECT_EQ(found->best().moved, 0);
  EXPECT_TRUE(found->optimal);
}

TEST(Replan, AllDevicesSlow) {
  Problem problem = goldenModel("70B");
  for (Device &device : problem.devices)
    device.rate = 30000;
  const Plan uniform = uniformPlan(problem);
  const Result<Replanning> found = replan(problem, uniform);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->reached[0].score.steady, 3 * 640 * kOne);
  EXPECT_LE(found->best().score.steady, 3 * 640 * kOne);
  EXPECT_EQ(verify(problem, found->best().plan).str(), "");
}

TEST(Replan, HopelessDevicesStandBy) {
  Problem problem = goldenModel("70B");
  problem.devices[5].rate = 900 * kOne;
  problem.devices[20].rate = kFailed;
  const Result<Replanning> found = replan(problem, uniformPlan(problem));
  ASSERT_TRUE(found.ok());
  EXPECT_FALSE(found->reached[0].status.ok());
  const Plan &plan = found->best().plan;
  EXPECT_EQ(verify(problem, plan).str(), "");
  const std::vector<int> standby = standbyDevices(problem, plan);
  for (int device : {5, 20})
    EXPECT_NE(std::find(standby.begin(), standby.end(), device), standby.end());
  EXPECT_EQ(failedDevices(problem), std::vector<int>{20});
  EXPECT_LE(double(found->best().score.steady), 680.0 * kOne);
}

// A pipeline that lost a device leaves its microbatches to the others.
TEST(Replan, LostPipelineLeavesItsMicrobatches) {
  Problem problem = goldenModel("32B");
  problem.devices[0].rate = kFailed;
  ReplanOptions options;
  options.most = Reaction::Microbatches;
  const Result<Replanning> found =
      replan(problem, uniformPlan(problem), options);
  ASSERT_TRUE(found.ok());
  const Plan &plan = found->best().plan;
  EXPECT_EQ(plan.pipelines.size(), 3u);
  EXPECT_EQ(verify(problem, plan).str(), "");
  EXPECT_EQ(found->best().score.steady, 22 * 15 * kOne);
}

// Too few devices for two pipelines: one is left.
TEST(Replan, FewerPipelinesWhereMemoryIsShort) {
  Problem problem = goldenModel("110B");
  for (size_t i = 24; i < 64; ++i)
    problem.devices[i].rate = kFailed;
  const Result<Replanning> found = replan(problem, uniformPlan(problem));
  ASSERT_TRUE(found.ok()) << found.status().str();
  EXPECT_EQ(found->best().plan.pipelines.size(), 1u);
  EXPECT_EQ(verify(problem, found->best().plan).str(), "");
  EXPECT_EQ(found->best().score.steady, 28 * 64 * kOne);
}

TEST(Replan, SaysWhyThereIsNoPlan) {
  Problem problem = goldenModel("110B");
  for (size_t i = 16; i < 64; ++i)
    problem.devices[i].rate = kFailed;
  EXPECT_EQ(replan(problem, uniformPlan(problem)).status().str(),
            "memory: 2 pipelines have 160 layers, the devices that are left "
            "hold at most 58");
  for (size_t i = 8; i < 16; ++i)
    problem.devices[i].rate = kFailed;
  EXPECT_EQ(replan(problem, uniformPlan(problem)).status().str(),
            "devices: 1 groups are left for 2 pipelines\n"
            "memory: 2 pipelines have 160 layers, the devices that are left "
            "hold at most 29");
  for (Device &device : problem.devices)
    device.rate = kFailed;
  EXPECT_EQ(replan(problem, uniformPlan(problem)).status().messages().size(),
            2u);
}

TEST(Replan, SaysWhatIsWrongWithThePlanThatRuns) {
  const Problem problem = goldenModel("32B");
  Plan plan = uniformPlan(problem);
  plan.pipelines[0].stages[0].devices = {0, 8};
  plan.pipelines[1].microbatches = 15;
  EXPECT_EQ(replan(problem, plan).status().str(),
            "the plan that runs: pipeline 0, stage 0: devices 0 and 8 are on "
            "different nodes\n"
            "the plan that runs: pipeline 1, stage 0: device 8 is in use "
            "already\n"
            "the plan that runs: plan: has 63 microbatches, expected 64");
}

TEST(Plan, VerifierSeesWhatIsBroken) {
  const Problem problem = goldenModel("32B");
  const Plan good = uniformPlan(problem);
  EXPECT_EQ(verify(problem, good).str(), "");
  const auto broken = [&](auto change) {
    Plan plan = good;
    change(plan);
    return verify(problem, plan).str();
  };
  EXPECT_EQ(broken([](Plan &p) { p.pipelines[0].stages[1].layers = 17; }),
            "pipeline 0: has 62 layers, expected 60");
  EXPECT_EQ(broken([](Plan &p) {
              p.pipelines[0].stages[0].layers = 0;
              p.pipelines[0].stages[3].layers = 30;
            }),
            "pipeline 0, stage 0: has 0 layers\n"
            "pipeline 0, stage 3: needs 100598500000 bytes, a device has "
            "77156000000");
  EXPECT_EQ(
      broken([](Plan &p) { p.pipelines[2].stages[0].devices.pop_back(); }),
      "pipeline 2, stage 0: needs 146140600000 bytes, a device has "
      "77156000000");
  EXPECT_EQ(broken([](Plan &p) { p.pipelines[2].stages[0].devices[1] = 99; }),
            "pipeline 2, stage 0: there is no device 99");
  EXPECT_EQ(broken([](Plan &p) {
              p.pipelines[0].microbatches = 3;
              p.pipelines[1].microbatches = 29;
            }),
            "pipeline 0: has 4 stages and 3 microbatches");
  Problem lost = problem;
  lost.devices[4].rate = kFailed;
  EXPECT_EQ(verify(lost, good).str(), "pipeline 0, stage 2: device 4 is gone");
  EXPECT_EQ(scoreOf(lost, good).steady, kFailed);
}

TEST(Problem, SaysAllThatIsWrong) {
  Problem problem = goldenModel("70B");
  EXPECT_EQ(check(problem).str(), "");
  problem.tp = 6;
  problem.layers = 3;
  problem.shrink = {kOne, 9000};
  EXPECT_EQ(check(problem).str(),
            "pp: 4 stages are more than 3 layers\n"
            "tp: expected a power of two, found 6\n"
            "rho[1]: expected a number from 1 to 1000, found 0.9");
  problem = goldenModel("70B");
  problem.pp = 5;
  problem.shrink.push_back(90000);
  EXPECT_EQ(check(problem).str(),
            "rho: groups of 8 devices can be halved 3 times, found 5 numbers\n"
            "dp * tp * pp: 2 * 8 * 5 are more than 64 devices");
  problem = goldenModel("70B");
  problem.memory.limit = 5'000'000'000;
  EXPECT_EQ(check(problem).str(),
            "memory.limit: 5000000000 bytes do not hold one layer of "
            "1647000000 beside 4700000000");
  problem = goldenModel("70B");
  problem.microbatches = 0;
  problem.devices[3].rate = 0;
  EXPECT_EQ(check(problem).str(),
            "microbatches: expected a number from 1 to 10000000, found 0\n"
            "device 3: expected a rate above 0 and up to 10000, found 0");
}

} // namespace
} // namespace merak::stragglers
