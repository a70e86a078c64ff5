// Rows and gradients that a step leaves to the next one: applied there, once,
// as of that step.
#include "runtime/plan/Ahead.h"
#include "runtime/plan/Entries.h"
#include "runtime/plan/Verify.h"
#include "test/unit/plan/PlanBuilder.h"

#include <gtest/gtest.h>
#include <limits>

namespace merak {
namespace {

using planpb::Buffer;
using planpb::Instruction;
using plantest::ProgramBuilder;

// A table whose update splits a batch of four ids: `prior` at once, the rest by
// the next step.
struct Delaying {
  ProgramBuilder program{{"compute", "delayed"}};
  int table, ids, next, slices, rows, left, arrived, prior, unique, sums;
  int update, gather;

  Delaying() {
    auto integers = [&](const char *name, Buffer::Category category) {
      return program.buffer(name, category, {4}, 1, planpb::I64);
    };
    table = program.buffer("t", Buffer::PARAMETERS, {9, 2});
    ids = integers("ids", Buffer::ACTIVATIONS);
    next = integers("ids.next", Buffer::ACTIVATIONS);
    slices = program.buffer("dy", Buffer::ACTIVATIONS, {4, 2});
    rows = program.buffer("t.delayed.rows", Buffer::OPTIMIZER, {4, 2});
    left = integers("t.delayed.ids", Buffer::OPTIMIZER);
    arrived = program.buffer("arrived", Buffer::WORKSPACE, {4, 2});
    prior = integers("prior", Buffer::ACTIVATIONS);
    unique = integers("unique", Buffer::ACTIVATIONS);
    sums = program.buffer("sums", Buffer::ACTIVATIONS, {4, 2});
    program.holds(table, "t", layout::Layout::replicated({9, 2}));
    const int group = program.group({"dp"});
    gather = program.procedure("gather", Action::G);
    program.collective(1, Instruction::ALL_GATHER, group, rows, arrived);
    update = program.procedure("update", Action::U);
    apply("step_before", arrived, left);
    program.load("ids", ids);
    program.load("dy", slices);
    (*program.load("ids", next).mutable_attrs())[kAheadAttr] = "1";
    program.library("split_ids", {ids, next}, {prior, left});
    program.library("coalesce", {slices, left}, {rows, unique});
    apply("step", slices, prior);
    program.procedure(kFlushEntry, Action::U);
    program.collective(0, Instruction::ALL_GATHER, group, rows, arrived);
    apply("step_before", arrived, left);
    program.call(gather);
    program.call(update);
  }

  void apply(const char *number, int from, int of) {
    program.library("coalesce", {from, of}, {sums, unique});
    program.library("sgd_update_rows", {sums, unique}, {table})
        .add_scalars()
        ->set_runtime(number);
  }

  planpb::Procedure &procedure(int index) {
    return *program.proto().mutable_procedures(index);
  }
  std::string verify() { return verifyDelayed(program.proto()).str(); }
};

void expectSays(Delaying &plan, const std::string &text) {
  const std::string found = plan.verify();
  EXPECT_NE(found.find(text), std::string::npos) << found;
}

TEST(Delayed, WhatAStepLeftIsAppliedByTheNextOne) {
  EXPECT_EQ(Delaying().verify(), "");
}

TEST(Delayed, TheNumberIsThatOfTheStepBefore) {
  Delaying late;
  late.procedure(late.update)
      .mutable_instructions(1)
      ->mutable_scalars(0)
      ->set_runtime("step");
  expectSays(late, "takes the number of this step");
  Delaying early;
  early.procedure(early.update)
      .mutable_instructions(8)
      ->mutable_scalars(0)
      ->set_runtime("step_before");
  expectSays(early, "takes the number of the step before");
}

TEST(Delayed, ItIsReadBeforeThisStepOverwritesIt) {
  Delaying plan;
  auto &list = *plan.procedure(plan.update).mutable_instructions();
  const Instruction sums = list[0], apply = list[1];
  list.DeleteSubrange(0, 2);
  *list.Add() = sums;
  *list.Add() = apply;
  expectSays(plan, "takes the number of the step before");
}

TEST(Delayed, ItIsAppliedOnce) {
  Delaying plan;
  auto &list = *plan.procedure(plan.update).mutable_instructions();
  list.DeleteSubrange(6, 1); // what overwrites the rows
  expectSays(plan, "\"t.delayed.rows\" of the step before is not overwritten");
}

TEST(Delayed, WhatRunsBetweenStepsAppliesIt) {
  Delaying plan;
  plan.program.proto().mutable_procedures()->RemoveLast();
  expectSays(plan, "is not applied between steps");
}

// A matrix whose gradient is summed in the next step's forward pass.
struct DelayingGradient {
  ProgramBuilder program{{"compute", "delayed"}};
  int w, x, y, sum, factor, norm;
  int forward, update;

  DelayingGradient() {
    auto activation = [&](const char *name) {
      return program.buffer(name, Buffer::ACTIVATIONS, {4, 4});
    };
    w = program.buffer("w", Buffer::PARAMETERS, {4, 4});
    x = activation("x");
    y = activation("y");
    sum = program.buffer("w.delayed.gradient", Buffer::OPTIMIZER, {4, 4});
    factor = program.buffer("delayed.factor", Buffer::OPTIMIZER, {1});
    norm = program.buffer("norm", Buffer::WORKSPACE, {1});
    program.holds(w, "w", layout::Layout::replicated({4, 4}));
    const int group = program.group({"dp"});
    forward = program.procedure("forward", Action::F);
    program.load("x", x);
    program.collective(1, Instruction::ALL_REDUCE, group, sum, sum);
    apply("step_before", sum, factor);
    program.library("einsum", {x, w}, {y});
    update = program.procedure("update", Action::U);
    program.library("einsum", {x, y}, {sum});
    program.library("square_sum", {sum}, {norm});
    program.library("clip_factor", {norm}, {factor});
    program.procedure(kBeginEntry, Action::U);
    none();
    program.procedure(kFlushEntry, Action::U);
    program.collective(0, Instruction::ALL_REDUCE, group, sum, sum);
    apply("step_before", sum, factor);
    none();
    program.call(forward);
    program.call(update);
  }

  void apply(const char *number, int from, int by) {
    Instruction &step = program.library("sgd_update", {from, by}, {w});
    step.add_scalars()->set_runtime(number);
    (*step.mutable_attrs())["clip"] = "1";
  }
  void none() {
    program.library("fill", {}, {factor})
        .add_scalars()
        ->set_f(std::numeric_limits<double>::quiet_NaN());
  }
  google::protobuf::RepeatedPtrField<Instruction> &list(int procedure) {
    return *program.proto()
                .mutable_procedures(procedure)
                ->mutable_instructions();
  }
  // One behind the update, and the last but one.
  int begin() const { return update + 1; }
  int flush() const { return update + 2; }
  std::string verify() { return verifyDelayed(program.proto()).str(); }
  void expectSays(const std::string &text) {
    const std::string found = verify();
    EXPECT_NE(found.find(text), std::string::npos) << found;
  }
};

TEST(DelayedGradient, WhatAStepLeftIsAppliedInFrontOfTheFirstReader) {
  EXPECT_EQ(DelayingGradient().verify(), "");
  DelayingGradient late;
  late.list(late.forward).SwapElements(2, 3);
  late.expectSays("reads \"w\" without what the step before left");
}

TEST(DelayedGradient, TheNumberIsThatOfTheStepBefore) {
  DelayingGradient plan;
  plan.list(plan.forward)[2].mutable_scalars(0)->set_runtime("step");
  plan.expectSays("takes the number of this step");
}

TEST(DelayedGradient, ItIsAppliedOnce) {
  DelayingGradient twice;
  *twice.list(twice.forward).Add() = twice.list(twice.forward)[2];
  twice.list(twice.forward).SwapElements(3, 4);
  twice.expectSays("applies what the step before left again");
  DelayingGradient kept;
  kept.list(kept.update).DeleteSubrange(0, 1);
  kept.expectSays("of the step before is not overwritten");
}

TEST(DelayedGradient, WhatRunsBetweenStepsAppliesIt) {
  DelayingGradient plan;
  plan.list(plan.flush()).DeleteSubrange(1, 1);
  plan.expectSays("is not applied between steps");
}

TEST(DelayedGradient, NothingIsAppliedBeforeTheFirstStep) {
  DelayingGradient number;
  number.list(number.begin())[0].mutable_scalars(0)->set_f(1);
  number.expectSays("behind entry:begin no step has left a gradient");
  DelayingGradient flushed;
  flushed.list(flushed.flush()).RemoveLast();
  flushed.expectSays("behind entry:flush no step has left a gradient");
  DelayingGradient without;
  for (int procedure : {without.forward, without.flush()})
    for (Instruction &instruction : without.list(procedure))
      instruction.mutable_attrs()->erase("clip");
  without.expectSays("has no factor");
}

} // namespace
} // namespace merak
