// Layouts that differ between parts of a model: the search finds the rows of
// docs/Seams.md where they are best, and what it finds is near the best of all
// combinations, each priced whole.
#include "passes/Planning/LayoutSearch.h"

#include "passes/Planning/SeamLayouts.h"
#include "test/unit/planning/ModelGraphs.h"

#include <gtest/gtest.h>
#include <numeric>

namespace merak::planning::test {
namespace {

struct Problem {
  TrainGraph model;
  Classes classes;
  std::vector<int> inputs;
  Assignment base;
  LayoutSearchOptions options;

  Problem(TrainGraph of, int64_t mb, int64_t dp, int64_t tp)
      : model(std::move(of)), classes(unify(model.graph)) {
    for (size_t t = 0; t < model.graph.tensors.size(); ++t)
      if (model.graph.tensors[t].input)
        inputs.push_back(int(t));
    EXPECT_TRUE(assignBatch(model.graph, classes, inputs,
                            {{"mb", mb}, {"dp", dp}}, base)
                    .ok());
    base.mesh.push_back({"tp", tp});
    options.costs.tp = tp;
    options.costs.microbatches = mb;
    options.microbatches = mb;
    connect(costmodel::defaultCluster(dp * tp).intra);
  }

  void connect(const costmodel::Link &link) {
    const int64_t dp = base.sizeOf(kDataAxis), tp = options.costs.tp;
    costmodel::Cluster cluster = costmodel::defaultCluster(dp * tp);
    cluster.intra = cluster.inter = link;
    options.costs.cluster = cluster;
    options.reduce =
        makePipelineShape(cluster, {1, dp, tp, options.microbatches}, 0, {})
            .reduce;
  }

  // Over tp in the parts that a layout names.
  Assignment inParts(const FoundLayout &layout) const {
    Assignment out = base;
    for (const auto &[axis, parts] : layout.parts) {
      std::erase_if(out.mesh,
                    [&](const AxisSize &of) { return of.name == axis; });
      for (size_t part = 0; part < parts.size(); ++part)
        out.mesh.push_back({partOf(axis, part), parts[part]});
    }
    return out;
  }

  // The model with these layouts, through the strategy that says them.
  LayoutCost price(const FoundLayout &layout) const {
    Strategy strategy;
    strategy.seams = layout.seams;
    strategy.classes = layout.classes;
    strategy.parts = layout.parts;
    Assignment assignment = inParts(layout);
    if (layout.seams.empty()) {
      for (const Strategy::SplitClass &split : layout.classes)
        EXPECT_TRUE(
            splitBy(model.graph, classes, split, true, assignment).ok());
    }
    Result<SeamLayouts> layouts =
        SeamLayouts::make(model.graph, classes, strategy, inputs, base);
    EXPECT_TRUE(layouts.ok()) << layouts.status().str();
    LayoutCost none;
    none.feasible = false;
    if (!layouts.ok())
      return none;
    Result<Assignment> seamed = layouts->assign(assignment);
    EXPECT_TRUE(seamed.ok()) << seamed.status().str();
    if (!seamed.ok())
      return none;
    std::vector<int> ops(model.graph.ops.size());
    std::iota(ops.begin(), ops.end(), 0);
    LayoutPiece whole(model.graph, layouts->classes(), ops);
    std::vector<std::vector<std::string>> axes;
    for (int cls : whole.classes())
      axes.push_back(seamed->axes.count(cls) ? seamed->axes.at(cls)
                                             : std::vector<std::string>());
    return whole.cost(whole.assignment(*seamed, axes), options.costs,
                      options.reduce);
  }
  double seconds(const FoundLayout &layout) const {
    const LayoutCost cost = price(layout);
    return cost.feasible ? double(options.microbatches) * cost.perMicrobatch +
                               cost.perStep
                         : 1e30;
  }
};

Result<LayoutFrontier> search(const Problem &p) {
  Result<LayoutModel> model = LayoutModel::make(p.model.graph, p.classes);
  if (!model.ok())
    return model.status();
  return searchLayouts(*model, p.base, p.options);
}

std::string axesOf(const FoundLayout &layout, const std::string &tensor,
                   int dim) {
  std::string text;
  for (const Strategy::SplitClass &split : layout.classes)
    if (split.anchor.tensor == tensor && split.anchor.dim == dim &&
        split.anchor.op.empty())
      for (const std::string &axis : split.axes)
        text += axis + " ";
  return text;
}

// A table of which each step reads little, and whose gradient is as large as
// itself: its columns lie over the replicas, and no one reduces it.
TEST(LayoutSearch, ColumnsOfAWideTable) {
  TrainGraph g;
  int ids = g.input("ids", {8, 4});
  int x = g.embedding("lookup", ids, g.parameter("table", {100000, 64}));
  x = g.unary("act", x);
  x = g.linear("fc", x, 64);
  g.train(x);
  Problem p(std::move(g), 1, 4, 1);
  Result<LayoutFrontier> found = search(p);
  ASSERT_TRUE(found.ok()) << found.status().str();
  const FoundLayout &best = found->points.front();
  EXPECT_EQ(axesOf(best, "table", 1), "dp ");
  EXPECT_FALSE(best.seams.empty());
  EXPECT_LT(p.seconds(best), 0.6 * p.seconds(FoundLayout()));
}

// Four ranks share the width of layers whose weights are large beside the
// samples. Of square layers two share the width and two the samples: of weights
// and of activations half is exchanged between two, in place of all of either
// between four.
TEST(LayoutSearch, LayersHaveDegreesOfTheirOwn) {
  constexpr int kSquares = 8;
  TrainGraph g;
  int x = g.input("x", {512, 512});
  for (int k = 0; k < kSquares; ++k) {
    const std::string name = "square" + std::to_string(k);
    x = g.unary(name + "/act", g.linear(name, x, 512, false));
  }
  x = g.unary("act", g.linear("wide", x, 2048, false));
  x = g.linear("back", x, 512, false);
  g.train(x);
  Problem p(std::move(g), 1, 1, 4);
  p.connect({1e8, 1e-9});
  Result<LayoutFrontier> found = search(p);
  ASSERT_TRUE(found.ok()) << found.status().str();
  const FoundLayout &best = found->points.front();
  ASSERT_EQ(best.parts.count("tp"), 1u);
  EXPECT_EQ(best.parts.at("tp"), (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(axesOf(best, "wide.weight", 1), "tp.0 tp.1 ");
  for (int k = 0; k < kSquares; ++k) {
    const std::string weight = "square" + std::to_string(k) + ".weight";
    EXPECT_EQ(axesOf(best, weight, 0) + axesOf(best, weight, 1), "tp.0 ");
  }
  p.options.parts = false;
  Result<LayoutFrontier> whole = search(p);
  ASSERT_TRUE(whole.ok()) << whole.status().str();
  double without = 1e30;
  for (const FoundLayout &layout : whole->points)
    without = std::min(without, p.seconds(layout));
  EXPECT_LT(p.seconds(best), 0.95 * without);
}

// Points that do not say their layouts take as much, and know whether they have
// seams.
TEST(LayoutSearch, UnnamedPointsTakeAsMuch) {
  TrainGraph g;
  int x = g.input("x", {512, 512});
  x = g.unary("act", g.linear("wide", x, 2048, false));
  x = g.linear("back", x, 512, false);
  g.train(x);
  Problem p(std::move(g), 1, 2, 2);
  p.connect({1e8, 1e-9});
  p.options.most = 0;
  Result<LayoutFrontier> named = search(p);
  p.options.named = false;
  Result<LayoutFrontier> unnamed = search(p);
  ASSERT_TRUE(named.ok() && unnamed.ok());
  ASSERT_EQ(named->points.size(), unnamed->points.size());
  size_t uniform = 0;
  for (size_t i = 0; i < named->points.size(); ++i) {
    const FoundLayout &a = named->points[i], &b = unnamed->points[i];
    EXPECT_EQ(a.seconds, b.seconds);
    EXPECT_EQ(a.bytes, b.bytes);
    EXPECT_EQ(a.isUniform, b.isUniform);
    EXPECT_EQ(a.isUniform, a.seams.empty());
    EXPECT_TRUE(b.seams.empty() && b.classes.empty());
    uniform += a.isUniform;
  }
  EXPECT_LT(uniform, named->points.size());
}

// A layout that uses all of tp everywhere does not name parts of it.
TEST(LayoutSearch, NamesPartsOnlyWhereTheyAreUsed) {
  Problem p(makeMlp(64, {128, 512, 128}), 1, 1, 4);
  Result<std::vector<FoundLayout>> all = everyLayout(
      *LayoutModel::make(p.model.graph, p.classes), p.base, p.options, 200000);
  ASSERT_TRUE(all.ok()) << all.status().str();
  size_t whole = 0;
  for (const FoundLayout &layout : *all) {
    bool first = false, rest = false;
    for (const Strategy::SplitClass &split : layout.classes)
      for (const std::string &axis : split.axes) {
        first |= isOn(axis, "tp") && axis != "tp";
        rest |= axis == "tp";
      }
    EXPECT_EQ(first, !layout.parts.empty());
    EXPECT_FALSE(first && rest);
    whole += rest;
  }
  EXPECT_GT(whole, 0u);
  EXPECT_LT(whole, all->size());
}

// Small models whole: no combination is much faster than what was found. A
// twentieth is what kernels save that fuse across a seam, which pieces do not
// see.
TEST(LayoutSearch, IsNearTheBestOfAllCombinations) {
  auto wide = [] {
    TrainGraph g;
    int x = g.input("x", {64, 128});
    x = g.unary("a", g.linear("small", x, 256));
    x = g.unary("b", g.linear("wide", x, 4096));
    x = g.linear("back", x, 128);
    g.train(x);
    return g;
  };
  auto lookup = [] {
    TrainGraph g;
    int ids = g.input("ids", {32, 16});
    int x = g.embedding("lookup", ids, g.parameter("table", {5000, 128}));
    x = g.layerNorm("norm", x, g.parameter("gamma", {128}),
                    g.parameter("beta", {128}));
    g.train(g.linear("fc", x, 512));
    return g;
  };
  struct Case {
    TrainGraph g;
    int64_t mb, dp, tp;
  };
  std::vector<Case> cases;
  for (int64_t mb : {1, 2})
    for (auto [dp, tp] :
         {std::pair(2, 1), std::pair(1, 2), std::pair(2, 2), std::pair(1, 4)}) {
      cases.push_back({wide(), mb, dp, tp});
      cases.push_back({lookup(), mb, dp, tp});
      cases.push_back({makeMlp(64, {128, 512, 128}), mb, dp, tp});
    }
  int64_t combinations = 0;
  double lost = 0;
  for (Case &c : cases) {
    Problem p(std::move(c.g), c.mb, c.dp, c.tp);
    Result<LayoutFrontier> found = search(p);
    ASSERT_TRUE(found.ok()) << found.status().str();
    // Where conversions take no time, nothing takes longer, but for a bucket.
    Problem free = p;
    free.options.conversions = false;
    Result<LayoutFrontier> least = search(free);
    ASSERT_TRUE(least.ok()) << least.status().str();
    EXPECT_LE(least->points.front().seconds,
              found->points.front().seconds * 1.01);
    EXPECT_LT(least->priced, found->priced);
    Result<std::vector<FoundLayout>> all = everyLayout(
        *LayoutModel::make(p.model.graph, p.classes), p.base, p.options, 20000);
    ASSERT_TRUE(all.ok()) << all.status().str();
    double best = 1e30;
    const FoundLayout *fastest = nullptr;
    for (const FoundLayout &layout : *all)
      if (double seconds = p.seconds(layout); seconds < best) {
        best = seconds;
        fastest = &layout;
      }
    combinations += int64_t(all->size());
    lost += p.seconds(found->points.front()) / best - 1;
    auto said = [](const FoundLayout &layout) {
      std::string text = " expected " + std::to_string(layout.seconds * 1e6);
      for (const Strategy::SplitClass &split : layout.classes) {
        text += "\n  " + split.anchor.tensor + "." +
                std::to_string(split.anchor.dim) + " " + split.anchor.op + ":";
        for (const std::string &axis : split.axes)
          text += " " + axis;
      }
      return text;
    };
    EXPECT_LE(p.seconds(found->points.front()), 1.05 * best)
        << "mb=" << c.mb << " dp=" << c.dp << " tp=" << c.tp << " of "
        << all->size() << " expected " << found->points.front().seconds
        << said(found->points.front()) << "\nbest" << said(*fastest);
  }
  EXPECT_GT(combinations, 1000);
  EXPECT_LT(lost / double(cases.size()), 0.01);
}

} // namespace
} // namespace merak::planning::test
