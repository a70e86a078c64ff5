// Rounds of messages: what links, packing and the wait for a device's own last
// round take.
#include "Golden.h"

#include "passes/Resharding/Rounds.h"

#include <gtest/gtest.h>

namespace merak::resharding {
namespace {

// Two nodes of two devices: 1 byte a second between them, 10 inside.
costmodel::Cluster cluster(double latency = 0) {
  return hostCluster(2, 2, 1, latency, 10, latency);
}

RoundsPrice priced(const std::vector<std::vector<PlannedMessage>> &rounds,
                   const costmodel::Cluster &cluster,
                   std::vector<double> copied = {}) {
  auto price = priceRounds(rounds, copied, cluster);
  EXPECT_TRUE(price.ok()) << price.status().str();
  return price ? *price : RoundsPrice();
}

TEST(Rounds, BothDirectionsAtTheSameTime) {
  const RoundsPrice price = priced({{{0, 2, 100}, {2, 0, 100}}}, cluster(1));
  EXPECT_EQ(price.seconds, 101);
  EXPECT_EQ(price.bound, 101);
  EXPECT_EQ(price.inside, 0);
  EXPECT_EQ(price.between, 200);
}

// Devices of a node share its adapter.
TEST(Rounds, TheFullestAdapterBounds) {
  const costmodel::Cluster machine = cluster();
  const RoundsPrice price =
      priced({{{0, 2, 100}, {1, 3, 50}, {2, 3, 1000}}}, machine);
  // 3 receives from 1 until 150, then from 2.
  EXPECT_EQ(price.seconds, 250);
  EXPECT_EQ(price.bound, 150);
  EXPECT_EQ(price.inside, 1000);
  EXPECT_EQ(price.between, 150);
  EXPECT_EQ(Interfaces(machine).name(price.fullest), "node 0, out");
  EXPECT_EQ(price.fullestBytes, 150);
}

// A device begins its next round when it has done its own, whatever others do.
TEST(Rounds, OthersAreNotWaitedFor) {
  const RoundsPrice price =
      priced({{{0, 2, 100}, {1, 0, 10}}, {{3, 1, 20}, {2, 3, 10}}}, cluster());
  // 1 to 0 ends at 1; 3 to 1 takes the adapters the other way, from 1 to 21;
  // 2 is busy until 100 and sends to 3 until 101.
  EXPECT_EQ(price.seconds, 101);
  EXPECT_EQ(price.bound, 100);
}

// Packed by the sender, unpacked by the receiver, each at 20 bytes a second
// that are read and written.
TEST(Rounds, PackingAndCopiesTakeMemory) {
  costmodel::Cluster machine = cluster();
  machine.kinds[0].memoryBandwidth = 20;
  EXPECT_EQ(priced({{{0, 1, 100}}}, machine).seconds, 10 + 10 + 10);
  EXPECT_EQ(priced({{{0, 1, 100}}}, machine, {0, 50}).seconds, 30);
  EXPECT_EQ(priced({{{0, 1, 100}}}, machine, {0, 150}).seconds, 35);
  EXPECT_EQ(priced({}, machine, {0, 0, 40}).seconds, 4);
}

TEST(Rounds, NothingIsSentAtNoTime) {
  const RoundsPrice price = priced({}, cluster());
  EXPECT_EQ(price.seconds, 0);
  EXPECT_EQ(price.bound, 0);
  EXPECT_EQ(price.fullest, -1);
}

TEST(Rounds, DevicesThatTheClusterLacksAreRefused) {
  EXPECT_EQ(priceRounds({{{0, 4, 1}}}, {}, cluster()).status().str(),
            "the cluster has 4 devices, 5 are needed");
}

} // namespace
} // namespace merak::resharding
