// Which plan a run starts with on the hosts that are left, with a compiler that
// has plans for some numbers of devices.
#include "runtime/launch/AgentPlans.h"
#include "runtime/plan/Signature.h"
#include "test/unit/core/TestPlan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <unistd.h>

namespace merak::runtime::test {
namespace {

namespace fs = std::filesystem;

class AgentPlansTest : public testing::Test {
protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("plans-{}", getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream(path("merakc")) << fmt::format(
        "#!/bin/sh\n"
        "echo \"$@\" >>{0}/asked\n"
        "for word; do case $word in\n"
        "  --devices=*) count=${{word#--devices=}} ;;\n"
        "  --for-rates=*) rated=-rated ;;\n"
        "esac; done\n"
        "cp -r \"{0}/for-$count$rated\" \"$4\" 2>/dev/null || {{\n"
        "  echo no such plan; exit 1; }}\n",
        folder_.string());
    fs::permissions(path("merakc"), fs::perms::owner_all);
    prices_.stepSeconds = [](const LoadedPlan &plan,
                             const std::vector<double> &) -> Result<double> {
      return 1.0 / plan.file.ranks_size();
    };
    prices_.healthyCluster = [](const LoadedPlan &,
                                const std::vector<double> &) {
      return Result<std::string>(std::string());
    };
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string &name) const { return folder_ / name; }
  // `rates`: it is for these; `devices`: of its ranks.
  std::string save(const std::string &name, int64_t dp,
                   const std::string &rates = "",
                   const std::vector<int> &devices = {}) const {
    LoadedPlan plan = dataParallelPlan(dp, 1, 12);
    if (!rates.empty())
      plan.file.add_options("--for-rates=" + rates);
    for (int device : devices)
      plan.file.add_devices(device);
    plan.file.add_options("--mesh=dp=4");
    plan.file.add_options("--cluster=c.json");
    for (size_t i = 0; i < plan.programs.size(); ++i)
      plan.file.add_programs(fmt::format("program-{}.pb", i));
    EXPECT_TRUE(savePlan(path(name), plan.file, plan.programs).ok());
    return path(name);
  }
  AgentPlans plans(const std::string &folder = "x.plans") {
    const std::string first = save("x.plan", 4);
    auto loaded = loadPlanToRun(first, true);
    EXPECT_TRUE(loaded.ok()) << loaded.status().str();
    PlanSource source = sourceOfPlans(first, path(folder), path("merakc"));
    return AgentPlans(PlanPool(first, *loaded, source, true, prices_),
                      *parseHosts("a:2,b:1,c:1"));
  }
  // A rank does its share, and all wait for the slowest.
  void priceByTheSlowest() {
    prices_.stepSeconds =
        [](const LoadedPlan &,
           const std::vector<double> &rates) -> Result<double> {
      return *std::max_element(rates.begin(), rates.end()) /
             double(rates.size());
    };
  }
  static Status made(AgentPlans &plans) {
    for (int i = 0; i < 1000; ++i) {
      if (auto status = plans.made())
        return *status;
      usleep(10'000);
    }
    return Status::error("it takes too long");
  }
  std::string asked() const {
    std::ifstream file(path("asked"));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  fs::path folder_;
  PlanPrices prices_;
};

TEST_F(AgentPlansTest, OneIsMadeAndFoundAgain) {
  AgentPlans first = plans();
  EXPECT_EQ(first.choose({})->path, path("x.plan"));
  EXPECT_FALSE(first.lacks({}));
  EXPECT_EQ(first.choose({"c"}).status().str(),
            "no plan has a place on 3 ranks: \"" + path("x.plan") + "\" has 4");
  save("for-3", 3);
  ASSERT_TRUE(first.lacks({"c"}));
  first.make({"c"});
  EXPECT_TRUE(first.isMaking());
  EXPECT_TRUE(made(first).ok());
  EXPECT_FALSE(first.lacks({"c"}));
  EXPECT_FALSE(first.lacks({"b"})) << "as many are left";
  EXPECT_NE(asked().find("--cluster=c.json --devices=3\n"), std::string::npos)
      << asked();
  EXPECT_EQ(asked().find("--mesh"), std::string::npos);
  auto chosen = first.choose({"c"});
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen->path, path("x.plans/hosts-3-ranks.plan"));
  EXPECT_GT(chosen->plannedSeconds, 0);
  first.started(*chosen, {"c"});
  EXPECT_EQ(first.choose({"c"})->plannedSeconds, 0);
  EXPECT_EQ(first.choose({})->path, path("x.plan"));

  AgentPlans next = plans();
  EXPECT_TRUE(next.readFolder().empty());
  EXPECT_FALSE(next.lacks({"c"}));
  EXPECT_EQ(next.choose({"c"})->ranks, 3);
}

TEST_F(AgentPlansTest, FewerAreTriedWhereTheModelCannotBeDivided) {
  AgentPlans all = plans();
  save("for-2", 2);
  all.make({"b"});
  EXPECT_TRUE(made(all).ok());
  EXPECT_EQ(all.choose({"b"})->ranks, 2);
  EXPECT_FALSE(all.lacks({"b"}));
  ASSERT_TRUE(all.lacks({"a", "b"}));
  all.make({"a", "b"});
  EXPECT_EQ(made(all).str(), "no plan for 1 rank could be made: \"" +
                                 path("merakc") +
                                 "\" ended with exit code 1: no such plan");
  EXPECT_FALSE(all.lacks({"a", "b"})) << "once is enough";
  EXPECT_FALSE(all.lacks({"a", "b", "c"}));
}

TEST_F(AgentPlansTest, UnlikeNodesHavePlansOfTheirOwn) {
  prices_.withoutNodes = [](const std::string &file,
                            const std::vector<int64_t> &devices,
                            const std::set<size_t> &without) {
    EXPECT_EQ(file, "c.json");
    EXPECT_EQ(devices, (std::vector<int64_t>{2, 1, 1}));
    return Result<std::string>(fmt::format("without {}", *without.begin()));
  };
  AgentPlans all = plans();
  save("for-3", 3);
  all.make({"b"});
  EXPECT_TRUE(made(all).ok());
  const std::string made = path("x.plans/hosts-3-ranks-nodes-0-2.plan");
  EXPECT_EQ(all.choose({"b"})->path, made);
  EXPECT_TRUE(all.lacks({"c"}));
  std::ifstream cluster(made + ".cluster.json");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(cluster), {}),
            "without 1");
  EXPECT_NE(asked().find("--cluster=" + made + ".cluster.json --devices=3\n"),
            std::string::npos)
      << asked();
}

// Those of the run before, of the devices that are left.
TEST_F(AgentPlansTest, OneIsMadeForTheRatesOfThoseThatAreLeft) {
  AgentPlans all = plans();
  save("for-3", 3);
  save("for-3-rated", 3, "2:2.5");
  all.measured({}, {1, 1, 2.5, 1}); // b's
  ASSERT_TRUE(all.lacks({"c"}));
  all.make({"c"});
  EXPECT_TRUE(made(all).ok());
  EXPECT_NE(asked().find("--devices=3 --for-rates=2:2.5\n"), std::string::npos)
      << asked();
  const std::string rated = path("x.plans/hosts-3-ranks-rates-2x2.5.plan");
  EXPECT_EQ(all.choose({"c"})->path, rated);
  EXPECT_FALSE(all.lacks({"c"}));
  all.measured({"c"}, {1, 1, 2.6});
  EXPECT_FALSE(all.lacks({"c"})) << "about the same";
  // Without the slow one they are healthy.
  EXPECT_TRUE(all.lacks({"b"}));
  all.make({"b"});
  EXPECT_TRUE(made(all).ok());
  EXPECT_TRUE(std::filesystem::exists(path("x.plans/hosts-3-ranks.plan")));

  // What is compared is the time at these rates.
  prices_.stepSeconds = [](const LoadedPlan &,
                           const std::vector<double> &rates) -> Result<double> {
    EXPECT_EQ(rates, (std::vector<double>{3, 1, 1}));
    return 1.0;
  };
  AgentPlans next = plans();
  EXPECT_TRUE(next.readFolder().empty());
  next.measured({"c"}, {3, 1, 1}); // a's first, of a run without c
  EXPECT_TRUE(next.lacks({"b"})) << "for other rates, and for none";
  EXPECT_TRUE(next.choose({"b"}).ok());
}

// Of the hosts that are left, a:2 and b:1, the second device is slow.
TEST_F(AgentPlansTest, SlowDevicesMayBeLeftOut) {
  priceByTheSlowest();
  AgentPlans all = plans();
  save("for-3-rated", 2, "1:9", {0, 2});
  all.measured({}, {1, 9, 1, 1});
  all.make({"c"});
  EXPECT_TRUE(made(all).ok());
  const auto chosen = all.choose({"c"});
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen->path, path("x.plans/hosts-3-ranks-rates-1x9.plan"));
  EXPECT_EQ(chosen->devices, (std::vector<int>{0, 2}));
  EXPECT_EQ(chosen->leftOut,
            (std::vector<LeftOutDevice>{{1, 1, "a", 9, 0, 0}}));
  EXPECT_FALSE(all.lacks({"c"}));
  // A run on these knows nothing new of the one that it leaves out.
  all.started(*chosen, {"c"});
  all.measured({"c"}, {1, 1, 1});
  EXPECT_EQ(all.rates(), (std::vector<double>{1, 9, 1, 1}));
  all.recovered(chosen->leftOut[0]);
  EXPECT_EQ(all.rates(), (std::vector<double>{1, 1, 1, 1}));
  EXPECT_TRUE(all.lacks({"c"})) << "there is none for healthy ones";
}

// With all hosts a run says what it is to be started again with.
TEST_F(AgentPlansTest, ARunAsksForAPlanWithoutADevice) {
  priceByTheSlowest();
  AgentPlans all = plans();
  std::filesystem::create_directories(path("x.plans"));
  const std::string without =
      save("x.plans/without-1.plan", 3, "1:9", {0, 2, 3});
  all.measured({}, {1, 9, 1, 1});
  EXPECT_EQ(all.choose({})->path, path("x.plan"));
  auto asked = all.take(without, {});
  ASSERT_TRUE(asked.ok()) << asked.status().str();
  EXPECT_EQ(asked->ranks, 3);
  EXPECT_EQ(asked->devices, (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(asked->leftOut.size(), 1u);
  all.started(*asked, {});
  // A rank is killed: the same again, also by the next agent.
  all.measured({}, {1, 1, 1, 1.3});
  EXPECT_EQ(all.choose({})->path, without);
  AgentPlans next = plans();
  EXPECT_TRUE(next.readFolder().empty());
  next.assume(all.rates());
  next.inherit(without, {});
  next.measured({}, {1, 1, 1, 1});
  EXPECT_EQ(next.choose({})->path, without);
  EXPECT_FALSE(next.lacks({}));
  // It is back, and the other one is not slow enough.
  all.recovered(asked->leftOut[0]);
  EXPECT_FALSE(all.lacks({})) << "the first plan is for these";
  EXPECT_EQ(all.choose({})->path, path("x.plan"));
  // Where that host is lost, its number is another device's.
  EXPECT_EQ(all.take(without, {"c"}).status().str(),
            "\"" + without + "\" names devices that the hosts do not have");
}

// Of two that are left out, one is normal: a plan for the other one is made.
TEST_F(AgentPlansTest, OneOfTwoIsBack) {
  priceByTheSlowest();
  AgentPlans all = plans();
  std::filesystem::create_directories(path("x.plans"));
  const std::string without = save("x.plans/two.plan", 2, "1:9,2:9", {0, 3});
  all.measured({}, {1, 9, 9, 1});
  auto two = all.take(without, {});
  ASSERT_TRUE(two.ok());
  ASSERT_EQ(two->leftOut.size(), 2u);
  all.started(*two, {});
  EXPECT_FALSE(all.lacks({}));
  all.recovered(two->leftOut[0]);
  ASSERT_TRUE(all.lacks({}));
  save("for-4-rated", 3, "2:9", {0, 1, 3});
  all.make({});
  EXPECT_TRUE(made(all).ok());
  EXPECT_FALSE(all.lacks({}));
  EXPECT_EQ(all.choose({})->path, path("x.plans/hosts-4-ranks-rates-2x9.plan"));
}

TEST_F(AgentPlansTest, WhatIsMadeIsGivenUp) {
  std::ofstream(path("merakc")) << "#!/bin/sh\nexec sleep 100\n";
  AgentPlans all = plans();
  all.make({"c"});
  EXPECT_FALSE(all.made());
  all.make({"a"}); // for others
  EXPECT_TRUE(all.isMaking());
  all.stop();
  EXPECT_FALSE(all.isMaking());
  EXPECT_TRUE(all.lacks({"c"}));
}

} // namespace
} // namespace merak::runtime::test
