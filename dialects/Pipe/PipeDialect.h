// The pipe dialect: stages, actions, named values, transfers.
#pragma once

#include "dialects/Dist/DistDialect.h"
#include "dialects/Pipe/PipeAttrs.h"

#include "dialects/Pipe/PipeDialect.h.inc"
#include "dialects/Pipe/PipeEnums.h.inc"
#define GET_OP_CLASSES
#include "dialects/Pipe/PipeOps.h.inc"

namespace merak::pipe {

// On the module: the #pipe.decision.
inline constexpr llvm::StringLiteral kDecisionAttr = "pipe.decision";
// On the module: the level of tensor-parallel overlap, from 1. A microbatch is
// then two submicrobatches, of samples, which the mesh axis "mb" counts, or of
// the tokens of each sample, over the mesh axis "sub".
inline constexpr llvm::StringLiteral kOverlapAttr = "pipe.tp_overlap";
// On the module after these were told apart: how many there are.
inline constexpr llvm::StringLiteral kSubmicrobatchesAttr =
    "pipe.submicrobatches";
// On an op of an action: the one it is for; absent: number 0, or both.
inline constexpr llvm::StringLiteral kSubmicrobatchAttr = "pipe.submicrobatch";

// I64 attribute of an input: of how many steps later it is.
inline constexpr llvm::StringLiteral kAheadAttr = "pipe.ahead";

// I64 attribute of a carried value: the number that all its elements are before
// the first step.
inline constexpr llvm::StringLiteral kInitialAttr = "pipe.initial";

// Parts of a microbatch that have ops of their own, at least 1.
int64_t submicrobatches(mlir::Operation *module);

} // namespace merak::pipe
