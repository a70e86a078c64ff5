// Stages on meshes of their own: what they cost, how they are cut and how they
// are found.
#include "passes/Planning/StageMeshes.h"
#include "passes/Planning/ListSchedule.h"
#include "passes/Planning/PartsSearch.h"
#include "passes/Planning/ReshardPrices.h"
#include "passes/Resharding/Transfers.h"

#include "test/unit/planning/ModelGraphs.h"

#include <algorithm>
#include <functional>
#include <gtest/gtest.h>
#include <random>

namespace merak::planning {
namespace {

int pick(std::mt19937 &random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

struct Gpt {
  test::TrainGraph model;
  Classes classes;
  SearchInput input;

  Gpt(const test::GptOptions &options, const costmodel::Cluster &cluster)
      : model(test::makeGpt(options)), classes(unify(model.graph)) {
    input.graph = &model.graph;
    input.classes = &classes;
    input.batched = {model.find("input_ids"), model.find("labels")};
    input.cluster = cluster;
    input.globalBatch = options.batch;
  }
};

costmodel::Cluster clusterOf(const std::string &nodes,
                             const std::string &more = "") {
  const std::string kind =
      R"({"backend": "cuda", "launch_seconds": 1e-6, "memory_bytes": 1e9,
          "memory_bandwidth": 1e11, "flops": {"f32": )";
  Result<costmodel::Cluster> cluster = costmodel::parseCluster(
      R"({"kinds": {"fast": )" + kind + R"(4e11}}, "slow": )" + kind +
          R"(1e11}}}, "nodes": [)" + nodes + R"(],
          "links": {"intra": {"bandwidth": 1e11, "latency": 1e-6},
                    "inter": {"bandwidth": 1e10, "latency": 2e-6}})" +
          more + "}",
      "c.json");
  EXPECT_TRUE(cluster.ok()) << cluster.status().str();
  return *cluster;
}

const char *kFast = R"({"count": 1, "kind": "fast", "devices": 7})";

PipelineStages
stagesOf(const std::vector<std::pair<int64_t, int64_t>> &degrees) {
  PipelineStages pipeline;
  int64_t next = 0;
  for (auto [dp, tp] : degrees) {
    PipelineStages::Stage &stage = pipeline.stages.emplace_back();
    stage.dp = dp;
    stage.tp = tp;
    for (int64_t i = 0; i < dp * tp; ++i)
      stage.devices.push_back(next++);
  }
  return pipeline;
}

TEST(StageMeshes, BalanceAgainstBruteForce) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const int n = pick(random, 3, 9), parts = pick(random, 1, std::min(n, 4));
    std::vector<std::vector<double>> weights;
    for (int q = 0; q < parts; ++q) {
      weights.emplace_back();
      for (int i = 0; i < n; ++i)
        weights.back().push_back(pick(random, 0, 9));
    }
    auto heaviest = [&](const std::vector<int> &begin) {
      double most = 0;
      for (int q = 0; q < parts; ++q) {
        double sum = 0;
        for (int i = begin[size_t(q)]; i < begin[size_t(q) + 1]; ++i)
          sum += weights[size_t(q)][size_t(i)];
        most = std::max(most, sum);
      }
      return most;
    };
    double best = 1e30;
    std::vector<int> begin = {0};
    std::function<void()> extend = [&] {
      if (int(begin.size()) == parts) {
        begin.push_back(n);
        best = std::min(best, heaviest(begin));
        begin.pop_back();
        return;
      }
      for (int next = begin.back() + 1; next < n; ++next) {
        begin.push_back(next);
        extend();
        begin.pop_back();
      }
    };
    extend();
    const std::vector<int> found = balance(weights, parts);
    for (int q = 0; q < parts; ++q)
      EXPECT_LT(found[size_t(q)], found[size_t(q) + 1]);
    EXPECT_EQ(heaviest(found), best);
  }
}

// Stages with equal meshes cost what those of one mesh do.
TEST(StageMeshes, EqualMeshesAreOneMesh) {
  Gpt gpt({.layers = 4, .batch = 16}, clusterOf(kFast));
  gpt.input.cluster.count = 4;
  PlanSearch search(gpt.input);
  for (const Degrees &d :
       {Degrees{2, 2, 1, 4}, Degrees{2, 1, 2, 8}, Degrees{4, 1, 1, 8}}) {
    Result<const PlanSearch::Sharding *> sharding = search.sharding(d, {});
    ASSERT_TRUE(sharding.ok());
    StageMeshes meshes(gpt.input, gpt.input.cluster);
    Result<PipelineShape> own =
        meshes.shapeOf(uniformStages(d), d.microbatches);
    ASSERT_TRUE(own.ok()) << own.status().str();
    PipelineOptions options;
    Result<PipelinePlan> of =
        planPipeline(*(*sharding)->model, search.commonShape(d), options);
    ASSERT_TRUE(of.ok());
    options.begin = of->begin;
    Result<PipelinePlan> again =
        planPipeline(*(*sharding)->model, *own, options);
    ASSERT_TRUE(again.ok());
    for (size_t s = 0; s < of->cost.stages.size(); ++s) {
      EXPECT_EQ(again->cost.stages[s].times.F, of->cost.stages[s].times.F);
      EXPECT_EQ(again->cost.memory[s], of->cost.memory[s]);
    }
    // But for the norm, which is one all-reduce over all ranks.
    EXPECT_NEAR(again->cost.seconds, of->cost.seconds, 0.05 * of->cost.seconds);
  }
}

// Each stage by its own degrees and kind, whatever the others have.
TEST(StageMeshes, EveryStageHasItsPrice) {
  Gpt gpt({.layers = 4, .batch = 16, .tokens = 128, .width = 128},
          clusterOf(R"({"count": 1, "kind": "fast", "devices": 4},
                       {"count": 1, "kind": "slow", "devices": 4})"));
  StageMeshes meshes(gpt.input, gpt.input.cluster);
  PipelineStages pipeline = stagesOf({{4, 1}, {1, 1}, {1, 2}});
  Result<PipelineShape> shape = meshes.shapeOf(pipeline, 4);
  ASSERT_TRUE(shape.ok()) << shape.status().str();
  auto seconds = [&](int s) {
    const StageModel &model = *shape->meshes[size_t(s)].model;
    return model.seconds(0, model.count());
  };
  EXPECT_GT(seconds(1), 3 * seconds(0)); // all samples on a slow device
  EXPECT_GT(seconds(1), 1.2 * seconds(2));
  EXPECT_GT(seconds(2), seconds(0));
  EXPECT_EQ(shape->meshes[0].reduce.replicas, 4);
  EXPECT_EQ(shape->meshes[1].reduce.replicas, 1);
  EXPECT_EQ(shape->meshes[1].ranks, 1);
  // Into the other node, and inside of it.
  EXPECT_DOUBLE_EQ(shape->links[0].latency, 2e-6);
  EXPECT_DOUBLE_EQ(shape->links[1].latency, 1e-6);
  // One device gets what four have: four messages, one after the other.
  const StageModel &first = *shape->meshes[0].model;
  const int middle = first.count() / 2;
  const BoundaryCost boundary = boundaryOf(first, *shape, 0, middle);
  const double forward = 4 * (2e-6 + first.forwardBytes(middle) / 1e10);
  EXPECT_NEAR(boundary.forward, forward, 1e-9 * forward);
  const double backward = 4 * (2e-6 + first.gradientBytes(middle) / 1e10);
  EXPECT_NEAR(boundary.backward, backward, 1e-9 * backward);
  // Bytes of one message that takes as long.
  EXPECT_NEAR(boundary.forwardBytes, (forward - 2e-6) * 1e10, 1);
  // A stage of devices of both kinds is one of slow ones.
  PipelineStages mixed = stagesOf({{2, 1}});
  mixed.stages[0].devices = {3, 4};
  PipelineStages slow = stagesOf({{2, 1}});
  slow.stages[0].devices = {4, 5};
  EXPECT_EQ((*meshes.modelOf(mixed.stages[0], 4))->seconds(0, first.count()),
            (*meshes.modelOf(slow.stages[0], 4))->seconds(0, first.count()));
}

// The embedding table is of the first and the last stage: with one replica on
// the one and four on the other each of the four gets all of it from the one.
TEST(StageMeshes, SharedGradientsGoToEveryHolder) {
  Gpt gpt({.layers = 2, .batch = 16}, clusterOf(kFast));
  StageMeshes meshes(gpt.input, gpt.input.cluster);
  const auto seconds = [&](const PipelineStages &pipeline, int v) {
    Result<PipelineShape> shape = meshes.shapeOf(pipeline, 4);
    const StageModel &first = *shape->meshes[0].model;
    return exchangeSeconds(*shape, v, {0, first.count() / 2, first.count()});
  };
  const double table = 1e-6 + 96 * 64 * 4 / 1e11;
  EXPECT_NEAR(seconds(stagesOf({{2, 1}, {2, 1}}), 0), table, 1e-12);
  // Along a chain of four, which is as long as four messages of one chunk; the
  // first stage waits for one of its own besides, at the same time.
  EXPECT_NEAR(seconds(stagesOf({{1, 1}, {4, 1}}), 0), 4 * table, 1e-12);
  EXPECT_NEAR(seconds(stagesOf({{1, 1}, {4, 1}}), 1), 4 * table, 1e-12);
}

// ----------------------------------------------- values between the stages

// Nodes of five devices that share an adapter.
const char *kSharing = R"({"count": 2, "kind": "fast", "devices": 5})";
costmodel::Cluster sharing() {
  costmodel::Cluster cluster = clusterOf(kSharing);
  cluster.inter = {1e7, 1e-5, true};
  return cluster;
}
// One device, and four in the other node that all get the same.
PipelineStages oneToFour() {
  PipelineStages pipeline = stagesOf({{1, 1}, {1, 4}});
  pipeline.stages[1].devices = {5, 6, 7, 8};
  return pipeline;
}

TEST(ReshardPrices, AreThoseOfTheReshardings) {
  const PipelineStages pipeline = oneToFour();
  const auto seconds = [&](const std::string &strategy, double bytes) {
    ReshardPrices prices(sharing(), strategy);
    return prices.line(pipeline.stages[0], pipeline.stages[1], true)
        .seconds(bytes);
  };
  const double mebi = 1 << 20, message = 1e-5 + mebi / 1e7;
  EXPECT_NEAR(seconds("send-recv", mebi), 4 * message, 1e-9);
  EXPECT_LT(seconds("broadcast", mebi), 1.1 * message);
  EXPECT_LT(seconds("local-gather", mebi), 1.1 * message);
  double least = 1e30;
  for (const std::string &strategy : resharding::strategyNames())
    least = std::min(least, seconds(strategy, mebi));
  EXPECT_LE(seconds("", mebi), least * (1 + 1e-9));
  EXPECT_EQ(seconds("", 0), 0);
  // In between.
  EXPECT_NEAR(seconds("", 1.5 * mebi),
              (seconds("", mebi) + seconds("", 2 * mebi)) / 2, 1e-12);
}

// Stages that lie alike over nodes share a price, others do not.
TEST(ReshardPrices, PlacesDecide) {
  ReshardPrices prices(sharing(), "");
  PipelineStages pipeline = oneToFour(), alike = oneToFour();
  alike.stages[0].devices = {9};
  alike.stages[1].devices = {0, 1, 3, 4};
  auto line = [&](const PipelineStages &of, bool split) {
    return &prices.line(of.stages[0], of.stages[1], split);
  };
  EXPECT_EQ(line(pipeline, true), line(alike, true));
  EXPECT_NE(line(pipeline, true), line(pipeline, false));
  alike.stages[1].devices = {0, 1, 3, 5};
  EXPECT_NE(line(pipeline, true), line(alike, true));
}

// How far a stage is ahead follows from what its boundary takes, so from the
// strategy too.
TEST(ReshardPrices, DecideHowFarStagesAreAhead) {
  const auto ahead = [&](const std::string &strategy) {
    Gpt gpt({.layers = 2, .batch = 16, .tokens = 64, .width = 128}, sharing());
    gpt.input.pinned.reshard = strategy;
    StageMeshes meshes(gpt.input, gpt.input.cluster);
    const PipelineShape shape = *meshes.shapeOf(oneToFour(), 16);
    const StageModel &first = *shape.meshes[0].model;
    PipelineCost cost;
    SimulateOptions costs =
        simulationOf(first, shape, 1, {0, first.count() / 2, first.count()},
                     std::vector<Marks>(2), nullptr, cost);
    return transferWarmup(2, 1000, costs)[0];
  };
  EXPECT_GT(ahead("broadcast"), 2);
  EXPECT_GT(ahead("send-recv"), 1.5 * ahead("broadcast"));
  EXPECT_LT(ahead("local-gather"), ahead("send-recv"));
}

TEST(StageMeshes, DevicesOfAPlan) {
  costmodel::Cluster cluster =
      clusterOf(R"({"count": 2, "kind": "fast", "devices": 2},
                   {"count": 1, "kind": "slow", "devices": 3})",
                R"(, "rates": {"2": 0.5})");
  PipelineStages pipeline = stagesOf({{2, 1}});
  pipeline.stages[0].devices = {2, 5};
  const costmodel::Cluster used = devicesOf(cluster, pipeline);
  EXPECT_EQ(used.count, 2);
  EXPECT_EQ(used.rateOf, (std::vector<double>{0.5, 1}));
  EXPECT_EQ(used.device(1).name, "slow");
  EXPECT_NE(used.node(0), used.node(1));
  EXPECT_EQ(devicesOf(cluster, {}), cluster);
  EXPECT_TRUE(hasUnlikeDevices(cluster));
  EXPECT_FALSE(hasUnlikeDevices(costmodel::defaultCluster(8)));
  EXPECT_TRUE(hasUnlikeDevices(costmodel::defaultCluster(12)));
}

// Every list of stages of up to `most` devices in their order, and every number
// of microbatches, planned as the search plans those it finds.
double bestOfAll(const SearchInput &input, int64_t devices) {
  StageMeshes meshes(input, input.cluster);
  const SearchPolicy policy = ownPolicy(input.pinned);
  double best = 1e30;
  std::vector<std::pair<int64_t, int64_t>> degrees;
  std::function<void(int64_t)> extend = [&](int64_t left) {
    for (int64_t m = 1; !degrees.empty() && m <= input.globalBatch; ++m) {
      if (input.globalBatch % m)
        continue;
      bool divides = true;
      for (auto [dp, tp] : degrees)
        divides &= (input.globalBatch / m) % dp == 0;
      if (!divides)
        continue;
      Result<PipelineShape> shape = meshes.shapeOf(stagesOf(degrees), m);
      if (!shape.ok())
        continue;
      const std::optional<std::vector<std::string>> none;
      CandidateSet set(policy, /*quick=*/false, none);
      set.add(*shape->meshes[0].model, *shape, {});
      if (set.best() && set.best()->plan.cost.fits())
        best = std::min(best, set.best()->plan.cost.seconds);
    }
    for (int64_t tp : {1, 2})
      for (int64_t dp = 1; dp * tp <= left; ++dp) {
        degrees.emplace_back(dp, tp);
        extend(left - dp * tp);
        degrees.pop_back();
      }
  };
  extend(devices);
  return best;
}

// Devices in the order of their numbers are all that the loop above has, so
// that the search, which also orders them otherwise, may be faster.
TEST(PartsSearch, AgainstBruteForce) {
  int unlike = 0;
  for (int devices : {2, 3, 4})
    for (const char *rates : {"", R"(, "rates": {"1": 0.4})"}) {
      Gpt gpt({.layers = 3, .batch = 8, .tokens = 64},
              clusterOf(R"({"count": 1, "kind": "fast", "devices": )" +
                            std::to_string(devices) + "}",
                        rates));
      StageMeshes meshes(gpt.input, gpt.input.cluster);
      const std::vector<PlanCandidate> found =
          searchParts(gpt.input, meshes, 0, 1);
      ASSERT_FALSE(found.empty());
      double best = found.front().plan.cost.seconds;
      unlike += found.front().stages->stages.size() > 1;
      // One mesh for all devices is for the other search to find.
      PlanSearch search(gpt.input);
      best = std::min(best,
                      search.search(ownPolicy({})).front().plan.cost.seconds);
      EXPECT_LE(best, 1.05 * bestOfAll(gpt.input, devices))
          << devices << " devices" << rates;
    }
  EXPECT_GT(unlike, 0);
}

// What is found has each device once: in a stage or among the spares.
TEST(PartsSearch, EveryDeviceHasAPlace) {
  for (const char *nodes : {kFast,
                            R"({"count": 1, "kind": "fast", "devices": 4},
           {"count": 2, "kind": "slow", "devices": 3})",
                            R"({"count": 3, "kind": "fast", "devices": 4})"}) {
    Gpt gpt({.layers = 4, .batch = 16, .tokens = 64}, clusterOf(nodes));
    StageMeshes meshes(gpt.input, gpt.input.cluster);
    const std::vector<PlanCandidate> found =
        searchParts(gpt.input, meshes, 0, 3);
    ASSERT_FALSE(found.empty());
    for (size_t i = 0; i < found.size(); ++i) {
      if (i > 0)
        EXPECT_GE(found[i].plan.cost.seconds, found[i - 1].plan.cost.seconds);
      const PipelineStages &pipeline = *found[i].stages;
      EXPECT_FALSE(pipeline.isUniform());
      std::vector<int64_t> all = pipeline.spares;
      for (const PipelineStages::Stage &stage : pipeline.stages) {
        EXPECT_EQ(stage.dp * stage.tp, int64_t(stage.devices.size()));
        all.insert(all.end(), stage.devices.begin(), stage.devices.end());
      }
      std::sort(all.begin(), all.end());
      for (size_t device = 0; device < all.size(); ++device)
        EXPECT_EQ(all[device], int64_t(device));
      EXPECT_EQ(int64_t(all.size()), gpt.input.cluster.count);
      EXPECT_TRUE(found[i].fits());
    }
    // The same again.
    StageMeshes others(gpt.input, gpt.input.cluster);
    const std::vector<PlanCandidate> again =
        searchParts(gpt.input, others, 0, 3);
    ASSERT_EQ(again.size(), found.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(again[i].stages, found[i].stages);
      EXPECT_EQ(again[i].plan.cost.seconds, found[i].plan.cost.seconds);
    }
  }
}

TEST(PartsSearch, KeepsDegreesThatAreGiven) {
  Gpt gpt({.layers = 4, .batch = 16, .tokens = 64}, clusterOf(kFast));
  for (const char *axis : {kDataAxis, kTensorAxis}) {
    gpt.input.pinned.mesh = {{axis, 1}};
    StageMeshes meshes(gpt.input, gpt.input.cluster);
    const std::vector<PlanCandidate> found =
        searchParts(gpt.input, meshes, 0, 3);
    ASSERT_FALSE(found.empty());
    for (const PlanCandidate &plan : found)
      for (const PipelineStages::Stage &stage : plan.stages->stages)
        EXPECT_EQ(axis == std::string(kDataAxis) ? stage.dp : stage.tp, 1);
  }
}

// A device that is so slow that the others are faster without it.
TEST(PartsSearch, LeavesOutWhatMakesNothingFaster) {
  Gpt gpt({.layers = 4, .batch = 16, .tokens = 64},
          clusterOf(R"({"count": 1, "kind": "fast", "devices": 5})",
                    R"(, "rates": {"2": 0.01})"));
  StageMeshes meshes(gpt.input, gpt.input.cluster);
  const std::vector<PlanCandidate> found = searchParts(gpt.input, meshes, 0, 1);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.front().stages->spares, std::vector<int64_t>{2});
}

// Two kinds: the search for one mesh has plans priced by both.
TEST(PartsSearch, OneMeshOnTwoKinds) {
  Gpt gpt({.layers = 4, .batch = 16, .tokens = 128, .width = 128},
          clusterOf(R"({"count": 1, "kind": "slow", "devices": 2},
                       {"count": 1, "kind": "fast", "devices": 2})"));
  gpt.input.machine = gpt.input.cluster;
  gpt.input.cluster = onFastestKind(gpt.input);
  EXPECT_EQ(gpt.input.cluster.device().name, "fast");
  gpt.input.pinned.mesh = {{"pp", 2}, {"dp", 2}, {"tp", 1}};
  const PlanCandidate found =
      PlanSearch(gpt.input).search(ownPolicy(gpt.input.pinned)).front();
  ASSERT_TRUE(found.problem.empty()) << found.problem;
  ASSERT_GE(found.plan.begin.size(), 3u);
  if (found.plan.schedule.chunks == 1)
    EXPECT_LT(found.plan.begin[1], found.plan.begin[2] - found.plan.begin[1]);
  gpt.input.machine = {};
  const PlanCandidate fast =
      PlanSearch(gpt.input).search(ownPolicy(gpt.input.pinned)).front();
  EXPECT_GT(found.plan.cost.seconds, 1.2 * fast.plan.cost.seconds);
}

} // namespace
} // namespace merak::planning
