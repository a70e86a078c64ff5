// merak-plan migrate: what it prints of pairs of plans, and how it ends.
#include "test/unit/plan/PlanBuilder.h"
#include "test/unit/report/ToolTesting.h"

#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace merak {
namespace {

// Two nodes of two devices, 1 GB/s between them, 100 GB/s inside.
const char *const kCluster =
    R"({"devices": 4, "devices_per_node": 2, "device": {"kind": "cuda",
        "flops": 1e12, "memory_bandwidth": 1e12, "memory_bytes": 1e9,
        "launch_seconds": 0}, "links": {"intra": {"bandwidth": 1e11,
        "latency": 0}, "inter": {"bandwidth": 1e9, "latency": 0,
        "shared": true}}, "collectives": "ring"})";

class MigrateTool : public test::PlanToolTest {
protected:
  void SetUp() override {
    PlanToolTest::SetUp();
    std::ofstream(root / "cluster.json") << kCluster;
    save("one", plantest::replicatedPlan(1));
    save("two", plantest::replicatedPlan(2));
  }
  void save(const std::string &name, const LoadedPlan &plan) {
    const Status status = savePlan(path(name), plan.file, plan.programs);
    ASSERT_TRUE(status.ok()) << status.str();
  }
  std::string path(const std::string &name) const {
    return (root / name).string();
  }
  int run(std::vector<std::string> arguments) {
    return runTool("migrate", std::move(arguments));
  }
};

TEST_F(MigrateTool, EqualPlansKeepTheirState) {
  EXPECT_EQ(run({path("two"), path("two")}), 0) << err;
  EXPECT_NE(out.find("1024 kept, 0 copied within devices, 0 sent\n"),
            std::string::npos)
      << out;
  EXPECT_NE(out.find("0 messages in 0 buckets"), std::string::npos) << out;
}

// The first stage is copied inside its node, the second one twice to the other.
TEST_F(MigrateTool, TellsWhatGoesWhere) {
  EXPECT_EQ(
      run({path("one"), path("two"), "--cluster=" + path("cluster.json")}), 0)
      << err;
  EXPECT_EQ(
      out,
      path("one") + " to " + path("two") +
          ": predicted 0.514 us, lower bound 0.512 us\n"
          "  state 1024 bytes of 2 tensors: 256 kept, 0 copied within devices, "
          "768 sent\n"
          "  3 messages in 1 bucket of at most 67108864 bytes\n"
          "  links carry 256 bytes inside nodes, 512 between them; the fullest "
          "(node 0, out) 512\n"
          "  device                           kept       copied         sent   "
          "  "
          "received      buffers\n"
          "  0       rank 0 to 0               256            0          256   "
          "  "
          "       0          256\n"
          "  1       rank 1 to 1                 0            0          512   "
          "  "
          "     256          768\n"
          "  2       rank 2 begins               0            0            0   "
          "  "
          "     256          256\n"
          "  3       rank 3 begins               0            0            0   "
          "  "
          "     256          256\n");
}

TEST_F(MigrateTool, JsonHasTheSameNumbers) {
  ASSERT_EQ(run({path("one"), path("two"), "--json", "--bucket=64",
                 "--source-devices=2,3", "--cluster=" + path("cluster.json")}),
            0)
      << err;
  const nlohmann::json report = nlohmann::json::parse(out);
  EXPECT_EQ(report["bucket_bytes"], 64);
  EXPECT_EQ(report["devices"].size(), 4u);
  int64_t sent = 0, received = 0, kept = 0, copied = 0;
  for (const nlohmann::json &device : report["devices"]) {
    sent += device["sent_bytes"].get<int64_t>();
    received += device["received_bytes"].get<int64_t>();
    kept += device["kept_bytes"].get<int64_t>();
    copied += device["copied_bytes"].get<int64_t>();
    EXPECT_LE(device["buffer_bytes"], 64);
  }
  EXPECT_EQ(report["sent_bytes"], sent);
  EXPECT_EQ(report["sent_bytes"], received);
  EXPECT_EQ(report["kept_bytes"], kept);
  EXPECT_EQ(report["copied_bytes"], copied);
  EXPECT_EQ(report["inside_bytes"].get<int64_t>() +
                report["between_bytes"].get<int64_t>(),
            sent);
  EXPECT_TRUE(report["devices"][0]["source_rank"].is_null());
  EXPECT_EQ(report["devices"][2]["source_rank"], 0);
}

TEST_F(MigrateTool, SaysWhatIsWrong) {
  auto refused = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {path("one"), path("two")});
    EXPECT_EQ(run(std::move(more)), 1);
    return err;
  };
  EXPECT_EQ(refused({"--bucket=8"}),
            "error: buckets of 8 bytes are too small: 64 at least\n");
  EXPECT_EQ(refused({"--source-devices=0"}),
            "error: the source plan has 2 ranks, but devices are given for "
            "1\n");
  EXPECT_EQ(refused({"--target-devices=0-2,2"}),
            "error: ranks 2 and 3 of the target plan are both on device 2\n");
  EXPECT_EQ(refused({"--target-devices=x"}),
            "error: --target-devices: expected devices as in '0-3,7', found "
            "'x'\n");
  EXPECT_EQ(
      refused({"--source-devices=3,4", "--cluster=" + path("cluster.json")}),
      "error: rank 1 of the source plan is on device 4: there are 4\n");
  EXPECT_EQ(run({path("one"), path("none")}), 1);
  EXPECT_EQ(run({path("one")}), 2);
  LoadedPlan other = plantest::replicatedPlan(1);
  other.file.mutable_tensors(0)->set_name("other");
  for (planpb::Program &program : other.programs)
    for (planpb::Buffer &buffer : *program.mutable_buffers())
      if (buffer.tensor() == "w0")
        buffer.set_tensor("other");
  save("other", other);
  EXPECT_EQ(run({path("one"), path("other")}), 1);
  EXPECT_EQ(err, "error: the source plan has no tensor \"other\"\n"
                 "error: the target plan has no tensor \"w0\"\n");
}

} // namespace
} // namespace merak
