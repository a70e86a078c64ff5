// Steps of plans built by hand on one, two and four ranks.
#include "runtime/data/Npy.h"
#include "test/unit/core/TestPlan.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fmt/format.h>

#include <unistd.h>

using namespace merak;
using namespace merak::runtime;
using namespace merak::runtime::test;

namespace {

// Samples 0, 1, 2, ... of x: row s is {s, 2s, 1, -s}.
std::string writeSamples(int64_t count) {
  const std::string dir = temporaryFolder();
  std::vector<float> rows;
  for (int64_t s = 0; s < count; ++s)
    for (float value : {float(s), 2.0f * float(s), 1.0f, -float(s)})
      rows.push_back(value);
  EXPECT_TRUE(
      writeNpy(dir + "/x.npy", planpb::F32, {count, 4}, rows.data()).ok());
  return dir;
}

std::unique_ptr<Session> start(LoadedPlan plan, const std::string &data,
                               SessionOptions options = {}) {
  auto session =
      Session::create(std::move(plan), TestBackend::factory(), options);
  EXPECT_TRUE(session.ok()) << session.status().str();
  if (!session.ok())
    return nullptr;
  if (!data.empty()) {
    auto source = openData((*session)->plan().file, {data});
    EXPECT_TRUE(source.ok()) << source.status().str();
    (*session)->setData(std::move(*source));
  }
  const Status loaded = (*session)->loadWeights("");
  EXPECT_TRUE(loaded.ok()) << loaded.str();
  return std::move(*session);
}

// The loss of three steps: w[0] = 8 before, then minus lr times the sum of the
// samples' first column.
void expectLosses(LoadedPlan plan, double factor) {
  writeWeights(plan, "w", {8, 7, 6, 5});
  auto session = start(std::move(plan), writeSamples(20));
  ASSERT_NE(session, nullptr);
  double w = 8;
  for (int64_t step = 0; step < 3; ++step) {
    auto result = session->step();
    ASSERT_TRUE(result.ok()) << result.status().str();
    EXPECT_EQ(result->step, step + 1);
    EXPECT_EQ(result->lr, 0.5);
    EXPECT_EQ(result->outputs.at("loss"), w) << "step " << step;
    for (int64_t s = 8 * step; s < 8 * step + 8; ++s)
      w -= 0.5 * factor * double(s % 20); // the file wraps around
  }
}

} // namespace

TEST(Executor, OneRank) { expectLosses(dataParallelPlan(1, 1, 8), 1); }
TEST(Executor, Microbatches) { expectLosses(dataParallelPlan(1, 4, 8), 1); }
TEST(Executor, TwoReplicas) { expectLosses(dataParallelPlan(2, 2, 8), 1); }
TEST(Executor, FourReplicas) { expectLosses(dataParallelPlan(4, 2, 8), 1); }
TEST(Executor, TwoStages) { expectLosses(pipelinePlan(1, 8, 8), 2); }
TEST(Executor, TwoStagesTwoReplicas) { expectLosses(pipelinePlan(2, 4, 8), 2); }

// What a device may do together is what follows on a stream with nothing
// between, unless calls are looked at one by one.
TEST(Executor, SaysWhichCallsFollow) {
  static std::string log;
  class Watched : public TestBackend {
    using TestBackend::TestBackend;
    Status runLibrary(const KernelCall &call) override {
      log += call.instruction->op() + (call.followed ? " + " : "; ");
      return TestBackend::runLibrary(call);
    }
  };
  for (bool traced : {false, true}) {
    LoadedPlan plan = dataParallelPlan(1, 2, 8);
    // More of the prologue: another sum that is cleared.
    planpb::Procedure &prologue = *plan.programs[0].mutable_procedures(0);
    for (int more = 0; more < 2; ++more)
      *prologue.add_instructions() = prologue.instructions(0);
    SessionOptions options;
    options.trace = traced;
    log.clear();
    auto session = Session::create(
        std::move(plan),
        [](ThreadPool &pool) -> Result<std::unique_ptr<Backend>> {
          return std::unique_ptr<Backend>(std::make_unique<Watched>(pool));
        },
        options);
    ASSERT_TRUE(session.ok()) << session.status().str();
    auto source = openData((*session)->plan().file, {writeSamples(8)});
    ASSERT_TRUE(source.ok());
    (*session)->setData(std::move(*source));
    ASSERT_TRUE((*session)->loadWeights("").ok());
    ASSERT_TRUE((*session)->step().ok());
    EXPECT_EQ(log, traced ? "fill; fill; fill; row_sum; row_sum; scale; sgd; "
                          : "fill + fill + fill; row_sum; row_sum; scale; "
                            "sgd; ");
  }
}

// Many steps with little work: orders and slots must hold under any timing.
TEST(Executor, ManySteps) {
  LoadedPlan plan = pipelinePlan(2, 4, 8);
  plan.file.mutable_optimizer()->set_lr(1);
  auto session = start(std::move(plan), writeSamples(8));
  for (int step = 0; step < 500; ++step) {
    auto result = session->step();
    ASSERT_TRUE(result.ok()) << result.status().str();
    ASSERT_EQ(result->outputs.at("loss"), -56.0 * step);
  }
}

// In one call stream 1 records event 0, in the next call stream 0 does. Stream
// 1 may run far ahead, so that the records come in any order.
TEST(Executor, EventsBelongToTheirCall) {
  LoadedPlan plan;
  plan.file.set_mode("train");
  plan.file.set_microbatches(1);
  plan.file.add_ranks();
  plan.programs.resize(1);
  ProgramBuilder builder(plan.programs[0]);
  builder.program().add_streams();
  builder.program().add_streams();
  builder.program().set_events(1);
  const uint32_t a = builder.buffer("a", planpb::F32, {1});
  const uint32_t from1 = builder.procedure("from1");
  builder.record(0, 1);
  builder.wait(0, 0);
  setScalar(builder.add(Instruction::LIBRARY, "fill", {}, {a}), 1);
  const uint32_t from0 = builder.procedure("from0");
  builder.record(0, 0);
  for (int i = 0; i < 20; ++i)
    builder.call(from1);
  for (int i = 0; i < 20; ++i) {
    builder.call(from0);
    builder.call(from1);
  }
  auto session = start(std::move(plan), "");
  ASSERT_NE(session, nullptr);
  for (int step = 0; step < 200; ++step)
    ASSERT_TRUE(session->step().ok());
}

TEST(Executor, AnEventIsRecordedOnceInAProcedure) {
  LoadedPlan plan = dataParallelPlan(1, 1, 8);
  plan.programs[0].mutable_procedures(2)->mutable_instructions(3)->set_event(0);
  auto session = Session::create(std::move(plan), TestBackend::factory(), {});
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.status().str(),
            "rank 0: update: event 0 is recorded 2 times\n"
            "rank 0: update: event 1 is recorded 0 times");
}

TEST(Executor, CallWaitsHoldSlotsBack) {
  LoadedPlan plan = pipelinePlan(1, 8, 8);
  for (planpb::Call &call : *plan.programs[1].mutable_calls())
    if (call.waits_size() > 0)
      call.mutable_waits(0)->set_call(99); // not an earlier call
  auto session = Session::create(std::move(plan), TestBackend::factory(), {});
  ASSERT_FALSE(session.ok());
  EXPECT_NE(session.status().str().find("waits for stream 0 call 99"),
            std::string::npos);
}

TEST(Executor, OperandsOutsideTheirBufferAreRefused) {
  LoadedPlan plan = dataParallelPlan(1, 1, 8);
  plan.programs[0]
      .mutable_procedures(1)
      ->mutable_instructions(1)
      ->mutable_inputs(0)
      ->set_offset(1);
  auto session = Session::create(std::move(plan), TestBackend::factory(), {});
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.status().str(),
            "rank 0: forward · instr 1 library \"row_sum\": operand 0 reaches "
            "elements 1..32 of buffer \"x\" (128 bytes)");
}

// Two replicas reduce two buffers as one array, padding included.
TEST(Executor, JoinedOperandsAreOneArray) {
  LoadedPlan plan = dataParallelPlan(2, 1, 8);
  ProgramBuilder builder(plan.programs[0]);
  const uint32_t a = builder.buffer("a", planpb::F32, {1});
  const uint32_t b = builder.buffer("b", planpb::F32, {1});
  const uint32_t more = builder.procedure("more");
  setScalar(builder.add(Instruction::LIBRARY, "fill", {}, {a}), 1.5);
  setScalar(builder.add(Instruction::LIBRARY, "fill", {}, {b}), 2);
  Instruction &reduce =
      builder.add(Instruction::COLLECTIVE, "", {a, b}, {a, b});
  reduce.set_collective(Instruction::ALL_REDUCE);
  reduce.set_reduction(Instruction::SUM);
  (*reduce.mutable_attrs())["joined"] = "1";
  builder.call(more, -1, {0});
  for (uint32_t buffer : {a, b}) {
    planpb::Output &output = *builder.program().add_outputs();
    output.set_name(builder.at(buffer).name());
    output.set_buffer(buffer);
  }
  LoadedPlan apart = plan;
  apart.programs[0].mutable_buffers(int(b))->set_offset(0);
  writeWeights(plan, "w", {8, 7, 6, 5});
  auto session = start(std::move(plan), writeSamples(20));
  ASSERT_NE(session, nullptr);
  auto result = session->step();
  ASSERT_TRUE(result.ok()) << result.status().str();
  EXPECT_EQ(result->outputs.at("a"), 3);
  EXPECT_EQ(result->outputs.at("b"), 4);

  auto refused = Session::create(std::move(apart), TestBackend::factory(), {});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().str().find(
                "cannot join its operands: \"b\" begins at byte 0"),
            std::string::npos)
      << refused.status().str();
}

TEST(Executor, UnknownKernelsAreAllListed) {
  LoadedPlan plan = dataParallelPlan(1, 1, 8);
  auto &procedures = *plan.programs[0].mutable_procedures();
  procedures[0].mutable_instructions(0)->set_op("melt");
  procedures[1].mutable_instructions(1)->set_op("freeze");
  auto session = Session::create(std::move(plan), TestBackend::factory(), {});
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.status().str(),
            "rank 0: prologue · instr 0 library \"melt\": no library kernel "
            "\"melt\"\n"
            "rank 0: forward · instr 1 library \"freeze\": no library kernel "
            "\"freeze\"");
}

TEST(Executor, CheckNumericsNamesTheFirstValue) {
  LoadedPlan plan = dataParallelPlan(2, 2, 8);
  auto &divide =
      *plan.programs[0].mutable_procedures(2)->mutable_instructions(4);
  ASSERT_EQ(divide.op(), "scale"); // loss = 1 * w becomes loss = w / w
  divide.set_op("divide");
  *divide.add_inputs() = divide.inputs(0);
  divide.mutable_inputs(0)->set_shape(0, 1);
  divide.mutable_inputs(1)->set_shape(0, 1);
  const std::string data = writeSamples(8);
  {
    auto session = start(plan, data); // w is 0: the loss is nan
    auto result = session->step();
    ASSERT_TRUE(result.ok());
    EXPECT_TRUE(std::isnan(result->outputs.at("loss")));
  }
  SessionOptions options;
  options.checkNumerics = true;
  auto session = start(plan, data, options);
  auto result = session->step();
  ASSERT_FALSE(result.ok());
  const std::string message = result.status().messages().front();
  EXPECT_EQ(message.substr(message.find("step")),
            "step 1 · update · instr 4 divide: wrote nan to \"loss\"[0]");
}

TEST(Executor, TraceIsJsonWithATrackForEachStream) {
  SessionOptions options;
  options.trace = true;
  auto session = start(pipelinePlan(2, 4, 8), writeSamples(8), options);
  const std::string path = temporaryFolder() + "/trace.json";
  ASSERT_TRUE(session->openTrace(path).ok());
  ASSERT_TRUE(session->step().ok());
  // Whole already: the run may be killed now.
  const auto json = nlohmann::json::parse(readFile(path), nullptr, false);
  ASSERT_TRUE(json.is_object());
  std::map<std::pair<int, int>, int> events;
  std::map<std::pair<int, int>, std::string> names;
  for (const auto &event : json["traceEvents"]) {
    const std::pair<int, int> track = {event["pid"], event["tid"]};
    if (event["ph"] == "X") {
      ++events[track];
      EXPECT_GE(event["dur"].get<double>(), 0);
      EXPECT_EQ(event["args"]["step"], 1);
    } else if (event["name"] == "thread_name") {
      names[track] = event["args"]["name"];
    }
  }
  // Stage 0: 4 calls of (load, scale, record) and (wait, send).
  EXPECT_EQ((events[{0, 0}]), 12);
  EXPECT_EQ((events[{1, 1}]), 8);
  EXPECT_EQ((names[{0, 1}]), "send");
  EXPECT_EQ((names[{3, 2}]), "recv");
  EXPECT_EQ(names.size(), 2u * 2 + 2u * 3);
}

TEST(Executor, ATraceGrowsStepByStepAndStaysWhole) {
  SessionOptions options;
  options.trace = true;
  auto session = start(pipelinePlan(2, 4, 8), writeSamples(8), options);
  const std::string path = temporaryFolder() + "/steps.json";
  ASSERT_TRUE(session->openTrace(path).ok());
  std::map<int, int> events; // by step
  for (int step = 0; step <= 5; ++step) {
    events.clear();
    if (step) {
      ASSERT_TRUE(session->step().ok());
    }
    const auto json = nlohmann::json::parse(readFile(path), nullptr, false);
    ASSERT_TRUE(json.is_object()) << step;
    for (const auto &event : json["traceEvents"])
      if (event["ph"] == "X") {
        ++events[event["args"]["step"]];
        EXPECT_GE(event["ts"].get<double>(), 0);
      }
    EXPECT_EQ(int(events.size()), step);
  }
  for (const auto &[step, count] : events)
    EXPECT_EQ(count, events.at(1)) << step;
  EXPECT_TRUE(session->closeTrace().ok());
}

TEST(Executor, ATraceThatCannotBeWrittenIsToldAtTheEnd) {
  SessionOptions options;
  options.trace = true;
  auto session = start(pipelinePlan(2, 4, 8), writeSamples(8), options);
  EXPECT_EQ(session->openTrace("/no/such/folder/trace.json").str(),
            "cannot write \"/no/such/folder/trace.json\": No such file or "
            "directory");
  if (access("/dev/full", W_OK))
    return;
  const Status opened = session->openTrace("/dev/full");
  EXPECT_EQ(opened.str(),
            "cannot write \"/dev/full\": No space left on device");
}
