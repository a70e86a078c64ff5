#include "passes/Planning/KeptViews.h"

#include <gtest/gtest.h>

namespace merak::planning {
namespace {

// Forward ops on one device, and backward ops that read what they name.
struct Model {
  Graph graph;
  Outcome outcome;

  int tensor(std::vector<int64_t> shape) {
    GraphTensor tensor;
    tensor.shape = shape;
    outcome.tensors.push_back(layout::Layout::replicated(shape));
    return graph.addTensor(std::move(tensor));
  }
  int op(GraphOp op) {
    OpOutcome &of = outcome.ops.emplace_back();
    of.operands.resize(op.operands.size());
    for (int result : op.results)
      of.produced.push_back(outcome.tensors[size_t(result)]);
    return graph.addOp(std::move(op));
  }
  int made(std::vector<int64_t> shape) {
    const int result = tensor(std::move(shape));
    op({.name = "made", .operands = {}, .results = {result}});
    return result;
  }
  int view(Moves moves, int of, std::vector<int64_t> shape,
           std::vector<int64_t> perm = {}) {
    GraphOp view;
    view.operands = {of};
    view.results = {tensor(std::move(shape))};
    view.moves = moves;
    view.perm = std::move(perm);
    if (moves == Moves::Slice)
      view.steps.assign(graph.tensors[size_t(of)].shape.size(), 1);
    return op(std::move(view)), graph.ops.back().results[0];
  }
  void read(std::vector<int> values) {
    GraphOp reader;
    reader.operands = std::move(values);
    reader.phase = Phase::Backward;
    op(std::move(reader));
  }
  // Of the op that makes a tensor.
  bool again(int tensor) const {
    const std::vector<char> views = viewsTakenAgain(graph, outcome, {});
    for (size_t i = 0; i < graph.ops.size(); ++i)
      if (!graph.ops[i].results.empty() && graph.ops[i].results[0] == tensor)
        return views[i];
    return false;
  }
};

TEST(KeptViews, PartsOfAPackedProduct) {
  Model m;
  const int packed = m.made({2, 8, 24});
  std::vector<int> heads;
  for (int i = 0; i < 3; ++i)
    heads.push_back(m.view(
        Moves::Reshape, m.view(Moves::Slice, packed, {2, 8, 8}), {2, 8, 4, 2}));
  m.read(heads);
  for (size_t i = 1; i < m.graph.ops.size() - 1; ++i)
    EXPECT_TRUE(m.again(m.graph.ops[i].results[0])) << i;
  EXPECT_FALSE(m.again(packed));
}

TEST(KeptViews, TwoOfThreePartsAreKeptThemselves) {
  Model m;
  const int packed = m.made({2, 24});
  const int a = m.view(Moves::Slice, packed, {2, 8}),
            b = m.view(Moves::Slice, packed, {2, 8}),
            c = m.view(Moves::Slice, packed, {2, 8});
  m.read({a, b});
  for (int part : {a, b, c})
    EXPECT_FALSE(m.again(part));
  // With the whole kept for another reader they are views of it.
  m.read({packed});
  for (int part : {a, b, c})
    EXPECT_TRUE(m.again(part));
}

TEST(KeptViews, PartsOfAViewThatIsCovered) {
  Model m;
  const int made = m.made({2, 24});
  const int cut = m.view(Moves::Slice, made, {2, 16});
  const int halves[] = {m.view(Moves::Slice, cut, {2, 8}),
                        m.view(Moves::Slice, cut, {2, 8})};
  m.read({halves[0], halves[1]});
  EXPECT_TRUE(m.again(halves[0]));
  // Two thirds of what was made: the cut is kept.
  EXPECT_FALSE(m.again(cut));
}

TEST(KeptViews, OneCopyOfAValueAndItsReshape) {
  Model m;
  const int made = m.made({2, 8, 4, 2});
  const int flat = m.view(Moves::Reshape, made, {2, 8, 8});
  m.read({made});
  m.read({flat});
  EXPECT_TRUE(m.again(flat));
}

TEST(KeptViews, RowsStayInOnePiece) {
  Model m;
  const int made = m.made({2, 8, 4, 3});
  // Heads in front of tokens: rows of 3 as before.
  const int heads = m.view(Moves::Transpose, made, {2, 4, 8, 3}, {0, 2, 1, 3});
  // Tokens last: each element of a row lies elsewhere.
  const int columns =
      m.view(Moves::Transpose, made, {2, 4, 3, 8}, {0, 2, 3, 1});
  // No strides say this.
  const int joined = m.view(Moves::Reshape, heads, {2, 32, 3});
  // Of what is kept in its own order.
  const int last = m.view(Moves::Reshape, columns, {2, 4, 24});
  m.read({heads, columns, joined, last});
  EXPECT_TRUE(m.again(heads));
  EXPECT_FALSE(m.again(columns));
  EXPECT_FALSE(m.again(joined));
  EXPECT_TRUE(m.again(last));
}

TEST(KeptViews, DimensionsOfOneElementDoNotCount) {
  Model m;
  const int made = m.made({8, 1, 4});
  const int view = m.view(Moves::Transpose, made, {8, 4, 1}, {0, 2, 1});
  m.read({view});
  EXPECT_TRUE(m.again(view));
}

TEST(KeptViews, DataAndBackwardValuesAreNoneOfThem) {
  Model m;
  const int data = m.tensor({2, 8});
  m.graph.tensors[size_t(data)].input = true;
  const int view = m.view(Moves::Reshape, data, {16});
  m.read({view});
  EXPECT_FALSE(m.again(view));
  const int gradient = m.made({2, 8});
  const int other = m.view(Moves::Reshape, gradient, {16});
  m.graph.ops.back().phase = Phase::Backward;
  m.read({other});
  EXPECT_FALSE(m.again(other));
}

TEST(KeptViews, ConvertedValuesAreKeptAsTheyWereConverted) {
  Model m;
  const int packed = m.made({2, 16});
  const int a = m.view(Moves::Slice, packed, {2, 8}),
            b = m.view(Moves::Slice, packed, {2, 8});
  m.outcome.conversions.emplace_back();
  m.read({a, b});
  EXPECT_TRUE(m.again(a));
  // The forward pass has gathered one: that is what stays.
  m.outcome.ops.back().operands[0].conversions = {0};
  EXPECT_FALSE(m.again(a));
  EXPECT_FALSE(m.again(b));
}

} // namespace
} // namespace merak::planning
