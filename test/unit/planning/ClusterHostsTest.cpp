// The hosts that a cluster file names, and whether a plan was compiled for it.
#include "passes/CostModel/ClusterHosts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace merak::costmodel {
namespace {

std::string file(const std::string &nodes, double flops = 2e9) {
  return fmt::format(R"({{
    "kinds": {{"k": {{"backend": "cpu", "flops": {}, "memory_bandwidth": 1e9}}}},
    "nodes": [{}],
    "links": {{"intra": {{"bandwidth": 1e9, "latency": 1e-6}},
              "inter": {{"bandwidth": 1e8, "latency": 1e-5}}}}}})",
                     flops, nodes);
}
std::string node(int devices, const std::string &more = "") {
  return fmt::format(R"({{"kind": "k", "devices": {}{}}})", devices, more);
}
std::string problems(const std::string &nodes) {
  return parseClusterHosts(file(nodes), "c.json").status().str();
}

TEST(ClusterHosts, EachNodeIsOne) {
  const auto hosts =
      parseClusterHosts(file(node(2, R"(, "host": "a-1.net")") + ", " +
                             node(1, R"(, "host": "b_2")")),
                        "c.json");
  ASSERT_TRUE(hosts.ok()) << hosts.status().str();
  ASSERT_EQ(hosts->nodes.size(), 2);
  EXPECT_EQ(hosts->nodes[0].host, "a-1.net");
  EXPECT_EQ(hosts->nodes[0].devices, 2);
  EXPECT_EQ(hosts->nodes[1].host, "b_2");
  EXPECT_EQ(hosts->nodes[1].devices, 1);
  // Who plans sees the same cluster with names and without.
  EXPECT_EQ(hosts->cluster, *parseCluster(file(node(2) + ", " + node(1)), "c"));
  EXPECT_EQ(*parseCluster(hosts->cluster.toJson(), "again"), hosts->cluster);
}

TEST(ClusterHosts, NamesMayBeMissing) {
  const auto hosts =
      parseClusterHosts(file(node(2, R"(, "count": 3)") + "," + node(1)), "c");
  ASSERT_TRUE(hosts.ok()) << hosts.status().str();
  ASSERT_EQ(hosts->nodes.size(), 4);
  for (const ClusterNode &each : hosts->nodes)
    EXPECT_EQ(each.host, "");
  EXPECT_EQ(hosts->nodes[3].devices, 1);
}

TEST(ClusterHosts, WhatIsWrong) {
  EXPECT_EQ(problems(node(2, R"(, "host": "a;b")")),
            "c.json: nodes[0].host: expected a name of letters, digits, \".\", "
            "\"-\" and \"_\", found \"a;b\"");
  EXPECT_EQ(problems(node(2, R"(, "host": "-x")")),
            "c.json: nodes[0].host: expected a name of letters, digits, \".\", "
            "\"-\" and \"_\", found \"-x\"");
  EXPECT_EQ(problems(node(2, R"(, "host": 7)")),
            "c.json: nodes[0].host: expected a name of letters, digits, \".\", "
            "\"-\" and \"_\", found 7");
  EXPECT_EQ(problems(node(2, R"(, "host": "a", "count": 2)")),
            "c.json: nodes[0].host: one name for 2 nodes: give each an entry "
            "of its own");
  EXPECT_EQ(problems(node(2, R"(, "host": "a")") + ", " +
                     node(2, R"(, "host": "a")")),
            "c.json: nodes[1].host: \"a\" is that of a node before");
  EXPECT_EQ(problems(node(2, R"(, "host": "a")") + ", " + node(2)),
            "c.json: nodes[1].host: missing: other nodes have it");
}

LoadedPlan planFor(const std::string &cluster, int ranks) {
  LoadedPlan plan;
  plan.file.set_cluster(cluster);
  for (int rank = 0; rank < ranks; ++rank)
    plan.file.add_ranks();
  return plan;
}
std::string check(const LoadedPlan &plan, const std::vector<int> &devices,
                  const std::string &text) {
  return checkPlannedFor(plan, devices, *parseCluster(text, "c.json"), "c.json")
      .str();
}

TEST(ClusterHosts, WhetherAPlanIsForIt) {
  const std::string two = file(node(2) + ", " + node(2));
  const std::string other = "the plan was compiled for another machine than "
                            "\"c.json\" describes: compile it with "
                            "--cluster=c.json";
  const std::string json = parseCluster(two, "c.json")->toJson();
  EXPECT_EQ(check(planFor(json, 4), {0, 1, 2, 3}, two), "");
  EXPECT_EQ(check(planFor(json, 2), {0, 1}, two), "") << "its first devices";
  // Rates are those of a while.
  Cluster slow = *parseCluster(two, "c.json");
  slow.rateOf = {1, 0.5, 1, 1};
  EXPECT_EQ(check(planFor(slow.toJson(), 4), {0, 1, 2, 3}, two), "");
  // A plan that leaves device 1 out: ranks are devices 0, 2 and 3.
  const std::string three = file(node(1) + ", " + node(2));
  EXPECT_EQ(check(planFor(three, 3), {0, 2, 3}, two), "");
  EXPECT_EQ(check(planFor(three, 3), {0, 1, 2}, two), other);
  EXPECT_EQ(check(planFor(json, 4), {0, 1, 2, 3}, file(node(4))), other);
  EXPECT_EQ(check(planFor(json, 4), {0, 1, 2, 3},
                  file(node(2) + ", " + node(2), 1e9)),
            other)
      << "devices of another speed";
  EXPECT_EQ(check(planFor("", 4), {0, 1, 2, 3}, two), other);
  EXPECT_EQ(check(planFor(json, 4), {0, 1, 2, 3}, file(node(2))),
            "\"c.json\" has 2 devices, the plan is for 4");
}

} // namespace
} // namespace merak::costmodel
