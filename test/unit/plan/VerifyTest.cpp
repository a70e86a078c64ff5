// Plans broken on purpose: each fault is caught, with its exact sentence. The
// unbroken plans pass, so that every sentence is due to its fault.
#include "runtime/plan/Verify.h"
#include "test/unit/plan/PlanBuilder.h"

#include <gtest/gtest.h>

namespace merak {
namespace {

using planpb::Buffer;
using planpb::Instruction;
using planpb::Procedure;
using planpb::Program;
using planpb::ScheduleStep;

class Verify : public ::testing::Test {
protected:
  LoadedPlan plan = plantest::samplePlan();
  Program &first = plan.programs[0];
  Program &last = plan.programs[1];

  std::string verify() { return verifyPlan(plan).str(); }

  static Instruction &at(Program &program, int procedure, int instruction) {
    return *program.mutable_procedures(procedure)->mutable_instructions(
        instruction);
  }
  static void drop(Program &program, int procedure, int first, int count = 1) {
    program.mutable_procedures(procedure)
        ->mutable_instructions()
        ->DeleteSubrange(first, count);
  }
  static Buffer &buffer(Program &program, const std::string &name) {
    for (Buffer &candidate : *program.mutable_buffers())
      if (candidate.name() == name)
        return candidate;
    ADD_FAILURE() << "no buffer " << name;
    return *program.mutable_buffers(0);
  }
};

TEST_F(Verify, HandMadePlansAreFine) {
  EXPECT_EQ(verify(), "");
  for (int64_t dp : {1, 2, 5})
    EXPECT_EQ(verifyPlan(plantest::replicatedPlan(dp)).str(), "");
}

// ------------------------------------------------------------ the six faults

TEST_F(Verify, DroppedWait) {
  drop(first, 1, 3); // stage0.forward: the send no longer waits for the matmul
  EXPECT_EQ(verify(),
            "program 0 · race: call 1 \"stage0.forward\" microbatch 0 · "
            "instruction 1 einsum \"first/MatMul\" on stream 0 writes bytes "
            "[384, 448) of buffer \"h\", and call 1 \"stage0.forward\" "
            "microbatch 0 · instruction 3 send \"act\" on stream 2 reads bytes "
            "[384, 448) of buffer \"h\", but nothing orders them");
}

TEST_F(Verify, DroppedCallWait) {
  first.mutable_calls(4)->clear_waits();
  EXPECT_EQ(verify(),
            "program 0 · race: call 3 \"stage0.backward\" microbatch 0 · "
            "instruction 3 einsum \"first/MatMul.weight\" on stream 0 reads "
            "bytes [512, 576) of buffer \"dh\", and call 4 \"stage0.backward\" "
            "microbatch 1 · instruction 0 recv \"grad\" on stream 3 writes "
            "bytes [512, 576) of buffer \"dh\", but nothing orders them");
}

TEST_F(Verify, SwappedReceive) {
  // The last stage takes microbatch 1 first.
  last.mutable_calls(1)->set_microbatch(1);
  last.mutable_calls(3)->set_microbatch(0);
  EXPECT_EQ(verify(),
            "channel \"act\": rank 0 (program 0 · call 1 \"stage0.forward\" "
            "microbatch 0 · instruction 4 send \"act\") sends f32[2,8] of "
            "microbatch 0, but rank 1 (program 1 · call 1 \"stage1.forward\" "
            "microbatch 1 · instruction 0 recv \"act\") expects f32[2,8] of "
            "microbatch 1");
}

TEST_F(Verify, MissingAllReduceOnOneRank) {
  drop(last, 3, 7); // of the norm
  EXPECT_EQ(verify(), "group (pp) on stream \"comm\": rank 0 (program 0 · call "
                      "5 \"stage0.update\" · instruction 7 all_reduce) is not "
                      "joined by rank 1 (program 1), which takes part in 0 "
                      "collectives of this group where rank 0 takes part in 1");
}

TEST_F(Verify, OverlappingBuffers) {
  buffer(last, "y").set_offset(buffer(last, "h").offset());
  EXPECT_EQ(verify(),
            "program 1 · procedure 1 \"stage1.forward\" · instruction 3 einsum "
            "\"second/MatMul\": reads buffer \"h\" and writes buffer \"y\" at "
            "the same bytes\n"
            "program 1 · call 2 \"stage1.backward\" microbatch 0 · instruction "
            "5 einsum \"second/MatMul.weight\" reads buffer \"h\", which was "
            "overwritten by call 2 \"stage1.backward\" microbatch 0 · "
            "instruction 0 fill through buffer \"y\" at bytes [0, 64): the "
            "buffers overlap while both are live");
}

TEST_F(Verify, OverlappingParameters) {
  Buffer &moment = *first.add_buffers();
  moment = buffer(first, "w0");
  moment.set_name("moment");
  moment.set_category(Buffer::OPTIMIZER);
  moment.set_offset(moment.offset() + 64);
  std::string text = verify();
  EXPECT_NE(text.find("program 0 · buffers \"w0\" and \"moment\" overlap, and "
                      "both outlive the step"),
            std::string::npos)
      << text;
}

// ------------------------------------------------------------ memory

TEST_F(Verify, UnwrittenActivation) {
  drop(first, 1, 0); // nobody loads x
  EXPECT_EQ(verify(),
            "program 0 · call 1 \"stage0.forward\" microbatch 0 · instruction "
            "0 einsum \"first/MatMul\" reads buffer \"x\" at bytes [0, 64), "
            "which nothing wrote before\n"
            "program 0 · call 3 \"stage0.backward\" microbatch 0 · instruction "
            "3 einsum \"first/MatMul.weight\" reads buffer \"x\" at bytes "
            "[0, 64), which nothing wrote before");
}

TEST_F(Verify, GradientThatNobodyCleared) {
  drop(first, 0, 0);
  EXPECT_EQ(verify(),
            "program 0 · call 3 \"stage0.backward\" microbatch 0 · instruction "
            "3 einsum \"first/MatMul.weight\" adds to buffer \"dw0\" at bytes "
            "[576, 832), which nothing wrote before");
}

TEST_F(Verify, ParameterUpdatedTwiceOrNever) {
  Procedure &update = *first.mutable_procedures(3);
  int sgd = update.instructions_size() - 1;
  Instruction copy = update.instructions(sgd);
  *update.add_instructions() = copy;
  drop(last, 3, last.procedures(3).instructions_size() - 1);
  EXPECT_EQ(verify(),
            "program 0 · call 5 \"stage0.update\" · instruction 11 sgd_update "
            "\"w.sgd\": updates \"w0\" again after call 5 \"stage0.update\" · "
            "instruction 10 sgd_update \"w.sgd\"\nprogram 1 · parameter \"w1\" "
            "is never updated");
}

// Steps that rows were left out of are no updates, however often they are
// taken.
TEST_F(Verify, ReplaysAreNoUpdates) {
  Procedure &update = *first.mutable_procedures(3);
  const int sgd = update.instructions_size() - 1;
  Instruction replay = update.instructions(sgd);
  replay.set_op("sgd_replay");
  *update.add_instructions() = replay;
  update.mutable_instructions()->SwapElements(sgd, sgd + 1);
  *update.add_instructions() = replay;
  EXPECT_EQ(verify(), "");
  update.mutable_instructions(sgd + 1)->set_op("sgd_replay");
  EXPECT_EQ(verify(), "program 0 · parameter \"w0\" is never updated");
}

TEST_F(Verify, FrozenTensorIsNotWritten) {
  plan.file.mutable_tensors(0)->set_role(planpb::Tensor::FROZEN);
  EXPECT_EQ(verify(),
            "program 0 · call 5 \"stage0.update\" · instruction 10 sgd_update "
            "\"w.sgd\": writes \"w0\", which is not trained");
}

TEST_F(Verify, OutputLostBeforeTheEnd) {
  buffer(last, "norm").set_offset(buffer(last, "loss").offset());
  EXPECT_EQ(
      verify(),
      "program 1 · buffer \"loss\", needed after the step, was overwritten by "
      "call 5 \"stage1.update\" · instruction 7 all_reduce through buffer "
      "\"norm\" at bytes [768, 772): the buffers overlap while both are live");
}

// Streams that touch alternating columns of one buffer do not race; touching
// the same columns they do.
TEST_F(Verify, StridedViewsAreExact) {
  plantest::ProgramBuilder builder({"compute", "other"});
  int whole = builder.buffer("pairs", Buffer::ACTIVATIONS, {16, 2});
  int procedure = builder.procedure("columns", Action::F);
  for (int column : {0, 1}) {
    Instruction &fill = builder.library("fill", {}, {whole});
    fill.add_scalars()->set_f(column);
    fill.set_stream(column);
    planpb::Operand &out = *fill.mutable_outputs(0);
    out.set_offset(column);
    out.set_shape(1, 1);
  }
  builder.order(1, 0);
  builder.library("reduce_sum", {whole}, {})
      .mutable_attrs()
      ->insert({"axes", "0"});
  builder.call(procedure, 0);
  LoadedPlan strided;
  strided.file.set_mode("infer");
  strided.programs = {builder.proto()};
  EXPECT_EQ(verifyMemory(strided, 0).str(), "");

  Program &program = strided.programs[0];
  at(program, 0, 1).mutable_outputs(0)->set_offset(0);
  EXPECT_EQ(verifyMemory(strided, 0).str(),
            "program 0 · race: call 0 \"columns\" microbatch 0 · instruction 0 "
            "fill on stream 0 writes bytes [0, 124) of buffer \"pairs\", and "
            "call 0 \"columns\" microbatch 0 · instruction 1 fill on stream 1 "
            "writes bytes [0, 124) of buffer \"pairs\", but nothing orders "
            "them\n"
            "program 0 · call 0 \"columns\" microbatch 0 · instruction 4 "
            "reduce_sum reads buffer \"pairs\" at bytes [0, 128), which "
            "nothing wrote before");
}

TEST_F(Verify, InputsOverlapOutputsOnlyInPlace) {
  Instruction &grad = at(last, 2, 0);
  grad.set_op("softmax_cross_entropy_grad");
  *grad.add_inputs() = grad.outputs(0); // the same view: in place
  EXPECT_EQ(verifyMemory(plan, 1).str(), "");
  grad.mutable_inputs(0)->set_shape(0, 1);
  EXPECT_EQ(verifyMemory(plan, 1).str(),
            "program 1 · procedure 2 \"stage1.backward\" · instruction 0 "
            "softmax_cross_entropy_grad: reads and writes parts of buffer "
            "\"y\" that overlap without being the same view");
}

// Which library kernels may do so, and over which operand (SharedPlaces.h).
TEST_F(Verify, OnlyListedKernelsWriteOverAnOperand) {
  Instruction &grad = at(last, 2, 0);
  *grad.add_inputs() = grad.outputs(0);
  auto expected = [](const std::string &op) {
    return "program 1 · procedure 2 \"stage1.backward\" · instruction 0 " + op +
           ": writes buffer \"y\" while it reads it, which this kernel may not "
           "do";
  };
  for (const char *op : {"softmax_grad", "copy", "einsum"}) {
    grad.set_op(op);
    EXPECT_EQ(verifyMemory(plan, 1).str(), expected(op));
  }
  grad.set_op("sgd_update"); // the state that it updates
  EXPECT_EQ(verifyMemory(plan, 1).str(), "");
  // Not over what is not the logits.
  grad.set_op("softmax_cross_entropy_grad");
  planpb::Operand other = grad.outputs(0);
  other.set_buffer(at(last, 2, 5).inputs(0).buffer());
  *grad.add_inputs() = grad.inputs(0);
  *grad.mutable_inputs(0) = other;
  EXPECT_NE(verifyMemory(plan, 1).str().find(expected(grad.op())),
            std::string::npos);
}

// The same through two buffers, which is never right.
TEST_F(Verify, OneInstructionReadsAndWritesTwoBuffersAtOnePlace) {
  Instruction &product = at(first, 1, 1);
  const uint32_t read = product.inputs(0).buffer(),
                 written = product.outputs(0).buffer();
  first.mutable_buffers(written)->set_offset(first.buffers(read).offset());
  EXPECT_NE(verifyMemory(plan, 0).str().find(
                "instruction 1 einsum \"first/MatMul\": reads buffer \"x\" and "
                "writes buffer \"h\" at the same bytes"),
            std::string::npos)
      << verifyMemory(plan, 0).str();
}

TEST_F(Verify, DevicesOfRanks) {
  for (const std::vector<uint32_t> &good :
       {std::vector<uint32_t>{}, {0, 1}, {1, 7}}) {
    plan.file.mutable_devices()->Assign(good.begin(), good.end());
    EXPECT_EQ(verify(), "");
  }
  for (const std::vector<uint32_t> &bad :
       {std::vector<uint32_t>{0}, {1, 0}, {2, 2}, {0, 1, 2}, {0, 4000000000}}) {
    plan.file.mutable_devices()->Assign(bad.begin(), bad.end());
    EXPECT_EQ(verify(), "manifest · its 2 ranks are on " +
                            std::to_string(bad.size()) +
                            " devices, which must be as many, ascending, each "
                            "of one rank");
  }
}

// ------------------------------------------------------------ matching

TEST_F(Verify, ReceiveOfAnotherShape) {
  planpb::Operand &out = *at(last, 1, 0).mutable_outputs(0);
  out.set_shape(0, 1);
  std::string text = verifyMatching(plan).str();
  EXPECT_EQ(text,
            "channel \"act\": rank 0 (program 0 · call 1 \"stage0.forward\" "
            "microbatch 0 · instruction 4 send \"act\") sends f32[2,8] of "
            "microbatch 0, but rank 1 (program 1 · call 1 \"stage1.forward\" "
            "microbatch 0 · instruction 0 recv \"act\") expects f32[1,8] of "
            "microbatch 0");
}

TEST_F(Verify, NobodyReceives) {
  drop(last, 1, 0, 3);
  EXPECT_EQ(verifyMatching(plan).str(),
            "channel \"act\": rank 0 (program 0) sends to rank 1 (program 1), "
            "which never receives there");
}

TEST_F(Verify, OneReceiveTooFew) {
  last.mutable_calls()->DeleteSubrange(3, 1);
  EXPECT_EQ(verifyMatching(plan).str(),
            "channel \"act\": rank 0 (program 0) sends 2 times a step to rank "
            "1 (program 1), which receives 1 times");
}

TEST_F(Verify, AnotherReduction) {
  for (Instruction &instruction :
       *last.mutable_procedures(3)->mutable_instructions())
    if (instruction.kind() == Instruction::COLLECTIVE)
      instruction.set_reduction(Instruction::MAX);
  EXPECT_EQ(verify(),
            "group (pp) on stream \"comm\": collective 0 is all_reduce sum of "
            "f32[1] of no microbatch at rank 0 (program 0 · call 5 "
            "\"stage0.update\" · instruction 7 all_reduce), but all_reduce max "
            "of f32[1] of no microbatch at rank 1 (program 1 · call 5 "
            "\"stage1.update\" · instruction 7 all_reduce)");
}

TEST_F(Verify, ChannelOnTwoStreams) {
  at(first, 1, 4).set_stream(1);
  Instruction again = at(first, 1, 4);
  again.set_stream(2);
  *first.mutable_procedures(1)->add_instructions() = again;
  std::string text = verifyMatching(plan).str();
  EXPECT_EQ(text.rfind("program 0 · channel \"act\" is used on several "
                       "streams, so that the order of its sends is not fixed",
                       0),
            0u)
      << text;
}

// ------------------------------------------------------------ replication

TEST_F(Verify, AllReduceThatEveryReplicaForgot) {
  plan = plantest::replicatedPlan(3);
  drop(plan.programs[0], 3, 2); // of the gradient over dp
  EXPECT_EQ(
      verify(),
      "program 0 · tensor \"w0\" should be equal on all ranks along dp, but "
      "call 5 \"stage0.update\" · instruction 10 sgd_update \"w.sgd\" makes it "
      "from values that differ there and were not reduced\n"
      "program 0 · gradient of \"w0\" should be equal on all ranks along dp, "
      "but call 4 \"stage0.backward\" microbatch 1 · instruction 3 einsum "
      "\"first/MatMul.weight\" makes it from values that differ there and were "
      "not reduced");
}

// What is forgotten on the last stage shows on the first, which receives it.
TEST_F(Verify, DifferencesTravelBetweenStages) {
  plan = plantest::replicatedPlan(2);
  Program &stage0 = plan.programs[0], &stage1 = plan.programs[1];
  // The replicas of stage 0 load the same rows; only stage 1 makes a
  // difference, from its coordinate.
  for (Buffer &x : *stage0.mutable_buffers())
    if (x.name() == "x") {
      x.mutable_layout()->mutable_dims(0)->mutable_factors(0)->clear_axes();
      x.mutable_layout()->mutable_dims(0)->mutable_factors(0)->add_axes("mb");
    }
  drop(stage0, 3, 2);
  drop(stage1, 3, 2);
  EXPECT_EQ(verifyReplication(plan).str(), "");
  at(stage1, 2, 0).mutable_scalars(0)->set_coordinate("dp");
  std::string text = verifyReplication(plan).str();
  for (const char *tensor : {"tensor \"w0\"", "tensor \"w1\"",
                             "gradient of \"w0\"", "gradient of \"w1\""})
    EXPECT_NE(text.find(tensor), std::string::npos) << tensor << "\n" << text;
}

TEST_F(Verify, TiedParametersNeedTheirGradientsSummed) {
  // Both stages hold w0.
  for (Buffer &buffer : *last.mutable_buffers())
    if (buffer.tensor() == "w1")
      buffer.set_tensor("w0");
  EXPECT_EQ(
      verifyReplication(plan).str(),
      "program 0 · tensor \"w0\" should be equal on all ranks along pp, "
      "but call 5 \"stage0.update\" · instruction 10 sgd_update \"w.sgd\" "
      "makes it from values that differ there and were not reduced\n"
      "program 0 · gradient of \"w0\" should be equal on all ranks along "
      "pp, but call 4 \"stage0.backward\" microbatch 1 · instruction 3 "
      "einsum \"first/MatMul.weight\" makes it from values that differ "
      "there and were not reduced\n"
      "program 1 · tensor \"w0\" should be equal on all ranks along pp, "
      "but call 5 \"stage1.update\" · instruction 10 sgd_update \"w.sgd\" "
      "makes it from values that differ there and were not reduced\n"
      "program 1 · gradient of \"w0\" should be equal on all ranks along "
      "pp, but call 4 \"stage1.backward\" microbatch 1 · instruction 5 "
      "einsum \"second/MatMul.weight\" makes it from values that differ "
      "there and were not reduced");
  // Summed over pp before the update they are equal.
  for (Program &program : plan.programs) {
    Instruction &sum = at(program, 3, 2); // was a record: reduce here
    int gradient = 0;
    for (int b = 0; b < program.buffers_size(); ++b)
      if (program.buffers(b).category() == Buffer::GRADIENTS)
        gradient = b;
    planpb::Operand operand;
    for (const Instruction &inst : program.procedures(3).instructions())
      if (inst.op() == "square_sum")
        operand = inst.inputs(0);
    operand.set_buffer(gradient);
    sum.set_kind(Instruction::COLLECTIVE);
    sum.set_collective(Instruction::ALL_REDUCE);
    sum.set_reduction(Instruction::SUM);
    sum.set_group(0);
    *sum.add_inputs() = operand;
    *sum.add_outputs() = operand;
  }
  EXPECT_EQ(verifyReplication(plan).str(), "");
}

TEST_F(Verify, LossOfOneReplicaIsNotTheLoss) {
  plan = plantest::replicatedPlan(2);
  EXPECT_EQ(verify(), "");
  // reduce_sum of the local rows only: the sample's loss is summed over dp in
  // stage1.update.
  std::string name = "loss";
  Program &stage1 = plan.programs[1];
  for (int i = 0; i < stage1.procedures(3).instructions_size(); ++i)
    if (at(stage1, 3, i).kind() == Instruction::COLLECTIVE &&
        stage1.buffers(at(stage1, 3, i).inputs(0).buffer()).name() == name) {
      drop(stage1, 3, i);
      break;
    }
  EXPECT_EQ(verify(),
            "program 1 · output \"loss\" should be equal on all ranks along "
            "dp, but call 3 \"stage1.forward\" microbatch 1 · instruction 4 "
            "reduce_sum makes it from values that differ there and were not "
            "reduced");
}

// ------------------------------------------------------------ progress

TEST_F(Verify, TransfersInOppositeOrderDeadlock) {
  // Both ranks move their transfers to one stream; each sends first.
  for (Program *program : {&first, &last})
    for (Procedure &procedure : *program->mutable_procedures())
      for (Instruction &instruction : *procedure.mutable_instructions())
        if (instruction.stream() == 3)
          instruction.set_stream(2);
  // Rank 0: send 0, send 1, recv 0, recv 1. Rank 1, without alternation:
  // recv 0, send 0, recv 1, send 1 is stuck at send 0.
  std::string text = verifyProgress(plan).str();
  EXPECT_EQ(
      text,
      "deadlock: rank 0 stream \"act\" waits at call 2 \"stage0.forward\" "
      "microbatch 1 · instruction 4 send \"act\" for rank 1 stream \"act\", "
      "which waits at call 2 \"stage1.backward\" microbatch 0 · instruction 4 "
      "send \"grad\" for rank 0 stream \"act\"");
}

TEST_F(Verify, ReplicasDeadlockAlike) {
  plan = plantest::replicatedPlan(3);
  for (Program &program : plan.programs)
    for (Procedure &procedure : *program.mutable_procedures())
      for (Instruction &instruction : *procedure.mutable_instructions())
        if (instruction.stream() == 3)
          instruction.set_stream(2);
  std::string text = verifyProgress(plan).str();
  EXPECT_NE(text.find("rank 0 stream \"act\" waits at call 2"),
            std::string::npos);
  EXPECT_NE(text.find("for rank 3 stream \"act\", which waits at call 2"),
            std::string::npos);
}

// ------------------------------------------------------------ structure

// Collectives divide by the number of their members.
TEST_F(Verify, MeshesHavePlaces) {
  for (int64_t size : {int64_t{0}, int64_t{-1}, INT64_MAX}) {
    plan.file.mutable_mesh(0)->set_size(size);
    EXPECT_EQ(verify(),
              "manifest · mesh axis \"pp\" has size " + std::to_string(size));
  }
}

// Who counts memory by category and slot takes both as they are.
TEST_F(Verify, NumbersThatNoBufferHas) {
  buffer(first, "w0").set_category(static_cast<Buffer::Category>(62));
  buffer(first, "h").set_slots(1);
  EXPECT_EQ(verifyStructure(plan).str(),
            "program 0 · buffer 1 \"w0\": there is no category 62\n"
            "program 0 · call 2: slot 1 of buffer \"h\", which has 1");
}

TEST_F(Verify, StructureReportsEverythingAtOnce) {
  at(first, 1, 1).mutable_inputs(0)->set_buffer(17);
  at(first, 1, 3).set_event(9);
  at(first, 1, 4).mutable_peer(0)->set_size(2);
  at(first, 2, 0).set_stream(4);
  at(first, 2, 3).mutable_outputs(0)->set_offset(1);
  buffer(first, "norm").set_offset(first.arena_bytes());
  buffer(first, "h").set_slot_stride(32);
  buffer(first, "w0")
      .mutable_layout()
      ->mutable_dims(0)
      ->mutable_factors(0)
      ->set_size(16);
  first.mutable_calls(2)->set_slots(0, 2);
  first.mutable_calls(3)->mutable_waits()->Add()->set_call(3);
  EXPECT_EQ(
      verify(),
      "program 0 · buffer 1 \"w0\": layout [16, 8] is of shape [16,8], but "
      "\"w0\" is f32[8,8]\n"
      "program 0 · buffer 2 \"h\": slots of 64 bytes are 32 bytes apart\n"
      "program 0 · buffer 2 \"h\": slot stride 32 is not a multiple of 64\n"
      "program 0 · buffer 5 \"norm\": ends at byte 900 of an arena of 896\n"
      "program 0 · procedure 1 \"stage0.forward\" · instruction 1 einsum "
      "\"first/MatMul\": input 0 is buffer 17 of 6\n"
      "program 0 · procedure 1 \"stage0.forward\" · instruction 3 wait 9: "
      "event 9 of 6\n"
      "program 0 · procedure 1 \"stage0.forward\" · instruction 3 wait 9: no "
      "record of event 9 comes before it in the procedure\n"
      "program 0 · procedure 1 \"stage0.forward\" · instruction 4 send "
      "\"act\": its peer pp=2 is outside the mesh of size 2\n"
      "program 0 · procedure 2 \"stage0.backward\" · instruction 0 recv "
      "\"grad\": stream 4 of 4\n"
      "program 0 · procedure 2 \"stage0.backward\" · instruction 3 einsum "
      "\"first/MatMul.weight\": output 0 reaches byte 260 of buffer \"dw0\", "
      "which has 256\n"
      "program 0 · call 2: slot 2 of buffer \"x\", which has 2\n"
      "program 0 · call 2: slot 2 of buffer \"h\", which has 2\n"
      "program 0 · call 3: waits for call 3, which does not come before it");
}

TEST_F(Verify, CollectiveShapes) {
  Instruction &norm = at(first, 3, 7);
  norm.set_collective(Instruction::ALL_GATHER);
  EXPECT_EQ(
      verify(),
      "program 0 · procedure 3 \"stage0.update\" · instruction 7 all_gather: "
      "makes f32[1] of f32[1] over 2 members, expected f32[2]");
  norm.set_collective(Instruction::ALL_REDUCE);
  norm.clear_reduction();
  EXPECT_EQ(verify(), "program 0 · procedure 3 \"stage0.update\" · instruction "
                      "7 all_reduce: there is no reduction 0");
  norm.set_collective(Instruction::Collective(17));
  EXPECT_EQ(verify(), "program 0 · procedure 3 \"stage0.update\" · instruction "
                      "7 collective 17: there is no collective 17");
}

TEST_F(Verify, EntriesAreOnOneStream) {
  const Instruction sgd =
      at(first, 3, first.procedures(3).instructions_size() - 1);
  Procedure &flush = *first.add_procedures();
  flush.set_name("entry:flush");
  flush.set_action(ScheduleStep::UPDATE);
  *flush.add_instructions() = sgd;
  EXPECT_EQ(verify(), "");
  flush.mutable_instructions(0)->set_stream(1);
  const std::string text = verify();
  EXPECT_NE(text.find("expected library kernels and collectives on stream 0 in "
                      "what is run between steps"),
            std::string::npos)
      << text;
  Instruction norm = at(first, 3, 7); // over pp
  norm.set_stream(0);
  *flush.mutable_instructions(0) = norm;
  const std::string other = verify();
  EXPECT_NE(other.find("meets rank 1, which runs another program, between "
                       "steps"),
            std::string::npos)
      << other;
}

TEST_F(Verify, ActionsOfProceduresAndSchedule) {
  first.mutable_procedures(1)->clear_action();
  first.add_schedule()->set_action(ScheduleStep::FORWARD);
  first.add_schedule()->set_action(ScheduleStep::Action(9));
  EXPECT_EQ(verify(), "program 0 · place 1 of its schedule: there is no action "
                      "9\n"
                      "program 0 · procedure 1 \"stage0.forward\": there is no "
                      "action 0");
}

TEST_F(Verify, OutputsWriteEachElementOnce) {
  at(first, 1, 1).mutable_outputs(0)->set_strides(0, 4);
  EXPECT_EQ(verify(),
            "program 0 · procedure 1 \"stage0.forward\" · instruction 1 einsum "
            "\"first/MatMul\": output 0 writes elements of buffer \"h\" more "
            "than once: shape [2,8], strides [4,1]");
}

TEST_F(Verify, RanksOutsideTheMesh) {
  plan.file.mutable_ranks(1)->mutable_coords(0)->set_size(0);
  plan.file.mutable_ranks(0)->mutable_coords(1)->set_name("tp");
  EXPECT_EQ(verify(),
            "manifest · rank 0 has a coordinate on \"tp\", which is no mesh "
            "axis\n"
            "manifest · rank 0 has no coordinate on \"dp\"");
}

} // namespace
} // namespace merak
