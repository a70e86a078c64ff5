#include "passes/Memory/ArenaPlan.h"

#include <gtest/gtest.h>
#include <random>

using namespace merak::memory;

namespace {

void expectValid(const std::vector<LiveRange> &ranges, const ArenaPlan &plan) {
  ASSERT_EQ(plan.offsets.size(), ranges.size());
  for (size_t a = 0; a < ranges.size(); ++a) {
    EXPECT_EQ(plan.offsets[a] % kArenaAlignment, 0);
    EXPECT_LE(plan.offsets[a] + ranges[a].bytes, plan.bytes);
    for (size_t b = 0; b < a; ++b) {
      bool sameTime = ranges[a].first <= ranges[b].last &&
                      ranges[b].first <= ranges[a].last;
      bool sameBytes = plan.offsets[a] < plan.offsets[b] + ranges[b].bytes &&
                       plan.offsets[b] < plan.offsets[a] + ranges[a].bytes;
      EXPECT_FALSE(sameTime && sameBytes) << "ranges " << b << " and " << a;
    }
  }
  EXPECT_GE(plan.bytes, plan.lowerBound);
}

TEST(ArenaPlan, RandomRangesNeverOverlapAndStayNearTheLowerBound) {
  std::mt19937 random(7);
  double worst = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<LiveRange> ranges(1 + random() % 80);
    for (LiveRange &range : ranges) {
      range.bytes = random() % 5000;
      range.first = random() % 100;
      range.last = range.first + random() % 20;
    }
    ArenaPlan plan = planArena(ranges);
    expectValid(ranges, plan);
    if (plan.lowerBound)
      worst = std::max(worst, double(plan.bytes) / plan.lowerBound);
  }
  EXPECT_LT(worst, 1.5);
}

TEST(ArenaPlan, ChainOfEqualBuffersTakesTwo) {
  std::vector<LiveRange> ranges;
  for (int i = 0; i < 50; ++i)
    ranges.push_back({4096, i, i + 1});
  ArenaPlan plan = planArena(ranges);
  expectValid(ranges, plan);
  EXPECT_EQ(plan.bytes, 2 * 4096);
  EXPECT_EQ(plan.lowerBound, 2 * 4096);
}

// A small buffer goes into the tighter of two gaps, which leaves the wide one
// for a later buffer.
TEST(ArenaPlan, TakesTheTightestGap) {
  std::vector<LiveRange> ranges{
      {640, 0, 1}, // gone when the small one comes: a gap of 640
      {512, 0, 9}, // keeps the gaps apart
      {256, 0, 1}, // gone: a gap of 256
      {192, 0, 9}, // closes the second gap
      {128, 5, 9}};
  ArenaPlan plan = planArena(ranges);
  expectValid(ranges, plan);
  EXPECT_EQ(plan.offsets[4], plan.offsets[2]);
}

TEST(ArenaPlan, PeakListsWhatIsLiveThere) {
  std::vector<LiveRange> ranges{{100, 0, 3}, {900, 2, 2}, {500, 3, 3}};
  EXPECT_EQ(liveAtPeak(ranges), (std::vector<size_t>{1, 0}));
}

TEST(ArenaPlan, EmptyBuffersTakeNoMemory) {
  ArenaPlan plan = planArena({{0, 0, 5}, {64, 0, 5}});
  EXPECT_EQ(plan.bytes, 64);
  EXPECT_EQ(planArena({}).bytes, 0);
}

} // namespace
