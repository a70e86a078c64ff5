// Plans whose losses are scaled: gradients begin with the run-time scalar
// "grad_scale" (kernel `scale`), and clip_factor takes it out of them.
#pragma once

#include "runtime/plan/Plan.h"

namespace merak {

inline constexpr char kGradScale[] = "grad_scale";

inline bool takesGradScale(const planpb::Instruction &instruction) {
  for (const planpb::Scalar &scalar : instruction.scalars())
    if (scalar.value_case() == planpb::Scalar::kRuntime &&
        scalar.runtime() == kGradScale)
      return true;
  return false;
}

inline bool scalesLoss(const LoadedPlan &plan) {
  for (const planpb::Program &program : plan.programs)
    for (const planpb::Procedure &procedure : program.procedures())
      for (const planpb::Instruction &instruction : procedure.instructions())
        if (takesGradScale(instruction))
          return true;
  return false;
}

} // namespace merak
