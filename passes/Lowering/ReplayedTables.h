// Tables whose rows take the steps that they were left out of before they are
// read (train.replayed): what a stage keeps beside them, and the instructions.
//
// `reached` says of each row which step it has taken last, `history` what the
// last kReplaySteps steps were.
#pragma once

#include "dialects/Pipe/PipeDialect.h"
#include "dialects/Plan/PlanDialect.h"
#include "passes/Lowering/Views.h"

namespace merak::lowering {

// Numbers of a step in a history, see docs/Kernels.md.
inline constexpr int64_t kReplayNumbers = 4;

struct ReplayedTable {
  pipe::UpdateOp update;
  // Something else than lookups reads it: all rows take every step in the
  // update.
  bool isWholeEachStep = false;
  plan::BufferOp reached, history;
};

// The table's local type gives those of the buffers.
mlir::RankedTensorType reachedType(mlir::RankedTensorType table);
mlir::RankedTensorType historyType(mlir::MLIRContext *context);

// Whether nothing of the stage but lookups of its rows reads the parameter.
bool isOnlyLookedUp(pipe::StageOp stage, llvm::StringRef parameter);

// Which rows a replay is of.
struct ReplayedRows {
  std::optional<View> ids;           // none: a stripe
  std::optional<int64_t> globalRows; // negative ids count from their end
  mlir::Attribute firstRow;          // a scalar, with ids
  int64_t stripes = 1;
};
// `tensors`: the table and its states.
plan::LibraryOp createReplay(mlir::OpBuilder &builder, mlir::Location location,
                             const ReplayedTable &table,
                             llvm::ArrayRef<View> tensors,
                             const ReplayedRows &rows);
// What the update itself has besides: attributes, and outputs behind the
// states.
void addReached(mlir::OpBuilder &builder, const ReplayedTable &table,
                llvm::SmallVectorImpl<View> &outputs,
                llvm::SmallVectorImpl<mlir::NamedAttribute> &attrs);
// All of a buffer.
View wholeOf(plan::BufferOp buffer);

} // namespace merak::lowering
