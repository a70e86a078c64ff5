// Which uses get their operand from a stage on another mesh.
#include "passes/Planning/Boundaries.h"

#include <gtest/gtest.h>

namespace merak::planning {
namespace {

// Two products on two stages: y = x w, z = y w, then their gradients.
struct TwoStages {
  Graph graph;
  int x, w, y, z, dy, da, db, dw;

  int tensor(const char *name, bool parameter = false) {
    GraphTensor out;
    out.name = name;
    out.shape = {4, 4};
    out.parameter = parameter;
    return graph.addTensor(out);
  }
  int op(std::vector<int> operands, std::vector<int> results,
         Phase phase = Phase::Forward, int gradientOf = -1) {
    GraphOp out;
    out.operands = std::move(operands);
    out.results = std::move(results);
    out.phase = phase;
    out.gradientOf = gradientOf;
    return graph.addOp(out);
  }

  TwoStages() {
    x = tensor("x");
    w = tensor("w", true);
    y = tensor("y");
    z = tensor("z");
    dy = tensor("dy");
    da = tensor("da");
    db = tensor("db");
    dw = tensor("dw");
    op({x, w}, {y});                       // 0, on stage 0
    op({y, w}, {z});                       // 1, on stage 1
    op({z, w}, {dy}, Phase::Backward, 1);  // 2
    op({y, z}, {db}, Phase::Backward, 1);  // 3
    op({x, dy}, {da}, Phase::Backward, 0); // 4
    op({da, db}, {dw}, Phase::Update);     // 5: the sum of both uses
    op({w, dw}, {}, Phase::Update);        // 6: the optimizer
  }
};

TEST(Boundaries, ValuesGradientsAndSumsOfSharedWeights) {
  TwoStages g;
  // y goes forward and is used again by a gradient there, dy goes back; both
  // stages sum what both have made.
  EXPECT_EQ(crossingUses(g.graph, {0, 1, -1, -1, -1, -1, -1}),
            (std::set<TensorUse>{{1, 0}, {3, 0}, {4, 1}, {5, 0}, {5, 1}}));
}

TEST(Boundaries, OneStageHasNone) {
  TwoStages g;
  EXPECT_EQ(crossingUses(g.graph, {0, 0, -1, -1, -1, -1, -1}),
            std::set<TensorUse>());
}

// A gradient that one stage makes and another holder of the weight applies,
// too.
TEST(Boundaries, AHolderWithoutAGradient) {
  TwoStages g;
  g.graph.ops[5].operands = {g.db};
  EXPECT_EQ(crossingUses(g.graph, {0, 1, -1, -1, -1, -1, -1}),
            (std::set<TensorUse>{{1, 0}, {3, 0}, {4, 1}, {5, 0}}));
}

// What has no place of its own is where its operands are made.
TEST(Boundaries, OpsWithoutAStage) {
  TwoStages g;
  g.graph.ops[3].gradientOf = -1;
  // Now with the first operand, y, on stage 0: z comes from stage 1.
  EXPECT_EQ(crossingUses(g.graph, {0, 1, -1, -1, -1, -1, -1}),
            (std::set<TensorUse>{{1, 0}, {3, 1}, {4, 1}, {5, 0}, {5, 1}}));
}

// With several pipelines every sum of the step is made on the devices of each:
// what the update and late ops read of others.
TEST(Boundaries, SumsOfAStep) {
  TwoStages g;
  EXPECT_EQ(sumsOfStep(g.graph, {0, 0, 0, 0, 0, 0, 0}),
            (std::set<TensorUse>{{5, 0}, {5, 1}}));
  EXPECT_EQ(sumsOfStep(g.graph, {0, 0, 0, 0, 1, 0, 0}),
            (std::set<TensorUse>{{4, 1}, {5, 1}}));
}

} // namespace
} // namespace merak::planning
