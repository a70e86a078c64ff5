// Stages, recomputation and schedules against brute force and by definition.
#include "passes/Planning/PipelinePlan.h"
#include "passes/Planning/ScheduleCheck.h"
#include "passes/Planning/StageCosts.h"
#include "passes/Planning/TransferPlaces.h"

#include <algorithm>
#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

namespace merak::planning {
namespace {

using Random = std::mt19937;
int pick(Random &random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

// Op i makes tensor i from one or two earlier ones, its gradient reads its
// operands or its result, and it may have a parameter.
StageProblem randomProblem(Random &random, int n) {
  StageProblem problem;
  for (int i = 0; i < n; ++i) {
    StageOp op;
    op.name = fmt::format("op{}", i);
    op.forward = op.recompute = pick(random, 0, 4);
    op.backward = pick(random, 0, 4);
    op.weight = pick(random, 0, 3);
    op.checkpoint = pick(random, 0, 5) == 0;
    op.workspace = pick(random, 0, 3);
    op.results = {i};
    if (i > 0) {
      op.operands = {i - 1};
      if (pick(random, 0, 2) == 0)
        op.operands.push_back(pick(random, 0, i - 1));
      for (int t : op.operands)
        if (pick(random, 0, 1))
          op.kept.push_back(t);
    }
    if (pick(random, 0, 1))
      op.kept.push_back(i);
    std::sort(op.kept.begin(), op.kept.end());
    op.kept.erase(std::unique(op.kept.begin(), op.kept.end()), op.kept.end());
    if (pick(random, 0, 1)) {
      StageParameter parameter;
      parameter.name = fmt::format("w{}", i);
      parameter.users = {i};
      parameter.bytes = parameter.gradientBytes = pick(random, 1, 4);
      parameter.stateBytes = 2 * parameter.bytes;
      parameter.updateSeconds = 0.25;
      problem.parameters.push_back(parameter);
    }
    problem.ops.push_back(op);
    double bytes = pick(random, 1, 8);
    problem.tensors.push_back({fmt::format("t{}", i), bytes, bytes, false});
  }
  return problem;
}

PipelineShape shapeOf(int stages, int microbatches) {
  PipelineShape shape;
  shape.stages = stages;
  shape.microbatches = microbatches;
  for (int s = 0; s + 1 < stages; ++s)
    shape.links.push_back({0.25, 0.0625});
  return shape;
}

void forAllCuts(int n, int parts,
                const std::function<void(const std::vector<int> &)> &use) {
  std::vector<int> begin = {0};
  std::function<void()> extend = [&] {
    if (int(begin.size()) == parts) {
      begin.push_back(n);
      use(begin);
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
}

// Kept and recomputed bytes of a stage by definition.
struct Bytes {
  double kept = 0, again = 0, seconds = 0;
};
Bytes bytesByDefinition(const StageProblem &problem, int begin, int end,
                        const std::function<bool(int)> &marked) {
  std::set<int> wanted;
  auto want = [&](const std::vector<int> &tensors) {
    for (int t : tensors) {
      while (problem.tensors[t].viewOf >= 0 && t >= begin)
        t = problem.tensors[t].viewOf;
      wanted.insert(t);
    }
  };
  for (int i = begin; i < end; ++i)
    want(problem.ops[i].kept);
  Bytes out;
  std::set<int> ran;
  bool changed = true;
  while (changed) { // values needed to make again what is wanted
    changed = false;
    for (int t : std::set<int>(wanted))
      if (t >= begin && t < end && marked(t) && ran.insert(t).second) {
        changed = true;
        want(problem.ops[t].operands);
      }
  }
  for (int t : wanted)
    (ran.count(t) ? out.again : out.kept) += problem.tensors[t].bytes;
  for (int i : ran)
    out.seconds += problem.ops[i].recompute;
  return out;
}

TEST(StageModel, CountsBytesByDefinition) {
  Random random(3);
  for (int round = 0; round < 300; ++round) {
    int n = pick(random, 2, 12);
    StageProblem problem = randomProblem(random, n);
    for (int i = 1; i < n && round % 2 == 1; ++i)
      if (pick(random, 0, 2) == 0)
        problem.tensors[i].viewOf = problem.ops[i].operands[0];
    StageModel model(problem);
    int begin = pick(random, 0, n - 1), end = pick(random, begin + 1, n);
    Marks marks{pick(random, 0, model.levels()), pick(random, 0, n)};
    StageCost cost = model.cost(begin, end, marks);
    auto marked = [&](int op) {
      return !problem.ops[op].checkpoint &&
             (model.level(op) < marks.level || op < marks.until);
    };
    Bytes expected = bytesByDefinition(problem, begin, end, marked);
    EXPECT_EQ(cost.keptBytes, expected.kept);
    EXPECT_EQ(cost.recomputedBytes, expected.again);
    EXPECT_EQ(cost.times.R, expected.seconds);
  }
}

// A copy that two stages read, and one of the first stage.
TEST(StageModel, CopiesOfParametersAreMadeBeforeTheFirstForward) {
  StageProblem problem;
  for (int i = 0; i < 3; ++i) {
    StageOp op;
    op.results = op.kept = {i};
    problem.ops.push_back(op);
    problem.tensors.push_back({"", 1, 0, false});
  }
  StageParameter parameter;
  parameter.users = {0, 2};
  parameter.bytes = 4;
  parameter.copies = {{2, 0, 5, {0, 2}}};
  problem.parameters = {parameter};
  parameter.users = {1};
  parameter.copies = {{8, 0, 7, {1}}};
  problem.parameters.push_back(parameter);
  StageModel model(problem);
  const StageCost first = model.cost(0, 2, {}), last = model.cost(2, 3, {});
  EXPECT_EQ(first.gathered, 12);
  EXPECT_EQ(first.parameterBytes, 4 + 4 + 2 + 8);
  EXPECT_EQ(last.gathered, 5);
  EXPECT_EQ(last.parameterBytes, 4 + 2);
}

// Every recomputeRank frees bytes in a stage that holds all ops, and costs no
// less a byte than the ones before it where nothing depends on anything.
TEST(StageModel, LadderFreesBytes) {
  Random random(5);
  for (int round = 0; round < 100; ++round) {
    int n = pick(random, 2, 14);
    StageProblem problem = randomProblem(random, n);
    StageModel model(problem);
    double kept = model.cost(0, n, {0, 0}).keptBytes;
    for (int level = 1; level < model.levels(); ++level) {
      double now = model.cost(0, n, {level, 0}).keptBytes;
      EXPECT_LT(now, kept);
      kept = now;
    }
  }
}

TEST(StageModel, LadderStartsWithTheCheapestByte) {
  StageProblem problem;
  double seconds[] = {4, 1, 2}, bytes[] = {8, 1, 8};
  for (int i = 0; i < 3; ++i) {
    StageOp op;
    op.recompute = seconds[i];
    op.results = op.kept = {i};
    problem.ops.push_back(op);
    problem.tensors.push_back({"", bytes[i], 0, false});
  }
  StageModel model(problem);
  EXPECT_EQ(model.level(2), 0); // 1/4 second a byte
  EXPECT_EQ(model.level(0), 1); // 1/2
  EXPECT_EQ(model.level(1), 2); // 1
}

// Results of collectives are kept, whatever is asked for.
TEST(StageModel, NeverRepeatsACollective) {
  StageProblem problem;
  for (int i = 0; i < 4; ++i) {
    StageOp op;
    op.forward = op.recompute = 1;
    op.results = {i};
    op.kept = {i};
    if (i > 0)
      op.operands = {i - 1};
    op.checkpoint = i == 1;
    problem.ops.push_back(op);
    problem.tensors.push_back({"", 1, 0, false});
  }
  StageModel model(problem);
  StageCost full = model.cost(0, 4, {model.levels(), 0});
  EXPECT_EQ(full.keptBytes, 1);
  EXPECT_EQ(full.recomputedBytes, 3);
  EXPECT_EQ(full.times.R, 3);
}

// Pieces of one op stay together.
TEST(StageModel, NeverCutsAnOpApart) {
  Random random(23);
  StageProblem problem = randomProblem(random, 10);
  for (int i : {3, 4, 6})
    problem.ops[i].piece = 7;
  StageModel model(problem);
  EXPECT_EQ(model.positions(2), (std::vector<int>{0, 1, 2, 3, 7, 8, 9, 10}));
}

TEST(Cuts, UniformFloorOfMerak) {
  std::ifstream file(MERAK_SOURCE_DIR "/test/data/golden/schedules.json");
  nlohmann::json golden =
      nlohmann::json::parse(file)["uniform_floor_boundaries"];
  EXPECT_EQ(golden.size(), 7u);
  for (const auto &entry : golden)
    EXPECT_EQ(uniformFloor(entry["n"], entry["p"]),
              entry["boundaries"].get<std::vector<int>>());
  for (int p = 1; p < 12; ++p)
    for (int n = p; n < 40; ++n) {
      std::vector<int> cuts = uniformFloor(n, p);
      ASSERT_EQ(cuts.size(), size_t(p) + 1);
      EXPECT_EQ(cuts.back(), n);
      for (int q = 0; q < p; ++q)
        EXPECT_LT(cuts[q], cuts[q + 1]) << n << " on " << p;
    }
}

TEST(Cuts, BalanceEqualsBruteForce) {
  Random random(7);
  for (int round = 0; round < 200; ++round) {
    int n = pick(random, 1, 9), p = pick(random, 1, std::min(n, 4));
    std::vector<double> weights;
    for (int i = 0; i < n; ++i)
      weights.push_back(pick(random, 0, 9));
    // Of half of the rounds, by stage; parts may be several on a stage.
    std::vector<double> slowness;
    for (int s = 0; round % 2 && s < std::max(1, p / 2); ++s)
      slowness.push_back(pick(random, 1, 4));
    auto worst = [&](const std::vector<int> &begin) {
      double most = 0;
      for (int q = 0; q < p; ++q) {
        double sum = 0;
        for (int i = begin[q]; i < begin[q + 1]; ++i)
          sum += weights[i];
        if (!slowness.empty())
          sum *= slowness[q % slowness.size()];
        most = std::max(most, sum);
      }
      return most;
    };
    double best = 1e9;
    forAllCuts(n, p, [&](const auto &b) { best = std::min(best, worst(b)); });
    std::vector<int> found = balance(weights, p, slowness);
    for (int q = 0; q < p; ++q)
      ASSERT_LT(found[q], found[q + 1]);
    EXPECT_EQ(worst(found), best);
  }
}

// By definition: of equally good last parts the shortest one. On stages that
// are alike, of unlike speeds, or with weights of their own.
TEST(Cuts, BalanceTakesTheLastOfEqualCuts) {
  Random random(8);
  for (int round = 0; round < 900; ++round) {
    const int n = pick(random, 1, 24), p = pick(random, 1, n);
    const int stages = round < 300 ? 1 : pick(random, 1, p);
    std::vector<double> slowness;
    std::vector<std::vector<double>> weights, prefixes;
    for (int s = 0; s < stages; ++s) {
      slowness.push_back(pick(random, 1, 4));
      weights.emplace_back();
      prefixes.emplace_back(1, 0);
      for (int i = 0; i < n; ++i) {
        // Of unlike speeds the same ops.
        const double weight = s > 0 && round < 600
                                  ? weights[0][size_t(i)]
                                  : pick(random, 0, round % 3 ? 9 : 1) / 7.0;
        weights.back().push_back(weight);
        prefixes.back().push_back(prefixes.back().back() + weight);
      }
    }
    if (round < 300 || round >= 600)
      slowness.clear();
    const auto weightOf = [&](int q, int begin, int end) {
      const std::vector<double> &prefix = prefixes[(q - 1) % stages];
      const double slow = slowness.empty() ? 1 : slowness[(q - 1) % stages];
      return slow * (prefix[end] - prefix[begin]);
    };
    const double none = std::numeric_limits<double>::infinity();
    std::vector<std::vector<double>> best(p + 1,
                                          std::vector<double>(n + 1, none));
    std::vector<std::vector<int>> from(p + 1, std::vector<int>(n + 1, 0));
    best[0][0] = 0;
    for (int q = 1; q <= p; ++q)
      for (int i = q; i <= n; ++i)
        for (int j = q - 1; j < i; ++j) {
          const double most = std::max(best[q - 1][j], weightOf(q, j, i));
          if (most <= best[q][i]) {
            best[q][i] = most;
            from[q][i] = j;
          }
        }
    const std::vector<int> found =
        round < 600 ? balance(weights[0], p, slowness) : balance(weights, p);
    double heaviest = 0;
    for (int q = 0; q < p; ++q)
      heaviest = std::max(heaviest, weightOf(q + 1, found[q], found[q + 1]));
    EXPECT_EQ(heaviest, best[p][n]);
    for (int q = p, i = n; q > 0; --q) {
      EXPECT_EQ(found[q - 1], from[q][i]) << round << " " << n << " " << p;
      i = from[q][i];
    }
  }
}

// A stage whose devices are slow gets less to do, and what it does is priced
// so.
TEST(PipelinePlan, SlowStagesGetLess) {
  Random random(31);
  for (int round = 0; round < 20; ++round) {
    StageProblem problem = randomProblem(random, 30);
    StageModel model(problem);
    PipelineShape shape = shapeOf(3, 12);
    PipelineOptions options;
    options.schedules = {"1f1b"};
    Result<PipelinePlan> even = planPipeline(model, shape, options);
    shape.slowness = {1, 4, 1};
    Result<PipelinePlan> uneven = planPipeline(model, shape, options);
    ASSERT_TRUE(even.ok() && uneven.ok());
    PipelineOptions same = options;
    same.begin = even->begin;
    const double stays = planPipeline(model, shape, same)->cost.seconds;
    EXPECT_LT(uneven->cost.seconds, stays);
    EXPECT_GT(stays, 1.5 * even->cost.seconds);
    EXPECT_LT(model.seconds(uneven->begin[1], uneven->begin[2]),
              model.seconds(even->begin[1], even->begin[2]));
  }
}

// Local search against all cuts: never far, mostly equal. Few cuts are tried
// one by one, so the instances are larger than that.
TEST(PipelinePlan, CutsAgainstBruteForce) {
  Random random(11);
  int equal = 0, rounds = 60;
  for (int round = 0; round < rounds; ++round) {
    int n = pick(random, 16, 20), p = 4, m = pick(random, 4, 8);
    StageProblem problem = randomProblem(random, n);
    StageModel model(problem);
    PipelineShape shape = shapeOf(p, m);
    if (round % 2)
      shape.memoryBytes = pick(random, 60, 160);
    if (round % 4 > 1) // some devices are slow
      for (int s = 0; s < p; ++s)
        shape.slowness.push_back(pick(random, 0, 2) ? 1 : pick(random, 2, 5));
    PipelineOptions options;
    options.schedules = {round % 3 ? "scp" : "1f1b"};
    Result<PipelinePlan> plan = planPipeline(model, shape, options);
    ASSERT_TRUE(plan.ok()) << plan.status().str();
    double best = 1e30, excess = 1e30;
    forAllCuts(n, p, [&](const std::vector<int> &begin) {
      PipelineOptions given = options;
      given.begin = begin;
      PipelineCost cost = planPipeline(model, shape, given)->cost;
      if (cost.excessBytes < excess ||
          (cost.excessBytes == excess && cost.seconds < best)) {
        excess = cost.excessBytes;
        best = cost.seconds;
      }
    });
    EXPECT_GE(plan->cost.excessBytes, excess);
    if (plan->cost.excessBytes > excess)
      continue;
    EXPECT_LE(plan->cost.seconds, best * (shape.slowness.empty() ? 1.1 : 1.2));
    equal += plan->cost.seconds <= best * (1 + 1e-9);
  }
  EXPECT_GE(equal, rounds * 3 / 4);
}

// Within each stage's own memory, and no recomputeRank more than needed.
TEST(PipelinePlan, RecomputesAsLittleAsFits) {
  Random random(13);
  int recomputed = 0;
  for (int round = 0; round < 400; ++round) {
    int n = pick(random, 6, 12), p = pick(random, 2, 3);
    StageProblem problem = randomProblem(random, n);
    StageModel model(problem);
    PipelineShape shape = shapeOf(p, 6);
    shape.memoryBytes = pick(random, 50, 150);
    Result<PipelinePlan> plan = planPipeline(model, shape, {});
    ASSERT_TRUE(plan.ok());
    if (!plan->cost.fits())
      continue;
    for (int s = 0; s < p; ++s) {
      EXPECT_LE(plan->cost.memory[s], shape.memoryBytes);
      if (plan->marks[s].level == 0)
        continue;
      ++recomputed;
      std::vector<Marks> fewer = plan->marks;
      --fewer[s].level;
      EXPECT_GT(pipelineCost(model, shape, plan->schedule, plan->begin, fewer)
                    .memory[s],
                shape.memoryBytes);
    }
  }
  EXPECT_GT(recomputed, 10);
}

// What is not priced since a stage has no place is what does not fit when it is
// priced; what fits is the same plan.
TEST(PipelinePlan, WithoutAPlaceIsWhatDoesNotFit) {
  Random random(19);
  int fitting = 0, without = 0;
  for (int round = 0; round < 400; ++round) {
    const int n = pick(random, 6, 12), p = pick(random, 1, 3);
    StageProblem problem = randomProblem(random, n);
    StageModel model(problem);
    PipelineShape shape = shapeOf(p, 6);
    shape.memoryBytes = pick(random, 30, 150);
    PipelineOptions options;
    options.schedules = {"1f1b", "gpipe"};
    options.cut = CutRule::MinMax;
    options.recompute =
        std::vector<std::string>{"auto", "none", "full", "0.5"}[round % 4];
    Status status;
    const std::vector<PipelinePlan> all =
        planSchedules(model, shape, options, status);
    options.fitting = true;
    const std::vector<PipelinePlan> asked =
        planSchedules(model, shape, options, status);
    ASSERT_TRUE(status.ok()) << status.str();
    ASSERT_EQ(all.size(), asked.size());
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].cost.fits(), !asked[i].noPlace);
      EXPECT_EQ(all[i].cost.fits(), asked[i].cost.fits());
      EXPECT_EQ(all[i].schedule.name, asked[i].schedule.name);
      (all[i].cost.fits() ? fitting : without) += 1;
      if (!all[i].cost.fits())
        continue;
      EXPECT_EQ(all[i].begin, asked[i].begin);
      EXPECT_EQ(all[i].marks, asked[i].marks);
      EXPECT_EQ(all[i].cost.seconds, asked[i].cost.seconds);
    }
  }
  EXPECT_GT(fitting, 100);
  EXPECT_GT(without, 100);
}

// Simulated time equals the schedule simulator's on the same stages.
TEST(PipelinePlan, CostIsTheSimulatedTime) {
  Random random(17);
  for (int round = 0; round < 50; ++round) {
    int n = pick(random, 4, 12), p = pick(random, 1, 4);
    StageProblem problem = randomProblem(random, n);
    StageModel model(problem);
    PipelineShape shape = shapeOf(p, 5);
    PipelineOptions options;
    options.recompute = "full";
    options.schedules = {"1f1b", "early"};
    Result<PipelinePlan> plan = planPipeline(model, shape, options);
    ASSERT_TRUE(plan.ok());
    SimulateOptions simulation;
    double optimizer = 0; // after the norm, which all stages wait for
    for (int s = 0; s < p; ++s) {
      StageCost cost =
          model.cost(plan->begin[s], plan->begin[s + 1], plan->marks[s]);
      simulation.times.push_back(cost.times);
      optimizer = std::max(optimizer, cost.optimizer);
      if (s + 1 < p) {
        auto seconds = [](double bytes) {
          return bytes > 0 ? 0.25 + bytes * 0.0625 : 0;
        };
        int at = plan->begin[s + 1];
        simulation.boundaries.push_back({seconds(model.forwardBytes(at)),
                                         seconds(model.gradientBytes(at)), 0,
                                         0});
      }
    }
    EXPECT_DOUBLE_EQ(plan->cost.seconds,
                     simulate(plan->schedule, simulation).total + optimizer);
  }
}

// Two stages of two ops, each a second of computing and then two of
// collectives; a microbatch's transfer takes three seconds each way.
TEST(PipelinePlan, CollectivesWaitForTransfersOnTheirLinks) {
  StageProblem problem;
  for (int i = 0; i < 4; ++i) {
    StageOp op;
    op.name = fmt::format("op{}", i);
    op.forward = op.backward = 3;
    op.waitsForward = op.waitsBackward = 2;
    op.communication = 4;
    op.results = {i};
    if (i > 0)
      op.operands = {i - 1};
    problem.ops.push_back(op);
    problem.tensors.push_back({op.name, 3, 3, false});
  }
  StageModel model(problem);
  EXPECT_EQ(model.cost(0, 2, {}).slackForward, 1);
  EXPECT_EQ(model.cost(0, 2, {}).slackBackward, 1);
  ScheduleOptions make;
  make.stages = 2;
  make.microbatches = 4;
  make.splitBackward = make.update = true;
  Schedule schedule = *makeSchedule("1f1b", make);
  for (bool shared : {false, true}) {
    PipelineShape shape;
    shape.stages = 2;
    shape.microbatches = 4;
    shape.links = {{0.5, 1, shared}};
    PipelineCost cost =
        pipelineCost(model, shape, schedule, {0, 2, 4}, {{}, {}});
    // The first second of an action needs no link.
    double more = shared ? 3 - 1 : 0;
    for (const StageCost &stage : cost.stages) {
      EXPECT_EQ(stage.times.F, 6 + more);
      EXPECT_EQ(stage.times.B, 6 + more);
      EXPECT_EQ(stage.communication, 8 + 2 * more);
    }
  }
}

// The last stage of scp and last keeps its activations and takes more layers.
TEST(PipelinePlan, StageWithoutRecomputationGetsMore) {
  StageProblem problem;
  for (int i = 0; i < 40; ++i) {
    StageOp op;
    op.name = fmt::format("layer{}", i);
    op.forward = op.recompute = 1;
    op.backward = op.weight = 1;
    op.results = op.kept = {i};
    if (i > 0)
      op.operands = {i - 1};
    problem.ops.push_back(op);
    problem.tensors.push_back({"", 1, 1, false});
  }
  StageModel model(problem);
  PipelineShape shape;
  shape.stages = 4;
  shape.microbatches = 32;
  PipelineOptions options;
  options.schedules = {"scp"};
  options.recompute = "full";
  Result<PipelinePlan> plan = planPipeline(model, shape, options);
  ASSERT_TRUE(plan.ok());
  int last = plan->begin[4] - plan->begin[3];
  EXPECT_GT(last, 10);
  options.cutter = equalLayers;
  EXPECT_LT(plan->cost.seconds,
            planPipeline(model, shape, options)->cost.seconds);
}

// A list made for the costs is taken where it is faster and fits.
TEST(PipelinePlan, ListsAreNeverWorse) {
  Random random(23);
  int better = 0;
  for (int round = 0; round < 60; ++round) {
    int n = pick(random, 4, 12), p = pick(random, 2, 4);
    StageProblem problem = randomProblem(random, n);
    StageModel model(problem);
    PipelineShape shape = shapeOf(p, 6);
    if (round % 2)
      shape.memoryBytes = pick(random, 40, 160);
    PipelineOptions options;
    options.recompute = round % 3 ? "auto" : "full";
    options.schedules = {"1f1b", "scp"};
    PipelinePlan plan = *planPipeline(model, shape, options);
    PipelinePlan named = plan;
    bool improved = improveSchedule(model, shape, plan);
    better += improved;
    EXPECT_EQ(improved, plan.cost.seconds < named.cost.seconds);
    EXPECT_LE(plan.cost.excessBytes, named.cost.excessBytes);
    Status status = checkSchedule(plan.schedule);
    EXPECT_TRUE(status.ok()) << status.str();
    // No named schedule is faster on these stages, but for what a list must
    // gain to be taken.
    ScheduleOptions make;
    make.stages = p;
    make.microbatches = 6;
    make.splitBackward = make.update = true;
    for (const StageCost &stage : named.cost.stages)
      make.recomputeStages.push_back(stage.times.R > 0 ||
                                     stage.recomputedBytes > 0);
    for (const std::string &name : scheduleNames()) {
      PipelineCost cost = pipelineCost(model, shape, *makeSchedule(name, make),
                                       plan.begin, plan.marks);
      if (cost.fits()) {
        EXPECT_LE(plan.cost.seconds, cost.seconds * 1.0011) << name;
      }
    }
  }
  EXPECT_GT(better, 15);
}

// Reductions one after the other, each after the gradients before it; in the
// update all of them.
class ReductionTest : public ::testing::Test {
protected:
  StageProblem problem;
  PipelineShape shape;

  ReductionTest() {
    for (int i = 0; i < 3; ++i) {
      StageOp op;
      op.weight = 4;
      op.backward = 1;
      op.results = {i};
      problem.ops.push_back(op);
      problem.tensors.push_back({"", 1, 0, false});
      StageParameter parameter;
      parameter.users = {i};
      parameter.bytes = parameter.gradientBytes = i == 2 ? 6 : 2;
      problem.parameters.push_back(parameter);
    }
    shape.reduce.replicas = 2;
    shape.reduce.seconds = [](double bytes) { return 1 + bytes; };
  }
  double exposed(int begin, int end) {
    StageModel model(problem);
    return model.exposedReduction(begin, end, shape.reduce,
                                  model.cost(begin, end, {}).times.W);
  }
};

TEST_F(ReductionTest, HidesBehindTheLastGradients) {
  EXPECT_DOUBLE_EQ(exposed(0, 3), 3 + 3 + 7);
  EXPECT_DOUBLE_EQ(exposed(1, 3), 3 + 7);
  shape.reduce.early = true;
  // Ops 2 and 1: final at 4 and 8, on the links until 11 and 14.
  EXPECT_DOUBLE_EQ(exposed(1, 3), 14 - 8);
  // With B and W in one: final at 5, 10, 15; until 12, 15, 18.
  EXPECT_DOUBLE_EQ(exposed(0, 3), 18 - 15);
  shape.reduce = {};
  EXPECT_DOUBLE_EQ(exposed(0, 3), 0);
}

TEST_F(ReductionTest, ATiedGradientIsFinalWithItsLastUse) {
  shape.reduce.early = true;
  problem.parameters[2].users = {0, 2};
  // Op 1's 2 bytes at 10, op 0's own 2 and the 6 of op 2 at 15.
  EXPECT_DOUBLE_EQ(exposed(0, 3), 3 + 7);
  // Stages that both have it exchange it first: in the update, 7 more.
  EXPECT_DOUBLE_EQ(exposed(1, 3), 8 + 3 - 8 + 7);
}

TEST_F(ReductionTest, BucketsWaitForTheirLastMember) {
  shape.reduce.bucketBytes = 8;
  EXPECT_DOUBLE_EQ(exposed(0, 3), 9 + 3); // 6 + 2, then 2
  shape.reduce.early = true;
  // 8 bytes at 10 until 19, 2 bytes until 22.
  EXPECT_DOUBLE_EQ(exposed(0, 3), 22 - 15);
  shape.reduce.bucketBytes = 5; // the first is larger than a bucket
  // 6 bytes at 5 until 12, 4 bytes at 15 until 20.
  EXPECT_DOUBLE_EQ(exposed(0, 3), 20 - 15);
  shape.reduce.bucketBytes = 100;
  EXPECT_DOUBLE_EQ(exposed(0, 3), 11); // nothing left to hide behind
}

// What is priced is what PlanCosts says of the same message.
TEST(PipelineShape, GradientsAreReducedByTheClustersCollectives) {
  costmodel::Cluster cluster;
  cluster.count = 64;
  cluster.perNode = 8;
  cluster.intra = {450e9, 5e-6};
  cluster.inter = {50e9, 10e-6};
  cluster.algorithm = costmodel::Algorithm::Nccl;
  PipelineShape shape = makePipelineShape(cluster, {2, 16, 2, 1}, 0);
  std::vector<int64_t> devices;
  for (int64_t i = 0; i < 16; ++i)
    devices.push_back(2 * i);
  for (double bytes : {1.0, 1e4, 1e6, 1e9})
    EXPECT_DOUBLE_EQ(
        shape.reduce.seconds(bytes),
        costmodel::collectiveSeconds(costmodel::Collective::AllReduce, bytes,
                                     devices, cluster, 2));
  EXPECT_EQ(makePipelineShape(cluster, {64, 1, 1, 1}, 0).reduce.replicas, 1);
  ReductionOptions each;
  each.bucketBytes = 0;
  EXPECT_EQ(
      makePipelineShape(cluster, {1, 64, 1, 1}, 0, each).reduce.bucketBytes, 0);
}

TEST(PipelineShape, JoiningPaysBelowTwiceTheLatency) {
  // 10 us and 1 GB/s: half of both at 10 kB, the next power of two is 16 KiB.
  EXPECT_EQ(worthJoining([](double b) { return 1e-5 + b / 1e9; }), 16384);
  EXPECT_EQ(worthJoining([](double b) { return 1e-2 + b / 1e9; }), 1 << 24);
  EXPECT_EQ(worthJoining([](double b) { return b / 1e9; }), 4096);
  EXPECT_EQ(worthJoining([](double) { return 1.0; }), 1 << 30);
}

// Copies of values by definition: of each pair of actions the most microbatches
// between the two, ends included; what is received, from the neighbour or past
// it, from its arrival on.
void countCopiesByDefinition(int distance) {
  for (const std::string &name : scheduleNames()) {
    ScheduleOptions make;
    make.stages = 3;
    make.microbatches = 6;
    make.chunks = name == "interleaved" ? 2 : 1;
    make.recompute = make.splitBackward = make.update = true;
    Schedule schedule = *makeSchedule(name, make);
    std::vector<PerLiveKind<int>> copies = copiesOf(schedule, distance);
    std::vector<Transfer> transfers = chainTransfers(schedule, distance);
    std::vector<Transfer> all = transfers;
    for (const Transfer &transfer : chainTransfers(schedule))
      all.push_back(transfer);
    std::vector<TransferRoom> rooms = roomsOf(schedule, all);
    for (int v = 0; v < schedule.virtualStages(); ++v) {
      const std::vector<Step> &order = schedule.order[v % 3];
      auto most = [&](Action from, Action to, int before, int after) {
        auto place = [&](Action action, int microbatch) {
          for (size_t i = 0; i < order.size(); ++i)
            if (order[i].action == action && order[i].chunk == v / 3 &&
                order[i].microbatch == microbatch)
              return int(i);
          return -1;
        };
        auto start = [&](int microbatch) {
          int first = place(from, microbatch) - before;
          for (size_t t = 0; before && t < transfers.size(); ++t)
            if (transfers[t].toStage == v % 3 &&
                transfers[t].toChunk == v / 3 && transfers[t].toAction == from)
              first = std::min(first, rooms[t].arrivals[microbatch]);
          return first;
        };
        auto end = [&](int microbatch) {
          int last = place(to, microbatch) + after;
          for (size_t t = 0; after && t < transfers.size(); ++t)
            if (transfers[t].fromStage == v % 3 &&
                transfers[t].fromChunk == v / 3 &&
                transfers[t].fromAction == from)
              last = std::max(last, rooms[t].departures[microbatch] - 1);
          return last;
        };
        int found = 0;
        for (int at = -1; at <= int(order.size()); ++at) {
          int alive = 0;
          for (int m = 0; m < schedule.microbatches; ++m)
            alive += start(m) <= at && at <= end(m);
          found = std::max(found, alive);
        }
        return found;
      };
      EXPECT_EQ(copies[v].at(LiveKind::FW), most(Action::F, Action::W, 0, 0));
      EXPECT_EQ(copies[v].at(LiveKind::FB, true),
                most(Action::F, Action::B, 1, 0));
      EXPECT_EQ(copies[v].at(LiveKind::BW, true),
                most(Action::B, Action::W, 1, 0));
      EXPECT_EQ(copies[v].at(LiveKind::BW), most(Action::B, Action::W, 0, 0));
      EXPECT_EQ(copies[v].at(LiveKind::F, false, true),
                most(Action::F, Action::F, 0, 1));
      bool again = !(name == "last" || name == "scp") || v % 3 != 2;
      if (again) {
        EXPECT_EQ(copies[v].at(LiveKind::RW), most(Action::R, Action::W, 0, 0));
      }
    }
  }
}

TEST(LiveBytes, CopiesAreCountedByDefinition) {
  countCopiesByDefinition(1);
  countCopiesByDefinition(2);
}

// The value of op 0 is read by op 2 and, past a stage, by op 6.
TEST(StageModel, ValuesGoStraightToTheStagesThatUseThem) {
  StageProblem problem;
  for (int i = 0; i < 8; ++i) {
    StageOp op;
    op.name = fmt::format("op{}", i);
    op.results = {i};
    if (i > 0)
      op.operands = {i - 1};
    if (i == 2 || i == 6)
      op.operands.push_back(0);
    op.kept = op.operands;
    problem.ops.push_back(op);
    problem.tensors.push_back(
        {op.name, i == 0 ? 100.0 : 1.0, i == 0 ? 100.0 : 1.0, false});
  }
  StageModel model(problem);
  auto arriving = [&](int begin, int end) {
    std::map<std::pair<int, LiveKind>, double> bytes;
    for (const ArrivingValue &value : model.cost(begin, end, {}).arriving)
      bytes[{value.from, value.life}] += value.bytes;
    return bytes;
  };
  using Arriving = std::map<std::pair<int, LiveKind>, double>;
  // Ops 0-1 get the sum of gradients from op 2; 2-3 the one from op 6.
  EXPECT_EQ(arriving(0, 2), (Arriving{{{2, LiveKind::B}, 101}}));
  EXPECT_EQ(arriving(2, 4), (Arriving{{{0, LiveKind::FB}, 100},
                                      {{1, LiveKind::FB}, 1},
                                      {{4, LiveKind::B}, 1},
                                      {{6, LiveKind::B}, 100}}));
  EXPECT_EQ(arriving(4, 6),
            (Arriving{{{3, LiveKind::FB}, 1}, {{6, LiveKind::B}, 1}}));
  EXPECT_EQ(arriving(6, 8),
            (Arriving{{{0, LiveKind::FB}, 100}, {{5, LiveKind::FB}, 1}}));
  // Gradients leave where the value is used.
  auto left = [&](int begin, int end) {
    return model.cost(begin, end, {}).held.at(LiveKind::B, false, true);
  };
  EXPECT_EQ(left(2, 4), 101);
  EXPECT_EQ(left(4, 6), 1);
  EXPECT_EQ(left(6, 8), 101);
  // A plan of these stages holds what comes, for the way that it came.
  PipelineShape shape;
  shape.stages = 4;
  shape.microbatches = 8;
  ScheduleOptions make;
  make.stages = 4;
  make.microbatches = 8;
  make.splitBackward = make.update = true;
  Schedule schedule = *makeSchedule("1f1b", make);
  std::vector<int> begin = {0, 2, 4, 6, 8};
  std::vector<Marks> marks(4);
  PipelineCost cost = pipelineCost(model, shape, schedule, begin, marks);
  for (int v = 0; v < 4; ++v) {
    const StageCost &stage = model.cost(begin[v], begin[v + 1], {});
    double bytes = stage.workspace + bytesOf(stage.held, copiesOf(schedule)[v]);
    for (const ArrivingValue &value : stage.arriving)
      bytes +=
          value.bytes * copiesOf(schedule, std::abs(value.from / 2 - v))[v].at(
                            value.life, true);
    EXPECT_EQ(cost.memory[v], bytes) << v;
  }
}

// A large model is cut between shards, unless there are more stages.
TEST(PipelinePlan, CutsInsideOfShardsWhereStagesAreMany) {
  Random random(23);
  StageProblem problem = randomProblem(random, 300);
  StageModel model(problem);
  const int shards = int(model.blockBounds().size()) - 1;
  ASSERT_LT(shards, 100);
  EXPECT_EQ(model.positions(shards), model.blockBounds());
  EXPECT_EQ(model.positions(shards + 1).size(), 301u);
  PipelineOptions options;
  options.budget = 1000;
  auto plan = planPipeline(model, shapeOf(shards + 1, 2 * shards), options);
  ASSERT_TRUE(plan.ok()) << plan.status().str();
  EXPECT_EQ(plan->begin.size(), size_t(shards) + 2);
}

TEST(PipelinePlan, ExplainsWhatCannotBe) {
  Random random(19);
  StageProblem problem = randomProblem(random, 3);
  StageModel model(problem);
  EXPECT_EQ(planPipeline(model, shapeOf(5, 8), {}).status().str(),
            "5 stages need at least as many operations, found 3");
  PipelineOptions options;
  options.schedules = {"nobody"};
  EXPECT_NE(planPipeline(model, shapeOf(2, 3), options)
                .status()
                .str()
                .find("there is no schedule 'nobody'"),
            std::string::npos);
}

} // namespace
} // namespace merak::planning
