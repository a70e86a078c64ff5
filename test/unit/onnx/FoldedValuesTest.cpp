// What an exporter computed from a parameter is computed again.
#include "runtime/onnx/FoldedValues.h"

#include "gtest/gtest.h"

#include <cmath>
#include <cstring>

using namespace merak::runtime;

namespace {

std::string bytesOf(const std::vector<float> &values) {
  return std::string(reinterpret_cast<const char *>(values.data()),
                     values.size() * sizeof(float));
}
std::vector<float> floatsOf(const std::string &bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}
using Floats = std::vector<float>;
using Shape = std::vector<int64_t>;

TEST(FoldedValues, FunctionsInTheirOrder) {
  std::string values = bytesOf({0, 2});
  applyFunctions({"Sigmoid", "Neg", "Add:1"}, values);
  const float sigmoid = 1 / (1 + std::exp(-2.0));
  EXPECT_EQ(floatsOf(values), (Floats{0.5, 1 - sigmoid}));
  values = bytesOf({3});
  applyFunctions({"Mul:-0.5", "Add:2"}, values);
  EXPECT_EQ(floatsOf(values), Floats{0.5});
}

TEST(FoldedValues, OnlyWhatImportUndoes) {
  for (const char *good : {"Exp", "Tanh", "Add:1e-05", "Mul:-3"})
    EXPECT_TRUE(isFoldedFunction(good)) << good;
  for (const char *bad :
       {"", "Relu", "Add", "Add:", "Add:x", "Add:1x", "Exp:1"})
    EXPECT_FALSE(isFoldedFunction(bad)) << bad;
}

// [1, 2, 3] for each of 2 samples, which come second.
TEST(FoldedValues, BroadcastAndPermuted) {
  FoldedUse use{"p", "t", {}, {1, 0, 2}};
  EXPECT_TRUE(use.fits({1, 2, 3}, {2, 2, 3}));
  EXPECT_TRUE(use.fits({1, 2, 3}, {2, 4, 3}));
  EXPECT_FALSE(use.fits({1, 2, 3}, {3, 4, 2}));
  EXPECT_FALSE(use.fits({1, 2, 3}, {2, 6}));
  EXPECT_EQ(floatsOf(moveElements(bytesOf({1, 2, 3, 4, 5, 6}), {1, 2, 3},
                                  {2, 2, 3}, use.permutation, 4)),
            (Floats{1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6}));
}

TEST(FoldedValues, Transposed) {
  FoldedUse use{"p", "t", {}, {1, 0}};
  EXPECT_TRUE(use.fits({2, 3}, {3, 2}));
  EXPECT_FALSE(use.fits({2, 3}, {2, 3}));
  EXPECT_EQ(floatsOf(moveElements(bytesOf({1, 2, 3, 4, 5, 6}), {2, 3}, {3, 2},
                                  use.permutation, 4)),
            (Floats{1, 4, 2, 5, 3, 6}));
  // Axes that are none.
  for (const Shape &axes : {Shape{0, 0}, Shape{0, 2}, Shape{1, 0, 2}})
    EXPECT_FALSE((FoldedUse{"p", "t", {}, axes}).fits({2, 2}, {2, 2}));
}

} // namespace
