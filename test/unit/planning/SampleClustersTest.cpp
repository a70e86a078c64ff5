// Every file of samples/clusters can be read, and says what its name says.
#include "passes/CostModel/Cost.h"

#include <filesystem>
#include <gtest/gtest.h>

namespace fs = std::filesystem;

namespace merak::costmodel {
namespace {

Cluster sample(const std::string &name) {
  Result<Cluster> cluster =
      readCluster(MERAK_SOURCE_DIR "/samples/clusters/" + name);
  EXPECT_TRUE(cluster.ok()) << cluster.status().str();
  return cluster.ok() ? *cluster : Cluster();
}

TEST(SampleClusters, AllAreReadAndPredictSomething) {
  int files = 0;
  for (const fs::directory_entry &entry :
       fs::directory_iterator(MERAK_SOURCE_DIR "/samples/clusters")) {
    if (entry.path().extension() != ".json")
      continue;
    ++files;
    Cluster cluster = sample(entry.path().filename());
    EXPECT_EQ(*parseCluster(cluster.toJson(), "again"), cluster);
    for (const char *kernel : {"einsum:nt", "attention", "layer_norm", "copy",
                               "adamw_update", "elementwise", "gather"})
      EXPECT_GT(kernelSeconds(cluster.device(),
                              {kernel, 1e9, 1e6, "f32", 512, 512, 512}),
                0)
          << entry.path() << " " << kernel;
    std::vector<int64_t> everybody;
    for (int64_t i = 0; i < cluster.count; ++i)
      everybody.push_back(i);
    EXPECT_GT(collectiveSeconds(Collective::AllReduce, 1e6, everybody, cluster),
              0);
  }
  EXPECT_GE(files, 3);
}

TEST(SampleClusters, Rtx3090) {
  Cluster cluster = sample("rtx3090-16x4.json");
  EXPECT_EQ(cluster.count, 64);
  EXPECT_EQ(cluster.perNode, 4);
  EXPECT_EQ(cluster.device().memoryBytes, 24000000000);
  EXPECT_TRUE(cluster.inter.shared);
}

TEST(SampleClusters, HopperNodes) {
  for (auto [name, nodes] : {std::pair("h100-a100-2x8.json", 2),
                             std::pair("h100-a100-20x8.json", 20)}) {
    Cluster two = sample(name);
    EXPECT_EQ(two.count, 8 * nodes);
    EXPECT_EQ(two.node(two.count - 1), nodes - 1);
    EXPECT_EQ(two.device(0).name, "h100");
    EXPECT_EQ(two.device(two.count / 2 - 1).name, "h100");
    EXPECT_EQ(two.device(two.count / 2).name, "a100");
  }
  Cluster h100 = sample("h100-8x8.json"), h200 = sample("h200-8x8.json");
  EXPECT_EQ(h100.count, 64);
  EXPECT_EQ(h100.device().rates, h200.device().rates);
  EXPECT_LT(h100.device().memoryBytes, h200.device().memoryBytes);
  // A transformer's large product is bound by arithmetic, its sum by memory.
  EXPECT_LT(kernelSeconds(h100.device(), {"einsum", 1e15, 1e9, "bf16"}), 1.02);
  EXPECT_GT(kernelSeconds(h100.device(), {"elementwise", 1e9, 3.35e12}), 0.99);
}

} // namespace
} // namespace merak::costmodel
