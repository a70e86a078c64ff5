// Collectives that become one: what they must have in common, and how much of
// them.
#pragma once

#include "dialects/Pipe/PipeDialect.h"
#include "mlir/IR/BuiltinOps.h"
#include "passes/Lowering/Touched.h"

#include <tuple>

namespace merak::lowering {

using Buffers = llvm::DenseMap<mlir::StringAttr, plan::BufferOp>;

// Collective, stream, group, reduction, dimension, type of the elements.
using BucketKind =
    std::tuple<plan::Collective, uint64_t, uint64_t,
               std::optional<plan::Reduction>, uint64_t, const void *>;

inline mlir::RankedTensorType typeOf(mlir::Attribute view,
                                     const Buffers &buffers) {
  auto name = mlir::cast<plan::ViewAttr>(view).getBuffer().getAttr();
  return mlir::cast<mlir::RankedTensorType>(buffers.lookup(name).getType());
}

// Of a collective with one operand.
inline BucketKind bucketKind(plan::CollectiveOp op, const Buffers &buffers) {
  return {
      op.getOp(),
      op.getStream(),
      op.getGroup(),
      op.getReduction(),
      op.getDim(),
      typeOf(op.getInputs()[0], buffers).getElementType().getAsOpaquePointer()};
}

// The larger of all inputs and all outputs, as messages are counted.
int64_t messageBytes(plan::CollectiveOp op, const Buffers &buffers);

// Together with ranks that run other programs.
bool isOverStages(plan::ProgramOp program, plan::CollectiveOp op);

// Of several pipelines: those that hold the same parameters, by the name of
// their axis; empty: it sums over no such. All sum them in the update, in its
// order.
llvm::StringRef holdersOf(plan::ProgramOp program, plan::CollectiveOp op);
inline bool isOverHolders(plan::ProgramOp program, plan::CollectiveOp op) {
  return !holdersOf(program, op).empty();
}

// A buffer of the step that sums gradients.
bool isAccumulator(plan::BufferOp buffer);

// Where all that reads the result of instruction `at` copies it into
// accumulators or adds it there: those instructions, by their numbers; else
// none.
llvm::SmallVector<size_t>
additionsOf(llvm::ArrayRef<plan::InstructionOpInterface> ops, size_t at,
            const Buffers &buffers);

// Most bytes of a bucket of several, as the stage phase decided; 0: none.
int64_t notedBucket(mlir::ModuleOp module);

} // namespace merak::lowering
