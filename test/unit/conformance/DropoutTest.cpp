// Masks of the dropout kernel: how often it drops, that what makes a mask
// different does, and that parts of a tensor get the mask of the whole.
#include "runtime/layout/GlobalIndex.h"
#include "test/unit/conformance/Harness.h"

#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <random>

namespace merak::conformance {
namespace {

struct Mask {
  double ratio = 0.1;
  int64_t id = 0, seed = 0, step = 1;
  // Of ones, so that what is not zero was kept.
  std::vector<double> draw(const Shape &shape, const layout::GlobalIndex &index,
                           const layout::AxisMap &coords = {}) const {
    Case c;
    c.op = "dropout";
    c.attrs = {{"ratio", fmt::format("{}", ratio)},
               {"id", std::to_string(id)},
               {"extents", fmt::format("{}", fmt::join(index.extents, ","))},
               {"strides", fmt::format("{}", fmt::join(index.strides, ","))}};
    c.scalars = {runtime::ScalarValue::integer(seed),
                 runtime::ScalarValue::integer(step)};
    for (const auto &[axis, scale] : index.offsets)
      c.scalars.push_back(
          runtime::ScalarValue::integer(coords.at(axis) * scale));
    Tensor ones = zeros(shape);
    std::fill(ones.v.begin(), ones.v.end(), 1);
    c.inputs = {ones};
    c.outputs = {zeros(shape)};
    Outcome outcome = runCase(c, MemoryLayout::Dense, 2, false);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.str();
    return outcome.outputs[0].v;
  }
  std::vector<double> draw(int64_t n) const {
    return draw({n}, {{n}, {1}, {}});
  }
};

TEST(DropoutMask, DropsAsOftenAsAsked) {
  constexpr int64_t kCount = 1000000;
  for (double ratio : {0.1, 0.5, 0.9}) {
    Mask mask{ratio, 5, 42, 3};
    std::vector<double> y = mask.draw(kCount);
    int64_t dropped = 0, both = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      dropped += y[i] == 0;
      both += i > 0 && y[i] == 0 && y[i - 1] == 0;
      if (y[i] != 0) {
        ASSERT_FLOAT_EQ(y[i], 1 / (1 - ratio));
      }
    }
    // Five standard deviations of a binomial; neighbours are independent.
    auto bound = [&](double p) { return 5 * std::sqrt(kCount * p * (1 - p)); };
    EXPECT_NEAR(dropped, kCount * ratio, bound(ratio));
    EXPECT_NEAR(both, kCount * ratio * ratio, 3 * bound(ratio * ratio));
  }
}

// Seed, step and op each make another mask: two masks agree as often as
// independent ones do.
TEST(DropoutMask, EveryKeyMakesAnother) {
  constexpr int64_t kCount = 100000;
  std::vector<Mask> masks = {{0.5, 0, 0, 1},
                             {0.5, 1, 0, 1},
                             {0.5, 0, 1, 1},
                             {0.5, 0, int64_t{1} << 32, 1},
                             {0.5, 0, 0, 2}};
  std::vector<std::vector<double>> drawn;
  for (const Mask &mask : masks)
    drawn.push_back(mask.draw(kCount));
  EXPECT_EQ(masks[0].draw(kCount), drawn[0]);
  for (size_t a = 0; a < drawn.size(); ++a)
    for (size_t b = 0; b < a; ++b) {
      int64_t equal = 0;
      for (int64_t i = 0; i < kCount; ++i)
        equal += drawn[a][i] == drawn[b][i];
      EXPECT_NEAR(equal, kCount / 2, 5 * std::sqrt(kCount / 4.0))
          << a << " and " << b;
    }
}

// Random layouts: what every rank and microbatch draws is its part of the mask
// of the whole tensor, as the boxes of the layout have it.
TEST(DropoutMask, PartsHaveTheMaskOfTheWhole) {
  std::mt19937 random(11);
  auto pick = [&](int n) { return static_cast<int64_t>(random() % n); };
  constexpr int64_t kMost = 1 << 20; // elements: the largest would take GiB
  for (int round = 0; round < 100;) {
    layout::AxisMap mesh = {
        {"dp", 1 + pick(3)}, {"mb", 1 + pick(3)}, {"tp", 1 + pick(4)}};
    std::vector<std::string> axes{"dp", "mb", "tp"};
    std::shuffle(axes.begin(), axes.end(), random);
    layout::Layout layout;
    for (int64_t d = 1 + pick(3); d > 0; --d) {
      layout::DimLayout dim;
      for (int64_t f = pick(3); f >= 0; --f) {
        layout::Factor factor{1 + pick(9), {}};
        while (!axes.empty() && pick(2)) {
          factor.axes.push_back(axes.back());
          factor.size *= mesh.at(axes.back());
          axes.pop_back();
        }
        dim.factors.push_back(factor);
      }
      layout.dims.push_back(dim);
    }
    Shape global = layout.globalShape(), local = layout.localShape(mesh);
    if (elements(global) > kMost)
      continue;
    Mask mask{0.5, round++, 17, 2};
    std::vector<double> whole = mask.draw(elements(global));
    layout::GlobalIndex index = layout::globalIndex(layout, mesh);
    for (int64_t rank = 0; rank < mesh["dp"] * mesh["mb"] * mesh["tp"];
         ++rank) {
      layout::AxisMap coords = {{"dp", rank % mesh["dp"]},
                                {"mb", rank / mesh["dp"] % mesh["mb"]},
                                {"tp", rank / mesh["dp"] / mesh["mb"]}};
      std::vector<double> found = mask.draw(local, index, coords);
      std::vector<double> expected(found.size(), -1);
      for (const layout::Box &box : layout::boxes(layout, mesh, coords))
        layout::copyBox(whole.data(), global, box.globalOrigin, expected.data(),
                        local, box.localOrigin, box.extent, sizeof(double));
      ASSERT_EQ(found, expected) << layout.str() << " round " << round;
    }
  }
}

} // namespace
} // namespace merak::conformance
