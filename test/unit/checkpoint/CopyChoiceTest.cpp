// Which copies a run goes on from, of what hosts still have.
#include "runtime/checkpoint/CopyChoice.h"

#include <gtest/gtest.h>

namespace merak::runtime::test {
namespace {

FoundGeneration made(int64_t start, int64_t step, std::vector<int> good,
                     std::vector<int> damaged = {}) {
  return {start,
          step,
          std::to_string(start) + "-" + std::to_string(step),
          2,
          std::move(good),
          std::move(damaged)};
}

} // namespace

TEST(CopyChoice, TheNewestThatIsWhole) {
  const CopyBase base{0, -1, 0};
  const CopyChoice choice =
      chooseCopies({{base, {made(0, 10, {0}), made(0, 20, {0})}},
                    {base, {made(0, 10, {0, 1})}},
                    {base, {made(0, 10, {1}), made(0, 20, {1})}}});
  ASSERT_TRUE(choice.found);
  EXPECT_EQ(choice.step, 20);
  EXPECT_EQ(choice.parts, 2);
  const std::vector<std::vector<int>> present{{0}, {}, {1}};
  EXPECT_EQ(choice.present, present);
  EXPECT_TRUE(choice.lacking.empty());
}

TEST(CopyChoice, SaysWhatNewerOnesLack) {
  const CopyBase base{0, -1, 0};
  const CopyChoice choice =
      chooseCopies({{base, {made(0, 10, {0, 1}), made(0, 20, {0})}},
                    {base, {made(0, 20, {}, {1})}}});
  ASSERT_TRUE(choice.found);
  EXPECT_EQ(choice.step, 10);
  ASSERT_EQ(choice.lacking.size(), 1u);
  EXPECT_EQ(choice.lacking[0].step, 20);
  EXPECT_EQ(choice.lacking[0].parts, std::vector<int>{1});
  EXPECT_TRUE(choice.lacking[0].damaged);
  EXPECT_FALSE(chooseCopies({{base, {made(0, 20, {0})}}}).found);
  EXPECT_FALSE(chooseCopies({{base, {}}, {}}).found);
}

// Of equal steps that were made twice, under plans that cut otherwise, parts of
// one do not complete the other.
TEST(CopyChoice, PartsOfTwoManifestsAreNotOne) {
  const CopyBase base{0, -1, 0};
  FoundGeneration other = made(0, 10, {1});
  other.manifest = "other";
  EXPECT_FALSE(
      chooseCopies({{base, {made(0, 10, {0})}}, {base, {other}}}).found);
}

// Start 1 went on from step 10 of start 0 without a host that had gone to 20,
// and that is back now.
TEST(CopyChoice, WhatTheRunWentPastIsNotTaken) {
  const FoundCopies away{CopyBase{0, -1, 0},
                         {made(0, 20, {0, 1}), made(0, 10, {0, 1})}};
  const CopyBase went{1, 0, 10};
  CopyChoice choice = chooseCopies({{went, {made(0, 10, {0, 1})}}, away});
  ASSERT_TRUE(choice.found);
  EXPECT_EQ(choice.step, 10);
  EXPECT_EQ(choice.start, 0);
  choice =
      chooseCopies({{went, {made(0, 10, {0, 1}), made(1, 12, {0, 1})}}, away});
  EXPECT_EQ(choice.step, 12);
  EXPECT_EQ(choice.start, 1);
  // It went on from a checkpoint: nothing of start 0 counts any more.
  EXPECT_FALSE(chooseCopies({{CopyBase{1, -1, 0}, {}}, away}).found);
  // Those that knew are gone: what is there is all there is.
  EXPECT_EQ(chooseCopies({{}, away}).step, 20);
}

TEST(CopyChoice, TravelsAsText) {
  const FoundCopies found{CopyBase{3, 1, 40},
                          {made(1, 40, {0, 1}), made(3, 50, {}, {1})}};
  auto read = unpackFound(packFound(found));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, found);
  EXPECT_EQ(*unpackFound(""), FoundCopies());
  EXPECT_FALSE(unpackFound("made 1 x\n").ok());
  EXPECT_FALSE(unpackFound("something\n").ok());
}

} // namespace merak::runtime::test
