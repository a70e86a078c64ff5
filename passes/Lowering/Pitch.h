// Rows that begin where a GPU's matrix products want them. Libraries move tiles
// of 16-bit factors and results in pieces of 16 bytes; where rows begin at odd
// places (a vocabulary of 50257 words) they take kernels that are several times
// slower. On GPUs such values lie in buffers with longer rows.
#pragma once

#include "dialects/Pipe/PipeDialect.h"
#include "dialects/Train/TrainDialect.h"
#include "passes/Lowering/Views.h"

namespace merak::lowering {

// The type with rows of whole lines of memory if they begin apart from 16
// bytes, the same type else.
mlir::RankedTensorType withPitch(mlir::RankedTensorType type);

// Whether the value is a factor or the result of a product, as it is or by way
// of views, and nobody needs its rows to lie one behind the other.
bool wantsPitch(mlir::Value value);
// The same for a named value of a stage, by its stores and loads.
bool wantsPitch(pipe::StageOp stage, pipe::ValueOp value);

// `shape` in a buffer of that type or of its type with pitch.
View viewIn(plan::BufferOp buffer, llvm::ArrayRef<int64_t> shape);

} // namespace merak::lowering
