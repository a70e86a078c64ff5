// What is left of a cluster when nodes are lost.
#include "passes/CostModel/ClusterNodes.h"

#include <gtest/gtest.h>

namespace merak::costmodel {
namespace {

Cluster unlike() {
  return *parseCluster(R"({"name": "three",
    "kinds": {"fast": {"backend": "cpu", "flops": 2e9, "memory_bandwidth": 1e9},
              "slow": {"backend": "cpu", "flops": 1e9, "memory_bandwidth": 1e9}},
    "nodes": [{"kind": "fast", "devices": 2}, {"kind": "slow", "devices": 1},
              {"kind": "slow", "devices": 2}],
    "links": {"intra": {"bandwidth": 1e9, "latency": 1e-6},
              "inter": {"bandwidth": 1e8, "latency": 1e-5}},
    "rates": {"4": 0.5}})",
                       "c.json");
}

TEST(ClusterNodes, OthersKeepTheirKindsAndRates) {
  const auto left = withoutNodes(unlike(), {2, 1, 2}, {1});
  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(left->count, 4);
  EXPECT_EQ(left->perNode, 2);
  EXPECT_TRUE(left->nodeOf.empty());
  EXPECT_EQ(left->kindOf, (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(left->rateOf, (std::vector<double>{1, 1, 1, 0.5}));
  EXPECT_EQ(*parseCluster(left->toJson(), "left"), *left);
  const auto other = withoutNodes(unlike(), {2, 1, 2}, {0});
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(other->nodeOf, (std::vector<int>{0, 1, 1}));
  EXPECT_EQ(other->kindOf, (std::vector<int>{1, 1, 1}));
}

// Hosts may be fewer than the cluster's nodes, as --devices takes its first.
TEST(ClusterNodes, HostsAreTheFirstNodes) {
  const auto left = withoutNodes(unlike(), {2, 1}, {1});
  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(left->count, 2);
  EXPECT_FALSE(withoutNodes(unlike(), {1, 2, 2}, {1}));
  EXPECT_FALSE(withoutNodes(unlike(), {2, 1, 2, 1}, {1}));
  EXPECT_FALSE(withoutNodes(unlike(), {2, 1}, {0, 1}));
  EXPECT_FALSE(withoutNodes(defaultCluster(4), {2, 2}, {1}));
  EXPECT_EQ(withoutNodes(defaultCluster(4), {4}, {})->count, 4);
}

} // namespace
} // namespace merak::costmodel
