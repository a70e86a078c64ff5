// Reductions are written down with the plan, so that a forgotten or a second
// one is found although every rank forgot or repeats it.
#include "runtime/plan/Partial.h"
#include "runtime/plan/Verify.h"
#include "test/unit/plan/PlanBuilder.h"

#include <gtest/gtest.h>

namespace merak {
namespace {

using planpb::Buffer;
using planpb::Instruction;
using planpb::Program;

class Partials : public ::testing::Test {
protected:
  // A row-parallel product: y is a summand over tp until it is reduced; then a
  // norm whose parameter gradient is a summand as well, reduced at the end.
  void SetUp() override {
    plantest::ProgramBuilder builder({"compute"});
    x = builder.buffer("x", Buffer::ACTIVATIONS, {4, 8});
    y = builder.buffer("y", Buffer::ACTIVATIONS, {4, 8});
    z = builder.buffer("z", Buffer::ACTIVATIONS, {4, 8});
    sum = builder.buffer("sum", Buffer::GRADIENTS, {4, 8});
    int tp = builder.group({"tp"});
    int prologue = builder.procedure("prologue", Action::P);
    builder.library("fill", {}, {sum}).add_scalars()->set_f(0);
    int forward = builder.procedure("forward", Action::F);
    builder.library("einsum", {x}, {y});
    builder.collective(0, Instruction::ALL_REDUCE, tp, y, y);
    builder.library("norm", {y}, {z});
    builder.library("reduce_sum", {z}, {sum}).set_accumulate(true);
    int update = builder.procedure("update", Action::U);
    builder.collective(0, Instruction::ALL_REDUCE, tp, sum, sum);
    builder.library("update", {sum}, {x});
    builder.call(prologue);
    builder.call(forward, 0);
    builder.call(forward, 1);
    builder.call(update);
    program = builder.proto();
    ASSERT_TRUE(annotatePartials(program));
  }
  Instruction &at(int procedure, int instruction) {
    return *program.mutable_procedures(procedure)->mutable_instructions(
        instruction);
  }
  std::string verify() { return verifyPartials(program).str(); }

  Program program;
  int x, y, z, sum;
};

TEST_F(Partials, AreFoundFromTheReductions) {
  EXPECT_EQ(at(1, 0).outputs(0).partial_group(), 1u);
  EXPECT_EQ(at(1, 1).inputs(0).partial_group(), 1u);
  EXPECT_EQ(at(1, 1).outputs(0).partial_group(), 0u);
  EXPECT_EQ(at(1, 2).inputs(0).partial_group(), 0u);
  EXPECT_EQ(at(1, 3).outputs(0).partial_group(), 1u);
  EXPECT_EQ(at(0, 0).outputs(0).partial_group(), 0u); // zeros are either
  EXPECT_EQ(at(2, 1).inputs(0).partial_group(), 0u);
  EXPECT_EQ(verify(), "");
}

TEST_F(Partials, MissingReduction) {
  at(1, 1).Clear();
  EXPECT_EQ(verify(),
            "program 0 · call 1 \"forward\" microbatch 0 · instruction 2 norm "
            "takes buffer \"y\" as a whole value, but call 1 \"forward\" "
            "microbatch 0 · instruction 0 einsum left a summand over (tp) "
            "there");
}

TEST_F(Partials, MissingReductionOfAnAccumulator) {
  at(2, 0).Clear();
  EXPECT_EQ(verify(),
            "program 0 · call 3 \"update\" · instruction 1 update takes buffer "
            "\"sum\" as a whole value, but call 2 \"forward\" microbatch 1 · "
            "instruction 3 reduce_sum left a summand over (tp) there");
}

TEST_F(Partials, SecondReduction) {
  at(1, 2) = at(1, 1);
  EXPECT_EQ(verify(),
            "program 0 · call 1 \"forward\" microbatch 0 · instruction 2 "
            "all_reduce takes buffer \"y\" as a summand over (tp), but call 1 "
            "\"forward\" microbatch 0 · instruction 1 all_reduce left a whole "
            "value there");
}

TEST_F(Partials, AnotherGroup) {
  program.add_groups()->add_axes("dp");
  at(1, 1).set_group(1);
  EXPECT_EQ(verify(),
            "program 0 · call 1 \"forward\" microbatch 0 · instruction 1 "
            "all_reduce reduces buffer \"y\" over (dp), but takes it as a "
            "summand over (tp)");
  at(1, 1).mutable_inputs(0)->set_partial_group(3);
  EXPECT_EQ(verify(), "program 0 · procedure 1 \"forward\" · instruction 1 "
                      "all_reduce: a summand over group 2 of 2");
}

TEST_F(Partials, PlansWithoutAnnotationsPass) {
  for (planpb::Procedure &procedure : *program.mutable_procedures())
    for (Instruction &inst : *procedure.mutable_instructions())
      for (auto *operands : {inst.mutable_inputs(), inst.mutable_outputs()})
        for (planpb::Operand &operand : *operands)
          operand.clear_partial_group();
  at(1, 1).Clear();
  EXPECT_EQ(verify(), "");
}

TEST_F(Partials, ReplicatedPlansCanBeAnnotated) {
  LoadedPlan plan = plantest::replicatedPlan(2);
  for (Program &stage : plan.programs)
    EXPECT_TRUE(annotatePartials(stage));
  EXPECT_EQ(verifyPlan(plan).str(), "");
  // Any reduction left out of all ranks of a stage is missed.
  for (int p = 0; p < 2; ++p) {
    const planpb::Procedure &update = plan.programs[p].procedures(3);
    for (int i = 0; i < update.instructions_size(); ++i) {
      if (update.instructions(i).kind() != Instruction::COLLECTIVE ||
          update.instructions(i).inputs(0).buffer() ==
              static_cast<uint32_t>(plan.programs[p].buffers_size() - 1))
        continue; // nobody reads the norm
      LoadedPlan broken = plan;
      Instruction &dropped =
          *broken.programs[p].mutable_procedures(3)->mutable_instructions(i);
      bool loss =
          broken.programs[p].buffers(dropped.inputs(0).buffer()).name() ==
          "loss";
      dropped.set_kind(Instruction::NOP);
      dropped.clear_inputs();
      dropped.clear_outputs();
      EXPECT_EQ(verifyPartials(broken.programs[p]).ok(), loss);
      EXPECT_FALSE(verifyPlan(broken).ok());
    }
  }
}

} // namespace
} // namespace merak
