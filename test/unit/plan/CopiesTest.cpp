// Copies of parameters in 16 bits that outlive a step.
#include "runtime/plan/Copies.h"
#include "runtime/plan/Entries.h"
#include "runtime/plan/Verify.h"
#include "test/unit/plan/PlanBuilder.h"

#include <gtest/gtest.h>

namespace merak {
namespace {

using planpb::BF16;
using planpb::Buffer;
using planpb::Instruction;
using plantest::ProgramBuilder;

// A matrix that the forward pass reads in bf16.
struct Copying {
  ProgramBuilder program{{"compute"}};
  int w, copy, x, y, gradient;
  int forward, update, begin;

  Copying() {
    w = program.buffer("w", Buffer::PARAMETERS, {4, 4});
    copy = program.buffer("w.as_used", Buffer::PARAMETERS, {4, 4}, 1, BF16);
    x = program.buffer("x", Buffer::ACTIVATIONS, {4, 4});
    y = program.buffer("y", Buffer::ACTIVATIONS, {4, 4});
    gradient = program.buffer("g", Buffer::GRADIENTS, {4, 4});
    program.holds(w, "w", layout::Layout::replicated({4, 4}));
    forward = program.procedure("forward", Action::F);
    program.load("x", x);
    program.library("einsum", {x, copy}, {y});
    update = program.procedure("update", Action::U);
    program.library("einsum", {x, y}, {gradient});
    program.library("sgd_update", {gradient}, {w, copy});
    begin = program.procedure(kBeginEntry, Action::U);
    program.library("copy", {w}, {copy});
    program.call(forward);
    program.call(update);
  }

  google::protobuf::RepeatedPtrField<Instruction> &list(int procedure) {
    return *program.proto()
                .mutable_procedures(procedure)
                ->mutable_instructions();
  }
  std::string verify() { return verifyCopies(program.proto()).str(); }
  void expectSays(const std::string &text) {
    const std::string found = verify();
    EXPECT_NE(found.find(text), std::string::npos) << found;
  }
};

TEST(Copies, TheyAreMadeOfTheirParameters) {
  Copying plan;
  EXPECT_EQ(plan.verify(), "");
  EXPECT_EQ(
      keptCopies(plan.program.proto()),
      (std::map<uint32_t, uint32_t>{{uint32_t(plan.copy), uint32_t(plan.w)}}));
}

TEST(Copies, SomethingMakesThem) {
  Copying plan;
  plan.list(plan.begin).Clear();
  plan.expectSays("buffer \"w.as_used\" outlives the step, but entry:begin "
                  "makes it of no tensor");
}

TEST(Copies, OfAllOfTheParameter) {
  Copying plan;
  for (auto *operands : {plan.list(plan.begin)[0].mutable_inputs(),
                         plan.list(plan.begin)[0].mutable_outputs()})
    operands->Mutable(0)->set_shape(0, 2);
  plan.expectSays("other than as the copy of all of \"w\"");
}

TEST(Copies, TheUpdateWritesThem) {
  Copying plan;
  plan.list(plan.update)[1].mutable_outputs()->RemoveLast();
  plan.expectSays("writes \"w\", but not \"w.as_used\", its copy");
}

TEST(Copies, WhatRunsBetweenStepsWritesThem) {
  Copying plan;
  plan.program.procedure(kFlushEntry, Action::U);
  plan.program.library("sgd_update", {plan.gradient}, {plan.w});
  plan.expectSays("writes \"w\", but not \"w.as_used\", its copy");
}

TEST(Copies, NothingElseWritesThem) {
  Copying plan;
  *plan.list(plan.forward).Add() = plan.list(plan.begin)[0];
  plan.expectSays("writes \"w.as_used\" other than as the copy");
}

TEST(Copies, NothingReadsThemBehindTheUpdate) {
  Copying plan;
  *plan.list(plan.update).Add() = plan.list(plan.forward)[1];
  plan.expectSays("reads \"w.as_used\" after the update has written it");
}

} // namespace
} // namespace merak
