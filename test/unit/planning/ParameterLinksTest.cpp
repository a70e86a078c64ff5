// Gathers and scatters beside the computation of an action.
#include "passes/Planning/ParameterLinks.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <numeric>
#include <random>

namespace merak::planning {
namespace {

// A message takes a second, and one for each byte.
ParameterLinks links(double bucketBytes, bool beside = true) {
  auto seconds = [](double bytes) { return 1 + bytes; };
  return {seconds, seconds, bucketBytes, beside};
}

TEST(ParameterLinks, TheNextBucketIsGatheredWhileThisOneIsUsed) {
  const std::vector<double> ops(4, 3); // each needs one parameter
  std::vector<PlacedMessage> each;
  for (int op = 0; op < 4; ++op)
    each.push_back({op, 1});
  // Of the first one all is seen, of the others nothing.
  EXPECT_DOUBLE_EQ(exposedGathers(ops, each, links(1)), 2);
  // Two at a time: the first bucket takes three seconds.
  EXPECT_DOUBLE_EQ(exposedGathers(ops, each, links(2)), 3);
  EXPECT_DOUBLE_EQ(exposedGathers(ops, each, links(2, false)), 4 * 2);
  EXPECT_DOUBLE_EQ(exposedGathers(ops, {}, links(2)), 0);
  EXPECT_DOUBLE_EQ(exposedGathers(ops, each, {}), 0);
}

TEST(ParameterLinks, LinksThatAreSlowerHoldUpEachOp) {
  const std::vector<double> ops(3, 1);
  const std::vector<PlacedMessage> each = {{0, 4}, {1, 4}, {2, 4}};
  // 5 seconds a gather, one behind the other, and the last op behind them.
  EXPECT_DOUBLE_EQ(exposedGathers(ops, each, links(4)), 3 * 5 + 1 - 3);
}

TEST(ParameterLinks, GradientsAreScatteredWhileTheNextAreMade) {
  const std::vector<double> ops(4, 3);
  std::vector<PlacedMessage> each;
  for (int op = 0; op < 4; ++op)
    each.push_back({op, 1});
  // Of the last one all is seen.
  EXPECT_DOUBLE_EQ(exposedScatters(ops, each, links(1)), 2);
  EXPECT_DOUBLE_EQ(exposedScatters(ops, each, links(4)), 5);
  EXPECT_DOUBLE_EQ(exposedScatters(ops, each, links(4, false)), 4 * 2);
  // A bucket is added up before the one behind the next is made.
  EXPECT_DOUBLE_EQ(
      exposedScatters({1, 1, 1}, {{0, 4}, {1, 4}, {2, 4}}, links(4)),
      1 + 3 * 5 - 3);
}

TEST(ParameterLinks, TwoBucketsAreThereAtATime) {
  const std::vector<PlacedMessage> list = {{0, 3}, {1, 2}, {2, 2}, {3, 9}};
  EXPECT_DOUBLE_EQ(twoBuckets(list, links(5)), 2 + 9);
  EXPECT_DOUBLE_EQ(twoBuckets(list, links(0)), 2 + 9);
  EXPECT_DOUBLE_EQ(twoBuckets(list, links(100)), 16);
  EXPECT_DOUBLE_EQ(twoBuckets(list, links(5, false)), 9);
}

// Nothing is lost beside the computation: no more than one after the other, no
// less than what the links or the computation take alone.
TEST(ParameterLinks, RandomActionsAreWithinTheirBounds) {
  std::mt19937 random(16);
  for (int round = 0; round < 2000; ++round) {
    std::vector<double> ops(1 + random() % 8);
    for (double &op : ops)
      op = double(random() % 6);
    std::vector<PlacedMessage> list(random() % 6);
    for (PlacedMessage &message : list)
      message = {int(random() % ops.size()), double(1 + random() % 5)};
    std::stable_sort(list.begin(), list.end(),
                     [](auto &a, auto &b) { return a.at < b.at; });
    const ParameterLinks with = links(double(random() % 8));
    const double computed = std::accumulate(ops.begin(), ops.end(), 0.0);
    double bytes = 0;
    for (const PlacedMessage &message : list)
      bytes += message.bytes;
    for (auto exposed : {exposedGathers, exposedScatters}) {
      const double found = exposed(ops, list, with);
      ASSERT_GE(found, 0);
      ASSERT_LE(found, exposed(ops, list, links(with.bucketBytes, false)));
      if (!list.empty()) {
        ASSERT_GE(computed + found, 1 + bytes);
      }
    }
  }
}

} // namespace
} // namespace merak::planning
