// How a run compiles its model again, and what it takes for a compiler.
#include "runtime/launch/PlanPool.h"
#include "runtime/launch/CompilerProcess.h"
#include "runtime/launch/Rates.h"

#include <gtest/gtest.h>

namespace merak::runtime {
namespace {

using Texts = std::vector<std::string>;

planpb::PlanFile planOf(const Texts &options, int ranks = 4) {
  planpb::PlanFile plan;
  plan.set_model("models/m.onnx");
  plan.set_model_dir("/data/models");
  for (int rank = 0; rank < ranks; ++rank)
    plan.add_ranks();
  for (const auto &[name, size] : {std::pair{"pp", 2}, {"dp", 2}, {"tp", 1}}) {
    planpb::Axis *axis = plan.add_mesh();
    axis->set_name(name);
    axis->set_size(size);
  }
  for (const std::string &option : options)
    plan.add_options(option);
  return plan;
}

TEST(PlanPool, CompilesAsThePlanWasCompiled) {
  const planpb::PlanFile plan = planOf(
      {"--precision=bf16", "--for-rates=0:2", "--devices=4", "--mesh=pp=2,dp=2",
       "--microbatch=1", "--strategy=s.json", "--zero=1"});
  auto layers = compileArguments(plan, {{1, 3, 1, 1.5}, false, ""}, "out.plan");
  ASSERT_TRUE(layers.ok());
  EXPECT_EQ(*layers,
            (Texts{"/data/models/m.onnx", "-q", "-o", "out.plan",
                   "--precision=bf16", "--mesh=pp=2,dp=2", "--microbatch=1",
                   "--zero=1", "--devices=4", "--for-rates=1:3,3:1.5"}));
  auto groups = compileArguments(plan, {{1, 1, 1, 1}, true, ""}, "out.plan");
  ASSERT_TRUE(groups.ok());
  EXPECT_EQ(*groups, (Texts{"/data/models/m.onnx", "-q", "-o", "out.plan",
                            "--precision=bf16", "--zero=1", "--devices=4"}));
}

TEST(PlanPool, KeepsDegreesThatWereFound) {
  auto layers = compileArguments(planOf({"--grad-clip=1"}),
                                 {{3, 1, 1, 1}, false, ""}, "o");
  ASSERT_TRUE(layers.ok());
  EXPECT_EQ(*layers,
            (Texts{"/data/models/m.onnx", "-q", "-o", "o", "--grad-clip=1",
                   "--mesh=pp=2,dp=2,tp=1", "--devices=4", "--for-rates=0:3"}));
}

TEST(PlanPool, AnOlderPlanDoesNotSay) {
  EXPECT_EQ(compileArguments(planOf({}), {{3, 1, 1, 1}, false, ""}, "o")
                .status()
                .str(),
            "the plan does not say how it was compiled: compile it again");
}

// Of the hosts that are left.
TEST(PlanPool, CompilesForAnotherCluster) {
  auto fewer = compileArguments(
      planOf({"--cluster=/c.json", "--mesh=pp=4", "--schedule=1f1b"}),
      {{1, 1, 1}, true, "left.json"}, "o");
  ASSERT_TRUE(fewer.ok());
  EXPECT_EQ(*fewer,
            (Texts{"/data/models/m.onnx", "-q", "-o", "o", "--schedule=1f1b",
                   "--cluster=left.json", "--devices=3"}));
}

TEST(PlanPool, PlansComeFromAFolderOrTheCompiler) {
  const PlanSource own = sourceOfPlans("out/gpt.plan/", "", "bin/merakc");
  EXPECT_EQ(own.folder, "out/gpt.plans");
  EXPECT_EQ(own.made, "out/gpt.plans");
  EXPECT_EQ(own.compiler, "bin/merakc");
  const PlanSource chosen = sourceOfPlans("gpt.plan", "family", "off");
  EXPECT_EQ(chosen.folder, "family");
  EXPECT_EQ(chosen.made, "gpt.plans");
  EXPECT_EQ(chosen.compiler, "");
  EXPECT_NE(sourceOfPlans("gpt.plan", "", "").compiler, "");
}

// A plan that somebody else wrote decides nothing but what is compiled.
TEST(PlanPool, OptionsThatWriteFilesAreRefused) {
  for (const char *option : {"--emit-strategy=/x", "--report=page.html",
                             "--output=x", "-o", "other.onnx", "--", ""})
    EXPECT_EQ(compileArguments(planOf({"--zero=1", option}),
                               {{3, 1, 1, 1}, false, ""}, "o")
                  .status()
                  .str(),
              std::string("the plan says that it was compiled with \"") +
                  option + "\", which is no option of what is compiled");
}

TEST(PlanPool, KnowsDevicesAndTheirRates) {
  planpb::PlanFile plan = planOf({"--for-rates=3:2.5", "--devices=5"}, 3);
  for (uint32_t device : {0, 1, 3})
    plan.add_devices(device);
  EXPECT_EQ(devicesOf(plan), (std::vector<int>{0, 1, 3}));
  EXPECT_EQ(deviceCount(plan), 5u);
  auto planned = plannedFor(plan, 5);
  ASSERT_TRUE(planned.ok());
  EXPECT_EQ(*planned, (elastic::Situation{1, 1, 1, 2.5, 1}));
  EXPECT_EQ(ratesOfRanks(plan, *planned), (std::vector<double>{1, 1, 2.5}));
  EXPECT_EQ(devicesOf(planOf({}, 2)), (std::vector<int>{0, 1}));
}

TEST(CompilerProcess, SaysHowItEnded) {
  std::atomic<bool> stop{false};
  EXPECT_TRUE(runCompiler("/bin/true", {"-o", "x"}, stop).ok());
  EXPECT_EQ(
      runCompiler("/bin/sh", {"-c", "echo first; echo then; exit 3"}, stop)
          .str(),
      "\"/bin/sh\" ended with exit code 3: first");
  EXPECT_EQ(runCompiler("/bin/sh", {"-c", "kill -9 $$"}, stop).str(),
            "\"/bin/sh\" ended with signal 9: ");
  EXPECT_EQ(runCompiler("/nowhere/merakc", {}, stop).str(),
            "cannot start \"/nowhere/merakc\": No such file or directory");
  // More than is kept of it.
  EXPECT_TRUE(
      runCompiler("/bin/sh", {"-c", "head -c 1000000 /dev/zero"}, stop).ok());
  stop = true;
  EXPECT_EQ(runCompiler("/bin/sh", {"-c", "sleep 100"}, stop).str(),
            "\"/bin/sh\" ended with signal 9: ");
}

} // namespace
} // namespace merak::runtime
