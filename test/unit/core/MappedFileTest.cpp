#include "runtime/core/MappedFile.h"

#include "runtime/core/Output.h"
#include "test/unit/core/TestPlan.h"

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sys/stat.h>
#include <thread>

using namespace merak;
using namespace merak::runtime;
using namespace merak::runtime::test;

namespace {

int64_t sumOf(const MappedFile &file) {
  int64_t sum = 0;
  for (uint64_t i = 0; i < file.size(); ++i)
    sum += file.data()[i];
  return sum;
}

} // namespace

TEST(MappedFile, ShorterWhileMappedReadsAsZeros) {
  const std::string path = temporaryFolder() + "/file";
  writeFile(path, std::string(50000, 1));
  auto file = MappedFile::open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(sumOf(**file), 50000);
  EXPECT_TRUE((*file)->intact().ok());
  std::filesystem::resize_file(path, 100);
  EXPECT_EQ(sumOf(**file), 100);
  EXPECT_EQ((*file)->intact().str(),
            "\"" + path +
                "\" became shorter while it was read: expected 50000 bytes, "
                "found 100");
  // Another mapping in the same place knows nothing of it.
  file = MappedFile::open(path);
  EXPECT_EQ(sumOf(**file), 100);
  EXPECT_TRUE((*file)->intact().ok());
}

TEST(MappedFile, ManyThreadsMeetTheEnd) {
  const std::string path = temporaryFolder() + "/file";
  writeFile(path, std::string(4 << 20, 1));
  auto file = MappedFile::open(path);
  std::filesystem::resize_file(path, 4096);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] { EXPECT_EQ(sumOf(**file), 4096); });
  for (std::thread &thread : threads)
    thread.join();
  EXPECT_FALSE((*file)->intact().ok());
}

TEST(MappedFile, PipesAndDevicesAreNoFiles) {
  const std::string pipe = temporaryFolder() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string &path : {pipe, std::string("/dev/zero")})
    EXPECT_EQ(MappedFile::open(path).status().str(),
              "\"" + path + "\" is not a file");
}

// A fault that is none of ours still ends the process.
TEST(MappedFileDeathTest, OtherFaultsAreNotHidden) {
  const std::string path = temporaryFolder() + "/file";
  writeFile(path, "x");
  auto file = MappedFile::open(path);
  EXPECT_EXIT(std::raise(SIGBUS), testing::KilledBySignal(SIGBUS), "");
}

TEST(Output, FullDisksAreAnError) {
  std::FILE *full = std::fopen("/dev/full", "w");
  if (!full)
    GTEST_SKIP() << "no /dev/full here";
  EXPECT_EQ(writeLine(full, "\"log\"", "a line").str(),
            "cannot write \"log\": No space left on device");
  std::fclose(full);
}
