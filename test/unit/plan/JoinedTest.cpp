// Operands that a collective takes as one array: what lies between them counts,
// and whatever could not be one array is refused with its reason.
#include "runtime/plan/Joined.h"

#include <gtest/gtest.h>

namespace merak {
namespace {

using planpb::Buffer;
using planpb::Instruction;
using planpb::Operand;

class Joined : public ::testing::Test {
protected:
  planpb::Program program;
  Instruction reduce;

  Joined() {
    reduce.set_kind(Instruction::COLLECTIVE);
    reduce.set_collective(Instruction::ALL_REDUCE);
    reduce.set_reduction(Instruction::SUM);
    (*reduce.mutable_attrs())[kJoinedAttr] = "1";
    add("a", 3, 64);   // 12 bytes, then padding up to 128
    add("b", 20, 128); // 80 bytes, then padding up to 256
    add("c", 2, 256);
  }
  void add(const std::string &name, int64_t elements, uint64_t offset) {
    Buffer *buffer = program.add_buffers();
    buffer->set_name(name);
    buffer->set_dtype(planpb::F32);
    buffer->add_shape(elements);
    buffer->set_offset(offset);
    buffer->set_bytes(uint64_t(elements) * 4);
    buffer->set_slots(1);
    buffer->set_slot_class(-1);
    Operand operand;
    operand.set_buffer(uint32_t(program.buffers_size() - 1));
    operand.add_shape(elements);
    operand.add_strides(1);
    *reduce.add_inputs() = operand;
    *reduce.add_outputs() = operand;
  }
  std::string problem() {
    Result<int64_t> elements = joinedElements(program, reduce);
    return elements.ok() ? "" : elements.status().str();
  }
};

TEST_F(Joined, PaddingBelongsToTheArray) {
  Result<int64_t> elements = joinedElements(program, reduce);
  ASSERT_TRUE(elements.ok()) << elements.status().str();
  EXPECT_EQ(*elements, (256 + 8 - 64) / 4);
  EXPECT_TRUE(isJoined(reduce));
  reduce.mutable_attrs()->clear();
  EXPECT_FALSE(isJoined(reduce));
}

TEST_F(Joined, OneOperandIsItself) {
  reduce.mutable_inputs()->DeleteSubrange(1, 2);
  reduce.mutable_outputs()->DeleteSubrange(1, 2);
  EXPECT_EQ(*joinedElements(program, reduce), 3);
}

TEST_F(Joined, OthersMayNotLieBetween) {
  program.mutable_buffers(2)->set_offset(320);
  EXPECT_EQ(problem(), "cannot join its operands: \"c\" begins at byte 320, "
                       "behind the one before would be 256");
  program.mutable_buffers(2)->set_offset(0); // in the wrong order
  EXPECT_EQ(problem(), "cannot join its operands: \"c\" begins at byte 0, "
                       "behind the one before would be 256");
}

TEST_F(Joined, TypesAreTheSame) {
  program.mutable_buffers(1)->set_dtype(planpb::I32);
  EXPECT_EQ(problem(), "cannot join its operands: number 1 is i32, the first "
                       "one f32");
}

TEST_F(Joined, OnlyInPlace) {
  reduce.mutable_outputs(1)->set_buffer(2);
  EXPECT_EQ(problem(),
            "cannot join its operands: number 1 is not reduced in place");
}

TEST_F(Joined, OnlyAllReduce) {
  reduce.set_collective(Instruction::ALL_GATHER);
  EXPECT_EQ(problem(),
            "cannot join its operands: only an all_reduce in place can");
}

TEST_F(Joined, WithoutGaps) {
  for (auto *operand : {reduce.mutable_inputs(1), reduce.mutable_outputs(1)}) {
    operand->set_shape(0, 10);
    operand->set_strides(0, 2);
  }
  EXPECT_EQ(problem(), "cannot join its operands: number 1 has gaps");
}

TEST_F(Joined, WithoutSlots) {
  program.mutable_buffers(0)->set_slots(2);
  program.mutable_buffers(0)->set_slot_class(0);
  EXPECT_EQ(problem(), "cannot join its operands: \"a\" has 2 slots");
}

} // namespace
} // namespace merak
