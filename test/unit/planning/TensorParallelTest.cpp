// The search finds the known patterns by itself, and equals brute force.
#include "passes/Planning/TensorParallel.h"
#include "test/unit/planning/ModelGraphs.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <set>

namespace merak::planning::test {
namespace {

struct Planned {
  TrainGraph model;
  Classes classes;
  SearchResult search;
  Outcome outcome;
};

Planned plan(TrainGraph model, std::vector<AxisSize> batch, int64_t tp,
             std::vector<ParameterPin> pins = {}) {
  Planned out{std::move(model), {}, {}, {}};
  const Graph &graph = out.model.graph;
  EXPECT_TRUE(graph.check().ok()) << graph.check().str();
  out.classes = unify(graph);
  Assignment base;
  std::vector<int> inputs;
  for (size_t t = 0; t < graph.tensors.size(); ++t)
    if (graph.tensors[t].input)
      inputs.push_back(int(t));
  Status status = assignBatch(graph, out.classes, inputs, batch, base);
  EXPECT_TRUE(status.ok()) << status.str();
  SearchOptions options;
  options.size = tp;
  options.pins = std::move(pins);
  Result<SearchResult> search =
      searchTensorParallel(graph, out.classes, base, options);
  EXPECT_TRUE(search.ok()) << search.status().str();
  out.search = *search;
  Result<Outcome> outcome = apply(graph, out.classes, search->assignment);
  EXPECT_TRUE(outcome.ok()) << outcome.status().str();
  if (outcome.ok())
    out.outcome = *outcome;
  return out;
}

std::string layoutOf(const Planned &planned, const std::string &tensor) {
  int id = planned.model.find(tensor);
  EXPECT_GE(id, 0) << tensor;
  return planned.outcome.tensors[id].str();
}

// Collectives over tp of tensors of at least `elements`, by phase.
int large(const Planned &planned, ConversionKind kind, Phase phase,
          int64_t elements) {
  int count = 0;
  for (const Conversion &c : planned.outcome.conversions)
    count += c.kind == kind && c.phase == phase &&
             std::find(c.axes.begin(), c.axes.end(), "tp") != c.axes.end() &&
             planned.model.graph.tensors[c.tensor].elements() >= elements;
  return count;
}

TEST(TensorParallel, MlpIsColumnThenRow) {
  Planned p = plan(makeMlp(8, {16, 64, 16}), {}, 2);
  EXPECT_EQ(layoutOf(p, "fc1.weight"), "[16, 64@tp]");
  EXPECT_EQ(layoutOf(p, "fc1.bias"), "[64@tp]");
  EXPECT_EQ(layoutOf(p, "fc2.weight"), "[64@tp, 16]");
  EXPECT_EQ(layoutOf(p, "fc2.bias"), "[16]");
  EXPECT_EQ(p.search.report.after.contractionFlops,
            p.search.report.before.contractionFlops / 2);
}

// Megatron: heads, the hidden dimension and the vocabulary; two all-reduces
// forward and two backward a layer; logits are never gathered.
TEST(TensorParallel, Gpt2FindsMegatron) {
  GptOptions o;
  o.layers = 3;
  Planned p = plan(makeGpt(o), {}, 2);
  for (int i = 0; i < o.layers; ++i) {
    std::string h = "h." + std::to_string(i);
    EXPECT_EQ(layoutOf(p, h + ".c_attn.weight"), "[64, 3 x 4@tp x 16]");
    EXPECT_EQ(layoutOf(p, h + ".c_attn.bias"), "[3 x 4@tp x 16]");
    EXPECT_EQ(layoutOf(p, h + ".c_proj.weight"), "[4@tp x 16, 64]");
    EXPECT_EQ(layoutOf(p, h + ".c_fc.weight"), "[64, 256@tp]");
    EXPECT_EQ(layoutOf(p, h + ".mlp_proj.weight"), "[256@tp, 64]");
    EXPECT_EQ(layoutOf(p, h + ".mlp_proj.bias"), "[64]");
    EXPECT_EQ(layoutOf(p, h + ".ln_1.weight"), "[64]");
  }
  EXPECT_EQ(layoutOf(p, "wte.weight"), "[96@tp, 64]");
  EXPECT_EQ(layoutOf(p, "wpe.weight"), "[32, 64]");
  EXPECT_EQ(layoutOf(p, "lm_head"), "[8, 32, 96@tp]");
  int64_t stream = o.batch * o.tokens * o.width;
  // The embedding, and two a layer; backward the head and two a layer.
  EXPECT_EQ(large(p, ConversionKind::AllReduceSum, Phase::Forward, stream),
            1 + 2 * o.layers);
  EXPECT_EQ(large(p, ConversionKind::AllReduceSum, Phase::Backward, stream),
            1 + 2 * o.layers);
  for (ConversionKind kind :
       {ConversionKind::AllGather, ConversionKind::AllToAll,
        ConversionKind::ReduceScatter})
    for (Phase phase : {Phase::Forward, Phase::Backward, Phase::Update})
      EXPECT_EQ(large(p, kind, phase, 1), 0) << str(kind);
  // No collective is larger than the residual stream.
  EXPECT_EQ(large(p, ConversionKind::AllReduceSum, Phase::Forward, stream + 1),
            0);
  // Equal layers are decided together.
  EXPECT_LE(p.search.report.groups.size(), 5u);
  EXPECT_EQ(p.search.report.after.contractionFlops,
            p.search.report.before.contractionFlops / 2);
  EXPECT_TRUE(p.search.report.replicated.empty());
  // The embedding and the cross entropy are to be decomposed, nothing else.
  std::set<std::string> names;
  for (int op : opsToDecompose(p.model.graph, p.classes, p.search.assignment))
    names.insert(p.model.graph.ops[op].name);
  EXPECT_EQ(names, (std::set<std::string>{"wte", "wte/grad", "cross_entropy",
                                          "cross_entropy/grad"}));
}

TEST(TensorParallel, FlattenedBatchFindsTheSame) {
  GptOptions o;
  o.flat = true;
  Planned p = plan(makeGpt(o), {{"mb", 4}, {"dp", 2}}, 2);
  EXPECT_EQ(layoutOf(p, "h.0/flat1"), "[8@(mb,dp) x 32, 64]");
  EXPECT_EQ(layoutOf(p, "h.1.c_attn.weight"), "[64, 3 x 4@tp x 16]");
  EXPECT_EQ(layoutOf(p, "input_ids"), "[8@(mb,dp), 32]");
  EXPECT_EQ(layoutOf(p, "loss"), "[] partial(mb,dp)");
}

// The count of a mean over the global batch is ready before the first forward.
TEST(TensorParallel, TokenCountIsAPrologue) {
  Planned p = plan(makeGpt({}), {{"mb", 4}, {"dp", 2}}, 2);
  ASSERT_EQ(p.outcome.prologueValues.size(), 1u);
  EXPECT_EQ(p.model.graph.tensors[p.outcome.prologueValues[0]].name, "count");
  std::set<std::string> ops;
  for (size_t i = 0; i < p.outcome.ops.size(); ++i)
    if (p.outcome.ops[i].prologue)
      ops.insert(p.model.graph.ops[i].name);
  EXPECT_EQ(ops, (std::set<std::string>{"counted", "count"}));
  // Every gradient and the loss is accumulated over microbatches.
  int parameters = 0;
  for (const GraphTensor &tensor : p.model.graph.tensors)
    parameters += tensor.parameter;
  EXPECT_EQ(int(p.outcome.accumulated.size()), parameters + 1);
  // Replicas exchange gradients once a step, not once a microbatch.
  for (const Conversion &c : p.outcome.conversions)
    if (std::find(c.axes.begin(), c.axes.end(), "dp") != c.axes.end()) {
      EXPECT_EQ(c.times, 1);
    }
}

TEST(TensorParallel, GroupedQueriesSplitTheSharedHeads) {
  GptOptions o;
  o.heads = 8;
  o.kvHeads = 2;
  Planned p = plan(makeGpt(o), {}, 2);
  EXPECT_EQ(layoutOf(p, "h.0.q.weight"), "[64, 2@tp x 32]");
  EXPECT_EQ(layoutOf(p, "h.0.k.weight"), "[64, 2@tp x 8]");
  EXPECT_EQ(layoutOf(p, "h.0.c_proj.weight"), "[2@tp x 32, 64]");
  // Four ranks: two shared heads do not divide, the queries of a head do.
  Planned four = plan(makeGpt(o), {}, 4);
  EXPECT_EQ(layoutOf(four, "h.0.q.weight"), "[64, 2 x 4@tp x 8]");
  EXPECT_EQ(layoutOf(four, "h.0.k.weight"), "[64, 16]");
  EXPECT_EQ(layoutOf(four, "h.0.c_fc.weight"), "[64, 256@tp]");
}

TEST(TensorParallel, HeadsThatDoNotDivideAreReported) {
  GptOptions o;
  o.layers = 1;
  o.width = 48;
  o.heads = 3;
  Planned p = plan(makeGpt(o), {}, 2);
  EXPECT_EQ(layoutOf(p, "h.0.c_attn.weight"), "[48, 144]");
  EXPECT_EQ(layoutOf(p, "h.0.c_fc.weight"), "[48, 192@tp]");
  ASSERT_FALSE(p.search.report.replicated.empty());
  EXPECT_EQ(p.search.report.replicated[0],
            "op 'h.0.c_attn' is replicated over tp: tp=2 does not divide 3, a "
            "factor of dimension 1 of 'h.0.c_attn.weight'");
}

TEST(TensorParallel, T5SplitsAllThreeAttentions) {
  Planned p = plan(makeT5(4, 16, 64, 4), {}, 2);
  for (const char *name : {"encoder.self", "decoder.self", "decoder.cross"}) {
    EXPECT_EQ(layoutOf(p, std::string(name) + ".q.weight"), "[64, 4@tp x 16]");
    EXPECT_EQ(layoutOf(p, std::string(name) + ".o.weight"), "[4@tp x 16, 64]");
  }
  EXPECT_EQ(layoutOf(p, "encoder.ff.wi.weight"), "[64, 256@tp]");
  EXPECT_EQ(layoutOf(p, "shared.weight"), "[128@tp, 64]");
  // Backward: q, k and v give one summed gradient of the norm (cross: the
  // memory's two are summed as well), so two a block, one for each embedding's
  // stream that has a partial input.
  int64_t stream = 4 * 16 * 64;
  EXPECT_EQ(large(p, ConversionKind::AllReduceSum, Phase::Forward, stream),
            2 + 5);
  EXPECT_EQ(large(p, ConversionKind::AllReduceSum, Phase::Backward, stream),
            1 + 5 + 1);
  EXPECT_EQ(large(p, ConversionKind::AllGather, Phase::Forward, 1), 0);
}

// Every convolution is divided by its outputs; its input is gathered, which is
// half the bytes of an all-reduce of its output.
TEST(TensorParallel, ConvolutionsAreAllDivided) {
  Planned p = plan(makeConvNet(8), {{"mb", 2}, {"dp", 2}}, 2);
  EXPECT_EQ(layoutOf(p, "conv1.weight"), "[16@tp, 3, 3, 3]");
  EXPECT_EQ(layoutOf(p, "conv2.weight"), "[32@tp, 16, 3, 3]");
  EXPECT_EQ(layoutOf(p, "conv3.weight"), "[16@tp, 32, 3, 3]");
  EXPECT_EQ(layoutOf(p, "image"), "[8@(mb,dp), 3, 8, 8]");
  EXPECT_EQ(p.search.report.after.contractionFlops,
            p.search.report.before.contractionFlops / 2);
}

TEST(TensorParallel, PinsAreHonoured) {
  // Row instead of column, as the user wants it.
  Planned p = plan(makeMlp(8, {16, 64, 16}), {}, 2,
                   {{"fc1.weight", 0, "tp"}, {"fc1.weight", 1, ""}});
  EXPECT_EQ(layoutOf(p, "fc1.weight"), "[16@tp, 64]");
  EXPECT_EQ(layoutOf(p, "fc2.weight"), "[64, 16@tp]");
}

TEST(TensorParallel, PinProblemsAllAtOnce) {
  TrainGraph model = makeMlp(8, {15, 64, 16});
  SearchOptions options;
  options.size = 2;
  options.pins = {{"fc9.weight", 0, "tp"},
                  {"fc1.weight", 2, "tp"},
                  {"fc1.weight", 0, "tp"},
                  {"fc1.weight", 1, "tp"},
                  {"fc2.weight", 0, ""}};
  Classes classes = unify(model.graph);
  EXPECT_EQ(
      searchTensorParallel(model.graph, classes, {}, options).status().str(),
      "there is no parameter 'fc9.weight' to split\n"
      "parameter 'fc1.weight' has 2 dimensions, not a dimension 2\n"
      "dimension 0 of parameter 'fc1.weight' (15) has no factor that tp=2 "
      "divides\n"
      "dimension 1 of 'fc1.weight' is pinned both split and whole; the two "
      "pinned parameters share it");
}

// Coordinate descent finds what trying everything finds.
TEST(TensorParallel, DescentEqualsBruteForce) {
  for (int model = 0; model < 4; ++model) {
    TrainGraph g = model == 0   ? makeMlp(8, {16, 64, 32, 8, 16})
                   : model == 1 ? makeGpt({})
                   : model == 2 ? makeT5(4, 16, 64, 4)
                                : makeConvNet(4);
    Classes classes = unify(g.graph);
    SearchOptions options;
    options.size = 2;
    options.bruteForceGroups = 16;
    Result<SearchResult> all =
        searchTensorParallel(g.graph, classes, {}, options);
    options.bruteForceGroups = 0;
    Result<SearchResult> descent =
        searchTensorParallel(g.graph, classes, {}, options);
    EXPECT_EQ(all->report.after.contractionFlops,
              descent->report.after.contractionFlops);
    EXPECT_EQ(all->report.after.communicatedBytes,
              descent->report.after.communicatedBytes)
        << model << "\n"
        << all->report.str() << descent->report.str();
    EXPECT_EQ(all->report.after.parameterBytes,
              descent->report.after.parameterBytes);
  }
}

// A random chain of products, with nonlinear ops, norms, residuals and heads
// that divide or do not.
TrainGraph randomModel(std::mt19937 &random) {
  auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const int64_t widths[] = {6, 8, 12, 16, 20, 32};
  TrainGraph g;
  int64_t width = widths[pick(0, 5)];
  int x = g.input("x", {8, 4, width});
  int products = 0;
  for (int i = 0, n = pick(2, 5); i < n; ++i) {
    std::string name = "op" + std::to_string(i);
    switch (pick(0, 5)) {
    case 0:
      x = g.unary(name, x);
      break;
    case 1:
      x = g.layerNorm(name, x, g.parameter(name + ".gamma", {width}),
                      g.parameter(name + ".beta", {width}));
      break;
    case 2: { // there and back again, beside x
      int64_t inner = widths[pick(0, 5)];
      int y = g.linear(name + ".up", x, inner, pick(0, 1));
      if (pick(0, 1))
        y = g.unary(name + ".act", y);
      x = g.add(name, x, g.linear(name + ".down", y, width, pick(0, 1)));
      products += 2;
      break;
    }
    default:
      width = widths[pick(0, 5)];
      x = g.linear(name, x, width, pick(0, 1));
      ++products;
      break;
    }
  }
  if (products == 0)
    x = g.linear("last", x, widths[pick(0, 5)]);
  g.train(x);
  return g;
}

// Every set of the groups that the search decides on, priced one by one: it
// finds the best of those that no op must see whole, and descent nearly always
// the best of all.
TEST(TensorParallel, RandomModelsAgainstBruteForce) {
  std::mt19937 random(29);
  const int rounds = 150;
  int groups = 0, same = 0;
  auto price = [](const PartitionCost &cost) {
    return std::tuple(cost.contractionFlops, cost.communicatedBytes,
                      cost.parameterBytes);
  };
  for (int round = 0; round < rounds; ++round) {
    TrainGraph g = randomModel(random);
    ASSERT_TRUE(g.graph.check().ok()) << g.graph.check().str();
    Classes classes = unify(g.graph);
    SearchOptions options;
    options.size = 2 << (random() % 2);
    Result<SearchResult> found =
        searchTensorParallel(g.graph, classes, {}, options);
    ASSERT_TRUE(found.ok()) << found.status().str();
    EXPECT_TRUE(apply(g.graph, classes, found->assignment).ok());
    const std::vector<CandidateGroup> &all = found->report.groups;
    groups += int(all.size());
    PartitionCost best, bestOfAll;
    best.contractionFlops = bestOfAll.contractionFlops = 1e30;
    for (size_t set = 0; set < (size_t(1) << all.size()); ++set) {
      Assignment assignment;
      assignment.mesh = {{"tp", options.size}};
      bool gathered = false;
      for (size_t i = 0; i < all.size(); ++i)
        if (set >> i & 1) {
          gathered |= all[i].gathered;
          for (int c : all[i].classes)
            assignment.axes[c] = {"tp"};
        }
      PartitionCost cost = costOf(g.graph, classes, assignment);
      if (!cost.feasible)
        continue;
      if (!gathered && price(cost) < price(best))
        best = cost;
      if (price(cost) < price(bestOfAll))
        bestOfAll = cost;
    }
    EXPECT_LE(price(found->report.after), price(best)) << round;
    EXPECT_GE(price(found->report.after), price(bestOfAll)) << round;
    options.bruteForceGroups = 0;
    Result<SearchResult> descent =
        searchTensorParallel(g.graph, classes, {}, options);
    ASSERT_TRUE(descent.ok());
    EXPECT_GE(price(descent->report.after), price(bestOfAll)) << round;
    same += price(descent->report.after) == price(found->report.after);
  }
  EXPECT_GT(groups, 2 * rounds);
  EXPECT_GE(same, rounds * 9 / 10);
}

TEST(TensorParallel, SameResultEveryTime) {
  Planned a = plan(makeGpt({}), {}, 2), b = plan(makeGpt({}), {}, 2);
  EXPECT_EQ(a.search.assignment.axes, b.search.assignment.axes);
  EXPECT_EQ(a.search.report.str(), b.search.report.str());
}

// Cost grows with layers only through the graph's size: the number of
// evaluations is that of the distinct layers.
TEST(TensorParallel, ManyLayersTakeNoMoreEvaluations) {
  GptOptions few, many;
  few.layers = 2;
  many.layers = 24;
  Planned a = plan(makeGpt(few), {}, 2), b = plan(makeGpt(many), {}, 2);
  EXPECT_EQ(a.search.report.evaluations, b.search.report.evaluations);
  EXPECT_EQ(layoutOf(b, "h.23.c_attn.weight"), "[64, 3 x 4@tp x 16]");
}

} // namespace
} // namespace merak::planning::test
