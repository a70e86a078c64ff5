// What instructions tell of their device, and what processes tell each other.
#include "runtime/rates/Work.h"

#include <gtest/gtest.h>

namespace merak::rates {
namespace {

using planpb::Instruction;

TEST(Work, ClassesAreThoseOfKernels) {
  Instruction instruction;
  auto of = [&](Instruction::Kind kind, const char *op = "") {
    instruction.set_kind(kind);
    instruction.set_op(op);
    return classOf(instruction);
  };
  EXPECT_EQ(of(Instruction::KERNEL, "k0"), RateClass::Elementwise);
  EXPECT_EQ(of(Instruction::LIBRARY, "einsum"), RateClass::Matmul);
  EXPECT_EQ(of(Instruction::LIBRARY, "adamw_update"), RateClass::Optimizer);
  for (Instruction::Kind kind :
       {Instruction::COLLECTIVE, Instruction::SEND, Instruction::RECV,
        Instruction::RECORD, Instruction::WAIT, Instruction::LOAD_INPUT})
    EXPECT_FALSE(of(kind)) << int(kind);
}

// A procedure counts as often as it is called.
TEST(Work, ExpectedSecondsAreOfAllCalls) {
  planpb::Program program;
  for (const char *op : {"einsum", "softmax"}) {
    Instruction *inst = program.add_procedures()->add_instructions();
    inst->set_kind(Instruction::LIBRARY);
    inst->set_op(op);
  }
  program.mutable_procedures(0)->add_instructions()->set_kind(
      Instruction::SEND);
  for (uint32_t procedure : {0, 1, 0, 0})
    program.add_calls()->set_procedure(procedure);
  const Seconds seconds = expectedSeconds(program, [](const Instruction &inst) {
    return inst.op() == "einsum" ? 2.0 : 0.5;
  });
  Seconds expected{};
  expected[size_t(RateClass::Matmul)] = 6;
  expected[size_t(RateClass::Rows)] = 0.5;
  EXPECT_EQ(seconds, expected);
}

TEST(Work, TextComesBack) {
  std::vector<Seconds> ranks(3);
  for (size_t r = 0; r < ranks.size(); ++r)
    for (size_t c = 0; c < kRateClasses; ++c)
      ranks[r][c] = 0.25 * double(r * kRateClasses + c);
  auto back = parseSeconds(toText(ranks));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, ranks);
  EXPECT_TRUE(parseSeconds("").ok());
}

TEST(Work, OtherTextIsRefused) {
  for (const char *text : {"1 2 3\n", "1 2 3 4 5 6 7 x\n",
                           "1 2 3 4 5 6 7 nan\n", "1 2 3 4 5 6 7 -8\n"})
    EXPECT_FALSE(parseSeconds(text).ok()) << text;
}

} // namespace
} // namespace merak::rates
