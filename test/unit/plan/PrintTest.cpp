// The text of a plan, of the difference of two plans, and of its memory.
#include "runtime/plan/Print.h"
#include "test/unit/plan/PlanBuilder.h"

#include <gtest/gtest.h>

namespace merak {
namespace {

TEST(Print, Program) {
  LoadedPlan plan = plantest::samplePlan();
  EXPECT_EQ(printProgram(plan.programs[0], &plan.file),
            R"(program 0
  ranks 0
  arena 896 bytes
  stream 0 "compute"
  stream 1 "comm"
  stream 2 "act"
  stream 3 "grad"

program 0 buffers
  %x f32[2,8] activations @0+64 x2 by 64 class 0 = "x" [4@mb, 8]
  %w0 f32[8,8] parameters @128+256 = "w0" [8, 8]
  %h f32[2,8] activations @384+64 x2 by 64 class 0
  %dh f32[2,8] communication @512+64
  %dw0 f32[8,8] gradients @576+256 = "w0" [8, 8]
  %norm f32[1] workspace @832+4

program 0 procedure "stage0.prologue" (P)
     0 s0 %dw0 = library fill (0f)

program 0 procedure "stage0.forward" (F)
     0 s0 %x = load_input x
     1 s0 %h = library einsum %x, %w0 {equation=bk,kn->bn} ; first/MatMul
     2 s0 record e0
     3 s2 wait e0
     4 s2 send "act" to pp=1 %h

program 0 procedure "stage0.backward" (B)
     0 s3 %dh = recv "grad" from pp=1
     1 s3 record e1
     2 s0 wait e1
     3 s0 %dw0 += library einsum %x, %dh {equation=bk,bn->kn} ; first/MatMul.weight

program 0 procedure "stage0.update" (U)
     0 s0 record e2
     1 s1 wait e2
     2 s1 record e3
     3 s0 wait e3
     4 s0 %norm = library square_sum %dw0
     5 s0 record e4
     6 s1 wait e4
     7 s1 %norm = collective all_reduce sum over (pp) %norm
     8 s1 record e5
     9 s0 wait e5
    10 s0 %w0 = library sgd_update %dw0 ($lr, $step) ; w.sgd

program 0 calls
     0 stage0.prologue
     1 stage0.forward mb 0 slots 0
     2 stage0.forward mb 1 slots 1
     3 stage0.backward mb 0 slots 0
     4 stage0.backward mb 1 slots 1; s3 waits for s0 of call 3
     5 stage0.update
)");
}

TEST(Print, Manifest) {
  planpb::PlanFile file = plantest::samplePlan().file;
  file.set_model_hash("cafe");
  file.set_model_dir("models");
  file.set_kernels("kernels.so");
  file.set_kernel_target("x86-64");
  planpb::Tensor *table = file.add_tensors();
  table->set_name("mask");
  table->set_role(planpb::Tensor::CONSTANT);
  table->set_dtype(planpb::BOOL);
  table->add_shape(4);
  table->mutable_source()->set_kind(planpb::Source::CONSTANTS);
  table->mutable_source()->set_offset(64);
  table->mutable_source()->set_length(4);
  planpb::Input *ids = file.add_inputs();
  ids->set_name("ids");
  ids->set_dtype(planpb::I64);
  ids->set_limit(96);
  ids->set_has_allowed(true);
  ids->set_allowed(-100);
  EXPECT_EQ(printManifest(file), R"(  version 2 by "by hand"
  model "sample.onnx" in "models" hash cafe
  mode train device cpu schedule 1f1b
  mesh pp=2 dp=1
  batch 4 = 2 microbatches of 2 a replica, 0 tokens a step
  optimizer sgd lr=0.5 momentum=0 dampening=0 nesterov=false weight_decay=0 grad_clip=0
  kernels "kernels.so" for x86-64
  rank 0 pp=0 dp=0 program 0
  rank 1 pp=1 dp=0 program 1
  input "x" f32[4,8] batched
  input "ids" i64[] ids below 96 or -100
  parameter "w0" f32[8,8] zero
  parameter "w1" f32[8,8] zero
  constant "mask" bool[4] constants at 64 + 4
)");
}

TEST(Print, ViewsAndScalars) {
  LoadedPlan plan = plantest::samplePlan();
  planpb::Instruction &load =
      *plan.programs[0].mutable_procedures(0)->mutable_instructions(0);
  load.set_kind(planpb::Instruction::KERNEL);
  load.set_op("fused_3");
  load.set_rows(12);
  planpb::Operand &out = *load.mutable_outputs(0);
  out.set_offset(4);
  out.set_partial_group(2);
  out.set_shape(1, 2);
  load.add_scalars()->set_i(7);
  load.mutable_scalars(1)->set_coordinate("tp");
  load.mutable_scalars(1)->set_scale(48);
  std::string text = printProgram(plan.programs[0]);
  EXPECT_NE(
      text.find("s0 %dw0[8,2:8,1+4]~(dp) = kernel fused_3 (0f, @tp*48) rows "
                "12\n"),
      std::string::npos)
      << text;
}

TEST(Print, ScheduleOfAProgram) {
  planpb::Program program = plantest::samplePlan().programs[0];
  EXPECT_EQ(printProgram(program).find("schedule"), std::string::npos);
  for (const Step &step : std::vector<Step>{{Action::F, 0, 1},
                                            {Action::R, 0, 1, true},
                                            {Action::B, 0, 1},
                                            {Action::U}})
    *program.add_schedule() = toProto(step);
  EXPECT_NE(printProgram(program).find("\n  schedule f0.1 R0.1 B0.1 U\n"),
            std::string::npos);
}

TEST(Diff, EqualPlansGiveNothing) {
  EXPECT_EQ(diffPlans(plantest::samplePlan(), plantest::samplePlan()), "");
}

TEST(Diff, ShowsOnlyWhatChanged) {
  LoadedPlan a = plantest::samplePlan(), b = plantest::samplePlan();
  b.file.set_schedule("gpipe");
  planpb::Program &program = b.programs[0];
  // One buffer more in front of the others: no instruction changes its text.
  for (planpb::Procedure &procedure : *program.mutable_procedures())
    for (planpb::Instruction &instruction : *procedure.mutable_instructions())
      for (auto *list :
           {instruction.mutable_inputs(), instruction.mutable_outputs()})
        for (planpb::Operand &operand : *list)
          operand.set_buffer(operand.buffer() + 1);
  planpb::Buffer extra;
  extra.set_name("extra");
  extra.set_dtype(planpb::F32);
  extra.set_slot_class(-1);
  google::protobuf::RepeatedPtrField<planpb::Buffer> buffers;
  *buffers.Add() = extra;
  buffers.MergeFrom(program.buffers());
  *program.mutable_buffers() = buffers;
  // And one instruction less.
  program.mutable_procedures(1)->mutable_instructions()->DeleteSubrange(0, 1);
  EXPECT_EQ(diffPlans(a, b), R"(@ plan
-  mode train device cpu schedule 1f1b
+  mode train device cpu schedule gpipe
@ program 0 buffers
+  %extra f32[] parameters @0+0
@ program 0 procedure "stage0.forward" (F)
-  s0 %x = load_input x
)");
}

TEST(Diff, NamesMissingParts) {
  LoadedPlan a = plantest::samplePlan(), b = plantest::samplePlan();
  *a.programs[1].add_procedures() = a.programs[1].procedures(0);
  a.programs[1].mutable_procedures(4)->set_name("again");
  EXPECT_EQ(diffPlans(a, b),
            R"(@ program 1 procedure "again" (P) (only in the first)
-  s0 %dw1 = library fill (0f)
-  s0 %loss = library fill (0f)
)");
  EXPECT_EQ(diffPlans(b, a),
            R"(@ program 1 procedure "again" (P) (only in the second)
+  s0 %dw1 = library fill (0f)
+  s0 %loss = library fill (0f)
)");
}

TEST(MemoryTable, CountsExactly) {
  LoadedPlan plan = plantest::replicatedPlan(3);
  (*plan.file.mutable_memory(1)->mutable_bytes())["optimizer"] = 3 << 19;
  EXPECT_EQ(memoryTable(plan),
            "program  ranks  parameters  gradients  optimizer  activations  "
            "communication  workspace  arena  bytes\n"
            "      0    0-2       256 B      256 B        0 B        256 B   "
            "        64 B       64 B  896 B    896\n"
            "      1    3-5       256 B      256 B    1.5 MiB        192 B   "
            "       128 B       64 B  896 B    896\n");
}

TEST(MemoryTable, Units) {
  EXPECT_EQ(humanBytes(1023), "1023 B");
  EXPECT_EQ(humanBytes(1024), "1.0 KiB");
  EXPECT_EQ(humanBytes(uint64_t{5} << 40), "5.0 TiB");
  EXPECT_EQ(rankList({0, 1, 2, 4, 6, 7}), "0-2, 4, 6-7");
  EXPECT_EQ(rankList({}), "none");
}

} // namespace
} // namespace merak
