// How long operands were not touched, against an arena gone through byte by
// byte.
#include "passes/CostModel/Reuse.h"
#include "test/unit/plan/PlanBuilder.h"

#include <gtest/gtest.h>
#include <numeric>
#include <random>
#include <set>

namespace merak::costmodel {
namespace {

using planpb::Buffer;

TEST(Reuse, SharesAreInterpolatedInLogarithms) {
  const std::vector<double> distances{1024, 4096, 65536};
  using Shares = std::vector<double>;
  EXPECT_EQ(distanceShares(distances, 0), (Shares{1, 0, 0}));
  EXPECT_EQ(distanceShares(distances, 1024), (Shares{1, 0, 0}));
  EXPECT_EQ(distanceShares(distances, 2048), (Shares{0.5, 0.5, 0}));
  EXPECT_EQ(distanceShares(distances, 8192), (Shares{0, 0.75, 0.25}));
  EXPECT_EQ(distanceShares(distances, 1e9), (Shares{0, 0, 1}));
  EXPECT_TRUE(distanceShares({}, 5).empty());
}

// b reads what a wrote just before; between b and the next a lies c's megabyte.
TEST(Reuse, WhatWasJustWrittenIsNear) {
  plantest::ProgramBuilder builder({"compute"});
  int x = builder.buffer("x", Buffer::ACTIVATIONS, {4096});
  int y = builder.buffer("y", Buffer::ACTIVATIONS, {4096});
  int large = builder.buffer("large", Buffer::ACTIVATIONS, {262144});
  int step = builder.procedure("step", Action::F);
  builder.library("a", {}, {x});
  builder.library("b", {x}, {y});
  builder.library("c", {}, {large});
  builder.call(step);
  const planpb::Program &program = builder.proto();
  Reuse reuse(program, {65536, 524288});
  auto shares = [&](int i) {
    return reuse.shares(program.procedures(0).instructions(i));
  };
  EXPECT_EQ(shares(0), (std::vector<double>{0, 1})); // behind c's megabyte
  // x is near, y is not.
  EXPECT_EQ(shares(1), (std::vector<double>{0.5, 0.5}));
  // Between two uses of a byte of c's megabyte lies the rest of it.
  EXPECT_EQ(shares(2), (std::vector<double>{0, 1}));
  EXPECT_TRUE(
      Reuse(program, {}).shares(program.procedures(0).instructions(0)).empty());
}

// Random programs: shares are a distribution, and a program that touches one
// small buffer again and again stays near whatever else is in the arena.
TEST(Reuse, SharesAddUpToOne) {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    plantest::ProgramBuilder builder({"compute"});
    std::vector<int> buffers;
    for (int i = 0; i < 8; ++i)
      buffers.push_back(
          builder.buffer("b" + std::to_string(i), Buffer::ACTIVATIONS,
                         {int64_t(1024) << random() % 8}, 1 + random() % 3));
    for (int p = 0; p < 2; ++p) {
      builder.procedure("p" + std::to_string(p), Action::F);
      for (int i = 0; i < 10; ++i)
        builder.library("op", {buffers[random() % 8]}, {buffers[random() % 8]});
    }
    for (int c = 0; c < 6; ++c)
      builder.call(int(random() % 2), c);
    for (planpb::Buffer &buffer : *builder.proto().mutable_buffers())
      if (buffer.slot_class() >= 0)
        buffer.set_slot_class(-1);
    const planpb::Program &program = builder.proto();
    Reuse reuse(program, {8192, 65536, 1 << 20});
    std::set<int> called;
    for (const planpb::Call &call : program.calls())
      called.insert(int(call.procedure()));
    for (int p : called)
      for (const planpb::Instruction &inst :
           program.procedures(p).instructions()) {
        std::vector<double> shares = reuse.shares(inst);
        ASSERT_EQ(shares.size(), 3u);
        EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1,
                    1e-9);
      }
  }
}

} // namespace
} // namespace merak::costmodel
