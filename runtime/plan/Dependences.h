// Which operands an output of an instruction is made from.
//
// An instruction may do several things at once: a product that also sums one of
// its inputs, a generated kernel of operations that only share their loops.
// What is said about one of its results (whether ranks agree on it) must not
// depend on what another of them is made from.
#pragma once

#include "runtime/plan/Plan.h"

namespace merak {

// Whether output `output` depends on input `input`. Of library kernels by what
// docs/Kernels.md says of them, of generated ones by what they say themselves;
// true where nothing is known.
bool dependsOn(const planpb::Instruction &instruction, int output, int input);

// What a generated kernel of several outputs says of each (Instruction.attrs):
// the positions of inputs that this one is not made from, "0,2". Only for
// checking.
std::string independenceAttr(int output);
std::string independenceText(const std::vector<int> &inputs);
// Errors: such attributes of an instruction that is no generated kernel, or of
// operands that it lacks.
Status checkIndependence(const planpb::Instruction &instruction);

} // namespace merak
