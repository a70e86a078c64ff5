#include "passes/Memory/ArenaPlan.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <numeric>
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

// Best fit without any index: every range looks at all that have a place.
std::vector<int64_t> plainOffsets(const std::vector<LiveRange> &ranges) {
  std::vector<size_t> order(ranges.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(-ranges[a].bytes, ranges[a].first) <
           std::pair(-ranges[b].bytes, ranges[b].first);
  });
  std::vector<int64_t> offsets(ranges.size(), 0);
  std::vector<size_t> placed;
  for (size_t index : order) {
    const int64_t bytes = alignUp(ranges[index].bytes);
    if (bytes == 0)
      continue;
    std::vector<std::pair<int64_t, int64_t>> live;
    for (size_t other : placed)
      if (ranges[other].first <= ranges[index].last &&
          ranges[index].first <= ranges[other].last)
        live.emplace_back(offsets[other],
                          offsets[other] + alignUp(ranges[other].bytes));
    std::stable_sort(live.begin(), live.end());
    int64_t free = 0, best = -1, bestGap = 0;
    for (auto [begin, end] : live) {
      if (begin - free >= bytes && (best < 0 || begin - free < bestGap)) {
        best = free;
        bestGap = begin - free;
      }
      free = std::max(free, end);
    }
    offsets[index] = best < 0 ? free : best;
    placed.push_back(index);
  }
  return offsets;
}

TEST(ArenaPlan, IsBestFitOverAllThatLive) {
  std::mt19937 random(23);
  for (int round = 0; round < 300; ++round) {
    std::vector<LiveRange> ranges(1 + random() % 200);
    // From lives that seldom meet to lives that all do.
    const int span = 1 + random() % (round % 2 ? 2000 : 50);
    const int length = 1 << (random() % 9);
    for (LiveRange &range : ranges) {
      range.bytes = random() % 3000;
      range.first = random() % span;
      range.last = range.first + random() % length;
    }
    EXPECT_EQ(planArena(ranges).offsets, plainOffsets(ranges));
  }
}

bool overlap(const PlacedRange &a, const PlacedRange &b) {
  return a.first <= b.last && b.first <= a.last && a.begin < b.end &&
         b.begin < a.end;
}

// Against all pairs: each pair told does overlap, each range at fault is told
// with every other that is not, and what is not told is free of overlaps.
TEST(ArenaPlan, OverlapsAreThoseOfAllPairs) {
  std::mt19937 random(11);
  int clean = 0, broken = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<PlacedRange> ranges(random() % 30);
    const int width = round % 2 ? 40 : 2000;
    for (PlacedRange &range : ranges) {
      range.begin = random() % width;
      range.end = range.begin + 1 + random() % 20;
      range.first = random() % width;
      range.last = range.first + random() % 20;
      if (random() % 16 == 0)
        range.first = INT64_MIN, range.last = INT64_MAX;
    }
    auto told = findOverlaps(ranges);
    std::vector<bool> isTold(ranges.size(), false);
    for (auto [a, b] : told)
      isTold[b] = true;
    size_t expected = 0;
    for (size_t b = 0; b < ranges.size(); ++b)
      for (size_t a = 0; a < ranges.size(); ++a) {
        bool isBefore =
            std::pair(ranges[a].begin, a) < std::pair(ranges[b].begin, b);
        if (!isTold[a] && isBefore && overlap(ranges[a], ranges[b])) {
          EXPECT_TRUE(isTold[b]) << a << " and " << b;
          ++expected;
          EXPECT_EQ(std::count(told.begin(), told.end(), std::pair(a, b)), 1);
        }
      }
    EXPECT_EQ(told.size(), expected);
    ++(told.empty() ? clean : broken);
  }
  EXPECT_GT(clean, 200);
  EXPECT_GT(broken, 200);
}

TEST(ArenaPlan, APlanHasNoOverlapsAndAMovedRangeHas) {
  std::mt19937 random(5);
  for (int round = 0; round < 100; ++round) {
    std::vector<LiveRange> lives(2 + random() % 80);
    for (LiveRange &range : lives) {
      range.bytes = 1 + random() % 5000;
      range.first = random() % 100;
      range.last = range.first + random() % 20;
    }
    ArenaPlan plan = planArena(lives);
    std::vector<PlacedRange> ranges;
    for (size_t i = 0; i < lives.size(); ++i)
      ranges.push_back({plan.offsets[i], plan.offsets[i] + lives[i].bytes,
                        lives[i].first, lives[i].last});
    EXPECT_TRUE(findOverlaps(ranges).empty());
    ranges[0] = ranges[1];
    EXPECT_FALSE(findOverlaps(ranges).empty());
  }
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
