// What matrix products do with their results before these are written, so that
// no kernel reads and writes them once more: which ops follow which products,
// in what order, with which shapes, types and uses, and how far away. One rule
// for the actions that are lowered (passes/Lowering/Epilogues.h) and for those
// that the search prices (ActionFusion.h).
//
// Any device: conversion of a weight's gradient, which leaves the product, or
// the convolution, in f32. GPUs, whose libraries offer it: adding a bias, GELU
// in its tanh form with or without keeping its argument, multiplying by GELU's
// slope, and the gradient of a bias, the sum of what the product for the
// gradient of its weight reads anyway.
#pragma once

#include "dialects/Support/Epilogue.h"

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace merak::planning {

// An op of a list, in which ops are numbered in order, as a product sees it.
struct EpilogueOp {
  Epilogue role = Epilogue::None;
  std::string equation;      // of a product of two tensors; else empty
  bool widensResult = false; // of 16 bits, if asked to
  bool weightGradient = false;
  bool reshapes = false;  // its result is another view of its operand
  bool stores = false;    // writes its operand to memory that others read
  std::vector<bool> sums; // of a Sum: by dimension, whether it is added up
  std::vector<int> operands, results; // values
};

struct EpilogueValue {
  std::vector<int64_t> shape; // on a device
  bool isFloat = true;
  int bits = 32;
  int maker = -1;         // op of the list; -1: none
  std::vector<int> users; // ops of the list, in order, once for each operand
  int otherUses = 0;      // that are no ops of the list
  bool constant = false;
  bool named = false; // something looks for it by name: its op keeps it
  // Values of one number, not negative, are the same memory, which the list
  // does not write.
  int memory = -1;
  bool isUsedOnce() const { return users.size() + otherUses == 1; }
};

struct EpilogueList {
  std::vector<EpilogueOp> ops;
  std::vector<EpilogueValue> values;
};

// What order of the list's effects allows.
struct EpilogueOrder {
  // Whether what `from` does may be done where `to` stands.
  std::function<bool(int from, int to)> mayMove;
  // Whether a store may wait until after `last`.
  std::function<bool(int store, int last)> mayDelay;
  // Ops that now stand behind `last`, in their order.
  std::function<void(const std::vector<int> &ops, int last)> delay;
};

// A product (or a sum) with what it does besides.
struct FusedProduct {
  enum class Gelu { None, Forward, Gradient };

  int op = -1;
  std::vector<int> ops; // besides
  int last = -1;        // where it runs: the last of all these
  int result = -1;      // values
  int bias = -1;        // -1: none; else the result's last dimensions
  Gelu gelu = Gelu::None;
  // GELU's argument: computed by the product before GELU, or read for its
  // slope; -1: not wanted.
  int argument = -1;
  // The sums of operand `summed` over what the result lacks of it; -1: none.
  int sums = -1;
  int summed = -1;
  // Of a sum alone: what it reads in place of its operand; -1: that.
  int source = -1;
};

struct Epilogues {
  std::vector<FusedProduct> products;
  std::vector<int> unused; // ops whose results nobody reads any more
};

// Takes out of the groups (FusionGroups.h) what products do; what is left of a
// group stays a group.
Epilogues takeEpilogues(const EpilogueList &list,
                        std::vector<std::vector<int>> &groups, bool forGpu,
                        const EpilogueOrder &order);

} // namespace merak::planning
