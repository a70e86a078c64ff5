// Which rank a process is, from the variables of each launcher.
#include "runtime/launch/LaunchIdentity.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sys/stat.h>
#include <unistd.h>

using namespace merak;
using namespace merak::runtime;

namespace {

using Variables = std::map<std::string, std::string>;

Result<LaunchIdentity> identityOf(const Variables &variables) {
  return launchIdentity([&](const char *name) -> const char * {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

const Variables kTorchrun = {{"RANK", "5"},         {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},   {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "n1"}, {"MASTER_PORT", "29500"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables kSlurm = {{"SLURM_PROCID", "2"},
                          {"SLURM_NTASKS", "6"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_JOB_ID", "70003"},
                          {"SLURM_JOB_NODELIST", "n[08-11,15],login"}};

Variables with(Variables base, const Variables &more) {
  for (const auto &[name, value] : more)
    base[name] = value;
  return base;
}

} // namespace

TEST(LaunchIdentity, Torchrun) {
  auto identity = identityOf(kTorchrun);
  ASSERT_TRUE(identity.ok()) << identity.status().str();
  EXPECT_EQ(identity->launcher, LaunchIdentity::Torchrun);
  EXPECT_EQ(identity->rank, 5);
  EXPECT_EQ(identity->size, 8);
  EXPECT_EQ(identity->localRank, 1);
  EXPECT_EQ(identity->localSize, 4);
  EXPECT_EQ(identity->masterAddress, "n1");
  EXPECT_EQ(identity->masterPort, 29500);
  // Where the agent keeps the port to itself, the next one is ours.
  identity =
      identityOf(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  EXPECT_EQ(identity->masterPort, 29501);
}

TEST(LaunchIdentity, OpenMpiAndMpich) {
  auto identity = identityOf(kOpenMpi);
  ASSERT_TRUE(identity.ok()) << identity.status().str();
  EXPECT_EQ(identity->launcher, LaunchIdentity::Mpirun);
  EXPECT_EQ(identity->rank, 3);
  EXPECT_EQ(identity->size, 4);
  EXPECT_EQ(identity->localRank, 1);
  EXPECT_EQ(identity->localSize, 2);
  EXPECT_TRUE(identity->masterAddress.empty());
  identity = identityOf({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
  ASSERT_TRUE(identity.ok()) << identity.status().str();
  EXPECT_EQ(identity->rank, 1);
  EXPECT_EQ(identity->launcher, LaunchIdentity::Mpirun);
}

TEST(LaunchIdentity, Slurm) {
  auto identity = identityOf(kSlurm);
  ASSERT_TRUE(identity.ok()) << identity.status().str();
  EXPECT_EQ(identity->launcher, LaunchIdentity::Slurm);
  EXPECT_EQ(identity->rank, 2);
  EXPECT_EQ(identity->size, 6);
  EXPECT_EQ(identity->masterAddress, "n08");
  EXPECT_GE(identity->masterPort, 20000);
  EXPECT_LT(identity->masterPort, 32000);
  EXPECT_EQ(firstSlurmHost("a"), "a");
  EXPECT_EQ(firstSlurmHost("a,b"), "a");
  EXPECT_EQ(firstSlurmHost("gpu-[3,7-9]-ib,x[1-2]"), "gpu-3-ib");
  EXPECT_EQ(firstSlurmHost("head,n[1-2]"), "head");
}

// The launcher that was started last tells.
TEST(LaunchIdentity, TheInnerLauncherCounts) {
  EXPECT_EQ(identityOf(with(kSlurm, kOpenMpi))->rank, 3);
  EXPECT_EQ(identityOf(with(kSlurm, kTorchrun))->rank, 5);
}

TEST(LaunchIdentity, AllProblemsAtOnce) {
  auto identity = identityOf({{"WORLD_SIZE", "none"}, {"LOCAL_RANK", "-1"}});
  EXPECT_EQ(identity.status().str(),
            "WORLD_SIZE: expected a number from 1, found \"none\"\n"
            "LOCAL_RANK: expected a number from 0, found \"-1\"\n"
            "WORLD_SIZE is set, RANK, MASTER_ADDR, MASTER_PORT are not");
  identity = identityOf(with(kTorchrun, {{"RANK", "8"}, {"MASTER_PORT", "0"}}));
  EXPECT_EQ(identity.status().str(),
            "RANK is 8, expected less than WORLD_SIZE, which is 8\n"
            "MASTER_PORT: expected a number from 1 to 65535, found \"0\"");
  identity = identityOf(with(kOpenMpi, {{"RANK", "1"}, {"WORLD_SIZE", "9"}}));
  EXPECT_EQ(identity.status().str(),
            "RANK is 1, but OMPI_COMM_WORLD_RANK is 3\n"
            "WORLD_SIZE is 9, but OMPI_COMM_WORLD_SIZE is 4");
  identity = identityOf({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}});
  EXPECT_EQ(identity.status().str(),
            "neither MASTER_ADDR nor SLURM_NODELIST is set\n"
            "neither MASTER_PORT nor SLURM_JOB_ID is set");
  identity = identityOf({});
  EXPECT_NE(identity.status().str().find("start with mpirun, srun or torchrun"),
            std::string::npos);
}

// ----------------------------------------------------------- the run's secret

namespace {

class RunToken : public testing::Test {
protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("merak-token-test-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    setenv("MERAK_KEY", (folder_ / "key").c_str(), 1);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string &text, int mode = 0600) {
    const std::string path = (folder_ / "token").string();
    std::ofstream(path) << text;
    chmod(path.c_str(), mode_t(mode));
    return path;
  }
  static std::string tokenOf(const Variables &more) {
    auto identity = identityOf(with(kTorchrun, more));
    if (!identity.ok())
      return identity.status().str();
    auto token = runToken(*identity);
    return token.ok() ? *token : token.status().str();
  }
  std::filesystem::path folder_;
};

const std::string kSecret = "0123456789abcdef0123456789ABCDEF";

} // namespace

TEST_F(RunToken, IsTheOneGiven) {
  EXPECT_EQ(tokenOf({{"MERAK_TOKEN", kSecret}}), kSecret);
  EXPECT_EQ(tokenOf({{"MERAK_TOKEN_FILE", write(kSecret + "\n")}}), kSecret);
  // No key was made for that.
  EXPECT_FALSE(std::filesystem::exists(folder_ / "key"));
}

// Processes of one user agree without a word; another user, port or run has
// another token.
TEST_F(RunToken, IsMadeOfTheUsersKey) {
  const std::string one = tokenOf({});
  EXPECT_EQ(one.size(), 64u);
  EXPECT_EQ(tokenOf({}), one);
  EXPECT_EQ(tokenOf({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), one);
  EXPECT_NE(tokenOf({{"MASTER_PORT", "29501"}}), one);
  EXPECT_NE(tokenOf({{"TORCHELASTIC_RUN_ID", "x"}}), one);
  setenv("MERAK_KEY", (folder_ / "other").c_str(), 1);
  EXPECT_NE(tokenOf({}), one);
}

TEST_F(RunToken, WhatIsNoSecretIsRefusedWithoutShowingIt) {
  EXPECT_EQ(tokenOf({{"MERAK_TOKEN", "hunter2"}}),
            "MERAK_TOKEN: expected at least 32 hexadecimal digits, found "
            "something else");
  EXPECT_EQ(tokenOf({{"MERAK_TOKEN", kSecret}, {"MERAK_TOKEN_FILE", "f"}}),
            "MERAK_TOKEN and MERAK_TOKEN_FILE are both set");
  const std::string path = write("hunter2");
  EXPECT_EQ(tokenOf({{"MERAK_TOKEN_FILE", path}}),
            path + ": expected at least 32 hexadecimal digits, found something "
                   "else");
  write(kSecret, 0644);
  EXPECT_EQ(tokenOf({{"MERAK_TOKEN_FILE", path}}),
            path + ": others than its owner may use it: chmod 600 \"" + path +
                "\"");
  EXPECT_EQ(tokenOf({{"MERAK_TOKEN_FILE", "/no/such/file"}}),
            "/no/such/file: cannot be read: No such file or directory");
}

// No home, no key, no token: the sentence says what to set.
TEST_F(RunToken, WithoutAKeyTheRemedyIsNamed) {
  setenv("MERAK_KEY", "/proc/no/such/key", 1);
  const std::string why = tokenOf({});
  EXPECT_EQ(why.find("the run has no secret: set MERAK_TOKEN to the same 32 "
                     "random hexadecimal digits for all ranks (/proc/no/such"),
            0u)
      << why;
}
