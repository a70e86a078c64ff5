// Failing ranks, the watchdog, inference outputs.
#include "runtime/core/MemoryCount.h"
#include "runtime/data/Npy.h"
#include "runtime/launch/RunLog.h"
#include "runtime/launch/RunMain.h"
#include "runtime/launch/RunStatus.h"
#include "test/unit/core/TestPlan.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

using namespace merak;
using namespace merak::runtime;
using namespace merak::runtime::test;

namespace {

std::unique_ptr<Session> synthetic(LoadedPlan plan, SessionOptions options) {
  auto session =
      Session::create(std::move(plan), TestBackend::factory(), options);
  EXPECT_TRUE(session.ok()) << session.status().str();
  auto data = openData((*session)->plan().file, {"synthetic"});
  (*session)->setData(std::move(*data));
  EXPECT_TRUE((*session)->loadWeights("").ok());
  return std::move(*session);
}

bool contains(const std::vector<std::string> &messages,
              const std::string &text) {
  for (const std::string &message : messages)
    if (message.find(text) != std::string::npos)
      return true;
  return false;
}

} // namespace

TEST(Session, AKilledRankStopsAllOthers) {
  SessionOptions options;
  options.fault = {2, 1, false}; // rank 2 is stage 1 of replica 0
  auto session = synthetic(pipelinePlan(2, 4, 8), options);
  ASSERT_TRUE(session->step().ok());
  auto failed = session->step();
  ASSERT_FALSE(failed.ok());
  const auto &messages = failed.status().messages();
  // The cause first, then what each other rank was doing.
  EXPECT_EQ(messages[0],
            "rank 2 · step 2 · stage1.prologue · instr 0 fill: killed by "
            "request");
  // Rank 1, stage 0 of the other replica, reduces nothing: it may be done.
  for (const char *rank : {"rank 0", "rank 3"})
    EXPECT_TRUE(contains(messages, std::string(rank) + " · step 2 · "))
        << rank << " in\n"
        << fmt::format("{}", fmt::join(messages, "\n"));
  for (const std::string &message : messages)
    EXPECT_NE(message.find("killed by request"), std::string::npos) << message;
  // Everything stays stopped.
  EXPECT_FALSE(session->step().ok());
}

TEST(Session, TheWatchdogSaysWhereEachRankWaits) {
  SessionOptions options;
  options.fault = {0, 0, true};
  options.watchdogSeconds = 0.2;
  auto session = synthetic(dataParallelPlan(2, 1, 8), options);
  auto failed = session->step();
  ASSERT_FALSE(failed.ok());
  const auto &messages = failed.status().messages();
  EXPECT_EQ(messages[0], "no rank has moved for 0.2 seconds");
  EXPECT_TRUE(contains(messages, "rank 0 · step 1 · compute: prologue · instr "
                                 "0 fill"));
  EXPECT_TRUE(contains(messages, "rank 1 · step 1 · comm: update · instr 2 "
                                 "all_reduce \"g\" over ranks 0,1"));
  EXPECT_TRUE(
      contains(messages, "rank 1 · step 1 · compute: update · instr 5 wait"));
}

TEST(Session, StoppedRanksNameTheirPeer) {
  SessionOptions options;
  options.fault = {2, 0, true}; // all others come to wait for it
  options.watchdogSeconds = 0.2;
  auto session = synthetic(pipelinePlan(2, 4, 8), options);
  auto failed = session->step();
  ASSERT_FALSE(failed.ok());
  const auto &messages = failed.status().messages();
  EXPECT_TRUE(contains(messages, "rank 3 · step 1 · update · instr 2 "
                                 "all_reduce \"g\" over ranks 2,3: waits for "
                                 "rank 2: no rank has moved"));
  EXPECT_TRUE(contains(messages, "rank 0 · step 1 · stage0.forward"));
}

TEST(Session, IdsOutOfRangeStopTheRun) {
  LoadedPlan plan = dataParallelPlan(2, 2, 8);
  plan.file.mutable_inputs(0)->set_dtype(planpb::I64);
  plan.file.mutable_inputs(0)->set_limit(5);
  planpb::Program &program = plan.programs[0];
  ProgramBuilder builder(program);
  const uint32_t ids = builder.buffer("ids", planpb::I64, {2, 4});
  *builder.at(ids).mutable_layout() = builder.at(0).layout();
  program.mutable_procedures(1)
      ->mutable_instructions(0)
      ->mutable_outputs(0)
      ->set_buffer(ids);
  auto session = synthetic(plan, {});
  ASSERT_TRUE(session->step().ok());
  const std::string dir = temporaryFolder();
  std::vector<int64_t> values(16 * 4, 4);
  values[13 * 4 + 2] = 5; // second step, sample 5 of it: replica 0, mb 1
  ASSERT_TRUE(
      writeNpy(dir + "/x.npy", planpb::I64, {16, 4}, values.data()).ok());
  auto data = openData(session->plan().file, {dir});
  ASSERT_TRUE(data.ok()) << data.status().str();
  session->setData(std::move(*data));
  auto failed = session->step();
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().messages()[0],
            "rank 0 · step 2 · forward mb 1 · instr 0 load \"x\": \"" + dir +
                "/x.npy\" sample 13: value 5 of \"x\" is not in [0, 5)");
}

// y = 2x of an inference plan, put together from microbatches and replicas.
TEST(Session, OutputsAreAssembledFromBoxes) {
  LoadedPlan plan = pipelinePlan(2, 2, 8);
  plan.file.set_mode("infer");
  plan.file.mutable_ranks()->DeleteSubrange(2, 2);
  plan.file.mutable_mesh(0)->set_size(1);
  plan.programs.resize(1);
  planpb::Program &program = plan.programs[0];
  auto *instructions = program.mutable_procedures(0)->mutable_instructions();
  instructions->DeleteSubrange(2, 3); // record, wait, send
  planpb::Output &output = *program.add_outputs();
  output.set_name("y");
  output.set_buffer(1);
  *output.mutable_layout() = layoutOf({{8, {"mb", "dp"}}, {4, {}}});
  output.add_shape(8);
  output.add_shape(4);
  output.set_per_microbatch(true);
  auto session = synthetic(plan, {});
  ASSERT_TRUE(session->step().ok());
  auto outputs = session->globalOutputs();
  ASSERT_TRUE(outputs.ok()) << outputs.status().str();
  const GlobalOutput &y = outputs->at("y");
  EXPECT_EQ(y.shape, (std::vector<int64_t>{8, 4}));
  std::vector<float> x(32);
  auto data = openData(session->plan().file, {"synthetic"});
  ASSERT_TRUE(
      (*data)->read("x", 0, {{{0, 0}, {0, 0}, {8, 4}}}, x.data(), {8, 4}).ok());
  for (int i = 0; i < 32; ++i)
    EXPECT_EQ(reinterpret_cast<const float *>(y.data.data())[i], 2 * x[i]) << i;
}

// What is held is what the plan says, to the byte, as long as it is held.
TEST(Session, HoldsTheArenasOfThePlan) {
  for (int replicas : {1, 2}) {
    const LoadedPlan plan = pipelinePlan(replicas, 4, 8);
    int64_t arenas = 0;
    for (const planpb::Rank &rank : plan.file.ranks())
      arenas += int64_t(plan.programs[rank.program()].arena_bytes());
    const int64_t before = MemoryCount::held();
    {
      auto session = synthetic(plan, {});
      EXPECT_EQ(MemoryCount::held() - before, arenas);
      auto step = session->step();
      ASSERT_TRUE(step.ok());
      EXPECT_GE(step->memoryBytes, before + arenas);
    }
    EXPECT_EQ(MemoryCount::held(), before);
  }
}

// A run that goes on does not tell of a step twice.
TEST(RunLog, WhatIsDoneAgainIsCut) {
  const std::string two = "{\"step\":1}\n{\"step\":2,\"loss\":null}\n";
  EXPECT_EQ(*keptOfLog("", 5), 0u);
  EXPECT_EQ(*keptOfLog(two, 2), two.size());
  EXPECT_EQ(*keptOfLog(two, 9), two.size());
  EXPECT_EQ(*keptOfLog(two + "{\"step\":3}\n{\"step\":4}\n", 2), two.size());
  EXPECT_EQ(*keptOfLog(two + "{\"step\":", 2), two.size()) << "cut off";
  for (int64_t before : {1, 2})
    EXPECT_EQ(keptOfLog(two + "Dear diary\n", before).status().str(),
              "line 3 is not of the log of a run");
}

// What an agent judges by: of the run that goes on, not of those before.
TEST(RunLog, SaysHowFarARunCameAndHowFastItIs) {
  const std::string path = temporaryFolder() + "/log.jsonl";
  EXPECT_FALSE(endOfLog(path));
  const auto write = [&](const std::string &text) {
    std::ofstream(path, std::ios::app) << text;
  };
  write("{\"step\":1,\"seconds\":9}\n{\"step\":2,\"seconds\":9}\n"
        "{\"step\":2,\"restart\":{\"why\":\"lost\",\"state\":\"copies\"}}\n");
  EXPECT_EQ(endOfLog(path)->step, 2);
  EXPECT_TRUE(endOfLog(path)->isOf({{"why", "lost"}}));
  EXPECT_FALSE(endOfLog(path)->isOf({{"why", "back"}}));
  EXPECT_FALSE(endOfLog(path)->isOf({{"why", "lost"}, {"ranks", 2}}));
  for (const char *seconds : {"5", "1", "2", "4", "3"}) {
    EXPECT_EQ(endOfLog(path)->stepSeconds(), 0);
    write(std::string("{\"step\":3,\"seconds\":") + seconds + "}\n");
  }
  write("{\"step\":4,\"seco"); // is being written
  EXPECT_EQ(endOfLog(path)->step, 3);
  EXPECT_EQ(endOfLog(path)->stepSeconds(), 3);
  EXPECT_EQ(endOfLog(path)->seconds, 15);
}

// What is normal is 1, whatever a look measured.
TEST(RunLog, SaysWhoWasSlow) {
  const std::string path = temporaryFolder() + "/log.jsonl";
  const auto write = [&](const std::string &text) {
    std::ofstream(path, std::ios::app) << text;
  };
  write("{\"step\":1,\"seconds\":9,\"rates\":[1.1,2.954,null],"
        "\"slow\":{\"1\":{\"pace\":\"severe\",\"since\":1},"
        "\"2\":{\"pace\":\"mild\",\"since\":1}}}\n");
  EXPECT_EQ(endOfLog(path)->rates, (std::vector<double>{1, 2.95, 1}));
  write("{\"step\":2,\"seconds\":9}\n"); // not measured in each
  EXPECT_EQ(endOfLog(path)->rates, (std::vector<double>{1, 2.95, 1}));
  write("{\"step\":3,\"seconds\":9,\"rates\":[1,1.1,0.9]}\n");
  EXPECT_EQ(endOfLog(path)->rates, (std::vector<double>{1, 1, 1}));
  write("{\"step\":3,\"restart\":{\"why\":\"lost\"}}\n");
  EXPECT_TRUE(endOfLog(path)->rates.empty());
}

// It counts until the run is started again.
TEST(RunLog, SaysThatARunAsksForAPlan) {
  const std::string path = temporaryFolder() + "/log.jsonl";
  const auto write = [&](const std::string &text) {
    std::ofstream(path, std::ios::app) << text << "\n";
  };
  write("{\"step\":1,\"seconds\":9}");
  write("{\"step\":1,\"replan\":{\"what\":\"keep\",\"to\":\"x\"}}");
  EXPECT_TRUE(endOfLog(path)->asked.is_null());
  write("{\"step\":1,\"replan\":{\"what\":\"restart\",\"to\":\"y\"}}");
  EXPECT_EQ(endOfLog(path)->asked.value("to", std::string()), "y");
  write("{\"step\":1,\"restart\":{\"why\":\"slow\"}}");
  EXPECT_TRUE(endOfLog(path)->asked.is_null());
}

TEST(RunLog, StatusTellsWhoIsLeftOut) {
  const std::string path = temporaryFolder() + "/log.jsonl";
  std::ofstream(path)
      << "{\"step\":9,\"restart\":{\"why\":\"slow devices: 1:9.8\",\"plan\":"
         "\"y\",\"ranks\":3,\"restarts\":0,\"left_out\":[{\"device\":1,"
         "\"host\":\"a\",\"rate\":9.8}]}}\n{\"step\":10,\"seconds\":0.5}\n";
  auto text = statusOf(path);
  ASSERT_TRUE(text.ok()) << text.status().str();
  EXPECT_EQ(*text,
            "step 10, 500.00 ms\n"
            "started again after step 9 with \"y\" on 3 ranks: "
            "slow devices: 1:9.8\n"
            "left out: device 1 on host a, which took 9.80 times as long as it "
            "should");
}

TEST(RunLog, StatusTellsOfCopies) {
  const std::string path = temporaryFolder() + "/log.jsonl";
  std::ofstream(path)
      << "{\"step\":1,\"seconds\":0.5,\"copies\":{\"step\":0,\"skipped\":0,"
         "\"hosts\":[\"a\",\"b\"],\"bytes\":[1500000,2000],"
         "\"folder\":\"/dev/shm/merak-1\"}}\n"
         "{\"step\":12,\"seconds\":0.5,\"copies\":{\"step\":10,\"skipped\":2}}"
         "\n{\"step\":13,\"seconds\":0.25}\n";
  auto text = statusOf(path);
  ASSERT_TRUE(text.ok()) << text.status().str();
  EXPECT_EQ(*text, "step 13, 250.00 ms\n"
                   "copies of step 10 in memory, 2 left out\n"
                   "  a  1.5 MB\n"
                   "  b  0.002 MB\n"
                   "  in \"/dev/shm/merak-1\" of each host, with room for two");
}

TEST(RunLog, LinesForPeopleAndPrograms) {
  StepResult step;
  step.step = 3;
  step.lr = 1e-3;
  step.seconds = 0.5;
  step.memoryBytes = 4096;
  step.outputs = {{"loss", 2.5}, {"grad_norm", 1.25}};
  EXPECT_EQ(progressLine(step, 10, 256, 8),
            "step  3/10 | loss 2.500000 | norm 1.2500 | lr 1.00e-03 | 500.00 "
            "ms | 512 tok/s");
  EXPECT_EQ(logLine(step, 256),
            "{\"step\":3,\"loss\":2.5,\"lr\":0.001,\"grad_norm\":1.25,"
            "\"seconds\":0.5,\"tokens_per_second\":512.0,"
            "\"memory_bytes\":4096}");
  step.skipped = true;
  EXPECT_NE(progressLine(step, 10, 256, 8)
                .find("tok/s | skipped: gradients are not finite"),
            std::string::npos);
  EXPECT_NE(logLine(step, 256).find("\"skipped\":true"), std::string::npos);
  step.overflowed = true;
  step.lossScale = 65536;
  EXPECT_NE(progressLine(step, 10, 256, 8)
                .find(" | lr 1.00e-03 | scale 65536 | 500.00 ms"),
            std::string::npos);
  EXPECT_NE(progressLine(step, 10, 256, 8)
                .find(" | skipped: scaled gradients are not finite"),
            std::string::npos);
  EXPECT_NE(logLine(step, 256).find("\"loss_scale\":65536.0,\"skipped\":true"),
            std::string::npos);
  step.outputs = {{"loss", NAN}};
  EXPECT_NE(logLine(step, 0).find("\"loss\":null"), std::string::npos);
  EXPECT_NE(progressLine(step, 10, 0, 8).find("16 samples/s"),
            std::string::npos);
}

TEST(RunMain, ExitCodes) {
  auto run = [](std::vector<std::string> words) {
    words.insert(words.begin(), "merak-run");
    std::vector<char *> argv;
    for (std::string &word : words)
      argv.push_back(word.data());
    return runMain(int(argv.size()), argv.data(),
                   {{"cpu", TestBackend::factory()}});
  };
  EXPECT_EQ(run({"--help"}), 0);
  EXPECT_EQ(run({}), 2);
  EXPECT_EQ(run({"x.plan", "--nonsense"}), 2);
  EXPECT_EQ(run({"x.plan", "--backend=abacus"}), 2);
  EXPECT_EQ(run({"x.plan", "--steps=0"}), 2);
  EXPECT_EQ(run({"x.plan", "--save-every=2"}), 2);
  EXPECT_EQ(run({"x.plan", "--steps=2", "--save-grads=g.safetensors"}), 2);
  EXPECT_EQ(run({"/nowhere.plan"}), 1);

  const std::string dir = temporaryFolder();
  LoadedPlan plan = pipelinePlan(2, 2, 8);
  plan.file.add_programs("program-0.pb");
  plan.file.add_programs("program-1.pb");
  ASSERT_TRUE(savePlan(dir + "/x.plan", plan.file, plan.programs).ok());
  EXPECT_EQ(run({dir + "/x.plan"}), 1); // no data
  EXPECT_EQ(run({dir + "/x.plan", "--data=synthetic", "--steps=3",
                 "--log=" + dir + "/log.jsonl", "--save=" + dir + "/out",
                 "--save-every=2"}),
            0);
  const std::string log = readFile(dir + "/log.jsonl");
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 3);
  for (int step : {2, 3})
    EXPECT_NE(
        readFile(dir + "/out/step-" + std::to_string(step) + "/index.json")
            .find("\"step\": " + std::to_string(step)),
        std::string::npos);
  const std::string resume = "--load=" + dir + "/out";
  EXPECT_EQ(run({dir + "/x.plan", "--data=synthetic", resume,
                 "--log=" + dir + "/log.jsonl"}),
            0);
  const std::string longer = readFile(dir + "/log.jsonl");
  EXPECT_EQ(longer.substr(0, log.size()), log) << "the log goes on";
  EXPECT_EQ(std::count(longer.begin(), longer.end(), '\n'), 4);
  EXPECT_EQ(run({dir + "/x.plan", "--data=synthetic", resume, "--seed=0"}), 0);
  EXPECT_EQ(run({dir + "/x.plan", "--data=synthetic", resume, "--seed=1"}), 1);
  EXPECT_EQ(run({dir + "/x.plan", "--data=synthetic", resume, "--seed=1",
                 "--force-resume"}),
            0);
  EXPECT_EQ(run({dir + "/x.plan", "--data=synthetic", "--save-wait"}), 2);
  EXPECT_EQ(run({dir + "/x.plan", "--data=synthetic", "--force-resume"}), 2);
  EXPECT_EQ(run({dir + "/x.plan", "--data=synthetic", "--on-nonfinite=maybe"}),
            2);
  EXPECT_EQ(run({dir + "/x.plan", "--data=synthetic", "--on-nonfinite=skip"}),
            1);
  EXPECT_EQ(run({dir + "/x.plan", "--data=synthetic",
                 "--log=" + dir + "/no/log.jsonl"}),
            1);
  EXPECT_EQ(run({dir + "/x.plan", "--data=synthetic", "--load=/nowhere"}), 1);
  const std::string slow = "--links=1us/1GB/s";
  EXPECT_EQ(run({dir + "/x.plan", "--data=synthetic", slow}), 0);
  EXPECT_EQ(run({dir + "/x.plan", "--data=synthetic", "--links=fast"}), 1);
  setenv("MERAK_FAULT", "1:1:fail", 1);
  EXPECT_EQ(run({dir + "/x.plan", "--data=synthetic"}), 1);
  unsetenv("MERAK_FAULT");
}

namespace {

class SmallBackend : public TestBackend {
public:
  using TestBackend::TestBackend;
  Result<uint64_t> freeMemory() override { return 100; }
};

} // namespace

TEST(Session, WhatDoesNotFitIsRefusedWithTheTable) {
  auto session = Session::create(
      pipelinePlan(1, 2, 4),
      [](ThreadPool &pool) -> Result<std::unique_ptr<Backend>> {
        return std::unique_ptr<Backend>(std::make_unique<SmallBackend>(pool));
      },
      {});
  ASSERT_FALSE(session.ok());
  const auto &messages = session.status().messages();
  EXPECT_EQ(messages[0].rfind("ranks 0-1 need ", 0), 0u) << messages[0];
  EXPECT_NE(messages[0].find(" on a device with 100 B free"), std::string::npos)
      << messages[0];
  EXPECT_TRUE(contains(messages, "  program")) << session.status().str();
}
