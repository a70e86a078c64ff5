#include "runtime/onnx/WeightUses.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

using namespace merak;
using namespace merak::runtime;

namespace {

Result<WeightUses> usesOf(const std::string &text) {
  std::string dir = testing::TempDir() + "weights-XXXXXX";
  EXPECT_NE(mkdtemp(dir.data()), nullptr);
  std::ofstream(dir + "/weights.json") << text;
  return readWeightUses(dir);
}

std::string folded(const std::string &transposed) {
  return R"({"split_uses": [], "folded_uses": [{"parameter": "w",)"
         R"("initializer": "w.t", "transposed": )" +
         transposed + "}]}";
}

// A file beside the plan may hold anything.
TEST(WeightUses, AnyValueIsReadOrRefused) {
  auto uses = usesOf(folded("true"));
  ASSERT_TRUE(uses.ok()) << uses.status().str();
  ASSERT_EQ(uses->folds.size(), 1u);
  EXPECT_EQ(uses->folds[0].permutation, (std::vector<int64_t>{1, 0}));
  for (const char *value : {"false", "\"yes\"", "1", "null", "[true]"}) {
    auto other = usesOf(folded(value));
    ASSERT_TRUE(other.ok()) << value;
    EXPECT_TRUE(other->folds[0].permutation.empty()) << value;
  }
  for (const char *text :
       {"", "[]", "{}", "{\"split_uses\": 1}", "{\"split_uses\": [1]}"})
    EXPECT_FALSE(usesOf(text).ok()) << text;
}

} // namespace
