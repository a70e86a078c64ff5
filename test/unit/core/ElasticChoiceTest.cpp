// What --elastic stands for: of one process, of hosts that are given or named
// by a cluster file, of GPUs; what was given stays, and what cannot be.
#include "runtime/launch/ElasticChoice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace merak::runtime::test {
namespace {

class ElasticChoiceTest : public testing::Test {
protected:
  // The told line, or the problems.
  std::string choose(const std::string &line) {
    options = {};
    app = std::make_unique<CLI::App>();
    addRunOptions(*app, options, {{"cpu", nullptr}, {"cuda", nullptr}});
    const bool isGiven = line.find("--arena") != std::string::npos;
    app->parse((isGiven ? "" : "--arena=packed ") +
               ("out/x.plan --elastic " + line));
    std::set<std::string> given;
    for (const CLI::Option *option : app->parse_order())
      given.insert(option->get_name());
    auto choice = chooseElastic(facts, given, options);
    arguments = choice ? choice->arguments : std::vector<std::string>{};
    return choice ? choice->told : choice.status().str();
  }
  std::string forRuns() const {
    return fmt::format("{}", fmt::join(arguments, " "));
  }

  ElasticFacts facts{true, false, {}, true, {}};
  std::unique_ptr<CLI::App> app;
  RunOptions options;
  std::vector<std::string> arguments;
};

TEST_F(ElasticChoiceTest, OneProcess) {
  EXPECT_EQ(choose(""), "--elastic: at most 1000 restarts; --replan=auto; "
                        "--copies=1; ranks in one process");
  EXPECT_EQ(options.agent.restarts, kElasticRestarts);
  EXPECT_EQ(options.replan.mode, "auto");
  EXPECT_EQ(options.copies.copies.hosts, 1);
  EXPECT_TRUE(options.agent.hosts.empty() && options.agent.launcher.empty());
  EXPECT_TRUE(options.log.empty());
  EXPECT_EQ(forRuns(), "--replan=auto --copies=1");
  EXPECT_EQ(usageProblem(options), "");
  // A disk that has the state every so many steps is enough.
  choose("--save=ckpt --save-every=100");
  EXPECT_EQ(options.copies.copies.hosts, 0);
  EXPECT_EQ(forRuns(), "--replan=auto");
  choose("--save=ckpt"); // in the end alone
  EXPECT_EQ(options.copies.copies.hosts, 1);
  // One node is this host, whatever it is called.
  facts.nodes = {{"a", 4}};
  EXPECT_EQ(choose("--cluster=c.json"),
            "--elastic: at most 1000 restarts; --replan=auto; --copies=1; "
            "ranks in one process");
}

TEST_F(ElasticChoiceTest, WhatIsGivenStays) {
  EXPECT_EQ(choose("--restarts=1 --replan=off --copies=2 --save=ckpt"),
            "--elastic: at most 1 restart; --replan=off; --copies=2; ranks in "
            "one process");
  EXPECT_EQ(options.agent.restarts, 1);
  EXPECT_EQ(options.replan.mode, "off");
  EXPECT_EQ(options.copies.copies.hosts, 2);
  EXPECT_EQ(forRuns(), "") << "the command line has it";
  choose("--copies=0 --save=ckpt --replan=suggest");
  EXPECT_EQ(options.copies.copies.hosts, 0);
  EXPECT_EQ(options.replan.mode, "suggest");
  choose("--hosts=a:2,b:1 --launcher='start {hosts}' --log=my.jsonl");
  EXPECT_EQ(options.agent.launcher, "start {hosts}");
  EXPECT_EQ(options.log, "my.jsonl");
}

TEST_F(ElasticChoiceTest, HostsOfTheCluster) {
  facts.nodes = {{"a", 2}, {"b", 1}};
  facts.variables = {"MERAK_A", "MERAK_B"};
  EXPECT_EQ(choose("--cluster=c.json"),
            "--elastic: at most 1000 restarts; --replan=auto; --copies=1; log "
            "\"out/x.run.jsonl\"; ranks on a:2,b:1 by \"mpirun -np {ranks} "
            "--host {hosts} --mca oob_tcp_keepalive_time 2 --mca "
            "oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 3 "
            "-x MERAK_A -x MERAK_B\"");
  EXPECT_EQ(options.agent.hosts, "a:2,b:1");
  EXPECT_EQ(forRuns(), "--replan=auto --copies=1 --log=out/x.run.jsonl");
  EXPECT_EQ(options.log, "out/x.run.jsonl");
  AgentRun run;
  run.log = options.log;
  run.copies = true;
  EXPECT_EQ(usageProblem(options.agent, run), "");
  // Beside checkpoints, too: other hosts have them sooner than a disk.
  choose("--cluster=c.json --save=ckpt --save-every=9");
  EXPECT_EQ(options.copies.copies.hosts, 1);
  choose("--cluster=c.json --hosts=c:3");
  EXPECT_EQ(options.agent.hosts, "c:3");
  EXPECT_FALSE(options.agent.launcher.empty());
  choose("--cluster=c.json --launcher='start {hosts}'");
  EXPECT_EQ(options.agent.hosts, "a:2,b:1");
  choose("--cluster=c.json --launcher='srun -n {ranks}'");
  EXPECT_EQ(options.agent.hosts, "");
  EXPECT_EQ(options.log, "out/x.run.jsonl");
  facts.nodes = {{"a", 2}};
  choose("--cluster=c.json --launcher='start {hosts}'");
  EXPECT_EQ(options.agent.hosts, "a:2");
}

TEST_F(ElasticChoiceTest, StateThatCannotMove) {
  facts.onGpus = true;
  EXPECT_EQ(choose(""), "--elastic: at most 1000 restarts; --replan=auto; "
                        "--copies=1; ranks in one process");
  choose("--hosts=a:1,b:1");
  EXPECT_EQ(forRuns(), "--replan=auto --copies=1 --log=out/x.run.jsonl");
  choose("--launcher='mpiexec -n {ranks}'");
  EXPECT_EQ(forRuns(), "--replan=auto --copies=1 --log=out/x.run.jsonl");
  // What brings no MPI.
  EXPECT_NE(choose("--launcher='srun -n {ranks}' --save=ckpt")
                .find("--replan=suggest (GPUs' ranks that are processes move "
                      "their state by MPI); --copies=0 (GPUs' ranks that are "
                      "processes send them by MPI)"),
            std::string::npos);
  EXPECT_EQ(choose("--launcher='srun -n {ranks}'"),
            "--elastic goes on from copies in memory (GPUs' ranks that are "
            "processes send them by MPI), or from checkpoints: give --save and "
            "--save-every");
  facts.onGpus = false;
  EXPECT_NE(choose("--arena=separate")
                .find("--replan=suggest (auto needs --arena=packed)"),
            std::string::npos);
}

TEST_F(ElasticChoiceTest, WhatDoesNotGoTogether) {
  EXPECT_EQ(choose("--ranks=env"),
            "--elastic starts ranks itself: --ranks=env is for those that "
            "somebody else started");
  EXPECT_EQ(choose("--restarts=0"),
            "--elastic starts a run again: --restarts=0 does not");
  EXPECT_EQ(choose("--copies=0"),
            "--elastic goes on from copies in memory, or from checkpoints: "
            "give --save and --save-every");
  facts.nodes = {{"", 2}, {"", 2}};
  EXPECT_EQ(choose("--cluster=c.json"),
            "\"c.json\" has 2 nodes and does not say on which hosts: give "
            "--hosts=HOST:RANKS,..., or \"host\" to each node");
  facts.hasMpirun = false;
  EXPECT_EQ(choose("--cluster=c.json --hosts=a:2,b:2"),
            "--elastic starts ranks on several hosts by mpirun, which is not "
            "there: install it, or give --launcher");
  choose("--cluster=c.json --hosts=a:2,b:2 --launcher='start {hosts}'");
  EXPECT_EQ(options.agent.launcher, "start {hosts}");
  facts.trains = false; // all of it is told
  EXPECT_EQ(choose("--hosts=a:2,b:2 --restarts=0"),
            "\"out/x.plan\" does not train: --elastic is for training\n"
            "--elastic starts a run again: --restarts=0 does not\n"
            "--elastic starts ranks on several hosts by mpirun, which is not "
            "there: install it, or give --launcher");
  RunOptions alone;
  alone.plan = "out/x.plan";
  alone.elastic.cluster = "c.json";
  EXPECT_EQ(usageProblem(alone), "--cluster is for --elastic");
}

// The runs are told what was chosen, and not what only their agent is to know.
TEST_F(ElasticChoiceTest, WhatTheRunsAreStartedWith) {
  choose("--cluster=c.json --data=d --copies-every=5 --restarts=3 --seed=7");
  EXPECT_EQ(fmt::format("{}", fmt::join(argumentsOfRuns(*app, true), " ")),
            "--arena=packed --data=d --copies-every=5 --seed=7");
  EXPECT_EQ(usageProblem(options), "");
}

TEST_F(ElasticChoiceTest, Facts) {
  LoadedPlan plan;
  plan.file.set_mode("train");
  plan.file.set_device("cuda");
  PlanPrices prices;
  RunOptions asked;
  const std::string path = std::getenv("PATH");
  setenv("PATH", "/nowhere", 1);
  setenv("MERAK_TEST_OF_CHOICES", "1", 1);
  setenv("MERAK_;false", "1", 1);
  auto found = elasticFacts(asked, plan, prices);
  setenv("PATH", path.c_str(), 1);
  unsetenv("MERAK_;false");
  unsetenv("MERAK_TEST_OF_CHOICES");
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->trains && found->onGpus && !found->hasMpirun);
  EXPECT_EQ(std::count(found->variables.begin(), found->variables.end(),
                       "MERAK_TEST_OF_CHOICES"),
            1);
  EXPECT_EQ(std::count(found->variables.begin(), found->variables.end(),
                       "MERAK_;false"),
            0);
  asked.elastic.cluster = "c.json";
  EXPECT_FALSE(elasticFacts(asked, plan, prices).ok());
  prices.nodesOf =
      [](const LoadedPlan &,
         const std::string &file) -> Result<std::vector<MachineNode>> {
    if (file == "c.json")
      return std::vector<MachineNode>{{"a", 2}};
    return Status::error("another machine");
  };
  ASSERT_TRUE(elasticFacts(asked, plan, prices).ok());
  EXPECT_EQ(elasticFacts(asked, plan, prices)->nodes.front().host, "a");
  asked.elastic.cluster = "d.json";
  EXPECT_EQ(elasticFacts(asked, plan, prices).status().str(),
            "another machine");
}

} // namespace
} // namespace merak::runtime::test
