// Stage problems of many equal layers by those of few: the same to the last
// bit, and none where layers differ.
#include "passes/Planning/EqualLayers.h"

#include "passes/Planning/PlanSearch.h"
#include "test/unit/planning/ModelGraphs.h"

#include <cmath>
#include <gtest/gtest.h>
#include <random>

namespace merak::planning {
namespace {

struct Model {
  test::TrainGraph model;
  Classes classes;
  SearchInput input;
};

std::unique_ptr<Model> makeModel(const test::GptOptions &options) {
  auto out = std::make_unique<Model>();
  out->model = test::makeGpt(options);
  out->classes = unify(out->model.graph);
  out->input.graph = &out->model.graph;
  out->input.classes = &out->classes;
  out->input.batched = {out->model.find("input_ids"),
                        out->model.find("labels")};
  out->input.cluster = costmodel::defaultCluster(8);
  out->input.cluster.perNode = 4;
  out->input.globalBatch = options.batch;
  return out;
}

void expectSame(const StageProblem &a, const StageProblem &b,
                const std::string &what) {
  ASSERT_EQ(a.ops.size(), b.ops.size()) << what;
  for (size_t i = 0; i < a.ops.size(); ++i)
    ASSERT_TRUE(a.ops[i] == b.ops[i]) << what << ": " << a.ops[i].name.str();
  ASSERT_EQ(a.tensors.size(), b.tensors.size()) << what;
  for (size_t i = 0; i < a.tensors.size(); ++i)
    ASSERT_TRUE(a.tensors[i] == b.tensors[i])
        << what << ": " << a.tensors[i].name.str();
  ASSERT_EQ(a.parameters.size(), b.parameters.size()) << what;
  for (size_t i = 0; i < a.parameters.size(); ++i)
    ASSERT_TRUE(a.parameters[i] == b.parameters[i])
        << what << ": " << a.parameters[i].name.str();
  ASSERT_EQ(a.weightSums, b.weightSums) << what;
  for (size_t action = 0; action < 3; ++action) {
    ASSERT_EQ(a.submicrobatches[action].size(),
              b.submicrobatches[action].size())
        << what;
    for (size_t i = 0; i < a.submicrobatches[action].size(); ++i)
      ASSERT_TRUE(a.submicrobatches[action][i] == b.submicrobatches[action][i])
          << what << ": task " << i << " of action " << action;
  }
  EXPECT_EQ(a.train, b.train);
  EXPECT_EQ(a.overlap, b.overlap);
  EXPECT_EQ(a.smallKernel, b.smallKernel);
  EXPECT_EQ(a.joins, b.joins);
  EXPECT_EQ(a.links.bucketBytes, b.links.bucketBytes);
}

TEST(EqualLayers, ProblemsAreThoseOfTheWhole) {
  int compared = 0;
  for (int layers : {10, 13}) {
    test::GptOptions options;
    options.layers = layers;
    options.batch = 16;
    std::unique_ptr<Model> made = makeModel(options);
    ASSERT_NE(EqualLayers::find(made->model.graph, made->classes), nullptr);
    SearchInput whole = made->input;
    whole.layers = nullptr;
    PlanSearch byFew(made->input), byAll(whole);
    const std::vector<Degrees> every = *byAll.degrees();
    for (const Degrees &d : every)
      for (int zero : {0, 1, 2, 3})
        for (int overlap : {0, 1, 3})
          for (bool sequence : {false, true})
            for (bool context : {false, true}) {
              const Techniques techniques{overlap, zero, sequence, context};
              if ((d.microbatches > 4 || d.pp > 2) || (sequence && context))
                continue;
              Result<const PlanSearch::Sharding *> a = byFew.sharding(
                                                       d, techniques),
                                                   b = byAll.sharding(
                                                       d, techniques);
              ASSERT_EQ(a.ok(), b.ok()) << d.str() << techniques.str();
              if (!a.ok())
                continue;
              expectSame((*a)->problem, (*b)->problem,
                         d.str() + techniques.str());
              if (testing::Test::HasFatalFailure())
                return;
              ++compared;
            }
    EXPECT_EQ(byAll.times.byFew, 0);
    // All but those that cannot be.
    EXPECT_GT(double(byFew.times.byFew),
              0.95 * double(byFew.times.shardings.count));
  }
  EXPECT_GT(compared, 200);
}

void expectNear(double a, double b, const std::string &what) {
  EXPECT_NEAR(a, b, 1e-12 + 1e-9 * std::abs(b)) << what;
}

void expectSame(const StageCost &a, const StageCost &b,
                const std::string &what) {
  const auto numbers = [](const StageCost &of) {
    std::vector<double> all = {of.times.P,         of.times.F,
                               of.times.R,         of.times.B,
                               of.times.W,         of.times.U,
                               of.parameterBytes,  of.gradientBytes,
                               of.stateBytes,      of.sharedBytes,
                               of.keptBytes,       of.recomputedBytes,
                               of.workspace,       of.communication,
                               of.hiddenByWeights, of.prologue,
                               of.gathered,        of.clear,
                               of.optimizer,       double(of.parameters),
                               double(of.reduces)};
    all.insert(all.end(), of.held.all.begin(), of.held.all.end());
    for (double slack : {of.slackForward, of.slackBackward})
      all.push_back(std::isinf(slack) ? -1 : slack);
    for (const ArrivingValue &value : of.arriving)
      all.insert(all.end(),
                 {double(value.from), double(value.life), value.bytes});
    return all;
  };
  const std::vector<double> x = numbers(a), y = numbers(b);
  ASSERT_EQ(x.size(), y.size()) << what;
  for (size_t i = 0; i < x.size(); ++i)
    expectNear(x[i], y[i], what + ", number " + std::to_string(i));
}

// What a model says of a stage does not depend on which it was asked first, nor
// on whether that was for its bytes alone.
TEST(EqualLayers, StagesCostAsIfTheyWereLookedAtAlone) {
  test::GptOptions options;
  options.layers = 14;
  options.batch = 16;
  std::unique_ptr<Model> made = makeModel(options);
  PlanSearch search(made->input);
  std::mt19937 random(1);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (const Techniques &techniques :
       {Techniques{}, Techniques{3, 0}, Techniques{3, 2, true}}) {
    const Degrees d{1, 4, 2, 2};
    Result<const PlanSearch::Sharding *> sharding =
        search.sharding(d, techniques);
    ASSERT_TRUE(sharding.ok());
    const StageProblem &problem = (*sharding)->problem;
    ASSERT_GT(problem.repeats.count, 4);
    StageProblem apart = problem;
    apart.repeats = {};
    const StageModel with(problem), without(apart);
    const PipelineShape shape = search.commonShape(d);
    for (int n = 0; n < 300; ++n) {
      const int begin = pick(0, with.count() - 1);
      const int end = pick(begin + 1, std::min(with.count(), begin + 80));
      const Marks marks{pick(0, with.levels()), pick(begin, end)};
      const std::string what = techniques.str() + " " + std::to_string(begin) +
                               " to " + std::to_string(end);
      if (pick(0, 1)) {
        const StageCost &held = with.held(begin, end, marks),
                        &cost = without.cost(begin, end, marks);
        expectNear(held.keptBytes, cost.keptBytes, what);
        expectNear(held.recomputedBytes, cost.recomputedBytes, what);
        expectNear(held.workspace, cost.workspace, what);
        expectNear(held.times.F, cost.times.F, what);
      }
      if (pick(0, 2) == 0)
        continue; // asked for its bytes alone, or not at all
      expectSame(with.cost(begin, end, marks), without.cost(begin, end, marks),
                 what);
      const double weight = with.timesOf(begin, end).times.W;
      expectNear(with.exposedReduction(begin, end, shape.reduce, weight),
                 without.exposedReduction(begin, end, shape.reduce, weight),
                 what);
    }
  }
}

// A layer that a user wants whole is not what stands for the others.
TEST(EqualLayers, APinnedLayerIsAskedForItself) {
  test::GptOptions options;
  options.layers = 12;
  options.batch = 16;
  std::unique_ptr<Model> made = makeModel(options);
  std::string pinned;
  for (const GraphTensor &tensor : made->model.graph.tensors)
    if (tensor.parameter && tensor.shape.size() == 2 &&
        tensor.name.find("5.") != std::string::npos)
      pinned = tensor.name;
  ASSERT_FALSE(pinned.empty());
  const Degrees d{1, 4, 2, 2};
  for (bool pins : {false, true}) {
    SearchInput input = made->input;
    if (pins)
      input.pinned.parameters[pinned].dims = {{}, {}};
    SearchInput whole = input;
    whole.layers = nullptr;
    PlanSearch byFew(input), byAll(whole);
    Result<const PlanSearch::Sharding *> a = byFew.sharding(d, {}),
                                         b = byAll.sharding(d, {});
    ASSERT_TRUE(a.ok() && b.ok());
    expectSame((*a)->problem, (*b)->problem, pinned);
    EXPECT_EQ(byFew.times.byFew, pins ? 0 : 1);
  }
}

TEST(EqualLayers, NoneWhereThereAreFewOrNone) {
  test::GptOptions options;
  options.layers = 4;
  std::unique_ptr<Model> few = makeModel(options);
  EXPECT_EQ(EqualLayers::find(few->model.graph, few->classes), nullptr);
  for (const test::TrainGraph &model :
       {test::makeT5(8, 16, 32, 4), test::makeConvNet(8)}) {
    const Classes classes = unify(model.graph);
    EXPECT_EQ(EqualLayers::find(model.graph, classes), nullptr);
  }
}

// Two widths in turns are layers of two each; one that differs ends the run.
TEST(EqualLayers, LayersThatDiffer) {
  std::vector<int64_t> turns;
  for (int i = 0; i < 12; ++i)
    turns.insert(turns.end(), {32, 64});
  const test::TrainGraph inTurns = test::makeMlp(16, turns);
  const Classes classes = unify(inTurns.graph);
  const auto found = EqualLayers::find(inTurns.graph, classes);
  ASSERT_NE(found, nullptr);
  EXPECT_LE(found->layers(), 12);
  EXPECT_GE(found->layers(), 9);
  turns[11] = 48;
  const test::TrainGraph broken = test::makeMlp(16, turns);
  const Classes others = unify(broken.graph);
  EXPECT_EQ(EqualLayers::find(broken.graph, others), nullptr);
}

} // namespace
} // namespace merak::planning
