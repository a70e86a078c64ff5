// merak-bench on a device: every kernel of its grid runs in a graph, and the
// file that comes out is one that merakc reads.
#include "passes/CostModel/Cost.h"
#include "runtime/backends/cuda/CudaBackend.h"
#include "test/unit/cuda/EmulatedDevice.h"
#ifdef MERAK_HAS_NCCL
#include "test/unit/cuda/MirrorWorld.h"
#endif
#include "tools/merak-bench/BenchTool.h"
#include "tools/merak-bench/Measure.h"

#include <filesystem>
#include <gtest/gtest.h>
#include <unistd.h>

namespace fs = std::filesystem;

namespace merak::cuda {
namespace {

const bench::GridSizes &tiny() {
  static const bench::GridSizes kSizes{.rows = {8},
                                       .sides = {16},
                                       .mostFlops = 1e9,
                                       .attentionBatch = 1,
                                       .heads = 2,
                                       .sequences = {8},
                                       .headElements = {8},
                                       .convolutionBatch = 2,
                                       .channels = {4},
                                       .images = {6},
                                       .tables = {{4, 16}},
                                       .elements = {64, 256},
                                       .types = {planpb::BF16, planpb::F32},
                                       .distances = {1 << 12, 1 << 16}};
  return kSizes;
}

class CalibrateDevice : public testing::Test {
protected:
  void SetUp() override {
    root = fs::temp_directory_path() /
           ("merak-calibrate-" + std::to_string(::getpid()));
    fs::create_directories(root);
  }
  void TearDown() override {
    fs::remove_all(root);
    EXPECT_EQ(device->live(), 0u);
  }
  int run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(),
                     {"merak-bench", "calibrate", "--backend=cuda", "--quick",
                      "-o", file(), "--quiet"});
    std::vector<const char *> words;
    for (const std::string &argument : arguments)
      words.push_back(argument.c_str());
    const runtime::BackendRegistry backends = {
        {"cuda",
         [&](runtime::ThreadPool &)
             -> Result<std::unique_ptr<runtime::Backend>> {
           return std::unique_ptr<runtime::Backend>(
               std::make_unique<CudaBackend>(device));
         }}};
    runtime::WorldRegistry worlds;
#ifdef MERAK_HAS_NCCL
    worlds["cuda"] = [&](const runtime::LaunchIdentity &identity) {
      return openMirrorWorld(device, identity);
    };
#endif
    return bench::benchToolMain(int(words.size()), words.data(), backends,
                                worlds, &tiny());
  }
  std::string file() const { return (root / "device.json").string(); }

  fs::path root;
  std::shared_ptr<EmulatedDevice> device =
      std::make_shared<EmulatedDevice>(Emulation{.memory = 1 << 30});
};

TEST_F(CalibrateDevice, WritesAFileThatIsRead) {
  ASSERT_EQ(run({}), 0);
  auto cluster = costmodel::readCluster(file());
  ASSERT_TRUE(cluster.ok()) << cluster.status().str();
  EXPECT_EQ(cluster->name, "emulated device");
  EXPECT_EQ(cluster->count, 1);
  const costmodel::Device &gpu = cluster->device();
  EXPECT_EQ(gpu.backend, "cuda");
  EXPECT_EQ(gpu.memoryBytes, 1 << 30);
  EXPECT_EQ(gpu.distances, (std::vector<double>{1 << 12, 1 << 16}));
  EXPECT_GT(gpu.flops("bf16"), 0);
  EXPECT_NE(gpu.flops("bf16"), gpu.flops("f32"));
  // Contractions have rates of their own in each type, all else has one.
  for (const char *name : {"einsum:nn", "einsum:nt", "einsum:tn", "attention",
                           "attention_grad:causal", "conv_grad_weight"})
    for (const char *type : {"f32", "bf16"})
      EXPECT_EQ(gpu.kernels.count(costmodel::ratesName(name, type)), 1u)
          << name << " " << type;
  for (const char *name : {"copy", "copy:strided", "gather", "scatter_add",
                           "layer_norm_grad", "adamw_update", "square_sum"})
    EXPECT_EQ(gpu.kernels.count(name), 1u) << name;
  EXPECT_FALSE(fs::exists(file() + ".samples"));
}

#ifdef MERAK_HAS_NCCL
// A process for each device: here one, which the others mirror.
TEST_F(CalibrateDevice, LinksBetweenProcesses) {
  for (auto [name, value] :
       {std::pair("RANK", "0"), std::pair("WORLD_SIZE", "4"),
        std::pair("LOCAL_RANK", "0"), std::pair("MASTER_ADDR", "127.0.0.1"),
        std::pair("MASTER_PORT", "29500")})
    setenv(name, value, 1);
  ASSERT_EQ(run({"--ranks=env"}), 0);
  auto cluster = costmodel::readCluster(file());
  ASSERT_TRUE(cluster.ok()) << cluster.status().str();
  EXPECT_EQ(cluster->count, 4);
  EXPECT_EQ(cluster->perNode, 4);
  EXPECT_EQ(cluster->algorithm, costmodel::Algorithm::Nccl);
  EXPECT_GT(cluster->intra.bandwidth, 0);
  EXPECT_GT(cluster->device().flops("bf16"), 0);
  // With the rates of the first file only links are measured.
  const std::string rates = (root / "rates.json").string();
  fs::rename(file(), rates);
  ASSERT_EQ(run({"--ranks=env", "--rates=" + rates}), 0);
  auto again = costmodel::readCluster(file());
  ASSERT_TRUE(again.ok()) << again.status().str();
  EXPECT_EQ(again->device(), cluster->device());
  for (const char *name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"})
    unsetenv(name);
}
#endif

TEST_F(CalibrateDevice, LeavesNothingWhereNothingWasMeasured) {
  device = std::make_shared<EmulatedDevice>(Emulation{.memory = 1 << 10});
  EXPECT_EQ(run({}), 1);
  EXPECT_FALSE(fs::exists(file() + ".samples"));
  EXPECT_FALSE(fs::exists(file()));
}

TEST_F(CalibrateDevice, OneRankAlone) {
  EXPECT_EQ(run({"--ranks=2"}), 1);
  EXPECT_FALSE(fs::exists(file()));
}

TEST_F(CalibrateDevice, TooLittleMemoryIsAnErrorThatNamesTheCase) {
  EmulatedDevice small(Emulation{.memory = 1 << 10});
  auto shared =
      std::shared_ptr<EmulatedDevice>(&small, [](EmulatedDevice *) {});
  CudaBackend backend(shared);
  planpb::Program grid = bench::libraryProgram(tiny());
  bench::MeasureOptions options;
  options.distances = tiny().distances;
  auto seconds =
      bench::measureOnDevice(bench::casesOf(grid).front(), backend, options);
  ASSERT_FALSE(seconds.ok());
  EXPECT_EQ(seconds.status().str(),
            "einsum:nn 8x16,16x16->8x16 bf16: cannot allocate 65536 bytes on "
            "emulated device: out of memory");
}

// What cannot be captured is timed call by call.
TEST_F(CalibrateDevice, WithoutGraphs) {
  EmulatedDevice plain(Emulation{.captures = 0});
  CudaBackend backend(
      std::shared_ptr<EmulatedDevice>(&plain, [](EmulatedDevice *) {}));
  planpb::Program grid = bench::libraryProgram(tiny());
  bench::MeasureOptions options;
  options.distances = tiny().distances;
  options.secondsPerCase = 0;
  for (const bench::Case &one : bench::casesOf(grid)) {
    auto seconds = bench::measureOnDevice(one, backend, options);
    ASSERT_TRUE(seconds.ok()) << seconds.status().str();
    ASSERT_EQ(seconds->size(), 2u);
    EXPECT_GT(seconds->back(), 0);
  }
}

} // namespace
} // namespace merak::cuda
