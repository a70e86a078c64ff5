// What ranks hold and send, on a program that is written by hand.
#include "runtime/report/Account.h"
#include "test/unit/plan/PlanBuilder.h"

#include <gtest/gtest.h>

namespace merak::report {
namespace {

using planpb::Buffer;
using planpb::Instruction;

// One dimension.
layout::Layout of(int64_t size, const std::vector<std::string> &axes) {
  layout::Layout layout;
  layout.dims.emplace_back().factors.push_back({size, axes});
  return layout;
}

// Two replicas. "w" of 64 elements lies in halves, "odd" of 3 whole. Once a
// step w is gathered, in another type; F uses it and writes an activation in
// two slots, B adds to the gradient, U scatters it and writes w.
LoadedPlan replicas() {
  LoadedPlan plan;
  plan.file.set_mode("train");
  plan.file.set_microbatches(2);
  planpb::Axis *axis = plan.file.add_mesh();
  axis->set_name("dp");
  axis->set_size(2);
  for (int r = 0; r < 2; ++r) {
    planpb::Rank *rank = plan.file.add_ranks();
    *rank->add_coords() = *axis;
    rank->mutable_coords(0)->set_size(r);
  }
  for (auto [name, size] : {std::pair("w", 64), std::pair("odd", 3)}) {
    planpb::Tensor *tensor = plan.file.add_tensors();
    tensor->set_name(name);
    tensor->add_shape(size);
    tensor->set_role(planpb::Tensor::PARAMETER);
  }
  plantest::ProgramBuilder builder({"compute"});
  int w = builder.buffer("w", Buffer::PARAMETERS, {32});
  int odd = builder.buffer("odd", Buffer::PARAMETERS, {3});
  int moment = builder.buffer("m", Buffer::OPTIMIZER, {32});
  int gradient = builder.buffer("g", Buffer::GRADIENTS, {64});
  int whole = builder.buffer("whole", Buffer::WORKSPACE, {64}, 1, planpb::BF16);
  int kept = builder.buffer("kept", Buffer::ACTIVATIONS, {16}, 2);
  int narrow =
      builder.buffer("narrow", Buffer::WORKSPACE, {32}, 1, planpb::BF16);
  int inner = builder.buffer("inner", Buffer::WORKSPACE, {16});
  int part = builder.buffer("part", Buffer::GRADIENTS, {32});
  builder.holds(w, "w", of(64, {"dp"}));
  builder.holds(odd, "odd", of(3, {}));
  int dp = builder.group({"dp"});
  int gather = builder.procedure("gather", Action::G);
  builder.library("cast", {w}, {narrow});
  builder.collective(0, Instruction::ALL_GATHER, dp, narrow, whole);
  int forward = builder.procedure("forward", Action::F);
  builder.load("x", inner);
  builder.library("use", {whole, odd, inner}, {inner});
  builder.library("keep", {inner}, {kept});
  int backward = builder.procedure("backward", Action::B);
  builder.library("add", {kept}, {gradient}).set_accumulate(true);
  int update = builder.procedure("update", Action::U);
  builder.collective(0, Instruction::REDUCE_SCATTER, dp, gradient, part);
  builder.library("update", {part, moment}, {w});
  builder.call(gather);
  for (uint32_t m : {0u, 1u})
    builder.call(forward, m, {m});
  for (uint32_t m : {0u, 1u})
    builder.call(backward, m, {m});
  builder.call(update);
  plan.programs.push_back(builder.proto());
  return plan;
}

TEST(Account, SumsByPurpose) {
  const LoadedPlan plan = replicas();
  const std::vector<Account> all = accountsOf(plan, CommunicationMap(plan));
  ASSERT_EQ(all.size(), 1u);
  const Account &account = all[0];
  EXPECT_EQ(account.parameters, 67);
  EXPECT_EQ(account.parameterBytes, 128 + 64); // of 12 bytes, aligned
  EXPECT_EQ(account.gatheredBytes, 128);
  EXPECT_EQ(account.gradientBytes, 256);
  EXPECT_EQ(account.optimizerBytes, 128);
  EXPECT_EQ(account.activationBytes, 128);
  EXPECT_EQ(account.otherBytes, 0);
  EXPECT_EQ(account.gatheredForUse, 0);
  EXPECT_EQ(account.peak.action, "U");
  EXPECT_EQ(account.finalGradientBytes, 0); // it lies behind all others
  EXPECT_EQ(account.peak.gradients, 128);
  EXPECT_EQ(account.parameterBytes + account.gatheredBytes +
                account.gradientBytes + account.optimizerBytes +
                account.activationBytes + account.transientBytes,
            account.arenaBytes);
}

TEST(Account, WhatDoesNotDivideIsNamed) {
  const LoadedPlan plan = replicas();
  const Account account = accountsOf(plan, CommunicationMap(plan))[0];
  ASSERT_EQ(account.stored.size(), 2u);
  EXPECT_TRUE(account.stored[0].axes.empty());
  EXPECT_EQ(account.stored[0].names, std::vector<std::string>{"odd"});
  EXPECT_EQ(account.stored[1].axes, std::vector<std::string>{"dp"});
  EXPECT_EQ(account.stored[1].elements, 64);
  EXPECT_EQ(account.stored[1].held, 32);
  const std::string text = describe({account});
  EXPECT_NE(text.find("ranks 0-1: 67 parameters\n"
                      "  whole on every rank: 1 parameters of 3 elements, 3 "
                      "here: odd\n"
                      "  over dp: 1 parameters of 64 elements, 32 here\n"),
            std::string::npos)
      << text;
}

TEST(Account, ExchangesByAction) {
  const LoadedPlan plan = replicas();
  const Account account = accountsOf(plan, CommunicationMap(plan))[0];
  ASSERT_EQ(account.exchanges.size(), 2u);
  const Exchange &gather = account.exchanges[0],
                 &scatter = account.exchanges[1];
  EXPECT_EQ(gather.action + gather.kind + gather.over, "Gall_gatherdp");
  EXPECT_EQ(gather.message, 128);
  EXPECT_EQ(gather.sent, 64);
  EXPECT_EQ(scatter.action + scatter.kind + scatter.over, "Ureduce_scatterdp");
  EXPECT_EQ(scatter.count, 1);
  EXPECT_EQ(scatter.message, 256);
  EXPECT_EQ(scatter.sent, 128);
}

} // namespace
} // namespace merak::report
