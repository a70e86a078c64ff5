// Seams: which classes become twins, what follows for gradients and stored
// parameters, and the conversions between the sides.
#include "passes/Planning/SeamLayouts.h"
#include "passes/Planning/TensorParallel.h"
#include "test/unit/planning/ModelGraphs.h"

#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <set>

namespace merak::planning::test {
namespace {

Assignment meshOf(const TrainGraph &g, const Classes &classes, int64_t mb,
                  int64_t dp, int64_t tp) {
  Assignment out;
  const int ids = g.find("input_ids");
  EXPECT_TRUE(assignBatch(g.graph, classes, {ids, g.find("labels")},
                          {{"mb", mb}, {"dp", dp}}, out)
                  .ok());
  out.mesh.push_back({"tp", tp});
  return out;
}

Outcome applied(const TrainGraph &g, const SeamLayouts &layouts,
                const Assignment &unified) {
  Result<Assignment> assignment = layouts.assign(unified);
  EXPECT_TRUE(assignment.ok()) << assignment.status().str();
  Result<Outcome> outcome = apply(g.graph, layouts.classes(), *assignment);
  EXPECT_TRUE(outcome.ok()) << outcome.status().str();
  return *outcome;
}

int count(const Outcome &outcome, ConversionKind kind,
          const std::vector<std::string> &axes, Phase phase) {
  int n = 0;
  for (const Conversion &c : outcome.conversions)
    n += c.kind == kind && c.axes == axes && c.phase == phase;
  return n;
}

// The small GPT under a level of ZeRO.
struct Zero {
  TrainGraph g = makeGpt({});
  Classes unified = unify(g.graph);
  Outcome outcome;

  Zero(int64_t level, int64_t mb, int64_t dp, int64_t tp) {
    Strategy zero;
    zero.zero = level;
    outcome = applied(g, *SeamLayouts::make(g.graph, unified, zero),
                      meshOf(g, unified, mb, dp, tp));
  }
};

int trained(const Graph &graph) {
  int n = 0;
  for (const GraphOp &op : graph.ops)
    n += op.isUpdate();
  return n;
}

TEST(Seams, NoneLeaveTheClassesAsTheyAre) {
  TrainGraph g = makeGpt({});
  Classes unified = unify(g.graph);
  Result<Classes> same = separate(g.graph, unified, {});
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(same->classes.size(), unified.classes.size());
  for (size_t c = 0; c < unified.classes.size(); ++c)
    EXPECT_EQ(unified.classes[c].root, int(c));
}

TEST(Seams, EveryStoredParameterHasClassesOfItsOwn) {
  TrainGraph g = makeGpt({});
  Classes unified = unify(g.graph);
  Strategy zero;
  zero.zero = 3;
  Result<SeamLayouts> layouts = SeamLayouts::make(g.graph, unified, zero);
  ASSERT_TRUE(layouts.ok()) << layouts.status().str();
  std::set<int> seen;
  for (size_t t = 0; t < g.graph.tensors.size(); ++t) {
    if (!g.graph.tensors[t].parameter)
      continue;
    std::set<int> own;
    for (int cls : layouts->classes().tensors[t].atoms)
      own.insert(cls);
    for (int cls : own)
      EXPECT_TRUE(seen.insert(cls).second) << g.graph.tensors[t].name;
  }
  // The uses of all layers still have one class for the width.
  const int a = g.find("h.0.ln_1"), b = g.find("h.1.ln_1");
  if (a >= 0 && b >= 0) {
    EXPECT_EQ(layouts->classes().tensors[size_t(a)].atoms.back(),
              layouts->classes().tensors[size_t(b)].atoms.back());
  }
}

// Once a step: gradients scattered, parameters gathered.
TEST(Seams, ZeroOneSumsOnceAStep) {
  const auto &[g, unified, outcome] = Zero(1, 2, 2, 1);
  const int n = trained(g.graph);
  EXPECT_EQ(
      count(outcome, ConversionKind::ReduceScatter, {"dp"}, Phase::Update), n);
  EXPECT_EQ(count(outcome, ConversionKind::AllGather, {"dp"}, Phase::Forward),
            n);
  for (const Conversion &c : outcome.conversions)
    if (c.kind == ConversionKind::AllGather ||
        c.kind == ConversionKind::ReduceScatter)
      EXPECT_EQ(c.times, 1) << g.graph.tensors[size_t(c.tensor)].name;
}

// The gradient of each microbatch is scattered, not their sum: else this were
// level 1 under another name.
TEST(Seams, ZeroTwoScattersEveryMicrobatch) {
  const auto &[g, unified, outcome] = Zero(2, 2, 2, 1);
  EXPECT_EQ(
      count(outcome, ConversionKind::ReduceScatter, {"dp"}, Phase::Backward),
      trained(g.graph));
  for (const Conversion &c : outcome.conversions) {
    if (c.kind == ConversionKind::ReduceScatter) {
      EXPECT_EQ(c.times, 2);
      EXPECT_EQ(c.to.partial, std::vector<std::string>{"mb"});
    }
    if (c.kind == ConversionKind::Accumulate && c.op >= 0 &&
        g.graph.ops[size_t(c.op)].isUpdate())
      EXPECT_FALSE(
          std::count(c.from.partial.begin(), c.from.partial.end(), "dp"));
  }
}

// Behind a seam the gradient of a bias sums over samples of which no op of the
// forward pass has the class: they are split as where the bias is added, in a
// strategy that names that alone.
TEST(Seams, GradientsAloneFollowTheForwardPass) {
  TrainGraph g;
  int x = g.input("x", {8, 16});
  x = g.linear("first", x, 32);
  x = g.linear("second", x, 16, /*bias=*/false);
  g.train(x);
  const Classes unified = unify(g.graph);
  Assignment base;
  ASSERT_TRUE(
      assignBatch(g.graph, unified, {g.find("x")}, {{"mb", 2}, {"dp", 2}}, base)
          .ok());
  base.mesh.push_back({"tp", 2});
  Strategy strategy;
  strategy.seams = {{"second", 0}};
  strategy.classes = {{{"first/bias", 0, 1, 0}, {"mb", "dp", "tp"}}};
  Result<SeamLayouts> layouts =
      SeamLayouts::make(g.graph, unified, strategy, {g.find("x")}, base);
  ASSERT_TRUE(layouts.ok()) << layouts.status().str();
  const Classes &classes = layouts->classes();
  Result<Assignment> assignment = layouts->assign(base);
  ASSERT_TRUE(assignment.ok()) << assignment.status().str();
  const std::map<int, int> twins = gradientTwins(g.graph, classes);
  int split = 0;
  for (const auto &[cls, forward] : twins) {
    EXPECT_EQ(classes.classes[size_t(cls)].root,
              classes.classes[size_t(forward)].root);
    EXPECT_EQ(assignment->axes[cls], assignment->axes[forward]);
    split += assignment->axes[cls].size() == 3;
  }
  EXPECT_GT(split, 0);
}

// Of a table with two uses each gradient is scattered where its use is, and the
// parts are added with the update; once a step the sum is converted, which is
// half as much to send.
TEST(Seams, GradientsOfTwoUsesAreAddedAsParts) {
  TrainGraph g = makeGpt({});
  const int table = g.find("wte.weight");
  ASSERT_GE(table, 0);
  GraphOp *sum = nullptr;
  for (GraphOp &op : g.graph.ops)
    if (op.name == "grad_sum/wte.weight")
      sum = &op;
  ASSERT_TRUE(sum);
  sum->phase = Phase::Update;
  sum->epilogue = Epilogue::Bias;
  sum->sumOfUses = false;
  sum->gradientOf = -1;
  const int both = sum->results[0];
  const Classes unified = unify(g.graph);
  for (int64_t level : {1, 2, 3}) {
    Strategy zero;
    zero.zero = level;
    const Outcome outcome =
        applied(g, *SeamLayouts::make(g.graph, unified, zero),
                meshOf(g, unified, 2, 2, 1));
    const std::string parts = outcome.tensors[size_t(table)].str();
    EXPECT_EQ(outcome.tensors[size_t(both)].str() == parts, level > 1) << level;
    std::map<int, int> scattered; // times, by tensor
    for (const Conversion &c : outcome.conversions)
      if (c.kind == ConversionKind::ReduceScatter &&
          (c.tensor == both || c.tensor == sum->operands[0] ||
           c.tensor == sum->operands[1])) {
        EXPECT_EQ(c.to.dims, outcome.tensors[size_t(table)].dims);
        scattered[c.tensor] += int(c.times);
      }
    const std::map<int, int> expected =
        level == 1
            ? std::map<int, int>{{both, 1}}
            : std::map<int, int>{{sum->operands[0], 2}, {sum->operands[1], 2}};
    EXPECT_EQ(scattered, expected) << level;
  }
}

TEST(Seams, ZeroThreeGathersForEachPass) {
  const auto &[g, unified, outcome] = Zero(3, 2, 2, 2);
  int forward = 0, backward = 0;
  for (const Conversion &c : outcome.conversions)
    if (c.kind == ConversionKind::AllGather && c.life) {
      EXPECT_EQ(*c.life, GatherLife::Use);
      EXPECT_EQ(c.times, 2);
      (c.phase == Phase::Forward ? forward : backward) += 1;
    }
  EXPECT_EQ(forward, trained(g.graph));
  EXPECT_GT(backward, 0);
}

// A weight that is split over tp in use is stored over (tp, dp): what is
// gathered are the minor parts.
TEST(Seams, AStoredLayoutExtendsThatOfItsUses) {
  TrainGraph g = makeGpt({});
  Classes unified = unify(g.graph);
  Strategy zero;
  zero.zero = 1;
  SeamLayouts layouts = *SeamLayouts::make(g.graph, unified, zero);
  Assignment base = meshOf(g, unified, 1, 2, 2);
  const int w = g.find("h.0.c_fc.weight");
  ASSERT_GE(w, 0);
  const std::vector<int> &atoms = unified.tensors[size_t(w)].atoms;
  base.axes[atoms.back()] = {"tp"};
  Strategy named;
  Strategy::StoredLayout layout;
  layout.dims = {{}, {"tp", "dp"}};
  named.stored["h.0.c_fc.weight"] = layout;
  SeamLayouts one = *SeamLayouts::make(g.graph, unified, named);
  Outcome outcome = applied(g, one, base);
  layout::Layout expected = outcome.tensors[size_t(w)];
  expected.dims[1].factors = {
      {g.graph.tensors[size_t(w)].shape[1], {"tp", "dp"}}};
  EXPECT_EQ(outcome.tensors[size_t(w)].str(), expected.str());
  bool gathered = false;
  for (const Conversion &c : outcome.conversions)
    if (c.tensor == w && c.kind == ConversionKind::AllGather) {
      EXPECT_EQ(c.axes, std::vector<std::string>{"dp"});
      gathered = true;
    }
  EXPECT_TRUE(gathered);
}

// The small GPT over tp=2, and with tokens split outside.
struct Sequence {
  TrainGraph g = makeGpt({});
  Classes unified = unify(g.graph);
  Assignment base;
  std::optional<SeamLayouts> layouts;
  Outcome plain, outcome;

  Sequence() {
    SearchOptions options;
    options.axis = "tp";
    options.size = 2;
    Result<SearchResult> found = searchTensorParallel(
        g.graph, unified, meshOf(g, unified, 1, 1, 1), options);
    EXPECT_TRUE(found.ok());
    base = found->assignment;
    Strategy sequence;
    sequence.sequence = true;
    Result<SeamLayouts> made = SeamLayouts::make(g.graph, unified, sequence,
                                                 {g.find("input_ids")}, base);
    EXPECT_TRUE(made.ok()) << made.status().str();
    layouts = std::move(*made);
    plain = *apply(g.graph, unified, base);
    outcome = applied(g, *layouts, base);
  }
};

// What a product gathers of its input, the gradient of its weight gathers
// again: once more, and nothing whole is kept.
TEST(Seams, SequenceParallelismGathersInputsAgain) {
  const Sequence of;
  std::map<int, std::map<Phase, int>> gathers; // by tensor
  for (const Conversion &c : of.outcome.conversions)
    if (c.kind == ConversionKind::AllGather &&
        c.axes == std::vector<std::string>{"tp"})
      ++gathers[c.tensor][c.phase];
  int inputs = 0;
  for (auto &[tensor, counts] : gathers)
    if (counts[Phase::Forward] > 0) {
      EXPECT_EQ(counts[Phase::Forward], 1);
      EXPECT_EQ(counts[Phase::Backward], 1)
          << of.g.graph.tensors[size_t(tensor)].name;
      ++inputs;
    }
  EXPECT_GT(inputs, 2);
}

// Every all-reduce of activations becomes a reduce-scatter and an all-gather,
// with no byte more.
TEST(Seams, SequenceParallelismSendsTheSameBytes) {
  const Sequence of;
  const auto &[g, unified, base, layouts, plain, outcome] = of;
  // Of activations: batch, tokens, width.
  std::map<ConversionKind, int> before, after;
  std::map<ConversionKind, double> bytesBefore, bytesAfter;
  auto sum = [&](const Outcome &of, auto &counts, auto &bytes) {
    for (const Conversion &c : of.conversions)
      if (g.shape(c.tensor) == Shape{8, 32, 64}) {
        ++counts[c.kind];
        bytes[c.kind] += c.bytes;
      }
  };
  sum(plain, before, bytesBefore);
  sum(outcome, after, bytesAfter);
  // The lookup of split rows, still to be decomposed, sums by itself.
  const int sums = before[ConversionKind::AllReduceSum];
  EXPECT_GT(sums, 1);
  EXPECT_EQ(after[ConversionKind::AllReduceSum], 1);
  EXPECT_EQ(after[ConversionKind::ReduceScatter], sums - 1);
  EXPECT_DOUBLE_EQ(bytesAfter[ConversionKind::ReduceScatter] / (sums - 1),
                   bytesBefore[ConversionKind::AllReduceSum] / sums / 2);
  // What norms and residual sums keep is in parts.
  const int x = g.find("h.0/residual1");
  ASSERT_GE(x, 0);
  EXPECT_EQ(
      outcome.tensors[size_t(x)].localShape(layouts->assign(base)->axisMap()),
      (Shape{8, 16, 64}));
}

TEST(Seams, NamesWhatDoesNotExist) {
  TrainGraph g = makeGpt({});
  Classes unified = unify(g.graph);
  Strategy bad;
  bad.seams = {{"nobody", 0}};
  bad.stored["nothing"] = {};
  Result<SeamLayouts> layouts = SeamLayouts::make(g.graph, unified, bad);
  ASSERT_FALSE(layouts.ok());
  EXPECT_EQ(
      layouts.status().str(),
      "strategy has a seam in front of op 'nobody', which the model "
      "lacks\n"
      "strategy stores parameter 'nothing', which the model lacks or does "
      "not train");
  Seams parameter;
  for (size_t o = 0; o < g.graph.ops.size() && parameter.uses.empty(); ++o)
    for (size_t i = 0; i < g.graph.ops[o].operands.size(); ++i)
      if (g.graph.tensors[size_t(g.graph.ops[o].operands[i])].parameter)
        parameter.uses = {{int(o), int(i)}, {int(o), 99}};
  Result<Classes> classes = separate(g.graph, unified, parameter);
  ASSERT_FALSE(classes.ok());
  EXPECT_NE(classes.status().str().find("which is the parameter"),
            std::string::npos);
  EXPECT_NE(classes.status().str().find("at operand 99"), std::string::npos);
}

} // namespace
} // namespace merak::planning::test
