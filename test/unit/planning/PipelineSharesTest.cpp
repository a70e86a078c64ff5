// Pipelines that share the microbatches of a step as the rates and kinds of
// their devices say, against brute force.
#include "passes/Planning/PipelineShares.h"
#include "passes/Planning/ClassPipelines.h"
#include "passes/Planning/StageMeshes.h"
#include "passes/Planning/SteadyTimes.h"

#include "test/unit/planning/ModelGraphs.h"

#include <functional>
#include <gtest/gtest.h>
#include <numeric>
#include <set>
#include <string>

namespace merak::planning {
namespace {

constexpr int64_t kBatch = 24;

struct Gpt {
  test::TrainGraph model =
      test::makeGpt(test::GptOptions{.layers = 4, .batch = kBatch});
  Classes classes = unify(model.graph);
  SearchInput input;

  // `rates`: how many times as long the first devices take. `slow`: so many
  // behind them are on a node of another kind, which computes three times as
  // long.
  Gpt(int64_t devices, const std::vector<double> &rates, int64_t slow = 0) {
    input.graph = &model.graph;
    input.classes = &classes;
    input.batched = {model.find("input_ids"), model.find("labels")};
    const std::string kind =
        R"({"backend": "cuda", "launch_seconds": 1e-7,
            "memory_bytes": 1e9, "memory_bandwidth": 1e11,
            "flops": {"f32": )";
    const auto node = [](const std::string &name, int64_t count) {
      return R"({"count": 1, "kind": ")" + name + R"(", "devices": )" +
             std::to_string(count) + "}";
    };
    Result<costmodel::Cluster> cluster = costmodel::parseCluster(
        R"({"kinds": {"gpu": )" + kind + R"(1e11}}, "old": )" + kind +
            R"(0.3e11}}}, "nodes": [)" + node("gpu", devices) +
            (slow > 0 ? ", " + node("old", slow) : "") + R"(],
            "links": {"intra": {"bandwidth": 1e11, "latency": 1e-7},
                      "inter": {"bandwidth": 1e10, "latency": 2e-6}}})",
        "c.json");
    EXPECT_TRUE(cluster.ok()) << cluster.status().str();
    input.cluster = *cluster;
    input.cluster.rateOf.assign(size_t(devices + slow), 1);
    for (size_t i = 0; i < rates.size(); ++i)
      input.cluster.rateOf[i] = 1 / rates[i];
    input.globalBatch = kBatch;
  }
  Gpt(const Gpt &) = delete;
};

std::vector<int64_t> sharesOf(const SharedPlan &plan) {
  std::vector<int64_t> shares;
  for (const PipelineStages &pipeline : plan.pipelines)
    shares.push_back(pipeline.microbatches.value_or(0));
  return shares;
}

// Seconds of one pipeline of `plan` with so many microbatches.
double secondsOf(const Gpt &gpt, StageMeshes &meshes, SharedPlan plan,
                 size_t pipeline, int64_t share) {
  plan.pipelines[pipeline].microbatches = share;
  const Strategy own =
      strategyOf(gpt.input.pinned, plan, kBatch).ofPipeline(pipeline);
  Result<PipelineShape> shape =
      meshes.shapeOf(plan.pipelines[pipeline], plan.plan.degrees.microbatches);
  EXPECT_TRUE(shape.ok()) << shape.status().str();
  shape->microbatches = int(share);
  const SearchPolicy policy = ownPolicy(own);
  CandidateSet set(policy, /*quick=*/true, own.stageBegins);
  set.steady = true;
  set.add(*shape->meshes.front().model, *shape, {});
  set.improve();
  return set.best()->plan.cost.seconds;
}

// The longest pipeline of the best of all ways to hand out the microbatches.
double bruteForce(const Gpt &gpt, StageMeshes &meshes, const SharedPlan &plan) {
  const size_t pipelines = plan.pipelines.size();
  const int64_t all = plan.plan.degrees.microbatches;
  std::vector<std::vector<double>> seconds(pipelines);
  for (size_t i = 0; i < pipelines; ++i)
    for (int64_t m = 0; m <= all; ++m)
      seconds[i].push_back(m == 0 ? 0 : secondsOf(gpt, meshes, plan, i, m));
  double best = 1e30;
  std::function<void(size_t, int64_t, double)> handOut =
      [&](size_t i, int64_t left, double longest) {
        if (i + 1 == pipelines) {
          if (left > 0)
            best = std::min(best, std::max(longest, seconds[i][size_t(left)]));
          return;
        }
        for (int64_t m = 1; m < left; ++m)
          handOut(i + 1, left - m, std::max(longest, seconds[i][size_t(m)]));
      };
  handOut(0, all, 0);
  return best;
}

TEST(PipelineShares, ReplicasStandAsInOneMesh) {
  const std::vector<PipelineStages> replicas = replicasOf({2, 3, 2, 1});
  ASSERT_EQ(replicas.size(), 3u);
  EXPECT_EQ(replicas[0].str(), "0-1 dp=1,tp=2; 6-7 dp=1,tp=2");
  EXPECT_EQ(replicas[2].str(), "4-5 dp=1,tp=2; 10-11 dp=1,tp=2");
  // Their devices are those of the stages of one mesh.
  const PipelineStages uniform = uniformStages({2, 3, 2, 1});
  for (size_t s = 0; s < 2; ++s) {
    std::vector<int64_t> devices;
    for (const PipelineStages &replica : replicas)
      devices.insert(devices.end(), replica.stages[s].devices.begin(),
                     replica.stages[s].devices.end());
    EXPECT_EQ(devices, uniform.stages[s].devices);
  }
}

TEST(PipelineShares, OnlySlowDevicesAsk) {
  EXPECT_FALSE(hasSlowDevices(Gpt(4, {}).input.cluster));
  EXPECT_FALSE(hasSlowDevices(Gpt(4, {1.1}).input.cluster));
  EXPECT_TRUE(hasSlowDevices(Gpt(4, {1, 1.3}).input.cluster));
  EXPECT_FALSE(hasSlowDevices(Gpt(2, {100, 110}).input.cluster));
  EXPECT_FALSE(hasSlowDevices(costmodel::defaultCluster(4)));
}

TEST(PipelineShares, AlikeWhereEqualDevicesAre) {
  Gpt gpt(6, {1, 1, 2, 1, 1, 1});
  costmodel::Cluster &machine = gpt.input.cluster;
  std::vector<PipelineStages> replicas = replicasOf({2, 3, 1, 1});
  EXPECT_TRUE(areAlike(replicas[0], replicas[1], machine));
  EXPECT_FALSE(areAlike(replicas[0], replicas[2], machine)); // a rate
  machine.rateOf.clear();
  EXPECT_TRUE(areAlike(replicas[0], replicas[2], machine));
  replicas[1].microbatches = 3;
  EXPECT_FALSE(areAlike(replicas[0], replicas[1], machine));
  // 0 and 3 are on two nodes, 2 and 5 on two others; 1 and 4 on one.
  machine.nodeOf = {0, 1, 1, 1, 1, 0};
  EXPECT_TRUE(areAlike(replicas[0], replicas[2], machine));
  EXPECT_FALSE(areAlike(replicas[1], replicas[2], machine));
  replicas[2].stages[1].begin = "op";
  EXPECT_FALSE(areAlike(replicas[0], replicas[2], machine));
}

// Where more microbatches take longer, as they do here, moving one at a time
// ends at the best shares.
TEST(PipelineShares, AgainstBruteForce) {
  for (const auto &[degrees, rates] :
       std::vector<std::pair<Degrees, std::vector<double>>>{
           {{1, 3, 1, 1}, {2}},
           {{1, 3, 1, 1}, {1, 2.5, 1.5}},
           {{1, 2, 2, 1}, {1, 1, 1, 3}},
           {{2, 2, 1, 1}, {3}},
           {{2, 3, 1, 1}, {1, 2, 1, 1, 1, 4}}}) {
    Gpt gpt(degrees.pp * degrees.dp * degrees.tp, rates);
    gpt.input.pinned.microbatch = 2; // twelve microbatches
    PlanSearch search(gpt.input);
    const std::vector<SharedPlan> found =
        searchShares(gpt.input, search.stageMeshes(), {{degrees}}, 4);
    ASSERT_FALSE(found.empty());
    for (const SharedPlan &plan : found) {
      const std::vector<int64_t> shares = sharesOf(plan);
      EXPECT_EQ(plan.plan.degrees.microbatches, 12);
      EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), int64_t(0)), 12);
      EXPECT_EQ(plan.movesLayers, degrees.pp > 1);
      const double longest = plan.plan.plan.cost.seconds - plan.sumSeconds;
      const double best = bruteForce(gpt, search.stageMeshes(), plan);
      EXPECT_NEAR(longest, best, 1e-9 * best) << plan.str();
    }
  }
}

// The first device takes three times as long: its replica trains about a third
// of what the others do.
TEST(PipelineShares, ASlowReplicaTrainsLess) {
  Gpt gpt(4, {3});
  PlanSearch search(gpt.input);
  const std::vector<SharedPlan> found =
      searchShares(gpt.input, search.stageMeshes(), {{Degrees{1, 4, 1, 1}}}, 1);
  ASSERT_EQ(found.size(), 1u);
  const std::vector<int64_t> shares = sharesOf(found[0]);
  const double normal = double(shares[1]), slow = double(shares[0]);
  EXPECT_NEAR(slow / normal, 1.0 / 3, 0.2);
  EXPECT_GE(shares[1], shares[2] - 1);
  EXPECT_LE(shares[1], shares[2] + 1);
}

// Cuts that are given stay, in all pipelines; beside them others are made.
TEST(PipelineShares, LayersStayOrMove) {
  Gpt gpt(4, {4});
  SearchInput healthy = gpt.input;
  healthy.cluster.rateOf.clear();
  healthy.pinned.mesh = {{"pp", 2}, {"dp", 2}, {"tp", 1}};
  PlanSearch uniform(healthy);
  const std::vector<PlanCandidate> all =
      uniform.search(ownPolicy(healthy.pinned));
  ASSERT_FALSE(all.empty());
  SharesQuestion question{{Degrees{2, 2, 1, 1}}, all.front().plan.begin};
  PlanSearch search(gpt.input);
  const std::vector<SharedPlan> found =
      searchShares(gpt.input, search.stageMeshes(), question, 8);
  int stay = 0, move = 0;
  for (const SharedPlan &plan : found) {
    (plan.movesLayers ? move : stay) += 1;
    EXPECT_EQ(plan.pipelines[0].stages[0].devices, (std::vector<int64_t>{0}));
    EXPECT_EQ(plan.pipelines[0].stages[1].devices, (std::vector<int64_t>{2}));
    const Strategy strategy = strategyOf(gpt.input.pinned, plan, kBatch);
    EXPECT_EQ(strategy.ofPipeline(0).stageBegins.has_value(),
              !plan.movesLayers);
    EXPECT_EQ(strategy.ofPipeline(0).stageBegins,
              strategy.ofPipeline(1).stageBegins);
    if (!plan.movesLayers) {
      EXPECT_EQ(strategy.ofPipeline(0).stageBegins->size() + 2,
                question.begin.size());
    }
  }
  EXPECT_GT(stay, 0);
  EXPECT_GT(move, 0);
  question.onlyThese = true;
  for (const SharedPlan &plan :
       searchShares(gpt.input, search.stageMeshes(), question, 8))
    EXPECT_FALSE(plan.movesLayers);
}

// A replica that would hold up all others even with one microbatch is spare,
// where that may be.
TEST(PipelineShares, WhatMakesNothingFasterIsLeftOut) {
  Gpt gpt(4, {1, 1000});
  PlanSearch search(gpt.input);
  SharesQuestion question{{Degrees{1, 4, 1, 1}}};
  const auto find = [&] {
    return searchShares(gpt.input, search.stageMeshes(), question, 1);
  };
  std::vector<SharedPlan> found = find();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].pipelines.size(), 4u);
  question.leavesOut = true;
  found = find();
  ASSERT_EQ(found.size(), 1u);
  ASSERT_EQ(found[0].pipelines.size(), 3u);
  EXPECT_EQ(joined(found[0].pipelines).spares, (std::vector<int64_t>{1}));
}

TEST(PipelineShares, SeveralKindsAsk) {
  EXPECT_FALSE(hasSeveralKinds(Gpt(4, {}).input.cluster));
  EXPECT_TRUE(hasSeveralKinds(Gpt(2, {}, 2).input.cluster));
  EXPECT_FALSE(hasSlowDevices(Gpt(2, {}, 2).input.cluster));
  EXPECT_FALSE(hasSeveralKinds(costmodel::defaultCluster(4)));
}

// Devices 0 to 3 are of one kind, 4 to 7 of another one.
TEST(PipelineShares, ReplicasThatAreAlikeAreOnePipeline) {
  const Gpt gpt(4, {}, 4);
  const auto joinedOf = [&](const Degrees &degrees) {
    std::string text;
    for (const PipelineStages &pipeline :
         joinedReplicas(replicasOf(degrees), gpt.input.cluster))
      text += (text.empty() ? "" : " | ") + pipeline.str();
    return text;
  };
  EXPECT_EQ(joinedOf({1, 8, 1, 1}), "0-3 dp=4,tp=1 | 4-7 dp=4,tp=1");
  EXPECT_EQ(joinedOf({1, 4, 2, 1}), "0-3 dp=2,tp=2 | 4-7 dp=2,tp=2");
  EXPECT_EQ(joinedOf({2, 4, 1, 1}), "0-3 dp=4,tp=1; 4-7 dp=4,tp=1");
  const Gpt three(4, {}, 2); // the second half of a stage on other devices
  std::vector<PipelineStages> few =
      joinedReplicas(replicasOf({1, 6, 1, 1}), three.input.cluster);
  ASSERT_EQ(few.size(), 2u);
  EXPECT_EQ(few[1].str(), "4-5 dp=2,tp=1");
  const Gpt slow(4, {1, 3}, 4); // a device with a rate is not alike
  EXPECT_EQ(joinedReplicas(replicasOf({1, 8, 1, 1}), slow.input.cluster).size(),
            3u);
}

// The replicas of the slow kind train about a third of what the others do, in
// a mesh that is given too.
TEST(PipelineShares, ASlowKindTrainsLess) {
  for (const Degrees &degrees : {Degrees{1, 4, 1, 1}, Degrees{1, 2, 2, 1}}) {
    Gpt gpt(2, {}, 2);
    PlanSearch search(gpt.input);
    const std::vector<SharedPlan> found =
        searchShares(gpt.input, search.stageMeshes(), {{degrees}}, 1);
    ASSERT_EQ(found.size(), 1u);
    const std::vector<int64_t> shares = sharesOf(found[0]);
    ASSERT_EQ(shares.size(), 2u);
    EXPECT_NEAR(double(shares[1]) / double(shares[0]), 0.35, 0.1);
    EXPECT_EQ(found[0].haveOneMesh(), degrees.dp == 2);
  }
  // All replicas have both kinds: there is nothing to share.
  Gpt gpt(2, {}, 2);
  PlanSearch search(gpt.input);
  EXPECT_TRUE(
      searchShares(gpt.input, search.stageMeshes(), {{Degrees{2, 2, 1, 1}}}, 1)
          .empty());
}

// Pipelines with degrees of their own: shares are the best, devices are used
// once, what is not used is spare.
TEST(PipelineShares, ClassesAgainstBruteForce) {
  for (const auto &[fast, slow, rates] :
       std::vector<std::tuple<int64_t, int64_t, std::vector<double>>>{
           {2, 2, {}}, {3, 2, {}}, {4, 1, {}}, {4, 2, {4}}, {4, 0, {3, 3}}}) {
    Gpt gpt(fast, rates, slow);
    PlanSearch search(gpt.input);
    SharesQuestion question;
    question.classes = true;
    const std::vector<SharedPlan> found =
        searchShares(gpt.input, search.stageMeshes(), question, 4);
    ASSERT_FALSE(found.empty());
    for (const SharedPlan &plan : found) {
      ASSERT_GE(plan.pipelines.size(), 2u);
      std::vector<int64_t> devices = joined(plan.pipelines).spares;
      for (const PipelineStages &pipeline : plan.pipelines) {
        const int64_t first = pipeline.stages.front().devices.front();
        for (const PipelineStages::Stage &stage : pipeline.stages)
          for (int64_t device : stage.devices) {
            devices.push_back(device);
            EXPECT_EQ(device < fast, first < fast); // of one kind
            EXPECT_EQ(gpt.input.cluster.rateOf[size_t(device)],
                      gpt.input.cluster.rateOf[size_t(first)]);
          }
      }
      std::sort(devices.begin(), devices.end());
      std::vector<int64_t> all(size_t(fast + slow));
      std::iota(all.begin(), all.end(), int64_t(0));
      EXPECT_EQ(devices, all);
      const double longest = plan.plan.plan.cost.seconds - plan.sumSeconds;
      const double best = bruteForce(gpt, search.stageMeshes(), plan);
      EXPECT_NEAR(longest, best, 1e-9 * best) << plan.str();
    }
  }
}

// A step of every pair of pipelines, one on each class, with every number of
// microbatches and every share, if layers could be cut anywhere.
double bestOfAll(const Gpt &gpt, int64_t fast, int64_t slow,
                 const std::vector<int64_t> &tensor) {
  StageMeshes meshes(gpt.input, gpt.input.cluster);
  double best = 1e30;
  for (int64_t m = 2; m <= kBatch; ++m) {
    if (kBatch % m != 0)
      continue;
    std::vector<std::vector<std::pair<double, double>>> times(2);
    for (int64_t c = 0; c < 2; ++c) {
      const int64_t devices = c == 0 ? fast : slow;
      for (int64_t tp : tensor)
        for (int64_t dp = 1; dp * tp <= devices; ++dp) {
          if (kBatch / m % dp != 0)
            continue;
          PipelineStages::Stage stage;
          stage.dp = dp;
          stage.tp = tp;
          for (int64_t i = 0; i < dp * tp; ++i)
            stage.devices.push_back(i + (c == 0 ? 0 : fast));
          Result<const StageModel *> model = meshes.modelOf(stage, m);
          if (!model.ok())
            continue;
          const double all = (*model)->seconds(0, (*model)->count());
          for (int64_t pp = 1; pp * dp * tp <= devices; ++pp)
            times[size_t(c)].emplace_back(all / double(pp), all);
        }
    }
    for (const auto &[slowest, all] : times[0])
      for (const auto &[otherSlowest, otherAll] : times[1])
        for (int64_t share = 1; share < m; ++share)
          best = std::min(
              best, std::max(double(share - 1) * slowest + all,
                             double(m - share - 1) * otherSlowest + otherAll));
  }
  return best;
}

TEST(ClassPipelines, AgainstBruteForce) {
  for (const auto &[fast, slow] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {2, 2}, {4, 2}, {3, 5}, {4, 4}, {7, 1}}) {
    Gpt gpt(fast, {}, slow);
    StageMeshes meshes(gpt.input, gpt.input.cluster);
    const std::vector<ClassPipelines> found =
        classPipelines(gpt.input, meshes, 6);
    ASSERT_FALSE(found.empty());
    size_t alike = 0;
    for (const ClassPipelines &of : found)
      alike += of.isAlike();
    EXPECT_LE(alike, 6u);
    EXPECT_LE(found.size() - alike, 6u);
    const double best = bestOfAll(
        gpt, fast, slow, DeviceClasses(gpt.input, meshes).tensorDegrees());
    EXPECT_NEAR(found.front().seconds, best, 1e-9 * best)
        << fast << " and " << slow;
  }
}

// Given degrees hold for all; other samples of a microbatch, other replicas.
TEST(ClassPipelines, PinsHold) {
  Gpt gpt(4, {}, 4);
  StageMeshes meshes(gpt.input, gpt.input.cluster);
  const auto all = [&] { return classPipelines(gpt.input, meshes, 100); };
  gpt.input.pinned.mesh = {{"dp", 1}, {"tp", 1}};
  EXPECT_FALSE(all().empty());
  for (const ClassPipelines &of : all())
    for (const PipelineStages &pipeline : of.pipelines)
      for (const PipelineStages::Stage &stage : pipeline.stages)
        EXPECT_EQ(stage.dp * stage.tp, 1);
  gpt.input.pinned.mesh = {{"pp", 1}};
  EXPECT_FALSE(all().empty());
  for (const ClassPipelines &of : all())
    for (const PipelineStages &pipeline : of.pipelines)
      EXPECT_EQ(pipeline.stages.size(), 1u);
  gpt.input.pinned.mesh = {{"dp", 2}};
  EXPECT_TRUE(all().empty());
  gpt.input.pinned.mesh.clear();
  gpt.input.pinned.microbatch = 2;
  EXPECT_TRUE(all().empty());
}

// A class that would hold up all others with one microbatch is spare.
TEST(ClassPipelines, WhatMakesNothingFasterIsSpare) {
  Gpt gpt(4, {1000}, 2);
  StageMeshes meshes(gpt.input, gpt.input.cluster);
  const std::vector<ClassPipelines> found =
      classPipelines(gpt.input, meshes, 1);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.front().pipelines.size(), 2u);
  const std::vector<int64_t> &spares = found.front().pipelines.front().spares;
  EXPECT_TRUE(std::count(spares.begin(), spares.end(), 0));
}

// Drafted under a limit that falls before anything is planned: as under the
// lower one from the beginning.
TEST(PipelineShares, ALimitMayFallMeanwhile) {
  Gpt gpt(2, {}, 2);
  PlanSearch search(gpt.input);
  SharesQuestion question{{Degrees{1, 4, 1, 1}, Degrees{2, 2, 1, 1}}};
  question.classes = true;
  const auto text = [](const std::vector<SharedPlan> &plans) {
    std::string out;
    for (const SharedPlan &plan : plans)
      out +=
          plan.str() + " " + std::to_string(plan.plan.plan.cost.seconds) + "\n";
    return out;
  };
  const std::vector<SharedPlan> all =
      searchShares(gpt.input, search.stageMeshes(), question, 8);
  ASSERT_GE(all.size(), 2u);
  std::set<size_t> sizes;
  for (const SharedPlan &plan : all)
    for (const double part : {0.7, 0.95, 1.05}) {
      const double limit = part * plan.plan.plan.cost.seconds;
      SharesQuestion low = question, high = question;
      low.limit = limit;
      high.limit = 2 * limit;
      const std::vector<SharedPlan> expected =
          searchShares(gpt.input, search.stageMeshes(), low, 8);
      sizes.insert(expected.size());
      for (const SharesQuestion &first : {question, high}) {
        StageMeshes own(gpt.input, gpt.input.cluster);
        DraftedShares drafted(gpt.input, own, first);
        EXPECT_EQ(text(drafted.plans(limit, 8)), text(expected)) << limit;
      }
    }
  EXPECT_GT(sizes.size(), 1u); // the limit leaves out some
}

// Whoever does not train has no gradients to sum over pipelines.
TEST(PipelineShares, WithoutTrainingNothingIsSummed) {
  for (const bool train : {true, false}) {
    Gpt gpt(2, {}, 2);
    gpt.input.train = train;
    PlanSearch search(gpt.input);
    SharesQuestion question{{Degrees{1, 4, 1, 1}}};
    question.classes = true;
    const std::vector<SharedPlan> found =
        searchShares(gpt.input, search.stageMeshes(), question, 8);
    ASSERT_FALSE(found.empty());
    for (const SharedPlan &plan : found) {
      EXPECT_EQ(plan.sumSeconds > 0, train) << plan.str();
      const std::vector<int64_t> shares = sharesOf(plan);
      EXPECT_GT(shares[0], shares[1]) << plan.str();
    }
  }
}

} // namespace
} // namespace merak::planning
