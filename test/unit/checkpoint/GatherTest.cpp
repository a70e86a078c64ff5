// Parts of several hosts become one checkpoint.
#include "runtime/checkpoint/Gather.h"

#include "runtime/checkpoint/Generations.h"
#include "test/unit/checkpoint/Layouts.h"

#include <filesystem>

namespace merak::runtime::test {
namespace {

namespace fs = std::filesystem;

// Two folders with the generations of one run: of `step` each has its shards.
class Hosts {
public:
  Hosts() : base(temporaryFolder()) {
    source = holder(1);
    for (int64_t step : {1, 2}) {
      source->fill(float(100 * step));
      EXPECT_TRUE(save(*source, base + "/whole", {step, step}).ok());
      for (const char *host : {"/a", "/b"}) {
        const std::string to = base + host + "/step-" + std::to_string(step);
        fs::create_directories(to);
        fs::copy(base + "/whole/step-" + std::to_string(step), to);
      }
      for (int rank = 0; rank < 4; ++rank)
        remove(rank % 2 ? "a" : "b", step, rank);
    }
  }
  void remove(const std::string &host, int64_t step, int rank) {
    fs::remove(shard(host, step, rank));
  }
  std::string shard(const std::string &host, int64_t step, int rank) {
    return base + "/" + host + "/step-" + std::to_string(step) + "/rank-" +
           std::to_string(rank) + ".safetensors";
  }
  Result<Gathered> gather() {
    return gatherCheckpoint({base + "/a", base + "/b"}, base + "/out");
  }
  std::string base;
  std::unique_ptr<Holder> source;
};

} // namespace

TEST(Gather, TheNewestBecomesWhole) {
  Hosts hosts;
  CheckpointState state;
  auto target = holder(2);
  EXPECT_NE(load(*target, hosts.base + "/a", state)
                .str()
                .find("rank-1.safetensors\" is missing: if hosts wrote"),
            std::string::npos);
  auto done = hosts.gather();
  ASSERT_TRUE(done.ok()) << done.status().str();
  EXPECT_EQ(done->folder, hosts.base + "/out/step-2");
  EXPECT_EQ(done->step, 2);
  EXPECT_EQ(done->shards, 4u);
  ASSERT_TRUE(load(*target, hosts.base + "/out", state).ok());
  EXPECT_EQ(state.step, 2);
  for (const char *name : kNames)
    EXPECT_EQ(target->gather(name), hosts.source->gather(name)) << name;
}

// One host was a step ahead when the run ended, or its newest is damaged.
TEST(Gather, WhatIsNotWholeIsPassedOver) {
  for (bool damaged : {false, true}) {
    Hosts hosts;
    if (damaged)
      writeFile(hosts.shard("b", 2, 1), "damage");
    else
      fs::remove_all(hosts.base + "/b/step-2");
    auto done = hosts.gather();
    ASSERT_TRUE(done.ok()) << done.status().str();
    EXPECT_EQ(done->step, 1);
    hosts.remove("a", 1, 0);
    fs::remove_all(hosts.base + "/out");
    done = hosts.gather();
    ASSERT_FALSE(done.ok());
    const std::string text = done.status().str();
    EXPECT_TRUE(text.starts_with("step-2 of run ")) << text;
    EXPECT_NE(text.find(damaged ? "truncated"
                                : "rank-1.safetensors is in no "
                                  "folder"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("step-1 of run "), std::string::npos) << text;
    EXPECT_FALSE(fs::exists(hosts.base + "/out"));
  }
}

TEST(Gather, SingleGenerationsAndStrangers) {
  Hosts hosts;
  auto done = gatherCheckpoint(
      {hosts.base + "/a/step-1", hosts.base + "/b/step-1"}, hosts.base + "/o");
  ASSERT_TRUE(done.ok()) << done.status().str();
  EXPECT_EQ(done->step, 1);
  fs::create_directories(hosts.base + "/empty");
  EXPECT_EQ(gatherCheckpoint({hosts.base + "/empty"}, hosts.base + "/o")
                .status()
                .str(),
            "\"" + hosts.base + "/empty\" holds no generation step-N");
}

} // namespace merak::runtime::test
