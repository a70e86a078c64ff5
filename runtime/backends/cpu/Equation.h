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

// What is done to a product before it is written: v = product + bias, then
// GELU's tanh form of v, or v times its slope at another operand.
struct Epilogue {
  bool biased = false;
  enum Gelu { None, Forward, Keep, Gradient } gelu = None;
  // The factor whose sums over what the product lacks of it are output 1: the
  // gradient of a bias beside that of a weight. -1: none, or else nothing is
  // done to the product.
  int summed = -1;
  bool any() const { return biased || gelu != None; }
  // Positions among the inputs; the argument is output 1 with Keep.
  static constexpr size_t kBias = 2;
  size_t argument() const { return biased ? 3 : 2; }
};

// Counts the operands of an einsum, reads the attributes `bias`, `gelu` and
// `sum` and checks their operands; false (and problems) if they do not fit.
bool readEpilogue(Request &request, Epilogue &epilogue);

// The two instructions that one with `summed` stands for: the product alone,
// and reduce_sum of input `summed` to output 1.
planpb::Instruction productAlone(const planpb::Instruction &instruction);
planpb::Instruction sumAlone(const planpb::Instruction &instruction,
                             int summed);

// Out, bias and argument in one nest; absent operands have strides of 0.
Nest epilogueNest(const Request &request, const Epilogue &epilogue);

// Reads the attribute `equation` of two inputs and one output; false (and
// problems) if it does not fit the operands.
bool readEquation(Request &request, Problem &problem);

} // namespace merak::cpu
