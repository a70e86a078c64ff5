// What crosses from step to step (docs/Sparse.md, docs/DelayedGradients.md):
// inputs of later steps, and updates that the step before left.
#pragma once

#include "runtime/plan/plan.pb.h"

#include <cstdlib>

namespace merak {

// An attribute of a LOAD_INPUT: of how many steps later its batch is, from 1 to
// kMostAhead. Where the data end, epochs go on as for steps.
inline constexpr char kAheadAttr[] = "ahead";
inline constexpr int64_t kMostAhead = 1000;

// 0: the batch of the step itself; negative or 0 with the attribute: no number.
inline int64_t stepsAhead(const planpb::Instruction &instruction) {
  const auto found = instruction.attrs().find(kAheadAttr);
  return found == instruction.attrs().end()
             ? 0
             : std::strtoll(found->second.c_str(), nullptr, 10);
}

// Whether it holds what a step leaves for the next one: state that outlives a
// step and is no tensor, so that no checkpoint knows of it.
inline bool isLeftToNextStep(const planpb::Buffer &buffer) {
  return buffer.category() == planpb::Buffer::OPTIMIZER &&
         buffer.tensor().empty();
}

// Whether it takes the rate and the number of the step before, for rows or a
// gradient that this one left to the next.
inline bool isOfStepBefore(const planpb::Instruction &instruction) {
  for (const planpb::Scalar &scalar : instruction.scalars())
    if (scalar.value_case() == planpb::Scalar::kRuntime &&
        (scalar.runtime() == "step_before" || scalar.runtime() == "lr_before"))
      return true;
  return false;
}

} // namespace merak
