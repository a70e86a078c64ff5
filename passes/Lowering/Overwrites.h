// What an instruction may write its results over.
#pragma once

#include "dialects/Plan/PlanDialect.h"

namespace merak::lowering {

// Numbers of the inputs whose place output number `output` may take, once
// nobody else reads them.
llvm::SmallVector<unsigned> overwritable(plan::InstructionOpInterface op,
                                         unsigned output);

// Of a kernel that may write over what an earlier action kept. Others could as
// well, but planning, which has to count the bytes, does not know which they
// are.
inline constexpr llvm::StringLiteral kOverKeptAttr = "over_kept";

// Lets a result take the place of a value that is kept for it from an earlier
// action of the microbatch, as the gradient of logits that of the logits. The
// buffer then lives from the first action of the one to the last of the other.
// Returns how many buffers that saves.
int64_t writeOverKept(plan::ProgramOp program);

} // namespace merak::lowering
