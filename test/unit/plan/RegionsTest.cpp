// Which bytes an operand touches, against a list of all its elements.
#include "runtime/plan/Regions.h"

#include <gtest/gtest.h>
#include <random>
#include <set>

namespace merak {
namespace {

struct View {
  planpb::Operand operand;
  std::set<uint64_t> bytes;
  std::vector<int64_t> elements; // in order
};

View randomView(std::mt19937 &random, int64_t elementSize, uint64_t base) {
  View view;
  view.operand.set_offset(random() % 7);
  std::vector<int64_t> elements{view.operand.offset()};
  int64_t extent = 1;
  for (int d = random() % 4; d > 0; --d) {
    const int64_t size = 1 + random() % 4;
    // Broadcast, adjacent, or apart.
    const int64_t stride = random() % 4 ? extent + random() % 3 : 0;
    extent += stride * (size - 1);
    view.operand.add_shape(size);
    view.operand.add_strides(stride);
    std::vector<int64_t> more;
    for (int64_t element : elements)
      for (int64_t i = 0; i < size; ++i)
        more.push_back(element + i * stride);
    elements = more;
  }
  view.elements = elements;
  for (int64_t element : elements)
    for (int64_t byte = 0; byte < elementSize; ++byte)
      view.bytes.insert(base + element * elementSize + byte);
  return view;
}

TEST(Regions, AreWhatTheElementsAre) {
  std::mt19937 random(3);
  int touching = 0, apart = 0, overlapping = 0, beside = 0;
  for (int round = 0; round < 20000; ++round) {
    const int64_t size = 1 << (random() % 4);
    const uint64_t baseA = random() % 200, baseB = random() % 200;
    const View a = randomView(random, size, baseA);
    const View b = randomView(random, size, baseB);
    const Region regionA(a.operand, size), regionB(b.operand, size);

    const uint64_t begin = random() % 600, end = begin + 1 + random() % 40;
    const bool touches = a.bytes.lower_bound(begin) != a.bytes.lower_bound(end);
    EXPECT_EQ(regionTouches(regionA, baseA, begin, end), touches)
        << a.operand.DebugString() << begin << " to " << end;
    ++(touches ? touching : apart);

    bool overlap = false;
    for (uint64_t byte : a.bytes)
      overlap |= b.bytes.count(byte) != 0;
    EXPECT_EQ(regionsOverlap(regionA, baseA, regionB, baseB), overlap)
        << a.operand.DebugString() << b.operand.DebugString();
    ++(overlap ? overlapping : beside);
  }
  for (int count : {touching, apart, overlapping, beside})
    EXPECT_GT(count, 1000);
}

// More runs than are ever listed.
TEST(Regions, ManyRunsAreSeenOneByOne) {
  planpb::Operand operand;
  for (auto [size, stride] : {std::pair<int64_t, int64_t>{1 << 20, 1 << 20},
                              {512, 1 << 10},
                              {512, 2}}) {
    operand.add_shape(size);
    operand.add_strides(stride);
  }
  const Region region(operand, 4);
  const uint64_t row = uint64_t(4) << 20;
  EXPECT_TRUE(regionTouches(region, 0, 777 * row + 8, 777 * row + 9));
  EXPECT_FALSE(regionTouches(region, 0, 777 * row + 4, 777 * row + 8));
  EXPECT_TRUE(regionTouches(region, 0, 777 * row + 4, 777 * row + 9));
}

// The same elements in the same order are one view, whatever the shape: a
// reshape gives dimensions of size 1 any stride.
TEST(Regions, SameViewsAreTheSameElements) {
  std::mt19937 random(5);
  int same = 0;
  for (int round = 0; round < 20000; ++round) {
    const View a = randomView(random, 4, 0);
    View b = randomView(random, 4, 0);
    if (round % 2) { // the same with dimensions of size 1 between
      b = a;
      b.operand.clear_shape();
      b.operand.clear_strides();
      for (int d = 0; d <= a.operand.shape_size(); ++d) {
        if (random() % 2) {
          b.operand.add_shape(1);
          b.operand.add_strides(random() % 100);
        }
        if (d < a.operand.shape_size()) {
          b.operand.add_shape(a.operand.shape(d));
          b.operand.add_strides(a.operand.strides(d));
        }
      }
    }
    const bool equal = a.elements == b.elements;
    EXPECT_EQ(sameView(Region(a.operand, 4), 0, Region(b.operand, 4), 0), equal)
        << a.operand.DebugString() << b.operand.DebugString();
    same += equal;
  }
  EXPECT_GT(same, 10000);
}

} // namespace
} // namespace merak
