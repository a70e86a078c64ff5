// What a choice of axes means for single ops, and the errors about batches.
#include "test/unit/planning/ModelGraphs.h"
#include "test/unit/planning/Simulator.h"

#include <gtest/gtest.h>

namespace merak::planning::test {
namespace {

// Splits the dimension of a tensor whose only atom (or first) is meant.
void split(const Classes &classes, Assignment &assignment, int tensor, int dim,
           const std::string &axis, int atom = 0) {
  const TensorClasses &atoms = classes.tensors[tensor];
  assignment.axes[atoms.atoms[atoms.dimBegin[dim] + atom]].push_back(axis);
}

int64_t product(const Shape &shape) {
  int64_t n = 1;
  for (int64_t size : shape)
    n *= size;
  return n;
}

std::string conversions(const Graph &graph, const Outcome &outcome) {
  std::string text;
  for (const Conversion &c : outcome.conversions)
    text += std::string(str(c.kind)) + " " + graph.tensors[c.tensor].name +
            " for " + (c.op < 0 ? "output" : graph.ops[c.op].name) + "; ";
  return text;
}

TEST(Partition, SumsStayOpenThroughLinearOpsAndCloseOnce) {
  Program p;
  int x = p.source("x", {4, 8}), w = p.source("w", {8, 6}, true);
  int v = p.source("v", {8, 6}, true), bias = p.source("bias", {6}, true);
  int a = p.einsum("a", "bk,kn->bn", {x, w}, {4, 6});
  int b = p.einsum("b", "bk,kn->bn", {x, v}, {4, 6});
  int c = p.binary("c", a, b, '+');    // both are summands
  int t = p.transpose("t", c, {1, 0}); // linear
  p.transpose("back", t, {1, 0});
  int d = p.binary("d", 8, bias, '+'); // the bias is none: reduce before
  p.binary("e", d, 8, '+');            // takes the reduced copy
  p.graph.tensors.back().output = true;
  Classes classes = unify(p.graph);
  Assignment assignment;
  assignment.mesh = {{"tp", 2}};
  split(classes, assignment, x, 1, "tp");
  Result<Outcome> outcome = apply(p.graph, classes, assignment);
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(conversions(p.graph, *outcome), "all_reduce back for d; ");
  EXPECT_EQ(outcome->tensors[c].str(), "[4, 6] partial(tp)");
  EXPECT_EQ(outcome->tensors[d].str(), "[4, 6]");
  EXPECT_EQ(compareWithWhole(p, assignment, *outcome, 1), "");
}

// The layer-norm gradient has three results: reducing its operand is cheaper.
TEST(Partition, ReducesBeforeAnOpThatWouldMultiplySummands) {
  TrainGraph g = makeGpt({});
  Classes classes = unify(g.graph);
  Assignment assignment;
  assignment.mesh = {{"tp", 2}};
  split(classes, assignment, g.find("h.0.c_fc.weight"), 1, "tp");
  Result<Outcome> outcome = apply(g.graph, classes, assignment);
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->tensors[g.find("h.0.ln_2/grad_gamma")].str(), "[64]");
}

TEST(Partition, FirstFactorKeepsAContestedAxis) {
  Program p;
  int x = p.source("x", {4, 8}), w = p.source("w", {8, 6}, true);
  int y = p.einsum("y", "bk,kn->bn", {x, w}, {4, 6});
  Classes classes = unify(p.graph);
  Assignment assignment;
  assignment.mesh = {{"tp", 2}};
  split(classes, assignment, x, 1, "tp"); // k
  split(classes, assignment, w, 1, "tp"); // n: comes behind k in the text
  Result<Outcome> outcome = apply(p.graph, classes, assignment);
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->tensors[y].str(), "[4, 6] partial(tp)");
  const std::vector<OperandUse> &uses = outcome->ops[0].operands;
  EXPECT_EQ(operandLayout(*outcome, uses[0], x).str(), "[4, 8@tp]");
  EXPECT_EQ(operandLayout(*outcome, uses[1], w).str(), "[8@tp, 6]");
  EXPECT_EQ(conversions(p.graph, *outcome), "");
}

TEST(Partition, BatchIsTakenApart) {
  Program p;
  int x = p.source("x", {8, 6});
  p.reshape("submicrobatches", x, {2, 4, 6});
  Classes classes = unify(p.graph);
  Assignment both;
  EXPECT_TRUE(
      assignBatch(p.graph, classes, {x}, {{"mb", 2}, {"dp", 4}}, both).ok());
  EXPECT_EQ(canonicalLayout(p.graph, classes, x, both).str(),
            "[2@mb x 4@dp, 6]");
  // Four microbatches fit the minor factor only: the axes change places.
  Assignment swapped;
  EXPECT_TRUE(
      assignBatch(p.graph, classes, {x}, {{"mb", 4}, {"dp", 2}}, swapped).ok());
  EXPECT_EQ(canonicalLayout(p.graph, classes, x, swapped).str(),
            "[2@dp x 4@mb, 6]");
  Assignment none;
  EXPECT_EQ(assignBatch(p.graph, classes, {x}, {{"mb", 8}}, none).str(),
            "the batch of 'x', 8 = 2 x 4, cannot be split over mb=8: op "
            "'submicrobatches' takes it apart");
}

TEST(Partition, BatchThatDoesNotDivide) {
  Program p;
  int x = p.source("x", {6, 4}), s = p.source("s", {});
  Classes classes = unify(p.graph);
  Assignment assignment;
  EXPECT_EQ(
      assignBatch(p.graph, classes, {x, s}, {{"mb", 2}, {"dp", 2}}, assignment)
          .str(),
      "the batch of 'x', 6, cannot be split over mb=2, dp=2\n"
      "'s' is a scalar, which has no batch dimension");
}

// One batch of 8 over mb=2 is assigned to x; returns what apply() says.
std::string batchErrors(const Program &p, int64_t microbatches = 2) {
  Classes classes = unify(p.graph);
  Assignment assignment;
  EXPECT_TRUE(
      assignBatch(p.graph, classes, {0}, {{"mb", microbatches}}, assignment)
          .ok());
  return apply(p.graph, classes, assignment).status().str();
}

TEST(Partition, OpsThatNeedTheWholeBatchAreNamed) {
  Program p;
  int x = p.source("x", {8, 4});
  p.cumulate("running_total", x, 0);
  p.cumulate("another", x, 0); // one sentence for both
  p.maximum("largest", x, 0);
  EXPECT_EQ(batchErrors(p),
            "op 'running_total' needs the whole batch of 'x', which is split "
            "over microbatches; use one microbatch (--microbatch=all samples "
            "of a replica)\n"
            "op 'largest' takes a maximum over the batch, which cannot be "
            "split over microbatches; use one microbatch (--microbatch=all "
            "samples of a replica)");
  EXPECT_EQ(batchErrors(p, 1), "");
}

TEST(Partition, BatchStatisticsOfParametersAreNamed) {
  Program p;
  int x = p.source("x", {8, 4}), w = p.source("w", {4}, true);
  int h = p.binary("h", x, w, '*');
  int mean = p.einsum("mean", "bn->n", {h}, {4});
  p.binary("normed", h, mean, '-');
  EXPECT_EQ(batchErrors(p),
            "op 'normed' needs 'mean' summed over all microbatches before it "
            "can run, but 'mean' depends on parameter 'w'; use one microbatch");
}

TEST(Partition, BatchStatisticsOfInputsAreAPrologue) {
  Program p;
  int x = p.source("x", {8, 4});
  int mean = p.einsum("mean", "bn->n", {x}, {4});
  p.binary("normed", x, mean, '-');
  Classes classes = unify(p.graph);
  Assignment assignment;
  ASSERT_TRUE(assignBatch(p.graph, classes, {x}, {{"mb", 2}}, assignment).ok());
  Result<Outcome> outcome = apply(p.graph, classes, assignment);
  ASSERT_TRUE(outcome.ok()) << outcome.status().str();
  EXPECT_EQ(outcome->prologueValues, std::vector<int>{mean});
  EXPECT_TRUE(outcome->ops[0].prologue);
  EXPECT_FALSE(outcome->ops[1].prologue);
  EXPECT_EQ(compareWithWhole(p, assignment, *outcome, 1), "");
}

TEST(Partition, ParametersCannotHaveTheBatch) {
  Program p;
  int x = p.source("x", {8, 4}), w = p.source("memory", {8, 4}, true);
  p.binary("sum", x, w, '+');
  EXPECT_EQ(batchErrors(p),
            "initializer 'memory' of shape 8x4, read by node 'sum', has the "
            "batch in dimension 0, which cannot be split over microbatches; if "
            "the exporter expanded it, export with optimize=False or with a "
            "dynamic batch, else use one microbatch");
}

// Whether it repeats along the batch, not along a dimension as large.
TEST(Partition, ExpandedParametersAreNamedAtOneMicrobatch) {
  Program p;
  int x = p.source("x", {4, 4}), w = p.source("expand", {4, 4}, true);
  p.binary("sum", x, w, '+');
  Classes classes = unify(p.graph);
  EXPECT_TRUE(checkRepeated(p.graph, classes, {x}, {{w, 1}}).ok());
  EXPECT_EQ(
      checkRepeated(p.graph, classes, {x}, {{w, 0}, {w, 1}}).str(),
      "initializer 'expand' of shape 4x4, read by node 'sum', has the batch in "
      "dimension 0 and the same values for all 4 samples: the exporter "
      "expanded it, and each sample would train a copy of its own; export with "
      "optimize=False or with a dynamic batch, or freeze it (--freeze=expand)");
}

// Penalties on weights and sums over the batch: with the update, but not what
// gradients of the microbatches read.
TEST(Partition, WhatIsTheSameForAllMicrobatchesRunsOnce) {
  Program p;
  int x = p.source("x", {8, 4}), w = p.source("w", {4}, true);
  int y = p.binary("y", x, w, '*');
  int data = p.einsum("data", "bn->n", {y}, {4});
  int penalty = p.binary("penalty", w, w, '*');
  int scaled = p.binary("scaled", data, w, '*');
  p.binary("loss", scaled, penalty, '+');
  p.graph.tensors.back().output = true;
  Classes classes = unify(p.graph);
  Assignment assignment;
  ASSERT_TRUE(
      assignBatch(p.graph, classes, {x}, {{"mb", 2}, {"dp", 2}}, assignment)
          .ok());
  Result<Outcome> outcome = apply(p.graph, classes, assignment);
  ASSERT_TRUE(outcome.ok()) << outcome.status().str();
  std::string late;
  for (size_t i = 0; i < p.graph.ops.size(); ++i)
    late += outcome->ops[i].late ? p.graph.ops[i].name + " " : "";
  EXPECT_EQ(late, "penalty loss ");
  EXPECT_EQ(conversions(p.graph, *outcome),
            "all_reduce scaled for loss; accumulate scaled for loss; ");
  EXPECT_EQ(compareWithWhole(p, assignment, *outcome, 1), "");
}

// Away from the mean over the batch, squared and summed up; the root of that
// sum scales all gradients. First the mean is needed, then the sum.
TEST(Partition, SumsThatGradientsReadTakePassesOverTheMicrobatches) {
  Program p;
  int x = p.source("x", {8, 4}), w = p.source("w", {4}, true);
  int y = p.binary("y", x, w, '*');
  int mean = p.einsum("mean", "bn->n", {y}, {4});
  int away = p.binary("away", y, mean, '-');
  int square = p.binary("square", away, away, '*');
  int sum = p.einsum("sum", "bn->n", {square}, {4});
  int root = p.unary("root", sum, [](int64_t v) { return v * v; }, {});
  p.graph.tensors[root].output = true;
  int scaled = p.binary("scaled", away, root, '*');
  p.einsum("gradient", "bn,bn->n", {scaled, x}, {4});
  p.graph.tensors.back().output = true;
  for (size_t i = 6; i < p.graph.ops.size(); ++i)
    p.graph.ops[i].phase = Phase::Backward;
  Classes classes = unify(p.graph);
  Assignment assignment;
  ASSERT_TRUE(assignBatch(p.graph, classes, {x}, {{"mb", 2}}, assignment).ok());
  Result<Outcome> outcome = apply(p.graph, classes, assignment);
  ASSERT_TRUE(outcome.ok()) << outcome.status().str();
  EXPECT_EQ(outcome->joins, "op 'away' needs 'mean' summed over all "
                            "microbatches before it can run, but 'mean' "
                            "depends on parameter 'w'");
  std::string places;
  for (size_t i = 0; i < p.graph.ops.size(); ++i)
    places += p.graph.ops[i].name +
              (outcome->ops[i].afterJoin ? " after" : "") +
              (outcome->ops[i].join
                   ? " in pass " + std::to_string(outcome->ops[i].join)
                   : "") +
              "; ";
  EXPECT_EQ(places, "y; mean; away in pass 1; square in pass 1; sum in pass 1; "
                    "root after; scaled; gradient; ");
  EXPECT_EQ(compareWithWhole(p, assignment, *outcome, 1), "");
}

// Everything once: what a device computes over a step is its share.
TEST(Partition, FlopsAreConserved) {
  TrainGraph g = makeMlp(8, {16, 64, 16});
  Classes classes = unify(g.graph);
  Assignment assignment;
  ASSERT_TRUE(assignBatch(g.graph, classes, {g.find("x")},
                          {{"mb", 4}, {"dp", 2}}, assignment)
                  .ok());
  PartitionCost cost = costOf(g.graph, classes, assignment);
  EXPECT_EQ(cost.contractionFlops, cost.totalContraction / 2);
  int64_t parameters = 0;
  for (const GraphTensor &tensor : g.graph.tensors)
    if (tensor.parameter)
      parameters += product(tensor.shape);
  // Gradients over dp once a step: 2 (n-1)/n of their bytes.
  EXPECT_EQ(cost.communicatedBytes, double(parameters * 4) + 4.0);
}

} // namespace
} // namespace merak::planning::test
