// An einsum's equation as groups of dimensions: what every backend's product
// starts from.
#pragma once

#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cpu/Nest.h"

namespace merak::cpu {

enum Operand { kA, kB, kOut, kOperands };

// Each letter belongs to one group: batch (a, b, out), M (a, out), N (b, out)
// or K (summed).
struct Problem {
  // Strides in a, b, out; 0 where the operand lacks the letter.
  Nest batch, m, n, k;
  int64_t elements() const { return batch.count() * m.count() * n.count(); }
};

// Reads the attribute `equation` of two inputs and one output; false (and
// problems) if it does not fit the operands.
bool readEquation(Request &request, Problem &problem);

} // namespace merak::cpu
