#include "passes/Memory/SlotPlan.h"

#include <gtest/gtest.h>

using namespace merak;
using namespace merak::memory;

namespace {

std::vector<Step> schedule(const std::string &text) {
  std::vector<CellProblem> problems;
  std::vector<Step> steps = parseCells(splitCells(text), problems);
  EXPECT_TRUE(problems.empty()) << text;
  return steps;
}

std::set<ActionId> all(const std::string &letters, int chunk = 0) {
  std::set<ActionId> ids;
  for (char letter : letters)
    ids.insert({*parseAction({&letter, 1}), chunk});
  return ids;
}

TEST(SlotPlan, GpipeKeepsAllAndOneFOneBOnlyThoseInFlight) {
  auto gpipe = schedule("F0 F1 F2 F3 B0 B1 B2 B3 U");
  auto oneFOneB = schedule("F0 F1 B0 F2 B1 F3 B2 B3 U");
  EXPECT_EQ(planSlots(gpipe, all("FB")).slots, 4);
  EXPECT_EQ(planSlots(oneFOneB, all("FB")).slots, 2);
  EXPECT_EQ(planSlots(oneFOneB, all("FB")).slotOf,
            (std::vector<int64_t>{0, 1, 0, 1}));
  EXPECT_EQ(planSlots(oneFOneB, all("F")).slots, 1);
}

TEST(SlotPlan, RoomForTransfersBesideTheComputation) {
  auto oneFOneB = schedule("F0 F1 B0 F2 B1 F3 B2 B3 U");
  EXPECT_EQ(planSlots(oneFOneB, all("F"), 0, 1).slots, 2);
  EXPECT_EQ(planSlots(oneFOneB, all("FB"), 1, 0).slots, 3);
}

// Chunks of a stage count for themselves; a value that both use lives from the
// forward of one to the backward of the other.
TEST(SlotPlan, ChunksHaveTheirOwnSlots) {
  auto order = schedule("F0 F1 F0.1 F1.1 B0.1 F2 B1.1 F3 B0 F2.1 B1 F3.1 "
                        "B2.1 B3.1 B2 B3 U");
  EXPECT_EQ(planSlots(order, all("FB")).slots, 4);
  EXPECT_EQ(planSlots(order, all("FB", 1)).slots, 2);
  EXPECT_EQ(planSlots(order, {{Action::F, 0}, {Action::B, 1}}).slots, 2);
}

// What is read after the step: of a pipeline that has some of its microbatches
// there is no room for the others.
TEST(SlotPlan, EachMicrobatchThatIsThereHasItsOwn) {
  const SlotPlan all4 = slotForEach(schedule("P0 P1 F0 F1 F2 F3 U"), all("F"));
  EXPECT_EQ(all4.slots, 4);
  EXPECT_EQ(all4.slotOf, (std::vector<int64_t>{0, 1, 2, 3}));
  const SlotPlan share =
      slotForEach(schedule("P0 P1 P2 P3 P4 F4 F3 U"), all("F"));
  EXPECT_EQ(share.slots, 2);
  EXPECT_EQ(share.slotOf[3], 0);
  EXPECT_EQ(share.slotOf[4], 1);
  EXPECT_EQ(slotForEach(schedule("P0 U"), all("F")).slots, 0);
}

// No two microbatches share a slot while both live.
TEST(SlotPlan, LivesInOneSlotNeverMeet) {
  auto order = schedule("F0 F1 F2 B1 F3 W1 B0 F4 W0 B2 B3 W2 W3 B4 W4 U");
  for (const char *actions : {"FB", "FBW", "BW"}) {
    SlotPlan plan = planSlots(order, all(actions));
    for (int a = 0; a < 5; ++a)
      for (int b = 0; b < a; ++b) {
        if (plan.slotOf[a] != plan.slotOf[b])
          continue;
        auto life = [&](int microbatch) {
          std::pair<int, int> range{-1, -1};
          for (int i = 0; i < int(order.size()); ++i)
            if (order[i].microbatch == microbatch &&
                all(actions).count({order[i].action}))
              range = {range.first < 0 ? i : range.first, i};
          return range;
        };
        auto [firstA, lastA] = life(a);
        auto [firstB, lastB] = life(b);
        EXPECT_TRUE(lastA < firstB || lastB < firstA) << actions;
      }
  }
}

} // namespace
