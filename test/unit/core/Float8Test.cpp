// Numbers of 8 bits: all of them, and rounding to them against a search for the
// nearest one.
#include "test/unit/core/Float8Numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

using namespace merak::runtime;

TEST(Float8, EveryPatternMeansWhatTheTablesSay) {
  for (const Float8 &type : {kE4M3, kE5M2})
    for (int bits = 0; bits < 0x80; ++bits) {
      const double value = meaningOf(type, bits);
      const float found = float8ToFloat(type, uint8_t(bits));
      if (std::isnan(value)) {
        // E5M2's infinity is one; nothing is rounded to it.
        EXPECT_FALSE(std::isfinite(found)) << bits;
        continue;
      }
      EXPECT_EQ(found, value) << bits;
      EXPECT_EQ(float8ToFloat(type, uint8_t(bits | 0x80)), -value) << bits;
      EXPECT_EQ(float8Bits(type, found), bits);
      EXPECT_EQ(float8Bits(type, -found), bits | 0x80);
      EXPECT_EQ(roundToFloat8(type, found, 0), found) << bits;
    }
  EXPECT_EQ(numbersOf(kE4M3).back(), 448);
  EXPECT_EQ(numbersOf(kE5M2).back(), 57344);
  EXPECT_EQ(bitsToFloat(kE4M3.mostBits), 448);
  EXPECT_EQ(bitsToFloat(kE5M2.mostBits), 57344);
}

// Every number of bf16, and those beside the middles between neighbours.
TEST(Float8, RoundsToTheNearestAndToEven) {
  for (const Float8 &type : {kE4M3, kE5M2}) {
    const std::vector<double> numbers = numbersOf(type);
    std::vector<float> values;
    for (uint32_t bits = 0; bits < 0x10000; ++bits)
      values.push_back(bf16ToFloat(uint16_t(bits)));
    for (size_t i = 0; i + 1 < numbers.size(); ++i) {
      const float middle = float((numbers[i] + numbers[i + 1]) / 2);
      for (float value : {middle, std::nextafter(middle, 0.0f),
                          std::nextafter(middle, 1e9f)}) {
        values.push_back(value);
        values.push_back(-value);
      }
    }
    for (float value : values) {
      const float found = roundToFloat8(type, value, 0);
      if (!std::isfinite(value)) {
        ASSERT_TRUE(std::isnan(found)) << value;
        ASSERT_EQ(float8Bits(type, found) & 0x7f, 0x7f) << value;
        continue;
      }
      ASSERT_EQ(found, nearest(value, numbers)) << value;
      ASSERT_EQ(float8ToFloat(type, float8Bits(type, found)), found) << value;
    }
  }
}

// The largest power of two with which nothing is beyond the range; but for the
// least values a number has the same digits with any scale.
TEST(Float8, ScalesFillTheRange) {
  for (const Float8 &type : {kE4M3, kE5M2}) {
    const double most = bitsToFloat(type.mostBits);
    for (uint32_t bits = 1; bits < 0x7f80; ++bits) {
      const double largest = bf16ToFloat(uint16_t(bits));
      const int scale = scaleExponent(type, bits << 16);
      ASSERT_LE(std::ldexp(largest, scale), most) << largest;
      ASSERT_TRUE(scale == kMostScale || std::ldexp(largest, scale + 1) > most)
          << largest;
      const float found = roundToFloat8(type, float(largest), scale);
      // Beyond 1.875 * 2^127 it is rounded to 2^128.
      ASSERT_TRUE(std::isfinite(found) || largest > 3.1e38) << largest;
      if (!std::isfinite(found))
        continue;
      if (scale < kMostScale) {
        ASSERT_NEAR(found / largest, 1, 0.126) << largest;
        // Exact in bf16, which holds what a product of 8 bits would read.
        ASSERT_EQ(bf16ToFloat(floatToBf16(found)), found);
      }
    }
    // Beyond 1.75 times a power of two by one digit of f32: half the scale.
    EXPECT_EQ(scaleExponent(type, floatToBits(1.75f)), type.mostExponent);
    EXPECT_EQ(scaleExponent(type, floatToBits(std::nextafter(1.75f, 2.0f))),
              type.mostExponent - 1);
    for (float value : {0.0f, INFINITY, NAN})
      EXPECT_EQ(scaleExponent(type, floatToBits(value) & 0x7fffffff), 0);
    for (int scale : {-40, -3, 7, 60})
      EXPECT_EQ(roundToFloat8(type, std::ldexp(1.37f, -scale), scale),
                std::ldexp(roundToFloat8(type, 1.37f, 0), -scale));
  }
}
