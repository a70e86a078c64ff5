// The search for degrees on small models by hand.
#include "passes/Planning/PlanSearch.h"

#include "test/unit/planning/ModelGraphs.h"

#include <gtest/gtest.h>
#include <random>

namespace merak::planning {
namespace {

struct Gpt {
  test::TrainGraph model;
  Classes classes;
  SearchInput input;

  explicit Gpt(int layers, int64_t devices, int64_t perNode, int64_t batch = 16)
      : Gpt({.layers = layers, .batch = batch}, devices, perNode) {}
  Gpt(const test::GptOptions &options, int64_t devices, int64_t perNode)
      : model(test::makeGpt(options)), classes(unify(model.graph)) {
    input.graph = &model.graph;
    input.classes = &classes;
    input.batched = {model.find("input_ids"), model.find("labels")};
    input.cluster = costmodel::defaultCluster(devices);
    input.cluster.perNode = perNode;
    input.globalBatch = options.batch;
  }
};

TEST(PlanSearch, DegreesAgreeWithPins) {
  Gpt gpt(2, 8, 8);
  gpt.input.pinned.mesh = {{"tp", 2}};
  gpt.input.pinned.microbatch = 2;
  Result<std::vector<Degrees>> degrees = PlanSearch(gpt.input).degrees();
  ASSERT_TRUE(degrees.ok());
  EXPECT_EQ(*degrees,
            (std::vector<Degrees>{{1, 4, 2, 2}, {2, 2, 2, 4}, {4, 1, 2, 8}}));
  gpt.input.pinned.mesh = {{"tp", 3}};
  EXPECT_EQ(PlanSearch(gpt.input).degrees().status().str(),
            "mesh needs 3 ranks, which does not fit the 8 of the cluster");
}

// Least memory at each level of ZeRO, and what no plain plan fits is found.
TEST(PlanSearch, StoresParametersInPartsWhereMemoryIsShort) {
  Gpt gpt(4, 4, 4);
  gpt.input.pinned.mesh = {{"pp", 1}, {"dp", 4}, {"tp", 1}};
  auto best = [&](int64_t zero) {
    gpt.input.pinned.zero = zero;
    return PlanSearch(gpt.input).search(ownPolicy(gpt.input.pinned)).front();
  };
  double before = 1e30;
  for (int64_t zero : {0, 1, 2, 3}) {
    PlanCandidate found = best(zero);
    ASSERT_TRUE(found.problem.empty()) << found.problem;
    EXPECT_EQ(found.techniques.zero, zero);
    EXPECT_LT(found.plan.cost.memory[0], before);
    before = found.plan.cost.memory[0];
  }
  gpt.input.memoryBytes = before * 1.01;
  gpt.input.pinned.recompute = "none";
  EXPECT_FALSE(best(0).fits());
  PlanCandidate found = best(Strategy::kAuto);
  EXPECT_TRUE(found.fits());
  EXPECT_GT(found.techniques.zero, 0);
  gpt.input.memoryBytes = 0;
  EXPECT_EQ(best(Strategy::kAuto).techniques.zero, 0);
}

// The first candidate is the best of all, each planned in full.
TEST(PlanSearch, FindsTheBestOfAll) {
  Gpt gpt(4, 8, 4);
  PlanSearch search(gpt.input);
  SearchPolicy own = ownPolicy(gpt.input.pinned);
  std::vector<PlanCandidate> found = search.search(own);
  ASSERT_FALSE(found.empty());
  ASSERT_TRUE(found.front().problem.empty()) << found.front().problem;
  double best = 1e30;
  std::vector<Degrees> every = *search.degrees();
  for (const Degrees &d : every)
    if (PlanCandidate c = search.plan(d, own, false); c.problem.empty())
      best = std::min(best, c.plan.cost.seconds);
  EXPECT_NEAR(found.front().plan.cost.seconds, best, best * 1e-3);
  for (const SearchPolicy &policy : plainPolicies())
    for (const PlanCandidate &plain : search.search(policy))
      if (plain.problem.empty()) {
        EXPECT_GE(plain.plan.cost.seconds, best * (1 - 1e-9));
      }
}

// 10 million parameters on 64 GPUs: one collective a gradient, each over 126
// rounds, cost more than the step, and a deep pipeline looked better.
TEST(PlanSearch, SmallModelsAreReplicatedOverManyGpus) {
  Gpt gpt({.layers = 12,
           .batch = 512,
           .tokens = 256,
           .width = 256,
           .heads = 4,
           .vocabulary = 2048},
          64, 8);
  gpt.input.cluster = *costmodel::readCluster(
      MERAK_SOURCE_DIR "/samples/clusters/h100-8x8.json");
  gpt.input.reduction.early = true;
  auto seconds = [&](const Degrees &degrees) {
    PlanCandidate found =
        PlanSearch(gpt.input).plan(degrees, ownPolicy(gpt.input.pinned), true);
    EXPECT_EQ(found.problem, "");
    return found.plan.cost.seconds;
  };
  const double replicas = seconds({1, 64, 1, 1});
  EXPECT_LT(replicas, seconds({8, 8, 1, 16}));
  EXPECT_LT(replicas, seconds({16, 4, 1, 8}));
  gpt.input.reduction.bucketBytes = 0;
  const double each = seconds({1, 64, 1, 1});
  EXPECT_GT(each, 1.5 * replicas);
  gpt.input.cluster.algorithm = costmodel::Algorithm::Ring;
  const double rings = seconds({1, 64, 1, 1});
  EXPECT_GT(rings, 5 * each);
  EXPECT_GT(rings, seconds({16, 4, 1, 8})); // as it was decided before
}

// A stage is never slower at a higher level, nor faster than its kernels; what
// repeats is simulated once.
TEST(PlanSearch, OverlapIsSimulated) {
  Gpt gpt(6, 2, 2);
  gpt.input.cluster.intra.bandwidth /= 20;
  PlanSearch search(gpt.input);
  Degrees degrees{1, 1, 2, 4};
  std::vector<double> last[2];
  const StageModel &plain = *(*search.sharding(degrees, {}))->model;
  for (int level = 1; level <= kMaxOverlapLevel; ++level) {
    const StageModel &model = *(*search.sharding(degrees, {level}))->model;
    ASSERT_EQ(model.count(), plain.count());
    size_t i = 0;
    for (int begin = 0; begin < model.count(); begin += 7)
      for (int end = begin + 7; end <= model.count(); end += 7, ++i) {
        const StageCost &cost = model.cost(begin, end, {});
        for (int action : {0, 1}) {
          double seconds = action == 0 ? cost.times.F : cost.times.B;
          if (level > 1) {
            EXPECT_LE(seconds, last[action][i] * (1 + 1e-9));
            last[action][i] = seconds;
          } else {
            last[action].push_back(seconds);
          }
        }
        EXPECT_GE(cost.communication, 0);
      }
  }
  StageCost none = plain.cost(0, plain.count(), {});
  StageCost most =
      (*search.sharding(degrees, {3}))->model->cost(0, plain.count(), {});
  EXPECT_LT(most.communication, none.communication);
  // So `auto` takes it, and says so.
  gpt.input.pinned.tpOverlap = "auto";
  gpt.input.pinned.mesh = {{"tp", 2}};
  gpt.input.pinned.microbatch = 4;
  PlanCandidate best =
      PlanSearch(gpt.input).search(ownPolicy(gpt.input.pinned)).front();
  EXPECT_EQ(best.techniques.overlap, 3);
}

// Whatever schedule and recomputation a user names, `auto` is as fast, on
// random clusters with little and with enough memory.
TEST(PlanSearch, AutoIsNeverWorseThanANamedChoice) {
  std::mt19937 random(17);
  auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  int faster = 0, compared = 0;
  for (int round = 0; round < 12; ++round) {
    const int64_t pp = 2 * pick(1, 2), tp = pick(1, 2);
    Gpt gpt(pick(4, 6), pp * tp, pp * tp);
    for (costmodel::Link *link :
         {&gpt.input.cluster.intra, &gpt.input.cluster.inter})
      link->bandwidth /= pick(1, 30);
    gpt.input.pinned.mesh = {{"pp", pp}, {"dp", 1}, {"tp", tp}};
    gpt.input.pinned.microbatch = 1 << pick(0, 2);
    auto best = [&](const char *schedule, const char *recompute) {
      SearchInput input = gpt.input;
      input.pinned.schedule = schedule;
      input.pinned.recompute = recompute;
      return PlanSearch(input).search(ownPolicy(input.pinned)).front();
    };
    if (round % 3) {
      PlanCandidate open = best("1f1b", "none");
      for (double bytes : open.plan.cost.memory)
        gpt.input.memoryBytes = std::max(gpt.input.memoryBytes,
                                         bytes * (round % 3 == 1 ? 0.7 : 0.85));
    }
    PlanCandidate chosen = best("auto", "auto");
    for (const std::string &schedule : scheduleNames())
      for (const char *recompute : {"none", "0.5", "full", "auto"}) {
        PlanCandidate named = best(schedule.c_str(), recompute);
        if (!named.fits())
          continue;
        ++compared;
        EXPECT_TRUE(chosen.fits()) << round << " " << schedule << recompute;
        double ratio = chosen.plan.cost.seconds / named.plan.cost.seconds;
        EXPECT_LE(ratio, 1 + 1e-9)
            << round << " " << schedule << " " << recompute << " pp=" << pp
            << " tp=" << tp << " chosen " << chosen.plan.schedule.name;
        faster += ratio < 1 - 1e-9;
      }
  }
  EXPECT_GT(compared, 100);
  EXPECT_GT(faster, compared / 2);
}

// The search of a large cluster stays small: plans simulated, not seconds.
TEST(PlanSearch, CostOfTheSearch) {
  Gpt gpt(12, 64, 8, 96);
  gpt.input.pinned.tpOverlap = "auto";
  PlanSearch search(gpt.input);
  PlanCandidate best = search.search(ownPolicy(gpt.input.pinned)).front();
  EXPECT_TRUE(best.fits()) << best.problem;
  EXPECT_LT(search.evaluations(), 20000);
  RecordProperty("evaluations", int(search.evaluations()));
}

TEST(PlanSearch, LessMemoryIsNeverFaster) {
  Gpt gpt(4, 4, 4);
  double before = 0;
  for (double part : {1.0, 0.8, 0.6, 0.5}) {
    PlanSearch free(gpt.input);
    gpt.input.memoryBytes = 0;
    if (part < 1) {
      PlanCandidate open = free.search(ownPolicy({})).front();
      gpt.input.memoryBytes = 0;
      for (double bytes : open.plan.cost.memory)
        gpt.input.memoryBytes = std::max(gpt.input.memoryBytes, part * bytes);
    }
    PlanCandidate best = PlanSearch(gpt.input).search(ownPolicy({})).front();
    gpt.input.memoryBytes = 0;
    if (!best.fits())
      continue;
    EXPECT_GE(best.plan.cost.seconds, before * (1 - 1e-9));
    before = best.plan.cost.seconds;
  }
  EXPECT_GT(before, 0);
}

TEST(PlanSearch, ExplainsWhatDoesNotFit) {
  Gpt gpt(4, 4, 4);
  gpt.input.pinned.mesh = {{"pp", 2}, {"dp", 1}, {"tp", 2}};
  gpt.input.pinned.microbatch = 8;
  gpt.input.pinned.recompute = "none";
  PlanSearch open(gpt.input);
  PlanCandidate free = open.search(ownPolicy(gpt.input.pinned)).front();
  double most = 0;
  for (double bytes : free.plan.cost.memory)
    most = std::max(most, bytes);
  gpt.input.memoryBytes = most * 0.5;
  PlanSearch search(gpt.input);
  PlanCandidate closest = search.search(ownPolicy(gpt.input.pinned)).front();
  ASSERT_FALSE(closest.fits());
  std::string text = explainMisfit(search, gpt.input, closest).str();
  EXPECT_NE(text.find("no plan fits into the"), std::string::npos) << text;
  EXPECT_NE(text.find("its largest tensors"), std::string::npos);
  EXPECT_NE(text.find("it fits with"), std::string::npos) << text;
  gpt.input.memoryBytes = 1000;
  PlanSearch hopeless(gpt.input);
  text = explainMisfit(hopeless, gpt.input,
                       hopeless.search(ownPolicy(gpt.input.pinned)).front())
             .str();
  EXPECT_NE(text.find("it needs devices with"), std::string::npos) << text;
}

} // namespace
} // namespace merak::planning
