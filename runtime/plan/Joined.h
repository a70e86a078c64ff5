// Collectives that take several operands as one array: the gradients of a
// bucket. Memory planning lays them one behind the other, each at its
// alignment, so that one message carries them all and nothing is copied. The
// bytes between two of them are nobody's; they are exchanged as well.
#pragma once

#include "runtime/plan/Plan.h"

namespace merak {

// Key among Instruction.attrs. Who does not know it exchanges the operands one
// by one and gets the same values.
inline constexpr char kJoinedAttr[] = "joined";

bool isJoined(const planpb::Instruction &instruction);

// Elements of the array, from the first operand's begin to the last one's end.
// Buffers must be in range and shapes not negative. Errors: not an all-reduce
// in place; operands of different types, in slots, with gaps, or not one behind
// the other.
Result<int64_t> joinedElements(const planpb::Program &program,
                               const planpb::Instruction &instruction);

} // namespace merak
