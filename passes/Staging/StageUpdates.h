// What a stage does once a step, when its gradients are summed: the norm of all
// gradients with clipping, the optimizer, and the mean of tracked statistics.
#pragma once

#include "dialects/Train/TrainDialect.h"
#include "passes/Staging/StageBuilder.h"
#include "llvm/ADT/MapVector.h"

namespace merak {

// A gradient that a stage has: the update of a parameter and, inside of the
// action U, the reduced gradient and the ids of its rows if it is row-sparse.
struct StageGradient {
  train::UpdateOp update;
  mlir::Value gradient, ids;
};
using StageGradients = llvm::SmallVector<StageGradient>;
// Stages that hold a copy of each parameter.
using Holders = std::map<llvm::StringRef, std::set<int64_t>>;

// Updates the parameters of each stage by its gradients; `updates` are those of
// all stages in the order of the step.
void emitUpdates(StageBuilder &program, const OutlineOptions &options,
                 llvm::ArrayRef<train::UpdateOp> updates,
                 llvm::ArrayRef<StageGradients> gradients,
                 const Holders &holders);

// Statistics that stages track, by stage: what a microbatch keeps of what was
// there before, a part of 1.
using Tracked = std::map<int64_t, llvm::MapVector<pipe::ValueOp, double>>;

// Each replica tracked its own samples: all go on with the mean.
void averageTracked(StageBuilder &program, const OutlineOptions &options,
                    const Tracked &tracked);

// The same of several pipelines with as many replicas each: all go on with what
// one pipeline would have after the microbatches of all, in their order. Errors
// are emitted at the statistic: one that several stages of a pipeline track.
mlir::LogicalResult joinTracked(StageBuilder &program,
                                const OutlineOptions &options,
                                llvm::ArrayRef<Tracked> tracked);

} // namespace merak
