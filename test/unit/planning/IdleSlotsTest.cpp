// Work that goes into waits: the rule, and its price on random stages.
#include "passes/Planning/IdleSlots.h"
#include "passes/Planning/StageProblem.h"

#include <gtest/gtest.h>
#include <random>

namespace merak::planning {
namespace {

TEST(IdleSlots, WorkGoesWhereHalfOfItIsIdleTime) {
  IdleSlots waits({0, 4, 0, 2, 0});
  EXPECT_FALSE(waits.empty());
  EXPECT_EQ(waits.takeLast(2, 3), 1);            // 1 left there
  EXPECT_EQ(waits.takeLast(4, 5), std::nullopt); // 2 are less than half of it
  EXPECT_EQ(waits.takeFirst(0, 3), 3);           // 1 of it is late
  EXPECT_EQ(waits.takeFirst(0, 1), 1);
  EXPECT_EQ(waits.takeFirst(0, 1), std::nullopt);
  EXPECT_DOUBLE_EQ(waits.late(), 1);
  EXPECT_TRUE(IdleSlots().empty());
  EXPECT_TRUE(IdleSlots({0, 0}).empty());
}

// Layers of a product whose result is reduced over tp, forward and backward,
// and a gradient of weights; one microbatch of two submicrobatches.
StageProblem layers(int count, double compute, double reduce) {
  StageProblem problem;
  problem.overlap = 3;
  for (int i = 0; i < count; ++i) {
    StageOp op;
    op.forward = op.backward = 2 * (compute + reduce);
    op.weight = op.recompute = 2 * compute;
    op.communication = 4 * reduce;
    op.operands = {i};
    op.results = {i + 1};
    op.keptForWeights = {i};
    problem.ops.push_back(op);
  }
  for (int t = 0; t <= count; ++t)
    problem.tensors.push_back({"", 1, 1, t == 0, false});
  for (int action : {0, 1})
    for (int k = 0; k < count; ++k) {
      int op = action == 0 ? k : count - 1 - k, first = 2 * k;
      std::vector<SubmicrobatchTask> &tasks = problem.submicrobatches[action];
      tasks.push_back({op, compute, false, false, {}});
      if (k > 0)
        tasks.back().needs = {first - 1};
      tasks.push_back({op, reduce, true, false, {first}});
    }
  for (int k = 0; k < count; ++k) {
    SubmicrobatchTask task{count - 1 - k, compute, false, false, {}};
    if (k > 0) // reads the gradient that the layer above has reduced
      task.backward = {2 * k - 1};
    problem.submicrobatches[2].push_back(task);
  }
  return problem;
}

// Where the links are the slower ones all gradients of weights but those of the
// last layer, which come too late, go into the waits; where they are fast none.
TEST(IdleSlots, GradientsOfWeightsAreFreeUnderSlowLinks) {
  StageProblem slow = layers(6, 1, 4), fast = layers(6, 4, 1);
  StageModel slowModel(slow), fastModel(fast);
  SubmicrobatchTimes alone(slow.submicrobatches[1], 6, 3);
  StageCost cost = slowModel.cost(0, 6, {});
  EXPECT_DOUBLE_EQ(cost.times.B, alone.of(0, 6).seconds);
  EXPECT_LT(cost.times.W, 2 * 6 * 1 / 2);
  StageCost none = fastModel.cost(0, 6, {});
  EXPECT_GT(none.times.W, 2 * 6 * 4 / 2);
}

// Moving makes no stage slower, computes no less, and waits no less than 0.
TEST(IdleSlots, NothingIsLost) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    int count = 2 + int(random() % 6);
    StageProblem problem =
        layers(count, 1 + double(random() % 5), double(random() % 9));
    StageModel model(problem);
    for (int begin = 0; begin < count; ++begin)
      for (int end = begin + 1; end <= count; ++end) {
        SubmicrobatchTimes F(problem.submicrobatches[0], count, 3),
            B(problem.submicrobatches[1], count, 3);
        double w = 0;
        for (int i = begin; i < end; ++i)
          w += problem.ops[i].weight;
        const StageCost &cost = model.cost(begin, end, {});
        double apart = B.of(begin, end).seconds + w;
        EXPECT_LE(cost.times.B + cost.times.W, apart + 1e-9);
        EXPECT_GE(cost.times.B, B.of(begin, end).seconds - 1e-9);
        EXPECT_GE(cost.times.B + cost.times.W,
                  B.of(begin, end).compute + w - 1e-9);
        EXPECT_GE(cost.communication, -1e-9);
      }
  }
}

// One place after the other, as the header says.
TEST(IdleSlots, TakesWhatALookAtEachPlaceWouldTake) {
  std::mt19937 random(3);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int n = 0; n < 200; ++n) {
    std::vector<double> idle(size_t(pick(0, 20)));
    for (double &seconds : idle)
      seconds = pick(0, 1) ? pick(1, 6) : 0;
    IdleSlots slots(idle);
    std::vector<double> left = idle;
    double late = 0;
    for (int task = 0; task < 30; ++task) {
      const double seconds = pick(0, 8);
      const int at = pick(0, 22);
      const bool last = pick(0, 1);
      std::optional<int> expected;
      for (int place = 0; place < int(left.size()); ++place)
        if (idle[size_t(place)] > 0 && left[size_t(place)] > 0 &&
            left[size_t(place)] >= seconds / 2 &&
            (last ? place <= at : place >= at && !expected))
          expected = place;
      if (expected)
        left[size_t(*expected)] -= seconds;
      ASSERT_EQ(last ? slots.takeLast(at, seconds)
                     : slots.takeFirst(at, seconds),
                expected);
    }
    for (double rest : left)
      late += std::max(0.0, -rest);
    EXPECT_DOUBLE_EQ(slots.late(), late);
  }
}

} // namespace
} // namespace merak::planning
