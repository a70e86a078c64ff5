// Learning rates, 16-bit floats, values that are not finite.
#include "runtime/core/Finite.h"
#include "runtime/core/HalfFloat.h"
#include "runtime/core/LearningRate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

using namespace merak;
using namespace merak::runtime;

TEST(LearningRate, Constant) {
  planpb::Optimizer optimizer;
  optimizer.set_lr(0.25);
  EXPECT_EQ(learningRate(optimizer, 0), 0.25);
  EXPECT_EQ(learningRate(optimizer, 1000), 0.25);
}

TEST(LearningRate, LinearWarmsUpAndFalls) {
  planpb::Optimizer optimizer;
  optimizer.set_lr(1);
  optimizer.set_schedule(planpb::Optimizer::LINEAR);
  optimizer.set_warmup(3);
  optimizer.set_total(11);
  optimizer.set_min_factor(0.5);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 0), 0.25);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 1), 0.5);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 2), 0.75);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 3), 1);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 7), 0.75);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 11), 0.5);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 99), 0.5);
}

TEST(LearningRate, CosineIsHalfWayInTheMiddle) {
  planpb::Optimizer optimizer;
  optimizer.set_lr(2);
  optimizer.set_schedule(planpb::Optimizer::COSINE);
  optimizer.set_total(8);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 0), 2);
  EXPECT_DOUBLE_EQ(learningRate(optimizer, 4), 1);
  EXPECT_NEAR(learningRate(optimizer, 2), 1 + std::sqrt(0.5), 1e-12);
  EXPECT_NEAR(learningRate(optimizer, 8), 0, 1e-12);
}

// Every 16-bit pattern survives, and rounding is to the nearest, ties to even.
TEST(HalfFloat, RoundTripsEveryPattern) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t half = uint16_t(bits);
    if (!std::isnan(f16ToFloat(half))) {
      ASSERT_EQ(floatToF16(f16ToFloat(half)), half) << bits;
    }
    if (!std::isnan(bf16ToFloat(half))) {
      ASSERT_EQ(floatToBf16(bf16ToFloat(half)), half) << bits;
    }
  }
  EXPECT_TRUE(std::isnan(f16ToFloat(floatToF16(NAN))));
  EXPECT_TRUE(std::isnan(bf16ToFloat(floatToBf16(NAN))));
}

TEST(HalfFloat, RoundsToNearestEven) {
  EXPECT_EQ(floatToF16(1.0f + 0x1p-11f), floatToF16(1.0f));
  EXPECT_EQ(f16ToFloat(floatToF16(1.0f + 3 * 0x1p-11f)), 1.0f + 0x1p-9f);
  EXPECT_EQ(f16ToFloat(floatToF16(65519.0f)), 65504.0f);
  EXPECT_TRUE(std::isinf(f16ToFloat(floatToF16(65520.0f))));
  EXPECT_EQ(f16ToFloat(floatToF16(1.5f * 0x1p-24f)), 0x1p-23f);
  EXPECT_EQ(floatToF16(0x1p-25f), 0);
  EXPECT_EQ(bf16ToFloat(floatToBf16(1.0f + 0x1p-8f)), 1.0f);
  EXPECT_EQ(bf16ToFloat(floatToBf16(1.0f + 3 * 0x1p-8f)), 1.0f + 0x1p-6f);
}

TEST(Finite, FindsTheFirstInRowMajorOrder) {
  std::vector<float> values(12, 1.0f);
  View view{values.data(), planpb::F32, {3, 2}, {4, 1}};
  EXPECT_FALSE(findNonFinite(view).has_value());
  values[2] = NAN; // outside of the view
  EXPECT_FALSE(findNonFinite(view).has_value());
  values[5] = std::numeric_limits<float>::infinity();
  values[8] = NAN;
  const auto found = findNonFinite(view);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->value, "inf");
  EXPECT_EQ(found->index, "[1,1]");
  values[5] = -values[5]; // masks hold it
  EXPECT_EQ(findNonFinite(view)->index, "[2,0]");
}
