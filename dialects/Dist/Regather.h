// Gathers of values of the forward pass that it gathers as well (sequence
// parallelism, docs/Seams.md): instead of the gathered value its parts are
// kept.
#pragma once

#include "llvm/ADT/StringRef.h"

namespace merak::dist {

// On such an op, and on the collective that it becomes: it reads what was there
// before its action, and stands where its result is used first. So it may run
// ahead of what it stands behind.
inline constexpr llvm::StringLiteral kRegatherAttr = "dist.regather";

} // namespace merak::dist
