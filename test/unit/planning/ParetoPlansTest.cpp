// All plans of memory and time that are worth having, on models by hand.
#include "passes/Planning/ParetoPlans.h"

#include "test/unit/planning/GptSearch.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

namespace merak::planning {
namespace {

bool beats(const Cost &a, const Cost &b) {
  return a.bytes <= b.bytes && a.nanoseconds <= b.nanoseconds && !(a == b);
}

// Against the definition, on costs with many ties.
TEST(ParetoPlans, UndominatedIsWhatNothingBeats) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<Cost> costs(random() % 12);
    for (Cost &cost : costs)
      cost = {int64_t(random() % 6), int64_t(random() % 6)};
    const std::vector<size_t> found = undominated(costs);
    for (size_t i = 0; i < costs.size(); ++i) {
      const bool isBeaten =
          std::any_of(costs.begin(), costs.end(), [&](const Cost &other) {
            return beats(other, costs[i]);
          });
      const bool isEqualToEarlier = std::find(costs.begin(), costs.begin() + i,
                                              costs[i]) != costs.begin() + i;
      EXPECT_EQ(std::find(found.begin(), found.end(), i) != found.end(),
                !isBeaten && !isEqualToEarlier);
    }
    EXPECT_TRUE(
        std::is_sorted(found.begin(), found.end(), [&](size_t a, size_t b) {
          return costs[a].bytes < costs[b].bytes;
        }));
  }
}

struct Gpt : test::GptSearch {
  Gpt() : GptSearch(4) {}
  std::vector<PlanCandidate> explore(size_t most = 100) {
    PlanSearch search(input);
    const SearchPolicy policy = ownPolicy(input.pinned);
    std::vector<PlanCandidate> known = finalists(search.search(policy), 4);
    return paretoPlans(search, policy, input.memoryBytes, known, most);
  }
};

TEST(ParetoPlans, EndsAreTheFastestAndTheSmallest) {
  Gpt gpt;
  const std::vector<PlanCandidate> found = gpt.explore();
  ASSERT_GT(found.size(), 4u);
  PlanSearch search(gpt.input);
  const SearchPolicy policy = ownPolicy(gpt.input.pinned);
  const PlanCandidate fastest = search.search(policy).front();
  Cost least = costOf(found.front()), most = least;
  for (const PlanCandidate &candidate : found) {
    EXPECT_TRUE(candidate.fits());
    if (costOf(candidate).bytes < least.bytes)
      least = costOf(candidate);
    if (costOf(candidate).nanoseconds < most.nanoseconds)
      most = costOf(candidate);
  }
  EXPECT_LE(most.nanoseconds, costOf(fastest).nanoseconds);
  // Nothing fits into less than the smallest, whatever the degrees.
  EXPECT_LT(least.bytes, most.bytes);
  const std::vector<Degrees> every = *search.degrees();
  for (const Degrees &degrees : every) {
    PlanSearch tight(gpt.input);
    tight.limitMemory(double(least.bytes) * 0.99);
    EXPECT_FALSE(tight.plan(degrees, policy, true).fits()) << degrees.str();
  }
}

// The stages stay, and what they recompute is what the limit asks for.
TEST(ParetoPlans, RefitKeepsTheStages) {
  Gpt gpt;
  gpt.input.pinned.mesh = {{"pp", 2}, {"dp", 2}, {"tp", 1}};
  gpt.input.pinned.microbatch = 2;
  gpt.input.pinned.schedule = "1f1b";
  PlanSearch search(gpt.input);
  const PlanCandidate open = search.search(ownPolicy(gpt.input.pinned)).front();
  const double bytes = open.plan.cost.fullest();
  search.limitMemory(0.9 * bytes);
  const PlanCandidate tight = search.refit(open);
  ASSERT_EQ(tight.problem, "");
  EXPECT_TRUE(tight.fits());
  EXPECT_LE(tight.plan.cost.fullest(), 0.9 * bytes);
  EXPECT_EQ(tight.plan.begin, open.plan.begin);
  EXPECT_EQ(tight.plan.schedule.name, open.plan.schedule.name);
  EXPECT_NE(tight.plan.marks, open.plan.marks);
  EXPECT_GT(tight.plan.cost.seconds, open.plan.cost.seconds);
  search.limitMemory(bytes);
  EXPECT_EQ(costOf(search.refit(open)), costOf(open));
  search.limitMemory(0); // none
  EXPECT_EQ(search.refit(open).problem, "");
}

// A limit leaves out what it does not hold, and only that.
TEST(ParetoPlans, KeepsToTheLimit) {
  Gpt gpt;
  const std::vector<PlanCandidate> all = gpt.explore();
  std::vector<int64_t> bytes;
  for (const PlanCandidate &candidate : all)
    bytes.push_back(costOf(candidate).bytes);
  std::sort(bytes.begin(), bytes.end());
  gpt.input.memoryBytes = double(bytes[bytes.size() / 2]);
  const std::vector<PlanCandidate> within = gpt.explore();
  ASSERT_FALSE(within.empty());
  for (const PlanCandidate &candidate : within)
    EXPECT_LE(candidate.plan.cost.fullest(), gpt.input.memoryBytes);
}

// The least bytes and the least time.
Cost ends(const std::vector<PlanCandidate> &found) {
  Cost least = costOf(found.front());
  for (const PlanCandidate &candidate : found) {
    least.bytes = std::min(least.bytes, costOf(candidate).bytes);
    least.nanoseconds =
        std::min(least.nanoseconds, costOf(candidate).nanoseconds);
  }
  return least;
}

TEST(ParetoPlans, ThinnedPlansKeepBothEnds) {
  Gpt gpt;
  const std::vector<PlanCandidate> all = gpt.explore(), few = gpt.explore(3);
  EXPECT_LT(few.size(), all.size());
  EXPECT_EQ(ends(few), ends(all));
}

// Plans that keep converted parameters: faster, and larger by these.
TEST(ParetoPlans, MergedPlansAreThoseOfBothThatAreWorthHaving) {
  Gpt gpt;
  const std::vector<PlanCandidate> each = gpt.explore();
  std::vector<PlanCandidate> once = each;
  const double kept = 0.3 * double(ends(each).bytes);
  for (PlanCandidate &candidate : once) {
    candidate.convertOnce = true;
    candidate.plan.cost.seconds *= 0.8;
    for (double &bytes : candidate.plan.cost.memory)
      bytes += kept;
  }
  const std::vector<PlanCandidate> merged = mergedPlans(once, each, 200);
  EXPECT_EQ(ends(merged), (Cost{ends(each).bytes, ends(once).nanoseconds}));
  EXPECT_TRUE(merged.front().convertOnce);
  EXPECT_TRUE(std::any_of(
      merged.begin(), merged.end(),
      [](const PlanCandidate &candidate) { return !candidate.convertOnce; }));
  // What is worth having at any limit is there, whichever list has it.
  for (const auto &list : {once, each})
    for (const PlanCandidate &candidate : list)
      EXPECT_TRUE(std::any_of(
          merged.begin(), merged.end(), [&](const PlanCandidate &other) {
            return double(costOf(other).bytes) <=
                       kMayFit * double(costOf(candidate).bytes) &&
                   costOf(other).nanoseconds <= costOf(candidate).nanoseconds;
          }));
  // Together not more than asked for, and still both ends.
  const std::vector<PlanCandidate> few = mergedPlans(once, each, 5);
  EXPECT_LE(few.size(), 5u);
  EXPECT_EQ(ends(few), ends(merged));
}

// Of one price: which of them is faster only their simulation says.
TEST(ParetoPlans, PlansOfOnePriceDoNotBeatEachOther) {
  Gpt gpt;
  const PlanCandidate small = gpt.explore().front();
  const auto like = [&](double time, double bytes) {
    PlanCandidate other = small;
    other.plan.cost.seconds *= time;
    for (double &stage : other.plan.cost.memory)
      stage *= bytes;
    return other;
  };
  EXPECT_EQ(mergedPlans({small}, {like(1.001, 1.5)}, 10).size(), 2u);
  EXPECT_EQ(mergedPlans({small}, {like(1.01, 1.5)}, 10).size(), 1u);
  EXPECT_EQ(mergedPlans({small}, {like(1.01, 0.9)}, 10).size(), 2u);
  EXPECT_EQ(mergedPlans({small}, {small}, 10).size(), 1u);
}

} // namespace
} // namespace merak::planning
