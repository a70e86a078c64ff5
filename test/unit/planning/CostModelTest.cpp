// Cluster files and predicted times.
#include "passes/CostModel/Cost.h"
#include "passes/CostModel/Describe.h"
#include "passes/CostModel/DeviceGroup.h"

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
          "links": {"intra": {"bandwidth": -3}}})",
      "c.json");
  EXPECT_EQ(
      cluster.status().str(),
      "c.json: color: unknown field, expected one of name, notes, devices, "
      "devices_per_node, device, links, collectives, host, rates\n"
      "c.json: devices: 6 is not a multiple of devices_per_node, which is 4\n"
      "c.json: device.kind: expected \"cpu\" or \"cuda\", found \"abacus\"\n"
      "c.json: device.flops: expected a positive number of operations per "
      "second, found -1\n"
      "c.json: device.memory_bandwidth: missing\n"
      "c.json: device.memory_bytes: expected a whole number of at least 1, "
      "found 0.5\n"
      "c.json: links.intra.bandwidth: expected a positive number of bytes per "
      "second, found -3\n"
      "c.json: links.intra.latency: missing\n"
      "c.json: links.inter: missing");
  EXPECT_EQ(parseCluster("{}", "c.json").status().str(),
            "c.json: devices: missing\nc.json: device: missing");
  EXPECT_EQ(parseCluster("{\n \"a\" 1}", "c.json").status().str(),
            "c.json:2:6: expected a JSON object, found a syntax error");
  EXPECT_EQ(parseCluster("[]", "c.json").status().str(),
            "c.json: expected a JSON object");
  EXPECT_EQ(readCluster("/no/such/file").status().str(),
            "cannot read the cluster file '/no/such/file': no such file or "
            "directory");
}

const char *kLong = R"({
  "name": "mixed", "kinds": {
    "big": {"backend": "cuda", "flops": {"f32": 6e13, "bf16": 9e14},
            "memory_bandwidth": 3e12, "memory_bytes": 80e9,
            "launch_seconds": 4e-6,
            "kernels": {"matmul": {"shapes": [[64, 64, 64, 0.25],
                                              [1024, 1024, 1024, 0.75]]},
                        "softmax": {"launch_seconds": 0, "flops": 1e12,
                                    "sizes": [[1e4, 1e9], [1e6, 1e12]]}},
            "slowdown": {"compute": 1.25}},
    "small": {"backend": "cuda", "flops": 1e13, "memory_bandwidth": 5e11,
              "memory_bytes": 24000000000}},
  "nodes": [{"count": 2, "kind": "big", "devices": 4},
            {"kinds": ["small", "big"]}],
  "links": {"intra": {"bandwidth": 3e11, "latency": 2e-6},
            "inter": {"bandwidth": 2e10, "latency": 1e-5, "shared": true}},
  "collectives": "tree", "rates": {"3": 0.5}})";

TEST(Cluster, KindsAndNodes) {
  Result<Cluster> cluster = parseCluster(kLong, "c.json");
  ASSERT_TRUE(cluster.ok()) << cluster.status().str();
  EXPECT_EQ(cluster->count, 10);
  EXPECT_EQ(cluster->perNode, 4);
  EXPECT_EQ(cluster->device(7).name, "big");
  EXPECT_EQ(cluster->device(8).name, "small");
  EXPECT_EQ(cluster->device(9).memoryBytes, 80000000000);
  EXPECT_EQ(cluster->device().flops("bf16"), 9e14);
  EXPECT_EQ(cluster->device().flops("f16"), 6e13); // not listed: as f32
  EXPECT_EQ(cluster->between(8, 9), cluster->intra);
  EXPECT_EQ(cluster->between(7, 8), cluster->inter);
  EXPECT_TRUE(cluster->inter.shared);
  EXPECT_EQ(cluster->rate(3), 0.5);
  EXPECT_EQ(cluster->rate(4), 1);
  EXPECT_EQ(cluster->algorithm, Algorithm::Tree);
  EXPECT_EQ(cluster->device().computeSlowdown, 1.25);
  Result<Cluster> again = parseCluster(cluster->toJson(), "again");
  ASSERT_TRUE(again.ok()) << again.status().str();
  EXPECT_EQ(*again, *cluster);
}

TEST(Cluster, ContradictionsAreFound) {
  EXPECT_EQ(
      parseCluster(R"({"links": {}, "links": {}})", "c.json").status().str(),
      "c.json: links: appears twice in one object");
  std::string text = kLong;
  auto with = [&](const std::string &from, const std::string &to) {
    std::string changed = text;
    size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    return parseCluster(changed, "c.json").status().str();
  };
  EXPECT_EQ(with("\"name\": \"mixed\"", "\"devices\": 4"),
            "c.json: devices: unknown field, expected one of name, notes, "
            "kinds, nodes, links, collectives, host, rates");
  EXPECT_EQ(with("\"f32\": 6e13", "\"fp8\": 1"),
            "c.json: kinds.big.flops.fp8: unknown type, expected one of bf16, "
            "f16, f32, f64, f8, i32, i64, i8, u8\n"
            "c.json: kinds.big.flops.f32: missing");
  EXPECT_EQ(with("[1024, 1024, 1024, 0.75]", "[64, 64, 64, 0.75], [1, 2]"),
            "c.json: kinds.big.kernels.matmul.shapes[1]: efficiency 0.75 "
            "contradicts 0.25 of the same shape before\n"
            "c.json: kinds.big.kernels.matmul.shapes[2]: expected [m, n, k, "
            "efficiency], found [1,2]");
  EXPECT_EQ(with("0.75]", "1.75]"),
            "c.json: kinds.big.kernels.matmul.shapes[1][3]: expected a number "
            "above 0 and at most 1, found 1.75");
  EXPECT_EQ(with("[1e6, 1e12]", "[1e3, 1e12]"),
            "c.json: kinds.big.kernels.softmax.sizes[1][0]: expected more than "
            "the 10000 before, found 1000");
  EXPECT_EQ(with("1.25", "0.5"),
            "c.json: kinds.big.slowdown.compute: expected a factor of at least "
            "1, found 0.5");
  EXPECT_EQ(with("\"small\": {\"backend\": \"cuda\"",
                 "\"small\": {\"backend\": \"cpu\""),
            "c.json: kinds.small.backend: \"cpu\" contradicts \"cuda\" of "
            "kinds.big: a plan is for one backend");
  EXPECT_EQ(with("{\"kinds\": [\"small\", \"big\"]}",
                 "{\"kinds\": [\"small\", \"huge\"], \"devices\": 3}"),
            "c.json: nodes[1].kinds[1]: expected one of the kinds big, small, "
            "found \"huge\"\n"
            "c.json: nodes[1].devices: 3 contradicts the 2 kinds of the node");
  EXPECT_EQ(with("\"collectives\": \"tree\"",
                 "\"collectives\": 1, \"host\": {\"cores\": 2}"),
            "c.json: collectives: expected \"ring\", \"tree\", \"direct\" or "
            "\"nccl\", found 1\n"
            "c.json: host: contradicts the backend \"cuda\": only CPU devices "
            "share the cores of a node");
  EXPECT_EQ(with("{\"3\": 0.5}", "{\"10\": 0.5, \"0\": 1.5}"),
            "c.json: rates.10: expected a device between 0 and 9\n"
            "c.json: rates.0: expected a number above 0 and at most 1, found "
            "1.5");
  EXPECT_EQ(with("\"count\": 2", "\"count\": 1000000"),
            "c.json: nodes[0].count: more than 1048576 devices");
  EXPECT_EQ(with("3e12", "3e999"), "c.json: holds a number that is too large");
}

TEST(Cluster, DefaultIsUsable) {
  Cluster cluster = defaultCluster(4);
  EXPECT_EQ(cluster.count, 4);
  EXPECT_GT(opSeconds(cluster.device(), 1e6, 1e3), 0);
  EXPECT_GT(transferSeconds(cluster.between(0, 3), 1e6), 0);
  EXPECT_EQ(*parseCluster(cluster.toJson(), "default"), cluster);
}

// Two ranks with two threads each on two cores run at half speed.
TEST(Cluster, RanksShareTheCores) {
  Cluster cluster = defaultCluster(2);
  cluster.cores = 2;
  EXPECT_EQ(cluster.rate(0), 1);
  cluster.threads = 2;
  EXPECT_EQ(cluster.rate(1), 0.5);
  EXPECT_EQ(*parseCluster(cluster.toJson(), "shared"), cluster);
}

TEST(Cost, RooflineTakesTheSlowerSide) {
  Device device;
  device.rates["f32"] = 100;
  device.memoryBandwidth = 10;
  device.launchSeconds = 0.5;
  EXPECT_EQ(opSeconds(device, 1000, 20), 10.5);
  EXPECT_EQ(kernelSeconds(device, {"softmax", 1000, 20}), 10.5);
  EXPECT_EQ(opSeconds(device, 100, 200), 20.5);
  EXPECT_EQ(opSeconds(device, 0, 0), 0.5);
}

TEST(Cost, KernelsFollowTheirOwnRates) {
  Result<Cluster> cluster = parseCluster(kLong, "c.json");
  ASSERT_TRUE(cluster.ok());
  const Device &device = cluster->device();
  double flops = 2.0 * 64 * 64 * 64;
  // At a measured shape the measured efficiency, by the class of the kernel.
  EXPECT_DOUBLE_EQ(
      kernelSeconds(device, {"einsum", flops, 0, "f32", 64, 64, 64}),
      flops / (0.25 * 6e13) + 4e-6);
  EXPECT_DOUBLE_EQ(
      kernelSeconds(device, {"einsum", flops, 0, "bf16", 64, 64, 64}),
      flops / (0.25 * 9e14) + 4e-6);
  // Half way in logarithms between the two: the mean.
  EXPECT_DOUBLE_EQ(
      kernelSeconds(device, {"einsum", 1e12, 0, "f32", 256, 256, 256}),
      1e12 / (0.5 * 6e13) + 4e-6);
  // Beyond them: close to the nearest.
  double far = kernelSeconds(
      device, {"einsum", 1e12, 0, "f32", 1 << 20, 1 << 20, 1 << 20});
  EXPECT_GT(far, 1e12 / (0.75 * 6e13));
  EXPECT_LT(far, 1e12 / (0.6 * 6e13));
  // The kernel's own launch, flops and bandwidth by size: 1e5 bytes lie half
  // way between 1e4 and 1e6.
  EXPECT_NEAR(kernelSeconds(device, {"softmax", 0, 1e5}), 1e5 / 3.1623e10,
              1e-9);
  EXPECT_DOUBLE_EQ(kernelSeconds(device, {"softmax", 0, 1e3}), 1e-6);
  EXPECT_DOUBLE_EQ(kernelSeconds(device, {"softmax", 2e12, 1}), 2);
  EXPECT_DOUBLE_EQ(kernelSeconds(device, {"layer_norm", 0, 3e12}), 1 + 4e-6);
}

// The product by the rate of f8, else of bf16; rounding its factors, which
// reads them twice and writes a byte each, before it, unless that was measured
// with it.
TEST(Cost, ProductsOfEightBits) {
  Device device;
  device.rates = {{"f32", 10}, {"bf16", 100}};
  device.memoryBandwidth = 1e3;
  device.launchSeconds = 0.5;
  Kernel kernel{"einsum", 6000, 1000};
  const int64_t a[] = {10, 20}, b[] = {20, 30};
  describeProduct("mk,kn->mn", a, b, kernel);
  describeRounding(a, b, 2, kernel);
  EXPECT_EQ(kernel.rounded, 800);
  EXPECT_EQ(kernel.bytes, 200); // half of the factors' bytes
  const double before = 4 * 0.5 + 5 * 800 / 1e3;
  EXPECT_DOUBLE_EQ(kernelSeconds(device, kernel), 60 + 0.5 + before);
  device.rates["f8"] = 200;
  EXPECT_DOUBLE_EQ(kernelSeconds(device, kernel), 30 + 0.5 + before);
  device.kernels["einsum:nn@bf16"].launch = 0.25;
  EXPECT_DOUBLE_EQ(kernelSeconds(device, kernel), 30 + 0.25 + before);
  device.kernels["einsum:nn@f8"].flops = 300;
  EXPECT_DOUBLE_EQ(kernelSeconds(device, kernel), 20 + 0.5);
}

constexpr const char *kDistances = R"({
  "kinds": {"k": {"backend": "cpu", "flops": 100, "memory_bandwidth": 10,
    "distances": [1000, 4000, 16000],
    "kernels": {
      "softmax": {"sizes": [[10, 8, 4, 2]]},
      "matmul": {"shapes": [[2, 2, 2, 1, 0.5, 0.25]]},
      "copy": {"sizes": [[10, 5]]}}}},
  "nodes": [{"kind": "k", "devices": 1}]})";

// A third of the operands at each distance: the mean of the three times.
TEST(Cost, RatesDependOnHowLongOperandsWereNotTouched) {
  Result<Cluster> cluster = parseCluster(kDistances, "c.json");
  ASSERT_TRUE(cluster.ok()) << cluster.status().str();
  EXPECT_EQ(*parseCluster(cluster->toJson(), "again"), *cluster);
  const Device &device = cluster->device();
  Kernel softmax{"softmax", 0, 16};
  EXPECT_EQ(kernelSeconds(device, softmax), 4); // nothing known: the middle
  softmax.shares = {1, 0, 0};
  EXPECT_EQ(kernelSeconds(device, softmax), 2);
  softmax.shares = {0.25, 0.25, 0.5};
  EXPECT_EQ(kernelSeconds(device, softmax), 0.25 * 2 + 0.25 * 4 + 0.5 * 8);
  Kernel product{"einsum", 100, 0, "f32", 2, 2, 2};
  product.shares = {0.5, 0, 0.5};
  EXPECT_EQ(kernelSeconds(device, product), 0.5 * 1 + 0.5 * 4);
  Kernel copy{"copy", 0, 10};
  copy.shares = {0, 0, 1};
  EXPECT_EQ(kernelSeconds(device, copy), 2); // one rate for all

  auto with = [](const std::string &from, const std::string &to) {
    std::string text = kDistances;
    text.replace(text.find(from), from.size(), to);
    return parseCluster(text, "c.json").status().str();
  };
  EXPECT_EQ(with("4000", "500"),
            "c.json: kinds.k.distances[1]: expected more than the 1000 before, "
            "found 500");
  EXPECT_EQ(with("[10, 8, 4, 2]", "[10, 8, 4]"),
            "c.json: kinds.k.kernels.softmax.sizes[0]: expected [bytes, bytes "
            "per second] or one rate for each of 3 distances, found [10,8,4]");
  EXPECT_EQ(with("0.5, 0.25]", "0.5, 1.5]"),
            "c.json: kinds.k.kernels.matmul.shapes[0][5]: expected a number "
            "above 0 and at most 1, found 1.5");
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

TEST(Cost, TreesAndDirectReads) {
  Link link{10, 0.25};
  // 5 devices: 3 rounds; an all-reduce goes up and down, everything each time.
  EXPECT_EQ(
      collectiveSeconds(Collective::AllReduce, 40, 5, link, Algorithm::Tree),
      6 * (0.25 + 4));
  EXPECT_EQ(
      collectiveSeconds(Collective::Broadcast, 40, 5, link, Algorithm::Tree),
      3 * (0.25 + 4));
  EXPECT_EQ(
      collectiveSeconds(Collective::AllGather, 40, 5, link, Algorithm::Tree),
      3 * 0.25 + 3.2);
  EXPECT_EQ(
      collectiveSeconds(Collective::AllReduce, 40, 5, link, Algorithm::Direct),
      2 * 0.25 + 6.4);
}

// 8 nodes of 8, 5 us and 450 GB/s inside, 10 us and 50 GB/s for each adapter.
Cluster ncclCluster() {
  Cluster cluster;
  cluster.count = 64;
  cluster.perNode = 8;
  cluster.intra = {450e9, 5e-6};
  cluster.inter = {50e9, 10e-6};
  cluster.algorithm = Algorithm::Nccl;
  return cluster;
}
std::vector<int64_t> everyNth(int64_t count, int64_t step) {
  std::vector<int64_t> devices;
  for (int64_t i = 0; i < count; ++i)
    devices.push_back(i * step);
  return devices;
}

TEST(Cost, NcclTakesTreesForSmallAndRingsForLargeMessages) {
  Cluster cluster = ncclCluster();
  auto seconds = [&](double bytes, const std::vector<int64_t> &devices) {
    return collectiveSeconds(Collective::AllReduce, bytes, devices, cluster);
  };
  // All 64. Tree: up and down 7 devices and 3 levels of nodes, 2 b through the
  // 8 adapters of a node.
  EXPECT_DOUBLE_EQ(seconds(1e6, everyNth(64, 1)),
                   2 * (7 * 5e-6 + 3 * 10e-6) + 2e6 / 400e9);
  // Ring: 126 rounds, 14 of them between nodes.
  EXPECT_DOUBLE_EQ(seconds(64e9, everyNth(64, 1)),
                   112 * 5e-6 + 14 * 10e-6 + 126e9 / 400e9);
  // One device of each node: one adapter.
  EXPECT_DOUBLE_EQ(seconds(8, everyNth(8, 8)), 2 * 3 * 10e-6 + 16 / 50e9);
  EXPECT_DOUBLE_EQ(seconds(8e9, everyNth(8, 8)), 14 * 10e-6 + 14e9 / 50e9);
  // Inside one node the chain is as long as the ring, which carries less.
  EXPECT_DOUBLE_EQ(seconds(8e6, everyNth(8, 1)), 14 * 5e-6 + 14e6 / 450e9);
  EXPECT_EQ(seconds(1e6, {0}), 0);
  // Never slower than either, whatever the size: the ring of all links alike.
  for (double bytes = 1; bytes < 1e12; bytes *= 3)
    EXPECT_LE(seconds(bytes, everyNth(64, 1)),
              collectiveSeconds(Collective::AllReduce, bytes, 64, cluster.inter,
                                Algorithm::Ring));
}

TEST(Cost, NcclTakesDevicesInAnyOrder) {
  Cluster cluster = ncclCluster();
  // Of nodes 0, 1 and 5, with two devices or more of each.
  const std::vector<int64_t> sorted = {0, 1, 2, 8, 9, 40, 41};
  const std::vector<int64_t> mixed = {40, 8, 0, 1, 9, 41, 2};
  for (double bytes : {1e3, 1e9})
    EXPECT_DOUBLE_EQ(
        collectiveSeconds(Collective::AllReduce, bytes, sorted, cluster),
        collectiveSeconds(Collective::AllReduce, bytes, mixed, cluster));
  // The ring: 12 rounds, 4 of them between nodes, through two adapters.
  EXPECT_DOUBLE_EQ(
      collectiveSeconds(Collective::AllReduce, 7e9, mixed, cluster),
      8 * 5e-6 + 4 * 10e-6 + 12e9 / 100e9);
}

// Whatever the algorithm, links and own work of the devices.
TEST(DeviceGroup, TakesAsLongAsTheCollectiveOfItsDevices) {
  for (Algorithm algorithm :
       {Algorithm::Ring, Algorithm::Tree, Algorithm::Direct, Algorithm::Nccl})
    for (bool shared : {false, true})
      for (bool measured : {false, true}) {
        Cluster cluster = ncclCluster();
        cluster.algorithm = algorithm;
        cluster.inter.shared = shared;
        KernelRates own;
        own.launch = 1e-3;
        if (measured)
          cluster.kinds.front().kernels["all_gather"] = own;
        for (const std::vector<int64_t> &devices :
             {everyNth(1, 1), everyNth(8, 1), everyNth(8, 8), everyNth(64, 1),
              std::vector<int64_t>{40, 8, 0, 1, 9, 41, 2}})
          for (int64_t sharing : {1, 4}) {
            const DeviceGroup group(devices, cluster, sharing);
            for (double bytes : {8.0, 1e6, 64e9})
              for (Collective kind :
                   {Collective::AllReduce, Collective::AllGather,
                    Collective::ReduceScatter, Collective::AllToAll,
                    Collective::Broadcast})
                EXPECT_EQ(
                    group.seconds(kind, bytes),
                    collectiveSeconds(kind, bytes, devices, cluster, sharing));
          }
      }
}

TEST(Cost, NcclGathersInRings) {
  Cluster cluster = ncclCluster();
  for (Collective kind : {Collective::AllGather, Collective::ReduceScatter})
    EXPECT_DOUBLE_EQ(collectiveSeconds(kind, 64e6, everyNth(64, 1), cluster),
                     56 * 5e-6 + 7 * 10e-6 + 63e6 / 400e9);
  EXPECT_DOUBLE_EQ(
      collectiveSeconds(Collective::Broadcast, 8e6, everyNth(8, 1), cluster),
      7 * 5e-6 + 8e6 / 450e9);
}

TEST(Cost, NcclThroughOneAdapterOfANode) {
  Cluster cluster = ncclCluster();
  cluster.inter.shared = true;
  // Four groups of two devices a node share it.
  EXPECT_DOUBLE_EQ(collectiveSeconds(Collective::AllReduce, 16e9,
                                     everyNth(16, 4), cluster, 4),
                   16 * 5e-6 + 14 * 10e-6 + 30e9 / 12.5e9);
}

TEST(Cost, NcclIsWhatGpusHave) {
  std::string text = kLong;
  const std::string named = "\"collectives\": \"tree\", ";
  ASSERT_NE(text.find(named), std::string::npos);
  text.erase(text.find(named), named.size());
  Result<Cluster> cluster = parseCluster(text, "c.json");
  ASSERT_TRUE(cluster.ok()) << cluster.status().str();
  EXPECT_EQ(cluster->algorithm, Algorithm::Nccl);
  EXPECT_EQ(parseCluster(cluster->toJson(), "again")->algorithm,
            Algorithm::Nccl);
}

TEST(Cost, GroupsShareTheAdapterOfTheirNode) {
  Result<Cluster> cluster = parseCluster(kLong, "c.json");
  cluster->algorithm = Algorithm::Ring;
  Link quarter = cluster->inter;
  quarter.bandwidth /= 4;
  EXPECT_EQ(collectiveSeconds(Collective::AllReduce, 1e9, {0, 4}, *cluster, 4),
            collectiveSeconds(Collective::AllReduce, 1e9, 2, quarter));
  EXPECT_EQ(collectiveSeconds(Collective::AllReduce, 1e9, {0, 1}, *cluster, 4),
            collectiveSeconds(Collective::AllReduce, 1e9, 2, cluster->intra));
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
