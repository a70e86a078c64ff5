// The command line of merak-plan: what it prints and how it ends.
#include "tools/merak-plan/PlanTool.h"
#include "test/unit/plan/PlanBuilder.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <unistd.h>

namespace fs = std::filesystem;

namespace merak {
namespace {

class PlanTool : public ::testing::Test {
protected:
  void SetUp() override {
    root = fs::temp_directory_path() /
           ("merak-plan-tool-" + std::to_string(::getpid()) + "-" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root);
    fs::create_directories(root);
    dir = save("a.plan", plantest::samplePlan());
  }
  void TearDown() override { fs::remove_all(root); }

  std::string save(const std::string &name, const LoadedPlan &plan) {
    std::string path = (root / name).string();
    Status saved = savePlan(path, plan.file, plan.programs);
    EXPECT_TRUE(saved.ok()) << saved.str();
    return path;
  }

  int run(std::vector<const char *> arguments) {
    arguments.insert(arguments.begin(), "merak-plan");
    std::ostringstream outStream, errStream;
    int code = planToolMain(static_cast<int>(arguments.size()),
                            arguments.data(), outStream, errStream);
    out = outStream.str();
    err = errStream.str();
    return code;
  }

  fs::path root;
  std::string dir, out, err;
};

TEST_F(PlanTool, Verify) {
  EXPECT_EQ(run({"verify", dir.c_str()}), 0);
  EXPECT_EQ(out, dir + ": sound: 2 ranks, 2 programs, 65 instructions a "
                       "step\n");
  EXPECT_EQ(err, "");
}

TEST_F(PlanTool, VerifyBrokenPlan) {
  LoadedPlan plan = plantest::samplePlan();
  plan.programs[0].mutable_calls(4)->clear_waits();
  plan.programs[1].mutable_calls(4)->clear_waits();
  std::string broken = save("broken.plan", plan);
  EXPECT_EQ(run({"verify", broken.c_str()}), 1);
  EXPECT_EQ(out, "");
  EXPECT_EQ(err.rfind("error: " + broken + ": program 0 · race: ", 0), 0u);
  EXPECT_NE(err.find("\nerror: " + broken + ": program 1 · race: "),
            std::string::npos);
}

TEST_F(PlanTool, MissingPlan) {
  std::string absent = dir + "x";
  for (const char *command :
       {"verify", "print", "draw", "simulate", "account"}) {
    EXPECT_EQ(run({command, absent.c_str()}), 1);
    EXPECT_EQ(err, "error: " + absent + ": no such plan\n");
  }
}

TEST_F(PlanTool, PrintEndsWithTheMemoryTable) {
  EXPECT_EQ(run({"print", dir.c_str()}), 0);
  EXPECT_EQ(out.rfind("plan\n  version 2 by \"by hand\"\n", 0), 0u);
  EXPECT_NE(out.find("\nmemory\nprogram  ranks  parameters"),
            std::string::npos);
}

TEST_F(PlanTool, DiffTellsByItsCode) {
  EXPECT_EQ(run({"diff", dir.c_str(), dir.c_str()}), 0);
  EXPECT_EQ(out, "");
  LoadedPlan plan = plantest::samplePlan();
  plan.file.set_schedule("gpipe");
  std::string other = save("b.plan", plan);
  EXPECT_EQ(run({"diff", dir.c_str(), other.c_str()}), 1);
  EXPECT_EQ(out, "@ plan\n-  mode train device cpu schedule 1f1b\n+  mode "
                 "train device cpu schedule gpipe\n");
  std::string one = dir + "1", two = dir + "2";
  EXPECT_EQ(run({"diff", one.c_str(), two.c_str()}), 1);
  EXPECT_EQ(err, "error: " + one + ": no such plan\nerror: " + two +
                     ": no such plan\n");
}

TEST_F(PlanTool, SimulateAndDraw) {
  std::string trace = (root / "trace.json").string();
  std::string cluster = (root / "slow.json").string();
  std::ofstream(cluster) << R"({
    "devices": 2,
    "device": {"kind": "cpu", "flops": 256, "memory_bandwidth": 1e30},
    "links": {"intra": {"latency": 0, "bandwidth": 1e30}}})";
  EXPECT_EQ(run({"simulate", dir.c_str(), "--cluster", cluster.c_str(),
                 "--trace", trace.c_str()}),
            0);
  // Five matrix products of one second each lie on the critical path: F0 and
  // F1 of stage 0, then F1 and data and weight of B1 on stage 1; stage 0
  // multiplies its last gradient beside the last of these.
  EXPECT_EQ(out.rfind("step 7.000 s\n", 0), 0u) << out;
  EXPECT_TRUE(fs::exists(trace));
  EXPECT_EQ(run({"draw", dir.c_str(), "--columns", "40"}), 0);
  EXPECT_NE(out.find("\nstage 1, rank 1 |"), std::string::npos);
  std::string svg = (root / "out.svg").string();
  EXPECT_EQ(run({"draw", dir.c_str(), "-o", svg.c_str()}), 0);
  EXPECT_TRUE(fs::exists(svg));
  std::string nowhere = dir + "/absent/out.svg";
  std::ofstream(cluster) << R"({"devices": 1, "device": {}})";
  EXPECT_EQ(run({"draw", dir.c_str(), "--cluster", cluster.c_str()}), 1);
  EXPECT_EQ(err, "error: " + cluster + ": device.kind: missing\nerror: " +
                     cluster + ": device.flops: missing\nerror: " + cluster +
                     ": device.memory_bandwidth: missing\n");
  EXPECT_EQ(run({"draw", dir.c_str(), "-o", nowhere.c_str()}), 1);
  EXPECT_EQ(err, "error: " + nowhere + ": cannot be written\n");
}

TEST_F(PlanTool, Account) {
  EXPECT_EQ(run({"account", dir.c_str()}), 0) << err;
  EXPECT_EQ(out.rfind("stage 0, rank 0: ", 0), 0u) << out;
  EXPECT_NE(out.find("\nstage 1, rank 1: "), std::string::npos);
}

TEST_F(PlanTool, Report) {
  std::string page = (root / "out.html").string();
  EXPECT_EQ(run({"report", dir.c_str(), "-o", page.c_str()}), 0) << err;
  EXPECT_TRUE(fs::exists(page));
  std::string trace = (root / "trace.json").string();
  EXPECT_EQ(run({"report", dir.c_str(), "-o", page.c_str(), "--trace",
                 trace.c_str()}),
            1);
  EXPECT_EQ(err, "error: " + trace +
                     ": cannot be read: no such file or directory\n");
  std::ofstream(trace) << "[]";
  for (const char *command : {"draw", "report"})
    EXPECT_EQ(run({command, dir.c_str(), "-o", page.c_str(), "--trace",
                   trace.c_str()}),
              1);
  EXPECT_EQ(err, "error: " + trace +
                     ": expected a trace in Chrome's format, as merak-run "
                     "--trace writes it\n");
  EXPECT_EQ(run({"report", dir.c_str()}), 2); // no output
}

TEST_F(PlanTool, WrongUsage) {
  EXPECT_EQ(run({}), 2);
  EXPECT_EQ(run({"frobnicate"}), 2);
  EXPECT_EQ(run({"verify"}), 2);
  EXPECT_EQ(run({"diff", dir.c_str()}), 2);
  EXPECT_EQ(run({"--help"}), 0);
  EXPECT_NE(out.find("simulate"), std::string::npos);
}

} // namespace
} // namespace merak
