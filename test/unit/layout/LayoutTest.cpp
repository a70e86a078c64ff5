// Properties of layouts over random instances: the boxes of a device tile its
// local tensor, those of all devices cover the global tensor once per replica,
// and copies agree with an element by element reference.
#include "runtime/layout/GlobalIndex.h"
#include "runtime/layout/LayoutText.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <numeric>
#include <random>

namespace merak::layout {
namespace {

int64_t product(const std::vector<int64_t> &shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1},
                         std::multiplies<>());
}

// Calls `visit` with every index of a shape, row major.
template <typename Visit>
void forEach(const std::vector<int64_t> &shape, Visit visit) {
  std::vector<int64_t> index(shape.size(), 0);
  for (int64_t n = product(shape); n > 0; --n) {
    visit(index);
    for (int d = static_cast<int>(shape.size()) - 1; d >= 0; --d) {
      if (++index[d] < shape[d])
        break;
      index[d] = 0;
    }
  }
}

int64_t flat(const std::vector<int64_t> &shape,
             const std::vector<int64_t> &origin,
             const std::vector<int64_t> &index) {
  int64_t result = 0;
  for (size_t d = 0; d < shape.size(); ++d)
    result = result * shape[d] + origin[d] + index[d];
  return result;
}

std::vector<AxisMap> allCoords(const AxisMap &mesh) {
  std::vector<int64_t> sizes;
  for (const auto &[name, size] : mesh)
    sizes.push_back(size);
  std::vector<AxisMap> result;
  forEach(sizes, [&](const std::vector<int64_t> &index) {
    AxisMap coords;
    size_t i = 0;
    for (const auto &[name, size] : mesh)
      coords[name] = index[i++];
    result.push_back(coords);
  });
  return result;
}

// The element of the global dimension that local element `local` of a factored
// dimension is: digits of the mixed radix number, written independently of
// boxes().
int64_t globalIndex(const DimLayout &dim, const AxisMap &mesh,
                    const AxisMap &coords, int64_t local) {
  int64_t result = 0, period = 1;
  for (auto factor = dim.factors.rbegin(); factor != dim.factors.rend();
       ++factor) {
    int64_t parts = 1, index = 0;
    for (const std::string &axis : factor->axes) {
      parts *= mesh.at(axis);
      index = index * mesh.at(axis) + coords.at(axis);
    }
    int64_t chunk = factor->size / parts;
    result += (index * chunk + local % chunk) * period;
    local /= chunk;
    period *= factor->size;
  }
  return result;
}

class RandomLayouts : public testing::TestWithParam<int> {
protected:
  void SetUp() override {
    std::mt19937 random(GetParam());
    auto pick = [&](int n) { return static_cast<int64_t>(random() % n); };
    mesh = {{"dp", 1 + pick(3)}, {"mb", 1 + pick(2)}, {"tp", 1 + pick(4)}};
    std::vector<std::string> axes{"dp", "mb", "tp"};
    std::shuffle(axes.begin(), axes.end(), random);
    int64_t rank = pick(4);
    for (int64_t d = 0; d < rank; ++d) {
      DimLayout dim;
      for (int64_t f = pick(3); f >= 0; --f) {
        Factor factor{1 + pick(3), {}};
        while (!axes.empty() && pick(2)) {
          factor.axes.push_back(axes.back());
          factor.size *= mesh.at(axes.back());
          axes.pop_back();
        }
        dim.factors.push_back(factor);
      }
      layout.dims.push_back(dim);
    }
    unused = axes;
  }
  AxisMap mesh;
  Layout layout;
  std::vector<std::string> unused;
};

TEST_P(RandomLayouts, BoxesTileLocalAndCoverGlobalOncePerReplica) {
  std::vector<int64_t> global = layout.globalShape();
  std::vector<int64_t> local = layout.localShape(mesh);
  std::vector<int> holders(product(global), 0);
  for (const AxisMap &coords : allCoords(mesh)) {
    std::vector<int> seen(product(local), 0);
    for (const Box &box : boxes(layout, mesh, coords)) {
      forEach(box.extent, [&](const std::vector<int64_t> &index) {
        ++seen[flat(local, box.localOrigin, index)];
        ++holders[flat(global, box.globalOrigin, index)];
        for (size_t d = 0; d < index.size(); ++d)
          EXPECT_EQ(box.globalOrigin[d] + index[d],
                    globalIndex(layout.dims[d], mesh, coords,
                                box.localOrigin[d] + index[d]));
      });
    }
    EXPECT_EQ(seen, std::vector<int>(seen.size(), 1)) << layout.str();
  }
  int replicas = 1;
  for (const std::string &axis : unused)
    replicas *= static_cast<int>(mesh.at(axis));
  EXPECT_EQ(holders, std::vector<int>(holders.size(), replicas))
      << layout.str();
}

// The loop nest of local elements against the digits of each dimension.
TEST_P(RandomLayouts, GlobalIndexWalksTheSameElements) {
  std::vector<int64_t> global = layout.globalShape();
  std::vector<int64_t> local = layout.localShape(mesh);
  GlobalIndex nest = globalIndex(layout, mesh);
  ASSERT_EQ(nest.extents.size(), nest.strides.size());
  ASSERT_EQ(product(nest.extents), product(local));
  for (const AxisMap &coords : allCoords(mesh)) {
    int64_t origin = 0;
    for (const auto &[axis, scale] : nest.offsets)
      origin += coords.at(axis) * scale;
    std::vector<int64_t> found, expected;
    forEach(nest.extents, [&](const std::vector<int64_t> &index) {
      found.push_back(std::inner_product(index.begin(), index.end(),
                                         nest.strides.begin(), origin));
    });
    forEach(local, [&](const std::vector<int64_t> &index) {
      int64_t at = 0;
      for (size_t d = 0; d < index.size(); ++d)
        at = at * global[d] +
             globalIndex(layout.dims[d], mesh, coords, index[d]);
      expected.push_back(at);
    });
    EXPECT_EQ(found, expected) << layout.str();
  }
}

TEST(GlobalIndex, LoopsThatGoOnAreOne) {
  GlobalIndex whole = globalIndex(Layout::replicated({4, 5, 6}), {{"tp", 2}});
  EXPECT_EQ(whole.extents, (std::vector<int64_t>{120}));
  Layout layout;
  layout.dims = {{{Factor{8, {"mb", "dp"}}}}, {{Factor{6, {}}}}};
  GlobalIndex split = globalIndex(layout, {{"mb", 2}, {"dp", 2}, {"tp", 3}});
  EXPECT_EQ(split.extents, (std::vector<int64_t>{12}));
  EXPECT_EQ(split.offsets, (std::vector<std::pair<std::string, int64_t>>{
                               {"dp", 12}, {"mb", 24}}));
}

// Gathering what device B needs from every device A of another layout of the
// same tensor gives B's local tensor exactly.
TEST_P(RandomLayouts, OverlapsMoveBetweenLayouts) {
  std::vector<int64_t> global = layout.globalShape();
  Layout whole = Layout::replicated(global);
  std::vector<int32_t> source(product(global));
  std::iota(source.begin(), source.end(), 0);
  std::vector<Box> all = boxes(whole, mesh, {});
  ASSERT_EQ(all.size(), 1u);
  std::vector<int32_t> back(source.size(), -1);
  std::vector<int64_t> local = layout.localShape(mesh);
  for (const AxisMap &coords : allCoords(mesh)) {
    std::vector<int32_t> shard(product(local), -1);
    std::vector<Box> mine = boxes(layout, mesh, coords);
    for (const Overlap &part : overlaps(all, mine))
      copyBox(source.data(), global, part.originA, shard.data(), local,
              part.originB, part.extent, sizeof(int32_t));
    forEach(local, [&](const std::vector<int64_t> &index) {
      std::vector<int64_t> at;
      for (size_t d = 0; d < index.size(); ++d)
        at.push_back(globalIndex(layout.dims[d], mesh, coords, index[d]));
      EXPECT_EQ(shard[flat(local, std::vector<int64_t>(local.size()), index)],
                flat(global, std::vector<int64_t>(global.size()), at));
    });
    for (const Overlap &part : overlaps(mine, all))
      copyBox(shard.data(), local, part.originA, back.data(), global,
              part.originB, part.extent, sizeof(int32_t));
  }
  EXPECT_EQ(back, source);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomLayouts, testing::Range(0, 200));

Layout fusedQkv() {
  Layout layout;
  layout.dims = {{{Factor{3, {}}, Factor{4, {"tp"}}, Factor{16, {}}}}};
  return layout;
}

TEST(Layout, FusedQkvHoldsThreeBoxes) {
  std::vector<Box> got = boxes(fusedQkv(), {{"tp", 2}}, {{"tp", 1}});
  std::vector<Box> want{
      {{32}, {0}, {32}}, {{96}, {32}, {32}}, {{160}, {64}, {32}}};
  EXPECT_EQ(got, want);
}

TEST(Layout, ContiguousFactorsMergeToOneBox) {
  Layout layout;
  layout.dims = {{{Factor{4, {"tp"}}, Factor{16, {}}}}, {{Factor{8, {}}}}};
  std::vector<Box> want{{{32, 0}, {0, 0}, {32, 8}}};
  EXPECT_EQ(boxes(layout, {{"tp", 2}}, {{"tp", 1}}), want);
}

TEST(Layout, MissingCoordinatesHoldTheWhole) {
  std::vector<Box> want{{{0}, {0}, {192}}};
  EXPECT_EQ(boxes(fusedQkv(), {{"tp", 2}}, {}), want);
}

TEST(Layout, ScalarHasOneBox) {
  std::vector<Box> got = boxes(Layout{}, {{"tp", 2}}, {{"tp", 1}});
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].elements(), 1);
}

TEST(Layout, EmptyDimensionHasNoBox) {
  EXPECT_TRUE(boxes(Layout::replicated({4, 0}), {}, {}).empty());
}

TEST(Layout, Prints) {
  Layout layout;
  layout.dims = {
      {{Factor{8, {"mb", "dp"}}, Factor{32, {}}}}, {{Factor{64, {"tp"}}}}, {}};
  layout.partial = {"tp", "dp"};
  EXPECT_EQ(layout.str(), "[8@(mb,dp) x 32, 64@tp, 1] partial(tp,dp)");
}

TEST(CopyBox, AgreesWithBruteForce) {
  std::mt19937 random(7);
  auto pick = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  for (int round = 0; round < 500; ++round) {
    std::vector<int64_t> srcShape, dstShape, srcOrigin, dstOrigin, extent;
    for (int64_t rank = pick(5); rank > 0; --rank) {
      extent.push_back(pick(10) ? 1 + pick(4) : 0);
      // Often a whole dimension, so that the joined runs are reached.
      srcShape.push_back(extent.back() + (pick(2) ? pick(3) : 0));
      dstShape.push_back(extent.back() + (pick(2) ? pick(3) : 0));
      srcOrigin.push_back(pick(srcShape.back() - extent.back() + 1));
      dstOrigin.push_back(pick(dstShape.back() - extent.back() + 1));
    }
    int64_t size = 1 + pick(8);
    std::vector<uint8_t> src(product(srcShape) * size);
    std::vector<uint8_t> dst(product(dstShape) * size);
    for (uint8_t &byte : src)
      byte = static_cast<uint8_t>(random());
    for (uint8_t &byte : dst)
      byte = static_cast<uint8_t>(random());
    std::vector<uint8_t> want = dst;
    forEach(extent, [&](const std::vector<int64_t> &index) {
      for (int64_t b = 0; b < size; ++b)
        want[flat(dstShape, dstOrigin, index) * size + b] =
            src[flat(srcShape, srcOrigin, index) * size + b];
    });
    copyBox(src.data(), srcShape, srcOrigin, dst.data(), dstShape, dstOrigin,
            extent, size);
    ASSERT_EQ(dst, want) << "round " << round;
  }
}

// -------------------------------------------------------- uneven parts, text

// Where parts are unequal the intervals of all devices still tile the
// dimension, and differ by one element a factor at most.
TEST(Layout, UnevenPartsTileTheDimension) {
  for (int64_t size : {1, 2, 5, 7, 12})
    for (int64_t parts : {1, 2, 3, 4})
      for (int64_t minor : {1, 3}) {
        const DimLayout dim{{{2, {}}, {size, {"x"}}, {minor, {}}}};
        std::vector<int> held(2 * size * minor, 0);
        for (int64_t x = 0; x < parts; ++x) {
          int64_t local = 0;
          for (const Interval &run :
               intervals(dim, {{"x", parts}}, {{"x", x}})) {
            EXPECT_EQ(run.local, local);
            local += run.length;
            for (int64_t i = 0; i < run.length; ++i)
              ++held.at(run.global + i);
          }
          const int64_t chunk = local / (2 * minor);
          EXPECT_EQ(chunk * 2 * minor, local);
          EXPECT_GE(chunk, size / parts);
          EXPECT_LE(chunk, (size + parts - 1) / parts);
          const Layout layout{{dim}, {}};
          EXPECT_EQ(layout.localShape({{"x", parts}}, {{"x", x}}),
                    std::vector<int64_t>{local});
        }
        EXPECT_EQ(held, std::vector<int>(held.size(), 1));
      }
}

TEST(LayoutText, IsWhatIsPrinted) {
  for (const char *text : {"[]", "[8]", "[3 x 8@(dp,tp) x 64, 1024]",
                           "[8@mb, 4] partial(tp,dp)"}) {
    Result<Layout> layout = parseLayout(text);
    ASSERT_TRUE(layout.ok()) << layout.status().str();
    EXPECT_EQ(layout->str(), text);
  }
  EXPECT_EQ(parseLayout(" [ 8 @ ( a , b )x2 ] ")->str(), "[8@(a,b) x 2]");
}

TEST(LayoutText, SaysWhatWasExpected) {
  const std::pair<const char *, const char *> cases[] = {
      {"", "layout '': expected '[' at character 1, found nothing"},
      {"[8", "layout '[8': expected ',' or ']' at character 3, found nothing"},
      {"[0]", "layout '[0]': expected a size of at least 1 at character 2, "
              "found '0'"},
      {"[8@]", "layout '[8@]': expected the name of an axis at character 4, "
               "found ']'"},
      {"[8@(a]", "layout '[8@(a]': expected ',' or ')' at character 6, found "
                 "']'"},
      {"[8] x", "layout '[8] x': expected the end at character 5, found 'x'"},
      {"[8 x ]", "layout '[8 x ]': expected a size of at least 1 at character "
                 "6, found ']'"},
      {"[8] partial()", "layout '[8] partial()': expected the name of an axis "
                        "at character 13, found ')'"}};
  for (auto [text, message] : cases)
    EXPECT_EQ(parseLayout(text).status().str(), message);
}

} // namespace
} // namespace merak::layout
