// Steps of a chain of ops whose timelines are short enough to write down.
#include "passes/Planning/StepSketch.h"
#include "passes/Planning/StepParts.h"

#include <gtest/gtest.h>

namespace merak::planning {
namespace {

constexpr int kForward = int(ListOf::F), kBackward = int(ListOf::B),
              kWeight = int(ListOf::W), kUpdate = int(ListOf::U);

// Op i reads the value of op i - 1 and has a parameter. F takes 2 s, B 4 s
// (none of the first op), W 1 s, the optimizer half a second of each parameter.
// B and W read what F read; a value that crosses a cut is a message of one
// second.
struct Chain {
  StageProblem problem;
  StepTasks tasks;
  PipelineShape shape;
  PipelinePlan plan;
  StepLinks links;

  explicit Chain(int ops, std::vector<int> begin, int microbatches,
                 int stages = 0, const std::string &schedule = "1f1b") {
    for (int i = 0; i < ops; ++i) {
      StageOp op;
      op.forward = op.recompute = 2;
      op.backward = i ? 4 : 0;
      op.weight = 1;
      op.results = {i};
      if (i)
        op.operands = op.kept = {i - 1};
      problem.ops.push_back(op);
      problem.tensors.push_back({"t", /*bytes=*/8, /*gradientBytes=*/8});
      StageParameter parameter;
      parameter.users = {i};
      parameter.bytes = parameter.gradientBytes = 4;
      parameter.normSeconds = 0.25;
      parameter.updateSeconds = 0.5;
      problem.parameters.push_back(parameter);
    }
    problem.smallKernel = 0.25;
    plan.begin = std::move(begin);
    const int parts = int(plan.begin.size()) - 1;
    shape.stages = stages ? stages : parts;
    shape.microbatches = microbatches;
    ScheduleOptions options;
    options.stages = shape.stages;
    options.microbatches = microbatches;
    options.chunks = parts / shape.stages;
    Result<Schedule> made = makeSchedule(schedule, options);
    EXPECT_TRUE(made.ok());
    plan.schedule = *made;
    plan.marks.resize(size_t(parts));
    links.transfer = [](double, int, int) { return 1.0; };
    links.latency = [](int, int) { return 0.0; };
    links.level = [](int, int) { return 0; };
    listTasks(ops);
  }

  // Sums over replicas of each gradient, of so many bytes.
  void reduceGradients(double bytes) {
    for (size_t i = 0; i < tasks.updates.size(); ++i) {
      StepTask sum;
      sum.at = int(i);
      sum.bytes = bytes;
      sum.overRanks = true;
      sum.needs = {tasks.updates[i].gradient};
      tasks.updates[i].gradient = {kUpdate, int(tasks.lists[kUpdate].size())};
      tasks.lists[kUpdate].push_back(sum);
    }
    shape.reduce.replicas = 2;
    shape.reduce.early = true;
    shape.reduce.seconds = [](double sum) { return sum; };
  }
  void recompute(int part) {
    plan.marks[size_t(part)] = {0, plan.begin[size_t(part) + 1]};
  }

  StepTimes run() const {
    const StageModel model(problem);
    return sketchStep(tasks, model, shape, plan, links);
  }

private:
  void listTasks(int ops) {
    auto add = [&](int list, int at, double bytes, std::vector<TaskId> needs) {
      StepTask task;
      task.at = at;
      task.bytes = bytes;
      task.needs = std::move(needs);
      tasks.lists[size_t(list)].push_back(std::move(task));
      return TaskId{list, int(tasks.lists[size_t(list)].size()) - 1};
    };
    std::vector<TaskId> values, gradients(static_cast<size_t>(ops)),
        weights(static_cast<size_t>(ops));
    for (int i = 0; i < ops; ++i)
      values.push_back(add(kForward, i, 8,
                           i ? std::vector<TaskId>{values[size_t(i) - 1]}
                             : std::vector<TaskId>()));
    // gradients[i]: of the value of op i, which B of op i + 1 makes.
    auto needsOf = [&](int i) {
      std::vector<TaskId> needs;
      if (i)
        needs.push_back(values[size_t(i) - 1]);
      if (i + 1 < ops)
        needs.push_back(gradients[size_t(i)]);
      return needs;
    };
    for (int i = ops - 1; i >= 1; --i)
      gradients[size_t(i) - 1] = add(kBackward, i, 8, needsOf(i));
    for (int i = ops - 1; i >= 0; --i)
      weights[size_t(i)] = add(kWeight, i, 4, needsOf(i));
    for (int i = 0; i < ops; ++i)
      tasks.updates.push_back({i, weights[size_t(i)]});
    const double seconds[3] = {2, 4, 1};
    tasks.parts.resize(plan.begin.size() - 1);
    for (int list = 0; list < 3; ++list)
      for (size_t task = 0; task < tasks.lists[size_t(list)].size(); ++task) {
        PartTasks &of = tasks.parts[size_t(partAt(
            plan.begin, tasks.lists[size_t(list)][task].at))][size_t(list)];
        of.runs.push_back(int(of.tasks.size()));
        of.tasks.push_back(int(task));
        of.seconds.push_back(seconds[list]);
      }
  }
};

// Seconds of an update: squares and optimizer of the stage's parameters, zeros
// for those of another stage in one kernel, the factor.
double update(int own, bool others) {
  return 0.75 * own + (others ? 0.25 : 0) + 0.25;
}

TEST(StepSketch, OneStageRunsOneTaskAfterAnother) {
  // Three microbatches of F 4, B 4, W 2.
  EXPECT_EQ(Chain(2, {0, 2}, 3).run().seconds, 3 * 10 + update(2, false));
}

// Stage 0: F 0-2, W 10-11. Stage 1: F 3-5, B 5-9, W 9-10.
TEST(StepSketch, MessagesTakeTheirTimeBetweenStages) {
  const Chain chain(2, {0, 1, 2}, 1);
  EXPECT_EQ(chain.run().seconds, 11 + update(1, true));
}

// Stage 1 goes from one microbatch to the other without a pause, 7 seconds of
// each from second 3 on; stage 0 waits for its gradient, made 1 second earlier.
TEST(StepSketch, TheLaterStageIsTheBusyOne) {
  const Chain chain(2, {0, 1, 2}, 4);
  EXPECT_EQ(chain.run().seconds, 3 + 4 * 7 - 1 + 1 + 1 + update(1, true));
}

// Stage 0 makes its value again in front of W where W reads it: that of its
// second op. R waits for the gradient, as B does.
TEST(StepSketch, RecomputedTasksRunBeforeTheirReaders) {
  // Stage 0: F 0-4, B 12-16, W 16-18; stage 1: F 5-7, B 7-11, W 11-12.
  Chain chain(3, {0, 2, 3}, 1, 0, "1f1b");
  EXPECT_EQ(chain.run().seconds, 18 + update(2, true));
  chain.recompute(0);
  for (std::vector<Step> &order : chain.plan.schedule.order)
    for (size_t i = 0; i < order.size(); ++i)
      if (&order == &chain.plan.schedule.order[0] &&
          order[i].action == Action::B) {
        Step again = order[i];
        again.action = Action::R;
        order.insert(order.begin() + std::ptrdiff_t(i++), again);
      }
  // The value of op 0, which B and W of op 1 read.
  EXPECT_EQ(chain.run().seconds, 18 + 2 + update(2, true));
  // Ahead of its gradient, in the time in which the stage waits.
  for (Step &step : chain.plan.schedule.order[0])
    step.early |= step.action == Action::R;
  EXPECT_EQ(chain.run().seconds, 18 + update(2, true));
}

// The last B and W run together: W of the last op, which needs nothing of B,
// goes in front of it, so its gradient is there first. Two bytes take two
// seconds.
TEST(StepSketch, GradientsAreReducedBesideWhatRemains) {
  Chain chain(2, {0, 2}, 1);
  chain.reduceGradients(2);
  chain.shape.reduce.bucketBytes = 2;
  // F 0-4, W of op 1 4-5, B 5-9, W of op 0 9-10; reductions 5-7, 10-12.
  EXPECT_EQ(chain.run().seconds, 12 + update(2, false));
  // Together when both are there.
  chain.shape.reduce.bucketBytes = 4;
  EXPECT_EQ(chain.run().seconds, 10 + 4 + update(2, false));
  // In the update if they may not go along.
  chain.shape.reduce.early = false;
  EXPECT_EQ(chain.run().seconds, 10 + 4 + update(2, false));
}

// Of one value that two later parts read each gets a message of its own.
TEST(StepParts, AValueGoesToEachPartThatReadsIt) {
  Chain chain(3, {0, 1, 2, 3}, 1);
  StepTask &last = chain.tasks.lists[kForward][2];
  last.needs.push_back({kForward, 0});
  const StageModel model(chain.problem);
  const StepParts parts(chain.tasks, model, chain.plan, chain.shape);
  std::vector<int> to;
  for (int number : parts.sentBy(0, StepAction::F))
    to.push_back(parts.messages[size_t(number)].to);
  EXPECT_EQ(to, (std::vector<int>{1, 2}));
  EXPECT_EQ(parts.receivedBy(2, StepAction::F).size(), 2u);
  // W of op 1 reads it too, and has it already.
  EXPECT_TRUE(parts.receivedBy(1, StepAction::W).empty());
}

// Two parts of one stage hand values over without a message.
TEST(StepParts, PartsOfOneStageShareWhatTheyMake) {
  Chain chain(4, {0, 1, 2, 3, 4}, 2, /*stages=*/2, "interleaved");
  StepTask &last = chain.tasks.lists[kForward][2];
  last.needs.push_back({kForward, 0}); // part 0 and part 2: stage 0
  const StageModel model(chain.problem);
  const StepParts parts(chain.tasks, model, chain.plan, chain.shape);
  EXPECT_EQ(parts.sentBy(0, StepAction::F).size(), 1u); // to part 1
  EXPECT_EQ(parts.receivedBy(2, StepAction::F).size(), 1u);
}

} // namespace
} // namespace merak::planning
