// Writes the layouts of a decision onto the step function and makes every
// change of layout an op of the dist dialect, still in the global view.
#pragma once

#include "passes/Staging/Planner.h"

namespace merak {

// After this, every op of @step has `dist.layouts` (one per result), every
// argument `dist.layout`, every op `pipe.stage`, and operands agree with the
// sharding rules of their ops. Invalidates `decision.step`.
mlir::LogicalResult applyLayouts(mlir::func::FuncOp step, Decision &decision);

inline constexpr llvm::StringLiteral kLayoutAttr = "dist.layout";
// On a conversion of a stored parameter: how long its result lives.
inline constexpr llvm::StringLiteral kLifeAttr = "dist.life";
inline constexpr llvm::StringLiteral kLifeStep = "step", kLifeUse = "use";
// A part of the model; of several pipelines an array of that in each, kNoStage
// where an op is on no stage. So is kHomeAttr.
inline constexpr llvm::StringLiteral kStageAttr = "pipe.stage";
inline constexpr int64_t kNoStage = -1;
// On a conversion of the update that a stage on another mesh gets the result
// of: the stage that makes it, in its exchange S.
inline constexpr llvm::StringLiteral kHomeAttr = "pipe.home";
// Unit attribute on forward ops: the backward pass computes the results again
// instead of reading kept ones. Never on an op that communicates. With several
// pipelines an array of those in which it does so.
inline constexpr llvm::StringLiteral kRecomputeAttr = "train.recompute";
// A view that each action takes again of what is kept, see
// passes/Planning/KeptViews.h.
inline constexpr llvm::StringLiteral kViewAttr = "train.view_again";
// Unit attribute on ops that run once a step, with the update, although they
// are none: OpOutcome::late.
inline constexpr llvm::StringLiteral kLateAttr = "train.late";
// On ops, the pass over the microbatches before gradients (OpOutcome::join); on
// a dist.accumulate, that its sum is complete after the forward pass only.
inline constexpr llvm::StringLiteral kJoinAttr = "train.join";

} // namespace merak
