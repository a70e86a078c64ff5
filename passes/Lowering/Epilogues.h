// What a matrix product does with its result before it is written: the rule of
// passes/Planning/Epilogues.h on the ops of an action.
#pragma once

#include "passes/Lowering/KernelCalls.h"
#include "passes/Planning/Epilogues.h"

namespace merak::lowering {

// planning::FusedProduct with ops and values of the action.
struct Epilogue {
  using Gelu = planning::FusedProduct::Gelu;

  mlir::Operation *product = nullptr;
  mlir::Value bias;
  Gelu gelu = Gelu::None;
  mlir::Value argument;
  mlir::Value result;
  mlir::Value sums;
  int summed = -1;
  mlir::Value source;
  KernelGroup ops;
  mlir::Operation *last = nullptr;
};

// Takes out of the groups of `body` what products do; what is left of a group
// stays a group. Stores that would come before what they store move behind it.
// `unused`: ops whose results nobody reads any more.
std::vector<Epilogue>
takeEpilogues(mlir::Block &body, std::vector<KernelGroup> &groups, bool forGpu,
              llvm::SmallVectorImpl<mlir::Operation *> &unused);

} // namespace merak::lowering
