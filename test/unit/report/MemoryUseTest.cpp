// Memory over a simulated step, against lives that are plain to see.
#include "runtime/plan/Verify.h"
#include "runtime/report/Simulate.h"
#include "test/unit/plan/PlanBuilder.h"
#include "test/unit/report/MachineCosts.h"

#include <gtest/gtest.h>

namespace merak::report {
namespace {

using planpb::Buffer;

// One rank, operations of one second. "a" and "b" have 64 bytes, the rest 256.
LoadedPlan chain() {
  LoadedPlan plan;
  plan.file.set_mode("infer");
  plan.file.set_microbatches(2);
  plan.file.add_ranks()->set_program(0);
  plantest::ProgramBuilder builder({"compute"});
  int w = builder.buffer("w", Buffer::PARAMETERS, {64});
  int x = builder.buffer("x", Buffer::ACTIVATIONS, {64}, 2);
  int a = builder.buffer("a", Buffer::WORKSPACE, {16});
  int b = builder.buffer("b", Buffer::WORKSPACE, {16});
  int sum = builder.buffer("sum", Buffer::GRADIENTS, {64});
  int forward = builder.procedure("forward", Action::F);
  builder.library("first", {w}, {a}).set_flops(1);
  builder.library("second", {a}, {b}).set_flops(1);
  planpb::Instruction &third = builder.library("third", {b}, {x});
  third.set_flops(1);
  third.set_name("/h.0/Gelu");
  int backward = builder.procedure("backward", Action::B);
  planpb::Instruction &add = builder.library("add", {x}, {sum});
  add.set_flops(1);
  add.set_accumulate(true);
  builder.call(forward, 0, {0});
  builder.call(forward, 1, {1});
  builder.call(backward, 0, {0});
  builder.call(backward, 1, {1});
  plan.programs.push_back(builder.proto());
  return plan;
}

const MachineCosts kUnit{1, 1e30, 0, 0, 1e30};

TEST(MemoryUse, LivesOfParametersSlotsAndTransients) {
  Result<Simulation> got = simulate(chain(), kUnit);
  ASSERT_TRUE(got.ok()) << got.status().str();
  ASSERT_EQ(got->memory.size(), 1u);
  const MemoryUse &use = got->memory[0];
  auto at = [&](double time, Buffer::Category category) {
    double bytes = -1;
    for (const MemoryUse::Point &point : use.points)
      if (point.time <= time)
        bytes = point.bytes[category];
    return bytes;
  };
  for (double time : {0.5, 3.5, 7.5}) {
    EXPECT_EQ(at(time, Buffer::PARAMETERS), 256);
    // Added to before it is written: it comes from the step before.
    EXPECT_EQ(at(time, Buffer::GRADIENTS), 256);
  }
  // a; a and b; b and then nothing, twice.
  EXPECT_EQ(at(0.5, Buffer::WORKSPACE), 64);
  EXPECT_EQ(at(1.5, Buffer::WORKSPACE), 128);
  EXPECT_EQ(at(2.5, Buffer::WORKSPACE), 64);
  EXPECT_EQ(at(4.5, Buffer::WORKSPACE), 128);
  EXPECT_EQ(at(6.5, Buffer::WORKSPACE), 0);
  // The slots fill at 2 and 5 and are free at 7 and 8.
  EXPECT_EQ(at(1.5, Buffer::ACTIVATIONS), 0);
  EXPECT_EQ(at(2.5, Buffer::ACTIVATIONS), 256);
  EXPECT_EQ(at(5.5, Buffer::ACTIVATIONS), 512);
  EXPECT_EQ(at(7.5, Buffer::ACTIVATIONS), 256);
  EXPECT_EQ(use.peak.time, 5);
  EXPECT_EQ(use.peak.total(), 256 + 256 + 512 + 64);
  ASSERT_EQ(use.atPeak.size(), 4u); // a is dead
  EXPECT_EQ(use.atPeak[0].name, "x");
  EXPECT_EQ(use.atPeak[0].origin, "/h.0/Gelu");
  EXPECT_EQ(use.atPeak[0].copies, 2);
  EXPECT_EQ(use.atPeak[0].bytes, 512);
}

// What lives at one moment fits into the arena, since no two of them overlap
// there; and the curve adds up.
TEST(MemoryUse, NeverAboveTheArena) {
  for (const LoadedPlan &plan :
       {plantest::samplePlan(), plantest::replicatedPlan(2), chain()}) {
    Result<Simulation> got = simulate(plan, MachineCosts::cpu());
    ASSERT_TRUE(got.ok());
    for (const MemoryUse &use : got->memory) {
      EXPECT_GT(use.peak.total(), 0);
      double largest = 0, previous = -1;
      for (const MemoryUse::Point &point : use.points) {
        EXPECT_LE(point.total(), use.arenaBytes);
        EXPECT_GT(point.time, previous);
        for (double bytes : point.bytes)
          EXPECT_GE(bytes, 0);
        previous = point.time;
        largest = std::max(largest, point.total());
      }
      EXPECT_EQ(largest, use.peak.total());
      double listed = 0;
      for (const MemoryUse::Tensor &tensor : use.atPeak)
        listed += tensor.bytes;
      EXPECT_EQ(listed, use.peak.total());
    }
  }
}

} // namespace
} // namespace merak::report
