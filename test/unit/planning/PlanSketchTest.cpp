// Cuts of plans moved by sketches, on a model by hand.
#include "passes/Planning/PlanSketch.h"

#include "test/unit/planning/GptSearch.h"

#include <gtest/gtest.h>

namespace merak::planning {
namespace {

struct FourStages : test::GptSearch {
  std::optional<PlanSearch> search;

  FourStages() : GptSearch(8) { search.emplace(input); }
  PlanCandidate best() {
    const Degrees degrees{.pp = 4, .dp = 1, .tp = 1, .microbatches = 8};
    return search->plan(degrees, ownPolicy(input.pinned), /*quick=*/false);
  }
  // The same with as much as possible on the last stage.
  PlanCandidate lopsided() {
    PlanCandidate plan = best();
    const std::vector<int> at =
        (*search->sharding(plan.degrees, plan.techniques))->model->positions(4);
    for (size_t cut = 1; cut < 4; ++cut)
      plan.plan.begin[cut] = at[cut - 1];
    return search->refit(plan);
  }
  double seconds(const PlanCandidate &plan) {
    return *sketchedSeconds(*search, input, plan);
  }
};

TEST(PlanSketch, MovedCutsAreFasterBySketch) {
  FourStages stages;
  const PlanCandidate from = stages.lopsided();
  ASSERT_EQ(from.problem, "");
  const std::vector<PlanCandidate> found =
      neighbouringCuts(*stages.search, stages.input, {from});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].plan.begin, from.plan.begin);
  EXPECT_LT(stages.seconds(found[0]), 0.99 * stages.seconds(from));
  // Nothing is left to be moved, up to what many tries would find.
  for (const PlanCandidate &again :
       neighbouringCuts(*stages.search, stages.input, found))
    EXPECT_LT(stages.seconds(again), 0.99 * stages.seconds(found[0]));
}

TEST(PlanSketch, GoodCutsStay) {
  FourStages stages;
  const PlanCandidate best = stages.best();
  for (const PlanCandidate &moved :
       neighbouringCuts(*stages.search, stages.input, {best}))
    EXPECT_LT(stages.seconds(moved), 0.99 * stages.seconds(best));
}

// Cuts that a user pinned are the user's.
TEST(PlanSketch, PinnedCutsStay) {
  FourStages stages;
  const PlanCandidate from = stages.lopsided();
  stages.input.pinned.stageBegins.emplace();
  EXPECT_TRUE(neighbouringCuts(*stages.search, stages.input, {from}).empty());
}

} // namespace
} // namespace merak::planning
