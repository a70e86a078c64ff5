// Summands in a plan: which values still have to be reduced, written down when
// the plan is made and checked whenever it is read.
//
// Operand.partial_group is a type: an instruction says of each operand whether
// it is a whole value or a summand over a group. A reduction takes summands and
// makes a whole. Where somebody reads as whole what was written as a summand, a
// reduction is missing; where a whole value is reduced, there is one too many.
// Nothing else can tell: a sum over a group of values that should have been
// equal is a legal program, of another model.
#pragma once

#include "runtime/plan/Plan.h"

namespace merak {

// Fills partial_group of all operands from the reductions of the program.
// Requires verifyStructure to have passed. False, and no annotation, if some
// operand is a summand in one call and whole in another.
bool annotatePartials(planpb::Program &program);

// Checks that readers find what they expect. Programs without any annotation
// pass.
Status verifyPartials(const planpb::Program &program);

} // namespace merak
