// What a matrix product does with its result before it is written, so that no
// kernel has to read and write it once more.
//
// Any device: conversion of a weight's gradient, which leaves the product, or
// the convolution, in f32. GPUs, whose libraries offer it: adding a bias, GELU
// in its tanh form with or without keeping its argument, multiplying by GELU's
// slope, and the gradient of a bias, the sum of what the product for the
// gradient of its weight reads anyway.
#pragma once

#include "passes/Lowering/KernelCalls.h"
#include "passes/Planning/FactorGraph.h"

namespace merak::lowering {

struct Epilogue {
  // train.einsum, train.conv_grad_weight, train.reduce_sum
  mlir::Operation *product = nullptr;
  mlir::Value bias; // null: none; else the result's last dimensions
  enum Gelu { None, Forward, Gradient } gelu = None;
  // GELU's argument: computed by the product before GELU, or read for its
  // slope. Null: not wanted.
  mlir::Value argument;
  mlir::Value result;
  // The sums of operand `summed` over what the result lacks of it; null: none.
  mlir::Value sums;
  int summed = -1;
  // Of a sum alone: what it reads in place of its operand; null: that.
  mlir::Value source;
  // What the product does besides, and where it runs: the last of all these.
  KernelGroup ops;
  mlir::Operation *last = nullptr;
};

// What a product could do of an op; the search asks for it too.
planning::Epilogue epilogueRoleOf(mlir::Operation *op);

// Takes out of the groups of `body` what products do; what is left of a group
// stays a group. `unused`: ops whose results nobody reads any more.
std::vector<Epilogue>
takeEpilogues(mlir::Block &body, std::vector<KernelGroup> &groups, bool forGpu,
              llvm::SmallVectorImpl<mlir::Operation *> &unused);

} // namespace merak::lowering
