// Mixes of stages against all multisets of them, and their places.
#include "passes/Planning/StageMix.h"

#include <algorithm>
#include <functional>
#include <gtest/gtest.h>
#include <random>
#include <set>

using namespace merak::planning;

namespace {

int pick(std::mt19937 &random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

// Speeds of all mixes of so many stages, fastest first.
std::vector<double> allMixes(const std::vector<int64_t> &devices,
                             const std::vector<StageKind> &kinds, int stages) {
  std::vector<double> speeds;
  std::vector<int> counts(kinds.size(), 0);
  std::function<void(size_t, int)> choose = [&](size_t k, int left) {
    if (k == kinds.size()) {
      std::vector<int64_t> used(devices.size(), 0);
      double speed = 0;
      for (size_t i = 0; i < kinds.size(); ++i) {
        used[size_t(kinds[i].deviceClass)] += counts[i] * kinds[i].devices;
        speed += counts[i] * kinds[i].speed;
      }
      bool fits = left == 0;
      for (size_t c = 0; c < devices.size(); ++c)
        fits &= used[c] <= devices[c];
      if (fits)
        speeds.push_back(speed);
      return;
    }
    for (counts[k] = 0; counts[k] <= left; ++counts[k])
      choose(k + 1, left - counts[k]);
    counts[k] = 0;
  };
  choose(0, stages);
  std::sort(speeds.rbegin(), speeds.rend());
  return speeds;
}

} // namespace

// 7 devices of one class in stages of 4, 2 and 1: speeds are whole numbers, so
// that sums are exact.
TEST(StageMix, SevenDevices) {
  const std::vector<StageKind> kinds = {{0, 1, 10}, {0, 2, 19}, {0, 4, 36}};
  const auto mixes = fastestMixes({7}, kinds, 3, 2);
  ASSERT_EQ(mixes.size(), 4u);
  EXPECT_EQ(mixes[0].front().speed, 0);
  EXPECT_EQ(mixes[1].front().speed, 36);
  EXPECT_EQ(mixes[2].front().speed, 55);
  EXPECT_EQ(mixes[3].front().counts, (std::vector<int>{1, 1, 1}));
  EXPECT_EQ(mixes[3].front().speed, 65);
}

TEST(StageMix, AreTheFastestOfAll) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> devices;
    for (int c = pick(random, 1, 3); c > 0; --c)
      devices.push_back(pick(random, 0, 6));
    std::vector<StageKind> kinds;
    for (int k = pick(random, 1, 5); k > 0; --k)
      kinds.push_back({pick(random, 0, int(devices.size()) - 1),
                       pick(random, 1, 4), double(pick(random, 1, 30))});
    const size_t keep = size_t(pick(random, 1, 5));
    const auto mixes = fastestMixes(devices, kinds, 4, keep);
    for (int stages = 0; stages <= 4; ++stages) {
      std::vector<double> expected = allMixes(devices, kinds, stages);
      expected.resize(std::min(expected.size(), keep));
      std::vector<double> found;
      std::set<std::vector<int>> seen;
      for (const StageMix &mix : mixes[size_t(stages)]) {
        found.push_back(mix.speed);
        EXPECT_TRUE(seen.insert(mix.counts).second) << "made twice";
        int64_t all = 0;
        double speed = 0;
        for (size_t k = 0; k < kinds.size(); ++k) {
          all += mix.counts[k];
          speed += mix.counts[k] * kinds[k].speed;
        }
        EXPECT_EQ(all, stages);
        EXPECT_EQ(speed, mix.speed);
      }
      EXPECT_EQ(found, expected) << "round " << round << ", " << stages;
    }
  }
}

TEST(StageMix, PlacesAreInNodes) {
  const std::vector<std::vector<int64_t>> nodes = {{0, 1, 2, 3}, {4, 5, 8, 9}};
  const auto placed = placeStages(nodes, {1, 4, 3});
  ASSERT_TRUE(placed);
  EXPECT_EQ((*placed)[1], (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ((*placed)[2], (std::vector<int64_t>{4, 5, 8}));
  EXPECT_EQ((*placed)[0], (std::vector<int64_t>{9}));
  // Whole nodes, and what does not fit.
  EXPECT_EQ(placeStages(nodes, {8})->front().size(), 8u);
  EXPECT_FALSE(placeStages(nodes, {6}));
  EXPECT_FALSE(placeStages(nodes, {3, 3, 2}));
  EXPECT_FALSE(placeStages(nodes, {4, 4, 1}));
}

TEST(StageMix, PlacesNeverShareADevice) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::vector<int64_t>> nodes;
    std::set<int64_t> all;
    int64_t device = 0;
    for (int n = pick(random, 1, 4); n > 0; --n) {
      nodes.emplace_back();
      for (int i = pick(random, 1, 8); i > 0; --i)
        all.insert(device), nodes.back().push_back(device++);
    }
    std::vector<int64_t> sizes;
    for (int s = pick(random, 1, 6); s > 0; --s)
      sizes.push_back(pick(random, 1, 9));
    const auto placed = placeStages(nodes, sizes);
    if (!placed)
      continue;
    std::set<int64_t> used;
    for (size_t s = 0; s < sizes.size(); ++s) {
      EXPECT_EQ(int64_t((*placed)[s].size()), sizes[s]);
      std::set<size_t> of;
      for (int64_t one : (*placed)[s]) {
        EXPECT_TRUE(all.count(one));
        EXPECT_TRUE(used.insert(one).second) << "device " << one;
        for (size_t n = 0; n < nodes.size(); ++n)
          if (std::count(nodes[n].begin(), nodes[n].end(), one))
            of.insert(n);
      }
      int64_t whole = 0;
      for (size_t n : of)
        whole += int64_t(nodes[n].size());
      EXPECT_TRUE(of.size() == 1 || whole == sizes[s]);
    }
  }
}
