// Copies of procedures: for one of their calls alone, so that it can do more
// than the others.
#pragma once

#include "dialects/Plan/PlanDialect.h"

namespace merak::lowering {

// Buffers of the procedure that only it uses.
llvm::SmallVector<plan::BufferOp> transientsOf(plan::ProgramOp program,
                                               plan::ProcedureOp procedure);

// The procedure if `call` is its only one, else a copy behind it, with
// transient buffers of its own, that the call runs instead. Names get `suffix`,
// and a number where that is taken.
plan::ProcedureOp ownProcedure(plan::ProgramOp program, plan::CallOp call,
                               llvm::StringRef suffix);

} // namespace merak::lowering
