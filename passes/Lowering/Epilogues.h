// What a matrix product does with its result before it is written, so that no
// kernel has to read and write it once more.
//
// Any device: conversion of a weight's gradient, which leaves the product, or
// the convolution, in f32. GPUs, whose libraries offer it: adding a bias, GELU
// in its tanh form with or without keeping its argument, and multiplying by
// GELU's slope.
#pragma once

#include "passes/Lowering/KernelCalls.h"

namespace merak::lowering {

struct Epilogue {
  mlir::Operation *product = nullptr; // train.einsum, train.conv_grad_weight
  mlir::Value bias; // null: none; else the result's last dimensions
  enum Gelu { None, Forward, Gradient } gelu = None;
  // GELU's argument: computed by the product before GELU, or read for its
  // slope. Null: not wanted.
  mlir::Value argument;
  mlir::Value result;
  // The product's ops; the last one is where it runs.
  KernelGroup ops;
};

// Takes out of the groups of `body` what products do; what is left of a group
// stays a group.
std::vector<Epilogue>
takeEpilogues(mlir::Block &body, std::vector<KernelGroup> &groups, bool forGpu);

} // namespace merak::lowering
