// Predicted times against hand-computed ones and against the closed formulas of
// pipeline schedules.
#include "runtime/report/Simulate.h"
#include "runtime/plan/Verify.h"
#include "test/unit/plan/PlanBuilder.h"
#include "test/unit/report/MachineCosts.h"

#include <gtest/gtest.h>

namespace merak::report {
namespace {

using planpb::Buffer;
using planpb::Instruction;

// A pipeline whose forward takes 1 s and backward 2 s, transfers nothing.
// `oneForwardOneBackward` false: all forwards first (GPipe).
LoadedPlan pipeline(int stages, int microbatches, bool oneForwardOneBackward) {
  LoadedPlan plan;
  plan.file.set_mode("infer"); // nothing is updated
  plan.file.set_microbatches(microbatches);
  planpb::Axis *axis = plan.file.add_mesh();
  axis->set_name("pp");
  axis->set_size(stages);
  for (int s = 0; s < stages; ++s) {
    planpb::Rank *rank = plan.file.add_ranks();
    rank->set_program(s);
    *rank->add_coords() = *axis;
    rank->mutable_coords(0)->set_size(s);
    plantest::ProgramBuilder builder(
        {"compute", "in", "out", "grad in", "grad out"});
    uint32_t m = microbatches;
    int x = builder.buffer("x", Buffer::ACTIVATIONS, {4}, m);
    int y = builder.buffer("y", Buffer::ACTIVATIONS, {4}, m);
    int dy = builder.buffer("dy", Buffer::ACTIVATIONS, {4}, m);
    int dx = builder.buffer("dx", Buffer::ACTIVATIONS, {4}, m);
    std::string in = "act" + std::to_string(s - 1);
    std::string out = "act" + std::to_string(s);
    std::string gradIn = "grad" + std::to_string(s);
    std::string gradOut = "grad" + std::to_string(s - 1);

    int forward = builder.procedure("forward", Action::F);
    if (s > 0) {
      builder.recv(1, in, x, "pp", s - 1);
      builder.order(1, 0);
      builder.library("f", {x}, {y}).set_flops(1);
    } else {
      builder.library("f", {}, {y}).set_flops(1);
    }
    if (s + 1 < stages) {
      builder.order(0, 2);
      builder.send(2, out, y, "pp", s + 1);
    }
    int backward = builder.procedure("backward", Action::B);
    if (s + 1 < stages) {
      builder.recv(3, gradIn, dy, "pp", s + 1);
      builder.order(3, 0);
      builder.library("b", {dy}, {dx}).set_flops(2);
    } else {
      builder.library("b", {y}, {dx}).set_flops(2);
    }
    if (s > 0) {
      builder.order(0, 4);
      builder.send(4, gradOut, dx, "pp", s - 1);
    }
    uint32_t warm = oneForwardOneBackward ? std::min(microbatches, stages - s)
                                          : microbatches;
    uint32_t next = 0, back = 0;
    for (; next < warm; ++next)
      builder.call(forward, next, {next});
    while (back < m) {
      builder.call(backward, back, {back});
      ++back;
      if (next < m) {
        builder.call(forward, next, {next});
        ++next;
      }
    }
    builder.proto().set_index(s);
    plan.programs.push_back(builder.proto());
  }
  return plan;
}

// One operation a second, everything else free.
constexpr double kFree = 1e30;
MachineCosts unit() { return {1, kFree, 0, 0, kFree}; }

TEST(Simulate, PipelinesTakeTheTimeOfTheFormula) {
  for (int p : {1, 2, 4}) {
    for (int m : {1, 4, 8}) {
      for (bool alternate : {false, true}) {
        LoadedPlan plan = pipeline(p, m, alternate);
        ASSERT_EQ(verifyPlan(plan).str(), "");
        Result<Simulation> got = simulate(plan, unit());
        ASSERT_TRUE(got.ok()) << got.status().str();
        // (m + p - 1)(F + B), for both schedules.
        EXPECT_NEAR(got->stepSeconds, (m + p - 1) * 3.0, 1e-6);
        ASSERT_EQ(got->use.size(), static_cast<size_t>(p));
        for (const RowUse &use : got->use) {
          EXPECT_NEAR(use.busy, 3.0 * m, 1e-6);
          EXPECT_NEAR(use.bubble, 3.0 * (p - 1), 1e-6);
        }
      }
    }
  }
}

TEST(Simulate, DrawsTheSchedule) {
  Result<Simulation> got = simulate(pipeline(2, 4, true), unit());
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(drawText(got->timeline, 30),
            "plan · no schedule · predicted step, 15.000 s\n"
            "stage 0, rank 0 |F0F1....B0==F2B1==F3B2==..B3==| "
            "busy  80.0%  exposed   0.0%  bubble  20.0%\n"
            "stage 1, rank 1 |..F0B0==F1B1==F2B2==F3B3==....| "
            "busy  80.0%  exposed   0.0%  bubble  20.0%\n");
}

// 10 s of computation beside an all-reduce of 4 s.
LoadedPlan computingBesideReducing() {
  LoadedPlan plan;
  plan.file.set_mode("infer");
  planpb::Axis *axis = plan.file.add_mesh();
  axis->set_name("dp");
  axis->set_size(2);
  plantest::ProgramBuilder builder({"compute", "comm"});
  int x = builder.buffer("x", Buffer::ACTIVATIONS, {4});
  int y = builder.buffer("y", Buffer::ACTIVATIONS, {4});
  int group = builder.group({"dp"});
  int step = builder.procedure("step", Action::F);
  builder.library("f", {}, {y}).set_flops(10);
  builder.collective(1, Instruction::ALL_REDUCE, group, x, x);
  builder.call(step);
  plan.programs.push_back(builder.proto());
  for (int r = 0; r < 2; ++r) {
    planpb::Rank *rank = plan.file.add_ranks();
    rank->set_program(0);
    *rank->add_coords() = *axis;
    rank->mutable_coords(0)->set_size(r);
  }
  return plan;
}

struct SlowCosts : MachineCosts {
  // An all-reduce of two ranks: two rounds, and 16 bytes at 8 a second.
  SlowCosts() : MachineCosts(1, kFree, 0, 1, 8) {}
  double compute = 1, communication = 1, work = 1;
  double computeSlowdown() const override { return compute; }
  double communicationSlowdown() const override { return communication; }
  double workSeconds(const planpb::Program &, const planpb::Instruction &,
                     double seconds) const override {
    return work * seconds;
  }
};

TEST(Simulate, ComputingAndCommunicatingSlowEachOther) {
  const LoadedPlan plan = computingBesideReducing();
  SlowCosts costs;
  auto seconds = [&] {
    Result<Simulation> got = simulate(plan, costs);
    EXPECT_TRUE(got.ok()) << got.status().str();
    return got->stepSeconds;
  };
  EXPECT_NEAR(seconds(), 10, 1e-9);
  // Disturbed for 6 s, of which the reduction needs 4; 4 s of the computation
  // are done meanwhile, 6 are left.
  costs.compute = costs.communication = 1.5;
  EXPECT_NEAR(seconds(), 12, 0.01);
  // The reduction is no slower: after its 4 s 8 are left.
  costs.communication = 1;
  costs.compute = 2;
  EXPECT_NEAR(seconds(), 12, 0.01);
  // It keeps its ranks at work for half of its time.
  costs.work = 0.5;
  EXPECT_NEAR(seconds(), 11, 0.01);
  // A link that is slower than the work hides that the work is slower.
  costs.compute = 1;
  costs.communication = 2;
  EXPECT_NEAR(seconds(), 10, 1e-9);
}

TEST(Simulate, TransfersAndCollectivesCost) {
  // Compute is free: only latency (1 s a round) and bytes (1 a second) count.
  MachineCosts costs{kFree, kFree, 0, 1, 64};
  LoadedPlan plan = plantest::replicatedPlan(4);
  ASSERT_EQ(verifyPlan(plan).str(), "");
  Result<Simulation> got = simulate(plan, costs);
  ASSERT_TRUE(got.ok());
  // Two activations over one channel take 2 x (1 + 64/64) s, so stage 1 is
  // through after 4 s. Its link carries gradients until 6 s, then it reduces
  // its own (ring over 4 replicas, 256 bytes: 6 rounds + 384/64 = 12 s) and the
  // loss (4 bytes: 6 + 6/64 s). Stage 0 has its second gradient after 6 s,
  // reduces for 12 s and waits for the norm over both stages (2 rounds +
  // 4/64 s).
  double stage1 = 6 + 12 + 6 + 6.0 / 64, norm = 2 + 4 / 64.0;
  EXPECT_NEAR(got->stepSeconds, stage1 + norm, 1e-9);
  EXPECT_EQ(
      got->timeline.rows,
      (std::vector<std::string>{"stage 0, ranks 0-3", "stage 1, ranks 4-7"}));
  EXPECT_NEAR(got->use[0].exposed, 6 + 12 + norm, 1e-9);
  EXPECT_NEAR(got->use[0].bubble, stage1 - 18, 1e-9);
  EXPECT_NEAR(got->use[1].bubble, 0, 1e-9);
}

// Two messages of one second from rank 0 at once: to one or to two receivers
// they share the link out of rank 0; in opposite directions they do not.
TEST(Simulate, MessagesShareALink) {
  struct Message {
    int from, to;
    double computed; // seconds before it is sent
  };
  auto seconds = [](const std::vector<Message> &messages) {
    LoadedPlan plan;
    plan.file.set_mode("infer");
    planpb::Axis *axis = plan.file.add_mesh();
    axis->set_name("pp");
    axis->set_size(3);
    for (int r = 0; r < 3; ++r) {
      planpb::Rank *rank = plan.file.add_ranks();
      rank->set_program(r);
      *rank->add_coords() = *axis;
      rank->mutable_coords(0)->set_size(r);
      plantest::ProgramBuilder builder({"s0", "s1", "s2"});
      builder.procedure("all", Action::F);
      for (int i = 0; i < int(messages.size()); ++i) {
        const Message &message = messages[size_t(i)];
        if (message.from != r && message.to != r)
          continue;
        const std::string name = "m" + std::to_string(i);
        int x = builder.buffer(name, Buffer::ACTIVATIONS, {16}); // 64 bytes
        uint32_t stream = uint32_t(i + 1);
        if (message.from == r) {
          planpb::Instruction &work = builder.library("work", {}, {x});
          work.set_flops(message.computed);
          work.set_stream(stream);
          builder.send(stream, name, x, "pp", message.to);
        } else {
          builder.recv(stream, name, x, "pp", message.from);
        }
      }
      builder.call(0);
      builder.proto().set_index(uint32_t(r));
      plan.programs.push_back(builder.proto());
    }
    Result<Simulation> got = simulate(plan, MachineCosts{1, kFree, 0, 0, 64});
    EXPECT_TRUE(got.ok()) << got.status().str();
    return got.ok() ? got->stepSeconds : -1;
  };
  EXPECT_DOUBLE_EQ(seconds({{0, 1, 0}}), 1);
  EXPECT_DOUBLE_EQ(seconds({{0, 1, 0}, {0, 1, 0}}), 2);
  EXPECT_DOUBLE_EQ(seconds({{0, 1, 0}, {0, 2, 0}}), 2);
  EXPECT_DOUBLE_EQ(seconds({{0, 2, 0}, {1, 2, 0}}), 2);
  EXPECT_DOUBLE_EQ(seconds({{0, 1, 0}, {1, 0, 0}}), 1);
  EXPECT_DOUBLE_EQ(seconds({{0, 1, 0}, {1, 2, 0}}), 1);
  // Who is ready first goes first, whatever the order of the programs.
  EXPECT_DOUBLE_EQ(seconds({{0, 1, 1.5}, {0, 2, 0}}), 2.5);
  EXPECT_DOUBLE_EQ(seconds({{0, 1, 0}, {0, 2, 0.25}}), 2);
}

TEST(Simulate, DetailedShowsInstructions) {
  Result<Simulation> merged = simulate(pipeline(2, 2, true), unit());
  Result<Simulation> detailed =
      simulate(plantest::samplePlan(), MachineCosts::cpu(), true);
  ASSERT_TRUE(merged.ok() && detailed.ok());
  int einsums = 0;
  for (const Span &span : detailed->timeline.spans)
    einsums += span.name.rfind("einsum", 0) == 0;
  EXPECT_EQ(einsums, 2 * 2 + 2 * 3);
}

TEST(Simulate, StuckPlansAreErrors) {
  LoadedPlan plan = pipeline(2, 2, true);
  // Stage 0 asks for its first gradient before it has sent anything, and on
  // the stream that would send.
  google::protobuf::RepeatedPtrField<planpb::Call> &calls =
      *plan.programs[0].mutable_calls(); // F0 F1 B0 B1
  calls.SwapElements(0, 2);              // B0 F1 F0 B1
  calls.SwapElements(1, 2);              // B0 F0 F1 B1
  for (planpb::Procedure &procedure : *plan.programs[0].mutable_procedures())
    for (planpb::Instruction &instruction : *procedure.mutable_instructions())
      instruction.set_stream(0);
  Result<Simulation> got = simulate(plan, unit());
  EXPECT_FALSE(got.ok());
  EXPECT_EQ(got.status().str().rfind("deadlock: ", 0), 0u);
}

} // namespace
} // namespace merak::report
