// Unification of factors: refinement, misalignment, rules, anchors.
#include "passes/Planning/FactorClasses.h"
#include "test/unit/planning/ModelGraphs.h"
#include "test/unit/planning/Simulator.h"

#include <gtest/gtest.h>

namespace merak::planning::test {
namespace {

std::string dims(const Graph &graph, const Classes &classes, int tensor) {
  std::string text;
  for (size_t d = 0; d < graph.tensors[tensor].shape.size(); ++d)
    text += (d ? ", " : "") + classes.dimStr(tensor, int(d));
  return text;
}

TEST(FactorClasses, ReshapeRefinesEverywhere) {
  Program p;
  int x = p.source("x", {8, 192});
  int w = p.source("w", {16, 192}, true);
  int y = p.einsum("mm", "bn,kn->bk", {x, w}, {8, 16});
  int r = p.reshape("split", x, {8, 3, 64});
  int q = p.reshape("heads", r, {8, 3, 4, 16});
  Classes classes = unify(p.graph);
  EXPECT_EQ(dims(p.graph, classes, x), "8, 3 x 4 x 16");
  EXPECT_EQ(dims(p.graph, classes, w), "16, 3 x 4 x 16");
  EXPECT_EQ(dims(p.graph, classes, r), "8, 3, 4 x 16");
  EXPECT_EQ(dims(p.graph, classes, q), "8, 3, 4, 16");
  EXPECT_EQ(dims(p.graph, classes, y), "8, 16");
  // The contracted factor of the matmul is three slots, each a sum.
  int sums = 0;
  for (const OpSlot &slot : classes.ops[0].slots)
    sums += slot.kind == FactorKind::Sum;
  EXPECT_EQ(sums, 3);
  // The matmul's 16 and the 16 within a head are different classes.
  EXPECT_NE(classes.tensors[w].atoms[0], classes.tensors[w].atoms[3]);
  EXPECT_EQ(classes.classes[classes.tensors[w].atoms[1]].refinedBy, "split");
  EXPECT_EQ(classes.classes[classes.tensors[w].atoms[2]].refinedBy, "heads");
}

TEST(FactorClasses, FlattenedBatchIsAProduct) {
  Program p;
  int x = p.source("x", {8, 32, 16});
  int flat = p.reshape("flat", x, {256, 16});
  int back = p.reshape("back", flat, {8, 32, 16});
  Classes classes = unify(p.graph);
  EXPECT_EQ(dims(p.graph, classes, flat), "8 x 32, 16");
  EXPECT_EQ(classes.tensors[x].atoms, classes.tensors[back].atoms);
}

// The order of the ops does not matter: refined before or after the union.
TEST(FactorClasses, RefinementAfterUnion) {
  Program p;
  int a = p.source("a", {64});
  int b = p.source("b", {64});
  p.reshape("four", a, {4, 16});
  p.reshape("sixteen", b, {16, 4});
  p.binary("add", a, b, '+');
  Classes classes = unify(p.graph);
  EXPECT_EQ(dims(p.graph, classes, a), "4 x 4 x 4");
  EXPECT_EQ(classes.tensors[a].atoms, classes.tensors[b].atoms);
  for (const ClassInfo &info : classes.classes)
    EXPECT_TRUE(info.splittable);
}

// 6 x 4 against 8 x 3: the leading 2 agrees, 3 x 4 and 4 x 3 do not.
TEST(FactorClasses, MisalignedRestIsNotSplittable) {
  Program p;
  int x = p.source("x", {24});
  p.reshape("six", x, {6, 4});
  p.reshape("eight", x, {8, 3});
  Classes classes = unify(p.graph);
  EXPECT_EQ(dims(p.graph, classes, x), "2 x 3 x 4");
  const std::vector<int> &atoms = classes.tensors[x].atoms;
  EXPECT_TRUE(classes.classes[atoms[0]].splittable);
  EXPECT_FALSE(classes.classes[atoms[1]].splittable);
  EXPECT_FALSE(classes.classes[atoms[2]].splittable);
  EXPECT_EQ(classes.classes[atoms[1]].reason,
            "op 'eight' joins factorisations that do not align");
  EXPECT_EQ(dims(p.graph, classes, 2), "2 x 4, 3");
}

TEST(FactorClasses, ReshapeRuleOfUnalignedShapesIsWhole) {
  ShardingRule rule = reshapeRule({6, 4}, {8, 3});
  Program p;
  int x = p.source("x", {6, 4});
  p.reshape("r", x, {8, 3});
  EXPECT_TRUE(p.graph.check().ok());
  int parallel = 0, whole = 0;
  for (const RuleFactor &factor : rule.factors)
    ++(factor.kind == FactorKind::Parallel ? parallel : whole);
  EXPECT_EQ(parallel, 1);
  EXPECT_EQ(whole, 4);
}

// Labels are looked up in 16 columns, which are two views of 8 samples: a part
// of the views is a range of columns, a part of the samples is not.
TEST(FactorClasses, OnlyTheMajorPartOfARangeIsSplit) {
  Program p;
  int x = p.source("x", {4, 16});
  p.reshape("views", x, {4, 2, 8});
  int picked = p.reshape("pick", x, {4, 16});
  GraphOp &pick = p.graph.ops.back();
  ASSERT_EQ(pick.rule.factors.size(), 2u);
  pick.rule.factors[1].kind = FactorKind::Sum;
  pick.rule.factors[1].ranged = true;
  pick.rule.results = {{{0}, {}}};
  p.graph.tensors[picked].shape = {4, 1};
  Classes classes = unify(p.graph);
  ASSERT_EQ(classes.ops[1].slots.size(), 3u);
  EXPECT_EQ(classes.ops[1].slots[0].kind, FactorKind::Parallel);
  EXPECT_EQ(classes.ops[1].slots[1].kind, FactorKind::Sum);
  EXPECT_EQ(classes.ops[1].slots[2].kind, FactorKind::Whole);
}

TEST(FactorClasses, SquareTensorHasOneClassTwice) {
  Program p;
  int x = p.source("x", {4, 4});
  p.transpose("t", x, {1, 0});
  p.binary("sum", x, 1, '+'); // x + its transpose
  Classes classes = unify(p.graph);
  EXPECT_EQ(classes.tensors[x].atoms[0], classes.tensors[x].atoms[1]);
}

TEST(FactorClasses, AnchorsSurviveAChangeOfOps) {
  TrainGraph g = makeGpt({});
  Classes classes = unify(g.graph);
  int w = g.find("h.1.c_attn.weight");
  int heads = classes.tensors[w].atoms[2];
  ClassAnchor anchor = anchorOf(g.graph, classes, heads);
  EXPECT_EQ(anchor, (ClassAnchor{"h.1.c_attn.weight", 1, 3, 4}));
  EXPECT_EQ(findAnchor(g.graph, classes, anchor), std::vector<int>{heads});
  // Refined further: the anchor means both parts.
  TrainGraph finer = makeGpt({});
  finer.reshape("extra", finer.find("h.1.c_attn.bias"), {3, 2, 2, 16});
  Classes more = unify(finer.graph);
  EXPECT_EQ(findAnchor(finer.graph, more, anchor).size(), 2u);
  EXPECT_TRUE(
      findAnchor(g.graph, classes, {"h.1.c_attn.weight", 1, 2, 4}).empty());
  EXPECT_TRUE(findAnchor(g.graph, classes, {"nobody", 0, 1, 4}).empty());
}

TEST(FactorGraph, ReportsAllProblemsOfRules) {
  Graph graph;
  int x = graph.addTensor({"x", {4, 6}});
  int y = graph.addTensor({"y", {4}});
  GraphOp op;
  op.name = "bad";
  op.operands = {x, 9};
  op.results = {y};
  op.rule.factors = {{4}, {5, FactorKind::Sum}};
  op.rule.operands = {{{0}, {1}}, {{0}}};
  op.rule.results = {{{7}}};
  op.rule.linear = {{2}};
  graph.addOp(op);
  op.name = "worse";
  op.operands = {};
  graph.addOp(op);
  EXPECT_EQ(
      graph.check().str(),
      "tensor 'y' is produced by 'bad' and by 'worse'\n"
      "op 'bad': dimension 1 of operand 0 'x' is 6, the rule's factors make 5\n"
      "op 'bad': operand 1 is tensor 9, which does not exist\n"
      "op 'bad': result 0 'y' names factor 7 of 2\n"
      "op 'bad': a linear group names operand 2 of 2\n"
      "op 'worse': the rule has 2 operands, the op 0\n"
      "op 'worse': result 0 'y' names factor 7 of 2\n"
      "op 'worse': a linear group names operand 2 of 0");
}

} // namespace
} // namespace merak::planning::test
