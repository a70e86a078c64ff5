// Which ops of a block become one generated kernel: the rule of
// passes/Planning/FusionGroups.h on the ops of a block.
#pragma once

#include "mlir/IR/Block.h"
#include "mlir/IR/Operation.h"
#include "passes/Planning/FusionGroups.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/SmallVector.h"

#include <vector>

namespace merak::lowering {

using FusionGroup = llvm::SmallVector<mlir::Operation *, 4>; // program order

using planning::FusionOptions;

// The loops of an op for the grouping; nothing if no kernel can hold it.
std::optional<planning::Loops> loopsOf(mlir::Operation *op);

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
