// Which ops of a block become one generated kernel.
//
// Greedy, in program order: an op joins the groups of its producers if all of
// them walk one iteration space. A group runs where its last op stands, so that
// nothing outside may need a result of it before that place. Values used
// outside are written to memory; all others live in registers.
#pragma once

#include "mlir/IR/Block.h"
#include "mlir/IR/Operation.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/SmallVector.h"

#include <vector>

namespace merak::lowering {

using FusionGroup = llvm::SmallVector<mlir::Operation *, 4>; // program order

struct FusionOptions {
  bool fuse = true; // false: one op a group
  // Reductions with fewer independent results than this stay library kernels,
  // which divide the reduced elements themselves; unless they are small.
  int64_t minRows = 8, minColumns = 64;
  int64_t smallElements = 32768;
  size_t maxOps = 32, maxValues = 24;
};

// Groups of `block`, disjoint, by the place of their last op; every op for
// which a kernel is worthwhile is in one. `mayDelay(user, op)`: a user
// outside of the group that can be moved behind `op`. `isBarrier(op)`: no group
// has ops on both sides of it (it changes memory that ops of the block may
// read). `mayBe(group)`: what else a group must fulfil.
std::vector<FusionGroup> formFusionGroups(
    mlir::Block &block, const FusionOptions &options = {},
    llvm::function_ref<bool(mlir::Operation *, mlir::Operation *)> mayDelay =
        [](mlir::Operation *, mlir::Operation *) { return false; },
    llvm::function_ref<bool(mlir::Operation *)> isBarrier =
        [](mlir::Operation *) { return false; },
    llvm::function_ref<bool(llvm::ArrayRef<mlir::Operation *>)> mayBe =
        [](llvm::ArrayRef<mlir::Operation *>) { return true; });

} // namespace merak::lowering
