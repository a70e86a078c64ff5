// Views against tensors of element numbers: what a view sees must be what the
// op would have made.
#include "passes/Lowering/Views.h"

#include "mlir/IR/MLIRContext.h"

#include <gtest/gtest.h>
#include <numeric>
#include <random>

using namespace mlir;
using namespace merak;
using namespace merak::lowering;

namespace {

using Dims = SmallVector<int64_t>;

// Elements of a buffer that the view touches, in row-major order of the view.
std::vector<int64_t> elements(const View &view) {
  std::vector<int64_t> list{view.offset};
  for (size_t d = 0; d < view.shape.size(); ++d) {
    std::vector<int64_t> next;
    for (int64_t at : list)
      for (int64_t i = 0; i < view.shape[d]; ++i)
        next.push_back(at + i * view.strides[d]);
    list = next;
  }
  return list;
}

class Views : public testing::Test {
protected:
  Views() { context.loadDialect<plan::PlanDialect>(); }
  View dense(ArrayRef<int64_t> shape) {
    return View::dense(StringAttr::get(&context, "x"), shape);
  }
  MLIRContext context;
};

TEST_F(Views, ReshapeKeepsRowMajorOrderOrIsRefused) {
  std::mt19937 random(3);
  int expressed = 0, refused = 0;
  for (int round = 0; round < 2000; ++round) {
    // A view of a random tensor: sliced and transposed.
    const int64_t sizes[] = {1, 2, 3, 4, 6};
    Dims shape;
    for (size_t d = 0; d < 1 + random() % 4; ++d)
      shape.push_back(sizes[random() % 5]);
    View view = dense(shape);
    if (random() % 2) {
      Dims starts(shape.size(), 0), steps(shape.size(), 1), part(shape);
      size_t d = random() % shape.size();
      part[d] = (shape[d] + 1) / 2;
      view = sliceView(view, starts, part, steps);
    }
    if (random() % 2) {
      Dims perm(shape.size());
      std::iota(perm.begin(), perm.end(), 0);
      std::shuffle(perm.begin(), perm.end(), random);
      view = permuteView(view, perm);
    }
    // Regroup its prime factors at random.
    Dims factors;
    for (int64_t size : view.shape)
      for (int64_t prime : {2, 3})
        for (; size % prime == 0; size /= prime)
          factors.push_back(prime);
    std::shuffle(factors.begin(), factors.end(), random);
    Dims target{1};
    for (int64_t factor : factors)
      if (random() % 2)
        target.back() *= factor;
      else
        target.push_back(factor);
    auto reshaped = reshapeView(view, target);
    if (!reshaped) {
      ++refused;
      EXPECT_FALSE(view.toAttr().isDense()) << "a dense view always reshapes";
      continue;
    }
    ++expressed;
    EXPECT_EQ(ArrayRef<int64_t>(reshaped->shape), ArrayRef<int64_t>(target));
    EXPECT_EQ(elements(*reshaped), elements(view));
  }
  EXPECT_GT(expressed, 500);
  EXPECT_GT(refused, 100);
}

TEST_F(Views, ReshapeSplitsAndMergesWhereStridesAllow) {
  View heads = permuteView(dense({2, 5, 3, 4}), {0, 2, 1, 3});
  EXPECT_TRUE(reshapeView(heads, {2, 3, 5, 2, 2}));
  EXPECT_TRUE(reshapeView(heads, {2, 3, 5, 4, 1}));
  EXPECT_FALSE(reshapeView(heads, {6, 5, 4}));
  EXPECT_FALSE(reshapeView(heads, {2, 15, 4}));
  View broadcast = expandView(dense({1, 4}), {3, 2, 4});
  EXPECT_TRUE(reshapeView(broadcast, {6, 4}));
  EXPECT_FALSE(reshapeView(broadcast, {3, 8}));
}

TEST_F(Views, UnpermuteIsTheInverse) {
  View view = dense({2, 3, 4});
  Dims perm{2, 0, 1};
  EXPECT_EQ(unpermuteView(permuteView(view, perm), perm), view);
  EXPECT_EQ(permuteView(unpermuteView(view, perm), perm), view);
}

TEST_F(Views, SliceWithSteps) {
  View view = sliceView(dense({6, 5}), {1, 0}, {2, 3}, {3, 2});
  EXPECT_EQ(elements(view), (std::vector<int64_t>{5, 7, 9, 20, 22, 24}));
}

TEST_F(Views, ExpandAlignsAtTheEnd) {
  View view = expandView(dense({3, 1}), {2, 3, 2});
  EXPECT_EQ(elements(view),
            (std::vector<int64_t>{0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2}));
}

TEST_F(Views, PrintsShortAndParsesBack) {
  View view =
      sliceView(permuteView(dense({4, 8}), {1, 0}), {2, 0}, {4, 4}, {1, 1});
  std::string text;
  llvm::raw_string_ostream(text) << view.toAttr();
  EXPECT_EQ(text, "#plan.view<@x[4, 4] by [1, 8] at 2>");
  EXPECT_EQ(View::fromAttr(view.toAttr()), view);
}

// What a reshape makes of a part and the part itself are one view: else the
// part would be copied to where it is.
TEST_F(Views, StridesOfSizeOneDoNotCount) {
  View both = dense({5, 2, 4, 6});
  View part = sliceView(both, {1, 1, 0, 0}, {1, 1, 4, 6}, {1, 1, 1, 1});
  View again = *reshapeView(*reshapeView(part, {1, 4, 6}), {1, 1, 4, 6});
  EXPECT_NE(part.strides, again.strides);
  EXPECT_EQ(elements(part), elements(again));
  EXPECT_TRUE(part == again);
  again.strides[2] += 1;
  EXPECT_FALSE(part == again);
  EXPECT_FALSE(part ==
               sliceView(both, {2, 1, 0, 0}, {1, 1, 4, 6}, {1, 1, 1, 1}));
  EXPECT_FALSE(part == *reshapeView(part, {4, 1, 6}));
}

} // namespace
