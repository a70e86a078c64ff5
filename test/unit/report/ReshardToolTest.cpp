// merak-plan reshard: what it prints of descriptions and plans, and how it
// ends.
#include "test/unit/plan/PlanBuilder.h"
#include "test/unit/report/ToolTesting.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>

namespace fs = std::filesystem;

namespace merak {
namespace {

const char *const kCluster =
    R"({"devices": 8, "devices_per_node": 4, "device": {"kind": "cuda",
        "flops": 1e12, "memory_bandwidth": 1e12, "memory_bytes": 1e9,
        "launch_seconds": 0}, "links": {"intra": {"bandwidth": 1e11,
        "latency": 0}, "inter": {"bandwidth": 1e9, "latency": 0,
        "shared": true}}, "collectives": "ring"})";

class ReshardTool : public test::PlanToolTest {
protected:
  void SetUp() override {
    PlanToolTest::SetUp();
    std::ofstream(root / "cluster.json") << kCluster;
    std::ofstream(file()) << R"({"cluster": "cluster.json", "boundaries": [
      {"name": "gather", "dtype": "i32",
       "source": {"layout": "[1000@x, 500]", "mesh": "x=2", "devices": "0-1"},
       "target": {"layout": "[1000, 500]", "mesh": "x=4", "devices": "4-7"}},
      {"name": "turn",
       "source": {"layout": "[8@x, 4]", "mesh": "x=4", "devices": "0-3"},
       "target": {"layout": "[8, 4@x]", "mesh": "x=4", "devices": "4-7"}}]})";
  }

  std::string file() const { return (root / "boundaries.json").string(); }

  int run(std::vector<std::string> arguments) {
    return runTool("reshard", std::move(arguments));
  }
};

TEST_F(ReshardTool, SendRecvIsFourTimesTheBound) {
  EXPECT_EQ(run({file(), "--boundary=gather", "--reshard=send-recv"}), 0)
      << err;
  // 2 MB over 1 GB/s, once a node or once a device.
  EXPECT_EQ(out,
            "gather: predicted 8.000 ms, lower bound 2.000 ms, factor 4.000; "
            "8000000 bytes between nodes\n"
            "  from [1000@x, 500] on x=2 of 0-1\n"
            "  to   [1000, 500] on x=4 of 4-7\n"
            "  2 unit tasks, order 'size', proved to be the best\n"
            "  task 0 [0:500, 0:500]: 1000000 bytes, 0 to 4-7 by send-recv; "
            "0.000 us to 4.000 ms\n"
            "  task 1 [500:1000, 0:500]: 1000000 bytes, 1 to 4-7 by send-recv; "
            "4.000 ms to 8.000 ms\n");
}

TEST_F(ReshardTool, ChoosesAndPins) {
  EXPECT_EQ(run({file(), "--boundary=gather"}), 0) << err;
  EXPECT_NE(out.find("lower bound 2.000 ms, factor 1.0"), std::string::npos)
      << out;
  EXPECT_EQ(run({file(), "--boundary=gather", "--reshard=convert"}), 0);
  EXPECT_NE(out.find("  to   [1000@x, 500] on x=4 of 4-7\n"), std::string::npos)
      << out;
  EXPECT_EQ(run({file(), "--boundary=turn", "--order=naive"}), 0);
  EXPECT_NE(out.find("order 'naive'"), std::string::npos) << out;
}

TEST_F(ReshardTool, JsonHoldsAllTransfers) {
  EXPECT_EQ(run({file(), "--json", "--reshard=broadcast"}), 0) << err;
  const nlohmann::json json = nlohmann::json::parse(out);
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["name"], "gather");
  EXPECT_EQ(json[0]["legs"][0]["transfers"].size(), 2u);
  EXPECT_EQ(json[0]["legs"][0]["transfers"][0]["kind"], "broadcast");
  EXPECT_EQ(json[1]["legs"][0]["transfers"].size(), 16u);
  EXPECT_EQ(json[1]["legs"][0]["tasks"][1]["contiguous_in_source"], false);
}

TEST_F(ReshardTool, Compares) {
  EXPECT_EQ(run({file(), "--compare"}), 0) << err;
  EXPECT_NE(out.find("\ngather           2     0.008     0.00"),
            std::string::npos)
      << out;
  EXPECT_NE(out.find("\nturn            16 "), std::string::npos) << out;
}

TEST_F(ReshardTool, DrawsOneBoundary) {
  const std::string svg = (root / "a.svg").string();
  EXPECT_EQ(run({file(), "--boundary=gather", "--svg=" + svg}), 0) << err;
  std::ifstream drawn(svg);
  std::ostringstream text;
  text << drawn.rdbuf();
  EXPECT_NE(text.str().find("node 0, out"), std::string::npos);
  EXPECT_NE(text.str().find("node 1, in"), std::string::npos);
  EXPECT_EQ(run({file(), "--svg=" + svg}), 1);
  EXPECT_EQ(err, "error: --svg draws one boundary: choose it with "
                 "--boundary=NAME\n");
}

TEST_F(ReshardTool, TextInPlaceOfAFile) {
  const std::string cluster = "--cluster=" + (root / "cluster.json").string();
  EXPECT_EQ(run({R"({"source": {"layout": "[6]", "devices": "0"},
                     "target": {"layout": "[6]", "devices": "4"}})",
                 cluster}),
            0)
      << err;
  EXPECT_NE(out.find("boundary 0: predicted 0.024 us"), std::string::npos)
      << out;
}

TEST_F(ReshardTool, MessagesOfAPlan) {
  const LoadedPlan plan = plantest::samplePlan();
  const std::string dir = (root / "a.plan").string();
  ASSERT_TRUE(savePlan(dir, plan.file, plan.programs).ok());
  EXPECT_EQ(run({dir}), 0) << err;
  EXPECT_NE(out.find("stage 0 to 1, "), std::string::npos) << out;
  EXPECT_NE(out.find("stage 1 to 0, "), std::string::npos) << out;
  EXPECT_NE(out.find("1 unit tasks"), std::string::npos) << out;
  EXPECT_EQ(run({dir, "--compare"}), 1);
  EXPECT_EQ(err, "error: " + dir +
                     ": a plan's messages are given: --compare is for "
                     "descriptions\n");
}

TEST_F(ReshardTool, SaysWhatIsWrong) {
  EXPECT_EQ(run({file(), "--boundary=none"}), 1);
  EXPECT_EQ(err, "error: --boundary=none: there is none; known are gather; "
                 "turn\n");
  EXPECT_EQ(run({file(), "--reshard=none"}), 2);
  EXPECT_EQ(run({file(), "--order=none"}), 2);
  EXPECT_EQ(run({file(), "--json", "--compare"}), 2);
  EXPECT_EQ(run({}), 2);
  EXPECT_EQ(run({(root / "absent.json").string()}), 1);
  EXPECT_EQ(err, "error: " + (root / "absent.json").string() +
                     ": no such file or directory\n");
  EXPECT_EQ(run({R"({"cluster": {}, "source": {}})"}), 1);
  EXPECT_NE(err.find("error: description: source.layout: expected a string, "
                     "found nothing\n"),
            std::string::npos)
      << err;
  const std::string cluster = "--cluster=" + (root / "cluster.json").string();
  EXPECT_EQ(run({R"({"source": {"layout": "[6]", "devices": "0"},
                     "target": {"layout": "[7]", "devices": "9"}})",
                 cluster}),
            1);
  EXPECT_EQ(err, "error: boundary 0: target: the cluster has devices 0-7, "
                 "found 9\nerror: boundary 0: source and target are one "
                 "tensor: the shape is [6], found [7]\n");
}

} // namespace
} // namespace merak
