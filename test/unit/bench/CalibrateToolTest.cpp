// merak-bench: every kernel of the grid runs, files go on where they stopped.
#include "passes/CostModel/PlanCosts.h"
#include "tools/merak-bench/BenchTool.h"
#include "tools/merak-bench/Measure.h"
#include "tools/merak-bench/SampleFile.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <set>
#include <unistd.h>

namespace fs = std::filesystem;

namespace merak::bench {
namespace {

class CalibrateTool : public ::testing::Test {
protected:
  void SetUp() override {
    root = fs::temp_directory_path() /
           ("merak-bench-" + std::to_string(::getpid()) + "-" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root);
    fs::create_directories(root);
  }
  void TearDown() override { fs::remove_all(root); }
  std::string path(const char *name) const { return (root / name).string(); }

  fs::path root;
};

// The cost model sees a plan's instructions as the grid's.
TEST(Cases, HaveKeysOfTheirOwnAndAClass) {
  for (const GridSizes *sizes : {&hostGrid(true), &hostGrid(false),
                                 &deviceGrid(true), &deviceGrid(false)}) {
    planpb::Program grid = libraryProgram(*sizes);
    std::set<std::string> keys, classes;
    for (const Case &one : casesOf(grid)) {
      EXPECT_TRUE(keys.insert(one.key).second) << one.key;
      costmodel::Kernel work =
          costmodel::kernelOf(*one.program, *one.instruction);
      EXPECT_GT(work.bytes, 0) << one.key;
      classes.insert(costmodel::kernelClass(work.name));
      if (work.name.rfind("einsum", 0) == 0) {
        EXPECT_EQ(work.flops, 2 * work.m * work.n * work.k) << one.key;
      }
    }
    EXPECT_EQ(classes,
              (std::set<std::string>{"attention", "conv", "copy", "gather",
                                     "matmul", "optimizer", "rows"}));
  }
}

TEST(Measure, EveryKernelOfTheGridRuns) {
  planpb::Program grid = libraryProgram(hostGrid(/*quick=*/true));
  std::set<std::string> ops; // one case of each is enough here
  MeasureOptions options;
  options.secondsPerCase = 0;
  options.distances = {1 << 20, 3 << 20}; // not up to hundreds of MiB
  for (const Case &one : casesOf(grid)) {
    costmodel::Kernel work =
        costmodel::kernelOf(*one.program, *one.instruction);
    if (!ops.insert(work.name).second)
      continue;
    Result<std::vector<double>> seconds = measureKernel(one, options);
    ASSERT_TRUE(seconds.ok()) << seconds.status().str();
    ASSERT_EQ(seconds->size(), options.distances.size());
    for (double one : *seconds)
      EXPECT_GT(one, 0);
  }
  EXPECT_GT(ops.size(), 20u);
}

TEST(Measure, CommunicationsMeet) {
  MeasureOptions options;
  options.secondsPerCase = 0;
  options.ranks = 3;
  for (const char *kind : {"transfer", "all_reduce", "all_gather",
                           "reduce_scatter", "all_to_all", "broadcast"})
    for (int64_t bytes : {12, 120000}) {
      Result<double> seconds = measureCommunication(kind, bytes, options);
      ASSERT_TRUE(seconds.ok()) << seconds.status().str();
      EXPECT_GT(*seconds, 0);
    }
  EXPECT_FALSE(measureCommunication("gossip", 12, options).ok());
}

TEST(Measure, ComputingAndCommunicatingSlowEachOther) {
  planpb::Program grid = libraryProgram(hostGrid(/*quick=*/true));
  MeasureOptions options;
  options.secondsPerCase = 0;
  Result<Slowdown> found =
      measureSlowdown(casesOf(grid).front(), 4096, options);
  ASSERT_TRUE(found.ok()) << found.status().str();
  EXPECT_GE(found->compute, 1);
  EXPECT_GE(found->communication, 1);
}

TEST_F(CalibrateTool, SamplesSurviveAnInterruption) {
  std::string file = path("c.json.samples");
  costmodel::Sample sample{"a", {"einsum", 8, 4, "f32", 1, 2, 3}, 0.5, 4096};
  {
    Result<SampleFile> samples = SampleFile::open(file, "two ranks");
    ASSERT_TRUE(samples.ok()) << samples.status().str();
    EXPECT_EQ(samples->find("a"), nullptr);
    ASSERT_TRUE(samples->add(sample).ok());
  }
  std::ofstream(file, std::ios::app)
      << "\n{\"key\": \"b\", \"na"; // killed here
  Result<SampleFile> again = SampleFile::open(file, "two ranks");
  ASSERT_TRUE(again.ok()) << again.status().str();
  ASSERT_NE(again->find("a"), nullptr);
  EXPECT_EQ(*again->find("a"), sample);
  EXPECT_EQ(again->find("b"), nullptr);
  sample.key = "b";
  ASSERT_TRUE(again->add(sample).ok());
  EXPECT_NE(SampleFile::open(file, "two ranks")->find("b"), nullptr);
  EXPECT_EQ(SampleFile::open(file, "three ranks").status().str(),
            file + ": was measured with other settings, expected \"three "
                   "ranks\"; remove the file to start again");
  EXPECT_FALSE(SampleFile::open(path("no/such/folder"), "").ok());
}

TEST_F(CalibrateTool, WrongUsage) {
  std::string out = path("c.json");
  auto run = [](std::vector<const char *> arguments) {
    arguments.insert(arguments.begin(), "merak-bench");
    const runtime::BackendRegistry backends = {
        {"cuda",
         [](runtime::ThreadPool &) { return Status::error("no GPU"); }}};
    return benchToolMain(int(arguments.size()), arguments.data(), backends, {});
  };
  EXPECT_EQ(run({}), 2);
  EXPECT_EQ(run({"calibrate"}), 2);
  EXPECT_EQ(run({"calibrate", "-o", out.c_str(), "--ranks=0"}), 2);
  EXPECT_EQ(run({"calibrate", "-o", out.c_str(), "--plan=/no/such"}), 1);
  EXPECT_EQ(run({"calibrate", "-o", out.c_str(), "--backend=tpu"}), 2);
  EXPECT_EQ(run({"calibrate", "-o", out.c_str(), "--backend=cuda"}), 1);
  EXPECT_EQ(run({"calibrate", "-o", out.c_str(), "--ranks=all"}), 2);
  EXPECT_EQ(run({"calibrate", "-o", out.c_str(), "--ranks=env"}), 1);
  EXPECT_EQ(run({"--help"}), 0);
  EXPECT_FALSE(fs::exists(out));
}

} // namespace
} // namespace merak::bench
