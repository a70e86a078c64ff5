#include "passes/Planning/SharedName.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace merak::planning {
namespace {

TEST(SharedName, EqualTextsAreOneName) {
  const SharedName a("layer"), b(std::string("lay") + "er"), other("layer2");
  EXPECT_TRUE(a == b);
  EXPECT_EQ(&a.str(), &b.str());
  EXPECT_FALSE(a == other);
  EXPECT_EQ(other.str(), "layer2");
}

TEST(SharedName, EmptyTextsAreNoName) {
  EXPECT_TRUE(SharedName().empty());
  EXPECT_TRUE(SharedName("") == SharedName());
  EXPECT_EQ(SharedName().str(), "");
}

TEST(SharedName, AnyThreadMayNameSomething) {
  std::vector<SharedName> first(100), second(100);
  const auto name = [](std::vector<SharedName> &all) {
    for (size_t i = 0; i < all.size(); ++i)
      all[i] = SharedName("threads " + std::to_string(i));
  };
  std::thread beside([&] { name(first); });
  name(second);
  beside.join();
  EXPECT_TRUE(first == second);
  EXPECT_EQ(first[42].str(), "threads 42");
}

} // namespace
} // namespace merak::planning
