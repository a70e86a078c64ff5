// Plans of several pipelines, each of which trains its own microbatches of a
// step: the verifier on their shares and on the sums over those who hold a
// parameter.
#include "runtime/plan/Shares.h"
#include "runtime/plan/Verify.h"
#include "test/unit/plan/PlanBuilder.h"

#include <gtest/gtest.h>

namespace merak {
namespace {

using planpb::Buffer;
using planpb::Instruction;
using planpb::Program;

// dw += x' x of the pipeline's microbatches, summed over all holders of w: in
// the update, or behind the last microbatch.
Program onePipeline(int64_t first, int64_t count, int64_t step,
                    bool beside = false) {
  plantest::ProgramBuilder program({"compute", "comm"});
  const int x = program.buffer("x", Buffer::ACTIVATIONS, {2, 8});
  const int w = program.buffer("w", Buffer::PARAMETERS, {8, 8});
  const int dw = program.buffer("dw", Buffer::GRADIENTS, {8, 8});
  layout::Layout rows = layout::Layout::replicated({2 * step, 8});
  rows.dims[0].factors[0].axes = {"mb"};
  program.holds(x, "x", rows);
  program.holds(w, "w", layout::Layout::replicated({8, 8}));
  program.holds(dw, "w", layout::Layout::replicated({8, 8}));
  program.proto().add_groups()->set_named("holders.0");

  const int clear = program.procedure("clear", Action::P);
  program.library("fill", {}, {dw}).add_scalars()->set_f(0);
  const auto sum = [&] {
    program.order(0, 1);
    program.collective(1, Instruction::ALL_REDUCE, 0, dw, dw);
    program.order(1, 0);
  };
  const auto train = [&](const char *name) {
    const int procedure = program.procedure(name, Action::F);
    program.load("x", x);
    Instruction &product = program.library("einsum", {x, x}, {dw});
    (*product.mutable_attrs())["equation"] = "bk,bn->kn";
    product.set_accumulate(true);
    return procedure;
  };
  const int forward = train("forward");
  const int last = beside ? train("forward.last") : forward;
  if (beside)
    sum();
  const int update = program.procedure("update", Action::U);
  if (!beside)
    sum();
  Instruction &sgd = program.library("sgd_update", {dw}, {w});
  sgd.add_scalars()->set_runtime("lr");
  sgd.add_scalars()->set_runtime("step");
  program.call(clear);
  for (int64_t i = 0; i < count; ++i)
    program.call(i + 1 < count ? forward : last, first + i);
  program.call(update);
  return program.proto();
}

// A rank of three microbatches and a rank of two.
LoadedPlan twoPipelines() {
  LoadedPlan plan = plantest::samplePlan();
  planpb::PlanFile &file = plan.file;
  file.clear_mesh();
  file.clear_tensors();
  file.set_microbatches(5);
  file.set_global_batch(10);
  file.mutable_inputs(0)->set_shape(0, 10);
  planpb::Tensor *tensor = file.add_tensors();
  tensor->set_name("w");
  tensor->set_dtype(planpb::F32);
  tensor->add_shape(8);
  tensor->add_shape(8);
  tensor->mutable_source()->set_kind(planpb::Source::ZERO);
  planpb::NamedGroup *holders = file.add_groups();
  holders->set_name("holders.0");
  planpb::RankList *list = holders->add_lists();
  for (int rank = 0; rank < 2; ++rank) {
    list->add_ranks(uint32_t(rank));
    planpb::Mesh *mesh = file.add_meshes();
    for (auto [name, size] : {std::pair("pp", 2), {"dp", 1}}) {
      planpb::Axis *axis = mesh->add_axes();
      axis->set_name(name);
      axis->set_size(size);
    }
    file.mutable_ranks(rank)->set_mesh(uint32_t(rank));
  }
  plan.programs = {onePipeline(0, 3, 5), onePipeline(3, 2, 5)};
  for (int p = 0; p < 2; ++p)
    plan.programs[size_t(p)].set_index(uint32_t(p));
  return plan;
}

TEST(Pipelines, AreSoundPlans) {
  LoadedPlan plan = twoPipelines();
  EXPECT_EQ(verifyPlan(plan).str(), "");
  EXPECT_TRUE(hasShares(plan));
  EXPECT_EQ(trainedBy(plan.programs[1]), (std::set<int64_t>{3, 4}));
  EXPECT_FALSE(hasShares(plantest::replicatedPlan(2)));
}

// Each behind a microbatch of its own.
TEST(Pipelines, SumsBesideTheLastMicrobatches) {
  LoadedPlan plan = twoPipelines();
  for (size_t p = 0; p < 2; ++p) {
    plan.programs[p] = onePipeline(p == 0 ? 0 : 3, p == 0 ? 3 : 2, 5, true);
    plan.programs[p].set_index(uint32_t(p));
  }
  EXPECT_EQ(verifyPlan(plan).str(), "");
  // One sums beside its last microbatch, the other in the update.
  plan.programs[1] = onePipeline(3, 2, 5, false);
  const std::string text = verifyMatching(plan).str();
  EXPECT_NE(text.find("collective 0 is all_reduce sum of f32[8,8] of a "
                      "microbatch of its pipeline"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("but all_reduce sum of f32[8,8] of no microbatch"),
            std::string::npos)
      << text;
}

// Without the sum each pipeline would train a model of its own.
TEST(Pipelines, ASumThatAllForgot) {
  LoadedPlan plan = twoPipelines();
  for (Program &program : plan.programs) {
    auto *update = program.mutable_procedures(2)->mutable_instructions();
    for (int i = 0; i < update->size(); ++i)
      if ((*update)[i].kind() == Instruction::COLLECTIVE) {
        update->DeleteSubrange(i, 1);
        break;
      }
    for (Instruction &instruction : *update)
      for (auto *operands :
           {instruction.mutable_inputs(), instruction.mutable_outputs()})
        for (planpb::Operand &operand : *operands)
          operand.clear_partial_group();
  }
  const std::string text = verifyReplication(plan).str();
  EXPECT_NE(text.find("tensor \"w\" should be equal on all ranks along pp"),
            std::string::npos)
      << text;
}

TEST(Pipelines, SharesThatOverlapOrMissOne) {
  LoadedPlan plan = twoPipelines();
  plan.programs[1] = onePipeline(2, 2, 5);
  EXPECT_EQ(verifyShares(plan).str(),
            "program 1 · microbatch 2 is trained by program 0 too, which has "
            "other microbatches: a pipeline trains its own alone\n"
            "no program trains microbatch 4");
}

// Without training no program need have as many calls as a step has
// microbatches: each has some of them.
TEST(Pipelines, CallsOfAllPipelinesAreThoseOfAStep) {
  LoadedPlan plan = twoPipelines();
  for (Program &program : plan.programs) {
    google::protobuf::RepeatedPtrField<planpb::Call> calls;
    for (const planpb::Call &call : program.calls())
      if (call.microbatch() >= 0)
        *calls.Add() = call;
    program.mutable_calls()->Swap(&calls);
    EXPECT_LT(program.calls_size(), 5);
  }
  EXPECT_TRUE(verifyExtents(plan).ok()) << verifyExtents(plan).str();
  plan.file.set_microbatches(6);
  EXPECT_NE(verifyExtents(plan).str().find(
                "6 microbatches, and no program has more than 5 calls"),
            std::string::npos)
      << verifyExtents(plan).str();
}

TEST(Pipelines, AHolderThatIsInNoList) {
  LoadedPlan plan = twoPipelines();
  plan.file.mutable_groups(0)->mutable_lists(0)->mutable_ranks()->RemoveLast();
  EXPECT_NE(verifyStructure(plan).str().find(
                "group 0 is \"holders.0\", which rank 1 is not in"),
            std::string::npos)
      << verifyStructure(plan).str();
}

} // namespace
} // namespace merak
