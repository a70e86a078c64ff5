// The known answers that the authors publish with Random123 (kat_vectors,
// philox4x32-10), and the order in which a mask uses the words.
#include "runtime/core/Philox.h"

#include <gtest/gtest.h>

namespace merak::philox {
namespace {

TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                       {0xa4093822, 0x299f31d0}),
            (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, SixtyFourElementsTakeTheWordsOfSixteenBlocks) {
  Stream stream{0x123456789abcdef0, 7, 9};
  Key key{0x9abcdef0, 0x12345678};
  for (uint32_t block = 0; block < 16; ++block) {
    Counter words = philox4x32({16 + block, 0, 7, 9}, key);
    for (uint32_t word = 0; word < 4; ++word)
      EXPECT_EQ(wordOf(stream, 64 + word * 16 + block), words[word]);
  }
  // Blocks have 64 bits.
  EXPECT_EQ(wordOf(stream, (uint64_t{1} << 34) + 3),
            philox4x32({3, 1, 7, 9}, key)[0]);
}

TEST(Philox, ThresholdsAreShareOfAllWords) {
  EXPECT_EQ(thresholdOf(0), 0u);
  EXPECT_EQ(thresholdOf(0.5), 0x80000000u);
  EXPECT_EQ(thresholdOf(0.25), 0x40000000u);
  EXPECT_EQ(thresholdOf(0.99999999999), 0xffffffffu);
}

} // namespace
} // namespace merak::philox
