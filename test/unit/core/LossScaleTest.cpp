// How the scale of the loss moves, and how it is asked for.
#include "runtime/core/LossScale.h"

#include <gtest/gtest.h>

#include <vector>

using namespace merak::runtime;

namespace {

LossScaleOptions parsed(const std::string &text) {
  auto options = LossScaleOptions::parse(text);
  EXPECT_TRUE(options.ok()) << options.status().str();
  return options.ok() ? *options : LossScaleOptions();
}

// Values before each step, of which `finite` says how its gradients are.
std::vector<double> values(LossScale scale, const std::vector<bool> &finite) {
  std::vector<double> found;
  for (bool good : finite) {
    found.push_back(scale.value());
    scale.learn(good);
  }
  return found;
}

} // namespace

TEST(LossScale, HalvesAndDoublesWithinBounds) {
  const LossScale scale(parsed("auto:start=8,every=2,least=4,most=16"));
  EXPECT_EQ(values(scale, {true, true, true, true, true, true, true}),
            (std::vector<double>{8, 8, 16, 16, 16, 16, 16}));
  EXPECT_EQ(values(scale, {false, false, false, true}),
            (std::vector<double>{8, 4, 4, 4}));
  // Steps count in a row.
  EXPECT_EQ(values(scale, {true, false, true, false, true, true, true}),
            (std::vector<double>{8, 8, 4, 4, 4, 4, 8}));
}

TEST(LossScale, CanFallUntilItsLeast) {
  LossScale scale(parsed("auto:start=8,least=4"));
  EXPECT_TRUE(scale.canFall());
  scale.learn(false);
  EXPECT_FALSE(scale.canFall());
  EXPECT_FALSE(LossScale(parsed("8")).canFall());
}

TEST(LossScale, AFactorDoesNotMove) {
  LossScale scale(parsed("0.5"));
  EXPECT_EQ(values(scale, {false, true, false}),
            (std::vector<double>{0.5, 0.5, 0.5}));
  scale.resume(64, 3);
  EXPECT_EQ(scale.value(), 0.5);
}

TEST(LossScale, GoesOnWhereItWas) {
  const LossScaleOptions options = parsed("auto:start=8,every=3");
  LossScale whole(options);
  for (bool good : {true, false, true, true})
    whole.learn(good);
  LossScale rest(options);
  rest.resume(whole.value(), whole.steps());
  whole.learn(true);
  rest.learn(true);
  EXPECT_EQ(whole.value(), 8); // 4, doubled after its third step
  EXPECT_EQ(rest.value(), whole.value());
  EXPECT_EQ(rest.steps(), whole.steps());
  // Other bounds than it was saved under.
  rest.resume(0x1p40, 0);
  EXPECT_EQ(rest.value(), options.most);
}

TEST(LossScale, Defaults) {
  for (const LossScaleOptions &options : {parsed("auto"), LossScaleOptions()}) {
    EXPECT_TRUE(options.moves);
    EXPECT_EQ(options.start, 65536);
    EXPECT_EQ(options.every, 2000);
    EXPECT_EQ(options.least, 1);
    EXPECT_EQ(options.most, 16777216);
  }
}

TEST(LossScale, WhatCannotBeMeantIsTold) {
  for (const char *text : {"", "0", "-2", "1e30", "inf", "nan", "2x", "Auto",
                           "auto:", "auto:2", "auto:start", "auto:start=0",
                           "auto:every=0", "auto:every=1.5", "auto:end=3"})
    EXPECT_FALSE(LossScaleOptions::parse(text).ok()) << text;
  EXPECT_EQ(LossScaleOptions::parse("auto:every=0").status().str(),
            "--loss-scale: expected a factor above 0, auto, or "
            "auto:start=..,every=..,least=..,most=.., found \"every=0\"");
  EXPECT_EQ(LossScaleOptions::parse("auto:start=4,least=8").status().str(),
            "--loss-scale: expected least <= start <= most, found 8, 4, "
            "16777216");
}
