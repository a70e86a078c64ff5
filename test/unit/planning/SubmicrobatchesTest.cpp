// Submicrobatches of a microbatch over an axis of their own.
#include "passes/Planning/Submicrobatches.h"
#include "test/unit/planning/Simulator.h"

#include <gtest/gtest.h>

namespace merak::planning::test {
namespace {

// Two products around something that needs the samples of a microbatch
// together; x [samples, 4], split over tp between the products.
struct Statistics {
  Program p;
  int x, h, statistic, centered, y;

  explicit Statistics(int64_t samples) {
    x = p.source("x", {samples, 4});
    int w = p.source("w", {4, 6}, true), v = p.source("v", {6, 4}, true);
    h = p.einsum("h", "bk,kn->bn", {x, w}, {samples, 6});
    statistic = p.cumulate("statistic", h, 0);
    for (RuleFactor &factor : p.graph.ops.back().rule.factors)
      if (factor.kind == FactorKind::Whole)
        factor.kind = FactorKind::Samples;
    centered = p.binary("centered", h, statistic, '-');
    y = p.einsum("y", "bn,nk->bk", {centered, v}, {samples, 4});
    p.graph.tensors[y].output = true;
  }

  Assignment base(const Classes &classes, int64_t microbatches) {
    Assignment assignment;
    EXPECT_TRUE(assignBatch(p.graph, classes, {x},
                            {{kMicrobatchAxis, microbatches}, {"dp", 1}},
                            assignment)
                    .ok());
    assignment.mesh.push_back({"tp", 2});
    const TensorClasses &atoms = classes.tensors[h];
    assignment.axes[atoms.atoms[atoms.dimBegin[1]]] = {"tp"};
    return assignment;
  }
};

TEST(Submicrobatches, SamplesAreJoinedWhereTheyAreNeededTogether) {
  for (int64_t microbatches : {1, 2}) {
    Statistics s(8);
    Classes classes = unify(s.p.graph);
    EXPECT_TRUE(joinsSamples(s.p.graph));
    Assignment base = s.base(classes, microbatches);
    Result<Assignment> submicrobatches =
        splitBatch(s.p.graph, classes, {s.x}, base);
    ASSERT_TRUE(submicrobatches.ok()) << submicrobatches.status().str();
    EXPECT_EQ(submicrobatches->sizeOf(kSubmicrobatchAxis), 2);
    Result<Outcome> outcome = apply(s.p.graph, classes, *submicrobatches);
    ASSERT_TRUE(outcome.ok()) << outcome.status().str();
    // Data lie whole; each half computes, but for the statistic.
    EXPECT_FALSE(isOfSubmicrobatch(outcome->tensors[s.x]));
    EXPECT_TRUE(isOfSubmicrobatch(outcome->tensors[s.h]));
    EXPECT_FALSE(isOfSubmicrobatch(outcome->tensors[s.statistic]));
    EXPECT_TRUE(isOfSubmicrobatch(outcome->tensors[s.centered]));
    std::string text;
    for (const Conversion &c : outcome->conversions)
      text += std::string(str(c.kind)) + " " + c.axes[0] + " of " +
              s.p.graph.tensors[c.tensor].name + "; ";
    EXPECT_EQ(text, "slice sub of x; all_gather sub of h; slice sub of "
                    "statistic; all_gather sub of y; all_reduce tp of y; ");
    // Its microbatch is all that a statistic may need: with several of them
    // the reference, which has one, is another.
    if (microbatches == 1) {
      EXPECT_EQ(compareWithWhole(s.p, *submicrobatches, *outcome, 1), "");
    }
  }
}

// Over replicas and microbatches each part has its own; over tp it is joined.
TEST(Submicrobatches, StatisticsAreOfWhatAReplicaHas) {
  Statistics s(8);
  Classes classes = unify(s.p.graph);
  Assignment assignment;
  ASSERT_TRUE(
      assignBatch(s.p.graph, classes, {s.x}, {{"dp", 2}, {"tp", 2}}, assignment)
          .ok());
  Result<Outcome> outcome = apply(s.p.graph, classes, assignment);
  ASSERT_TRUE(outcome.ok()) << outcome.status().str();
  EXPECT_EQ(outcome->tensors[s.h].str(), "[8@(dp,tp), 6]");
  EXPECT_EQ(outcome->tensors[s.statistic].str(), "[8@dp, 6]");
}

TEST(Submicrobatches, ABatchThatCannotBeHalvedIsNamed) {
  Statistics s(6);
  Classes classes = unify(s.p.graph);
  Assignment base = s.base(classes, 2);
  EXPECT_EQ(splitBatch(s.p.graph, classes, {s.x}, base).status().str(),
            "the batch of 'x', 6, cannot be halved");
  Statistics none(8);
  for (GraphOp &op : none.p.graph.ops)
    for (RuleFactor &factor : op.rule.factors)
      if (factor.kind == FactorKind::Samples)
        factor.kind = FactorKind::Parallel;
  EXPECT_FALSE(joinsSamples(none.p.graph));
}

} // namespace
} // namespace merak::planning::test
