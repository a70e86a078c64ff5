// What an einsum does to its product besides: every backend reads it, finds its
// operands and takes it apart here.
#pragma once

#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cpu/Nest.h"

namespace merak::cpu {

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
  bool activates() const { return gelu == Forward || gelu == Keep; }
  bool keeps() const { return gelu == Keep; }
  bool slopes() const { return gelu == Gradient; }
};

// Counts the operands of an einsum, reads the attributes `bias`, `gelu` and
// `sum` and checks their operands; false (and problems) if they do not fit.
bool readEpilogue(Request &request, Epilogue &epilogue);

// The operands of an epilogue among those of an einsum; null: it has none.
struct EpilogueOperands {
  const View *bias = nullptr;
  const View *slopeAt = nullptr; // GELU's argument, read
  const View *keep = nullptr;    // the same, written
};
EpilogueOperands operandsOf(const Epilogue &epilogue,
                            std::span<const View> inputs,
                            std::span<const View> outputs);

// Out, bias and argument in one nest; absent operands have strides of 0.
Nest epilogueNest(const Request &request, const Epilogue &epilogue);

// The two instructions that one with `summed` stands for: the product alone,
// and reduce_sum of that factor to output 1. What it returns refers to it.
class ProductAndSum {
public:
  ProductAndSum() = default;
  ProductAndSum(const planpb::Instruction &both, int summed);

  Request product(const Request &both) const {
    return {product_, both.inputs, both.outputs.first(1)};
  }
  Request sum(const Request &both) const {
    return sum(both, both.outputs.subspan(1));
  }
  // To another output.
  Request sum(const Request &both, std::span<const View> output) const {
    return {sum_, both.inputs.subspan(summed_, 1), output};
  }
  KernelCall product(const KernelCall &both) const;
  KernelCall sum(const KernelCall &both) const;
  int summed() const { return static_cast<int>(summed_); }

private:
  planpb::Instruction product_, sum_;
  size_t summed_ = 0;
};

} // namespace merak::cpu
