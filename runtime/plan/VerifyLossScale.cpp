// Of a plan whose loss is scaled no update takes a gradient as it is: every
// clip_factor takes the scale out, and every update its factor.
#include "runtime/plan/Describe.h"
#include "runtime/plan/LossScaled.h"
#include "runtime/plan/Verify.h"

#include <fmt/format.h>

using namespace merak::planpb;

namespace merak {
namespace {

std::string problemOf(const Instruction &inst, bool scales) {
  if (inst.kind() != Instruction::LIBRARY)
    return {};
  if (inst.op() == "clip_factor" && takesGradScale(inst) != scales)
    return scales ? "leaves the scale of the loss in the gradients"
                  : "takes out a scale that the loss does not have";
  const auto clip = inst.attrs().find("clip");
  return scales && clip != inst.attrs().end() && clip->second == "0"
             ? "takes gradients of a scaled loss as they are"
             : "";
}

} // namespace

Status verifyLossScale(const LoadedPlan &plan) {
  bool scales = false;
  for (const Program &program : plan.programs)
    for (const Procedure &procedure : program.procedures())
      for (const Instruction &inst : procedure.instructions())
        scales |= inst.op() != "clip_factor" && takesGradScale(inst);
  Status status;
  for (const Program &program : plan.programs)
    for (int p = 0; p < program.procedures_size(); ++p)
      for (int at = 0; at < program.procedures(p).instructions_size(); ++at) {
        const Instruction &inst = program.procedures(p).instructions(at);
        const std::string what = problemOf(inst, scales);
        if (!what.empty())
          status.merge(
              Status::error(fmt::format("program {} · {} {}", program.index(),
                                        describe(program, p, at), what)));
      }
  return status;
}

} // namespace merak
