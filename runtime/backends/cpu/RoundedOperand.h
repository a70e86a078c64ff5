// An operand of a product in 8 bits: a dense copy in f32 whose elements are
// numbers of a Float8 times a power of two (runtime/core/Float8.h).
#pragma once

#include "runtime/backends/cpu/Copy.h"
#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cpu/Scratch.h"
#include "runtime/core/Float8.h"

#include <optional>

namespace merak::cpu {

// The attribute `rounds` of an einsum, "e4m3,e5m2": what its operands are
// rounded to; nothing if it has none or (and a problem) it reads otherwise.
std::optional<std::array<runtime::Float8, 2>> readRounds(Request &request);

class RoundedOperand {
public:
  RoundedOperand(const runtime::Float8 &type, ScratchSlot slot,
                 const runtime::View &view);
  // The copy is the calling thread's, until the slot is used again.
  runtime::View run(const runtime::View &view, runtime::ThreadPool &pool) const;

private:
  runtime::Float8 type_;
  ScratchSlot slot_;
  bool copies_; // the operand is not dense
  CopyPlan copy_;
};

} // namespace merak::cpu
