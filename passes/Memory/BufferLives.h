// From which to which instruction of a procedure a transient buffer is live.
#pragma once

#include "dialects/Plan/PlanDialect.h"
#include "llvm/ADT/MapVector.h"

namespace merak::memory {

struct BufferLife {
  int64_t first = 0, last = 0; // instructions, both included
};

// Live ranges of all buffers that the procedure touches, in order of first
// touch. What streams other than the computation's touch is live until the
// computation has used (and so waited for) what they made, or to the end.
llvm::MapVector<mlir::StringAttr, BufferLife>
bufferLives(plan::ProcedureOp procedure);

} // namespace merak::memory
