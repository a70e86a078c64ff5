// Cluster files and predicted times.
#include "passes/CostModel/Cost.h"

#include <gtest/gtest.h>

namespace merak::costmodel {
namespace {

const char *kGood = R"({
  "name": "two nodes", "devices": 8, "devices_per_node": 4,
  "device": {"kind": "cuda", "flops": 1e14, "memory_bandwidth": 2e12,
             "memory_bytes": 80000000000, "launch_seconds": 4e-6},
  "links": {"intra": {"bandwidth": 3e11, "latency": 2e-6},
            "inter": {"bandwidth": 2e10, "latency": 1e-5}}})";

TEST(Cluster, ReadsAndWrites) {
  Result<Cluster> cluster = parseCluster(kGood, "c.json");
  ASSERT_TRUE(cluster.ok()) << cluster.status().str();
  EXPECT_EQ(cluster->count, 8);
  EXPECT_EQ(cluster->between(0, 3).bandwidth, 3e11);
  EXPECT_EQ(cluster->between(3, 4).bandwidth, 2e10);
  EXPECT_EQ(*parseCluster(cluster->toJson(), "again"), *cluster);
}

TEST(Cluster, AllProblemsAtOnce) {
  Result<Cluster> cluster = parseCluster(
      R"({"devices": 6, "devices_per_node": 4, "color": 1,
          "device": {"kind": "abacus", "flops": -1, "memory_bytes": 0.5},
          "links": {"intra": {"bandwidth": 0}}})",
      "c.json");
  EXPECT_EQ(cluster.status().str(),
            "c.json: unknown field 'color'\n"
            "c.json: 'devices' is 6, not a multiple of 'devices_per_node', "
            "which is 4\n"
            "c.json: 'device.kind' is \"abacus\", expected \"cpu\" or "
            "\"cuda\"\n"
            "c.json: 'device.flops' is -1, expected a number above 0\n"
            "c.json: 'device.memory_bandwidth' is missing\n"
            "c.json: 'device.memory_bytes' is 0.5, expected a whole number of "
            "at least 1\n"
            "c.json: 'links.intra.bandwidth' is 0, expected a number above 0\n"
            "c.json: 'links.intra.latency' is missing\n"
            "c.json: 'links.inter' is missing");
  EXPECT_EQ(parseCluster("{}", "c.json").status().str(),
            "c.json: 'devices' is missing\nc.json: 'device' is missing");
  EXPECT_EQ(parseCluster("{", "c.json").status().str(),
            "c.json: expected a JSON object");
  EXPECT_EQ(readCluster("/no/such/file").status().str(),
            "cannot read the cluster file '/no/such/file'");
}

TEST(Cluster, DefaultIsUsable) {
  Cluster cluster = defaultCluster(4);
  EXPECT_EQ(cluster.count, 4);
  EXPECT_GT(opSeconds(cluster.device, 1e6, 1e3), 0);
  EXPECT_GT(transferSeconds(cluster.between(0, 3), 1e6), 0);
}

TEST(Cost, RooflineTakesTheSlowerSide) {
  Device device{"cpu", 100, 10, 0, 0.5};
  EXPECT_EQ(opSeconds(device, 1000, 20), 10.5);
  EXPECT_EQ(opSeconds(device, 100, 200), 20.5);
  EXPECT_EQ(opSeconds(device, 0, 0), 0.5);
}

TEST(Cost, RingCollectives) {
  Link link{10, 0.25};
  // All-reduce of 40 bytes on 4: 6 steps, each device sends 60 bytes.
  EXPECT_EQ(ringBytes(Collective::AllReduce, 40, 4), 60);
  EXPECT_EQ(collectiveSeconds(Collective::AllReduce, 40, 4, link), 7.5);
  EXPECT_EQ(collectiveSeconds(Collective::AllGather, 40, 4, link), 3.75);
  EXPECT_EQ(collectiveSeconds(Collective::ReduceScatter, 40, 4, link), 3.75);
  EXPECT_EQ(collectiveSeconds(Collective::AllToAll, 40, 4, link), 3.75);
  EXPECT_EQ(collectiveSeconds(Collective::Broadcast, 40, 4, link), 4.75);
  EXPECT_EQ(collectiveSeconds(Collective::AllReduce, 40, 1, link), 0);
  // All-reduce is a reduce-scatter and an all-gather.
  EXPECT_EQ(collectiveSeconds(Collective::AllReduce, 40, 4, link),
            collectiveSeconds(Collective::ReduceScatter, 40, 4, link) +
                collectiveSeconds(Collective::AllGather, 40, 4, link));
}

TEST(Cost, TheSlowestLinkCarriesTheRing) {
  Result<Cluster> cluster = parseCluster(kGood, "c.json");
  double inside =
      collectiveSeconds(Collective::AllReduce, 1e9, {0, 1}, *cluster);
  double across =
      collectiveSeconds(Collective::AllReduce, 1e9, {3, 4}, *cluster);
  EXPECT_EQ(inside,
            collectiveSeconds(Collective::AllReduce, 1e9, 2, cluster->intra));
  EXPECT_EQ(across,
            collectiveSeconds(Collective::AllReduce, 1e9, 2, cluster->inter));
}

} // namespace
} // namespace merak::costmodel
