#include "runtime/plan/Checksum.h"

#include <gtest/gtest.h>

#include <random>

using namespace merak;

// Pieces of any lengths give what the whole gives.
TEST(Checksum, PiecesGiveTheWhole) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    std::string bytes(random() % 100, '\0');
    for (char &c : bytes)
      c = char(random());
    Checksum pieces(bytes.size());
    for (size_t at = 0; at < bytes.size();) {
      const size_t length = std::min<size_t>(random() % 20, bytes.size() - at);
      pieces.add(bytes.data() + at, length);
      at += length;
    }
    EXPECT_EQ(pieces.value(), Checksum::of(bytes.data(), bytes.size()));
  }
}

TEST(Checksum, EveryBitAndTheLengthCount) {
  const std::string bytes = "some bytes of a file";
  const uint64_t whole = Checksum::of(bytes.data(), bytes.size());
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string other = bytes;
    other[bit / 8] = char(other[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(Checksum::of(other.data(), other.size()), whole) << bit;
  }
  std::string zeros;
  std::string last;
  for (int length = 0; length < 20; ++length, zeros += '\0') {
    const std::string now =
        checksumText(Checksum::of(zeros.data(), size_t(length)));
    EXPECT_EQ(now.size(), 16u);
    EXPECT_NE(now, last);
    last = now;
  }
}
