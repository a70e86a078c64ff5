// Choices among alternatives, with made-up times.
#include "runtime/backends/cuda/Tuning.h"
#include "runtime/backends/cuda/Workbench.h"
#include "test/unit/cuda/EmulatedDevice.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include <unistd.h>

namespace merak::cuda {
namespace {

namespace fs = std::filesystem;

class CudaTuning : public testing::Test {
protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("merak-tuning-" + std::to_string(::getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string file() const { return folder_ / "cache" / "tuning.json"; }

  // Times as given; a negative one does not run. Counts how often it is asked.
  Tuning::Timer times(std::vector<double> seconds) {
    return [this, seconds](size_t i) -> Result<double> {
      ++asked_;
      if (seconds[i] < 0)
        return Status::error("does not run");
      return seconds[i];
    };
  }
  std::optional<size_t> choose(Tuning &tuning, const std::string &key,
                               std::vector<double> seconds) {
    const auto choice = tuning.choose(key, seconds.size(), times(seconds));
    if (!choice)
      return std::nullopt;
    EXPECT_EQ(choice->seconds, seconds[choice->index]);
    return choice->index;
  }

  fs::path folder_;
  int asked_ = 0;
};

TEST_F(CudaTuning, TakesTheFastestThatRuns) {
  Tuning tuning;
  EXPECT_EQ(choose(tuning, "a", {3, 1, 2}), 1u);
  EXPECT_EQ(choose(tuning, "b", {3, -1, 2}), 2u);
  EXPECT_EQ(choose(tuning, "c", {-1, -1}), std::nullopt);
  EXPECT_EQ(choose(tuning, "d", {5}), 0u);
  // What is hardly faster is no reason to leave the library's own order.
  EXPECT_EQ(choose(tuning, "e", {1, 0.995, 0.99}), 0u);
  EXPECT_EQ(choose(tuning, "f", {1, 0.99, 0.9}), 2u);
}

TEST_F(CudaTuning, TheLeastOfSomeRoundsCountsWithoutTheFirst) {
  Tuning tuning;
  int round = 0;
  const auto choice = tuning.choose("a", 2, [&](size_t i) -> Result<double> {
    // The first round is cold for the first and lucky for the second; once
    // something else disturbs the first.
    const double first[] = {9, 1, 8, 1, 1}, second[] = {0.1, 2, 2, 2, 2};
    return i == 0 ? first[round] : second[round++];
  });
  EXPECT_EQ(choice, (Tuning::Choice{0, 1}));
}

TEST_F(CudaTuning, WhatIsFarSlowerIsNotTimedAgain) {
  Tuning tuning;
  choose(tuning, "a", {1, 100});
  const int all = asked_;
  asked_ = 0;
  choose(tuning, "b", {1, 1.1});
  EXPECT_LT(all, asked_);
}

TEST_F(CudaTuning, IsAskedOnceForEachKeyAndCount) {
  Tuning tuning;
  EXPECT_EQ(choose(tuning, "a", {3, 1}), 1u);
  asked_ = 0;
  EXPECT_EQ(tuning.choose("a", 2, times({1, 3})), (Tuning::Choice{1, 1}));
  EXPECT_EQ(asked_, 0);
  // Another library proposes another number of alternatives.
  EXPECT_EQ(choose(tuning, "a", {1, 3, 4}), 0u);
}

TEST_F(CudaTuning, IsRememberedInTheFile) {
  Tuning tuning(file());
  EXPECT_TRUE(tuning.active());
  EXPECT_EQ(choose(tuning, "a", {3, 1}), 1u);
  Tuning again(file());
  asked_ = 0;
  EXPECT_EQ(again.choose("a", 2, times({1, 3})), (Tuning::Choice{1, 1}));
  EXPECT_EQ(asked_, 0);
  // Another process's choices stay, and are taken over.
  EXPECT_EQ(choose(again, "b", {1, 3}), 0u);
  EXPECT_EQ(choose(tuning, "c", {1, 3}), 0u);
  Tuning last(file(), /*times=*/false);
  for (const char *key : {"a", "b", "c"})
    EXPECT_TRUE(last.choose(key, 2, times({1, 1}))) << key;
  EXPECT_EQ(last.problem(), "");
  int files = 0;
  for (const auto &entry :
       fs::directory_iterator(fs::path(file()).parent_path()))
    files += entry.is_regular_file();
  EXPECT_EQ(files, 1);
}

TEST_F(CudaTuning, WithoutTimingOnlyWhatIsKnown) {
  Tuning tuning({}, false);
  EXPECT_FALSE(tuning.active());
  EXPECT_EQ(choose(tuning, "a", {3, 1}), std::nullopt);
  EXPECT_EQ(asked_, 0);
}

// Processes may be on hosts with caches of their own: these are not shared.
TEST_F(CudaTuning, ProcessesTakeNothingFromTheUsersCache) {
  Tuning tuning(file());
  choose(tuning, "a", {3, 1});
  tuning.shareWithProcesses();
  EXPECT_FALSE(tuning.active());
  EXPECT_EQ(choose(tuning, "a", {3, 1}), std::nullopt);
}

TEST_F(CudaTuning, ABrokenFileIsToldAndWrittenAnew) {
  fs::create_directories(fs::path(file()).parent_path());
  for (const char *text :
       {"", "{", "[]", "{\"version\": 99, \"choices\": {}}", "{\"version\": 2}",
        "{\"version\": \"2\", \"choices\": {}}",
        "{\"version\": 2, \"choices\": 3}"}) {
    std::ofstream(file()) << text;
    Tuning tuning(file());
    EXPECT_NE(tuning.problem(), "") << text;
    EXPECT_EQ(choose(tuning, "a", {3, 1}), 1u);
    EXPECT_EQ(Tuning(file()).problem(), "");
  }
  // Entries that cannot be are passed over.
  std::ofstream(file())
      << R"({"version": 2, "choices": {"a": {"of": 2, "choice": 2, "seconds": 1},
            "b": 3, "c": {"of": 2}, "e": {"of": 2, "choice": -1, "seconds": 1}, "d": {"of": 2, "choice": 1, "seconds": 4}}})";
  Tuning tuning(file(), false);
  for (const char *key : {"a", "b", "c", "e"})
    EXPECT_FALSE(tuning.choose(key, 2, times({1, 1}))) << key;
  EXPECT_EQ(tuning.choose("d", 2, times({1, 1})), (Tuning::Choice{1, 4}));
}

TEST_F(CudaTuning, AFileThatCannotBeWrittenIsTold) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "cache") << "a file in the folder's place";
  Tuning tuning(file());
  EXPECT_EQ(choose(tuning, "a", {3, 1}), 1u);
  EXPECT_NE(tuning.problem().find("cannot write"), std::string::npos);
}

TEST_F(CudaTuning, AWorkbenchHoldsOrdinaryNumbers) {
  EmulatedDevice device;
  const size_t before = device.live();
  {
    Workbench bench(device);
    const uint64_t sizes[] = {1000, 0, 9 << 20};
    auto blocks = bench.take(sizes);
    ASSERT_TRUE(blocks.ok()) << blocks.status().str();
    ASSERT_EQ(blocks->size(), 3u);
    const auto *f32 = reinterpret_cast<const float *>((*blocks)[2]);
    double squares = 0;
    const size_t count = sizes[2] / sizeof(float);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_LE(std::abs(f32[i]), 1.0f) << i;
      squares += double(f32[i]) * f32[i];
    }
    EXPECT_NEAR(squares / count, 1.0 / 3, 0.02); // uniform
    int ran = 0;
    auto seconds = bench.time([&](Stream stream) {
      ++ran;
      return device.clear((*blocks)[0], 1000, stream);
    });
    ASSERT_TRUE(seconds.ok()) << seconds.status().str();
    EXPECT_GT(ran, 1); // it takes far less than milliseconds
    EXPECT_LE(ran, 101 * 501);
    EXPECT_EQ((*blocks)[0][999], 0);
    bench.giveBack();
    EXPECT_FALSE(bench.time([](Stream) { return Status::error("no"); }).ok());
  }
  EXPECT_EQ(device.live(), before);
}

} // namespace
} // namespace merak::cuda
